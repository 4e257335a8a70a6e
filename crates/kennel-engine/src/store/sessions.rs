//! Sessions in the store. Every change is one transaction that also writes its event.

use super::events::{self, NewEvent};
use super::{Store, now_ms, problem};
use crate::session::{Cause, Session, SessionFilter, SessionId, SessionState, SessionSummary, Wanted, no_session};
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, Field, NextStep, SandboxId, SandboxSpec};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params, params_from_iter};
use std::path::{Path, PathBuf};

/// A session to record. Its first state is `creating`.
pub(crate) struct NewSession {
    pub(crate) id: SessionId,
    pub(crate) name: Option<String>,
    pub(crate) provider: String,
    pub(crate) sandbox: SandboxId,
    pub(crate) spec: SandboxSpec,
    pub(crate) source: Option<String>,
    pub(crate) secret: Option<String>,
    pub(crate) cause: Cause,
}

/// A change of a session's state, with the result that it leaves.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) to: SessionState,
    pub(crate) wanted: Wanted,
    pub(crate) cause: Cause,
    pub(crate) exit_code: Option<i32>,
    pub(crate) error: Option<String>,
    pub(crate) log: Option<Vec<String>>,
}

impl Change {
    pub(crate) fn new(to: SessionState, cause: Cause) -> Self {
        let wanted = if matches!(to, SessionState::Creating | SessionState::Running) {
            Wanted::Running
        } else {
            Wanted::Stopped
        };
        Self { to, wanted, cause, exit_code: None, error: None, log: None }
    }
}

/// Whether a change was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Outcome {
    /// It was.
    Recorded,
    /// The session was changed or removed since it was read. Nothing was recorded.
    Stale,
}

const SUMMARY: &str = "number, id, name, state, wanted, revision, provider, sandbox, project, profile, workspace, \
                       auto_remove, created_ms, changed_ms, cause, exit_code";

impl Store {
    /// Records a new session.
    pub(crate) async fn insert(&self, new: NewSession) -> Result<()> {
        self.write(move |transaction| insert(transaction, &new)).await
    }

    /// Returns a session by its id.
    pub(crate) async fn get(&self, id: &SessionId) -> Result<Option<Session>> {
        let id = id.clone();
        self.read(move |connection| one(connection, "id = ?1", id.as_str())).await
    }

    /// Returns a session by its id or name.
    pub(crate) async fn find(&self, id_or_name: &str) -> Result<Session> {
        let name = id_or_name.to_owned();
        self.read(move |connection| {
            if let Some(session) = one(connection, "id = ?1", &name)? {
                return Ok(session);
            }
            one(connection, "name = ?1", &name)?.ok_or_else(|| no_session(&name))
        })
        .await
    }

    /// Returns the selected sessions, newest first.
    pub(crate) async fn list(&self, filter: &SessionFilter) -> Result<Vec<SessionSummary>> {
        let filter = filter.clone();
        self.read(move |connection| list(connection, &filter)).await
    }

    /// Records a change of state, if the session is still as it was read.
    pub(crate) async fn change(&self, seen: &SessionSummary, change: Change) -> Result<Outcome> {
        let seen = seen.clone();
        self.write(move |transaction| record(transaction, &seen, &change)).await
    }

    /// Records what is requested of a session, if it is still as it was read.
    pub(crate) async fn want(
        &self,
        seen: &SessionSummary,
        wanted: Wanted,
        cause: Cause,
        detail: Option<String>,
    ) -> Result<Outcome> {
        let seen = seen.clone();
        self.write(move |transaction| {
            let sql = "UPDATE sessions SET wanted = ?1, revision = revision + 1 \
                       WHERE id = ?2 AND revision = ?3 AND state = ?4";
            let values = (wanted.name(), seen.id.as_str(), seen.revision as i64, seen.state.name());
            if executed(transaction, sql, values)? == 0 {
                return Ok(Outcome::Stale);
            }
            let event = NewEvent { from: Some(seen.state), to: Some(seen.state), cause, detail };
            events::append(transaction, &seen.id, &event)?;
            Ok(Outcome::Recorded)
        })
        .await
    }

    /// Forgets a session that is being removed. Its events stay.
    pub(crate) async fn delete(&self, seen: &SessionSummary) -> Result<Outcome> {
        let seen = seen.clone();
        self.write(move |transaction| {
            check(Some(seen.state), None)?;
            let sql = "DELETE FROM sessions WHERE id = ?1 AND revision = ?2 AND state = ?3";
            if executed(transaction, sql, (seen.id.as_str(), seen.revision as i64, seen.state.name()))? == 0 {
                return Ok(Outcome::Stale);
            }
            for table in ["agents", "messages", "partial_lines"] {
                executed(transaction, &format!("DELETE FROM {table} WHERE session = ?1"), [seen.id.as_str()])?;
            }
            let event = NewEvent { from: Some(seen.state), to: None, cause: Cause::Requested, detail: None };
            events::append(transaction, &seen.id, &event)?;
            Ok(Outcome::Recorded)
        })
        .await
    }

    /// Returns the secret of a session, if it has one.
    pub(crate) async fn secret(&self, id: &SessionId) -> Result<Option<String>> {
        let id = id.clone();
        self.read(move |connection| {
            let found = connection
                .prepare_cached("SELECT secret FROM sessions WHERE id = ?1")
                .and_then(|mut query| query.query_row([id.as_str()], |row| row.get(0)).optional());
            sql(connection, found).map(Option::flatten)
        })
        .await
    }
}

fn insert(transaction: &Transaction<'_>, new: &NewSession) -> Result<()> {
    check(None, Some(SessionState::Creating))?;
    // A name that is also an id would make both ambiguous.
    let taken = new.name.as_deref().map(|name| exists(transaction, "name = ?1 OR id = ?1", name)).transpose()?;
    if taken == Some(true) || exists(transaction, "id = ?1 OR name = ?1", new.id.as_str())? {
        let name = new.name.as_deref().unwrap_or(new.id.as_str());
        return Err(Error::new(ErrorCode::AlreadyExists, format!("there is already a session called {name}"))
            .suggest(NextStep::ChooseAnother { field: Field::Name }));
    }
    let spec = serde_json::to_string(&new.spec)
        .map_err(|error| Error::new(ErrorCode::InvalidConfig, format!("record session {}: {error}", new.id)))?;
    let now = now_ms();
    let inserted = transaction
        .prepare_cached(
            "INSERT INTO sessions \
                (id, name, state, wanted, revision, provider, sandbox, spec, source, secret, created_ms, changed_ms, \
                 cause) \
             VALUES (:id, :name, :state, :wanted, 1, :provider, :sandbox, :spec, :source, :secret, :now, :now, :cause)",
        )
        .and_then(|mut statement| {
            statement.execute(named_params! {
                ":id": new.id.as_str(),
                ":name": new.name,
                ":state": SessionState::Creating.name(),
                ":wanted": Wanted::Running.name(),
                ":provider": new.provider,
                ":sandbox": new.sandbox.as_str(),
                ":spec": spec,
                ":source": new.source,
                ":secret": new.secret,
                ":now": now as i64,
                ":cause": new.cause.name(),
            })
        });
    sql(transaction, inserted)?;
    let event = NewEvent { from: None, to: Some(SessionState::Creating), cause: new.cause, detail: None };
    events::append(transaction, &new.id, &event)
}

fn record(transaction: &Transaction<'_>, seen: &SessionSummary, change: &Change) -> Result<Outcome> {
    check(Some(seen.state), Some(change.to))?;
    let log = change.log.as_ref().map(|lines| serde_json::Value::from(lines.clone()).to_string());
    let updated = transaction
        .prepare_cached(
            "UPDATE sessions SET state = :to, wanted = :wanted, revision = revision + 1, changed_ms = :now, \
                cause = :cause, exit_code = :exit_code, error = :error, log = :log \
             WHERE id = :id AND revision = :revision AND state = :from",
        )
        .and_then(|mut statement| {
            statement.execute(named_params! {
                ":to": change.to.name(),
                ":wanted": change.wanted.name(),
                ":now": now_ms() as i64,
                ":cause": change.cause.name(),
                ":exit_code": change.exit_code,
                ":error": change.error,
                ":log": log,
                ":id": seen.id.as_str(),
                ":revision": seen.revision as i64,
                ":from": seen.state.name(),
            })
        });
    if sql(transaction, updated)? == 0 {
        return Ok(Outcome::Stale);
    }
    let event =
        NewEvent { from: Some(seen.state), to: Some(change.to), cause: change.cause, detail: change.error.clone() };
    events::append(transaction, &seen.id, &event)?;
    Ok(Outcome::Recorded)
}

/// Refuses a transition that the state machine does not have.
fn check(from: Option<SessionState>, to: Option<SessionState>) -> Result<()> {
    if SessionState::may_become(from, to) {
        return Ok(());
    }
    let name = |state: Option<SessionState>| state.map_or("none", SessionState::name);
    Err(Error::new(ErrorCode::Internal, format!("a session cannot go from {} to {}", name(from), name(to))))
}

fn list(connection: &Connection, filter: &SessionFilter) -> Result<Vec<SessionSummary>> {
    let mut conditions = Vec::new();
    let mut values: Vec<Value> = Vec::new();
    if !filter.states.is_empty() {
        conditions.push(format!("state IN ({})", vec!["?"; filter.states.len()].join(", ")));
        values.extend(filter.states.iter().map(|state| Value::from(state.name().to_owned())));
    }
    for (column, value) in [("project", &filter.project), ("profile", &filter.profile)] {
        if let Some(value) = value {
            conditions.push(format!("{column} = ?"));
            values.push(value.clone().into());
        }
    }
    if let Some(before) = filter.before {
        conditions.push("number < ?".into());
        values.push(Value::from(before.min(i64::MAX as u64) as i64));
    }
    let wheres = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
    values.push(Value::from(filter.limit.map_or(-1, |limit| limit as i64)));
    let query = format!("SELECT {SUMMARY} FROM sessions {wheres} ORDER BY number DESC LIMIT ?");
    let found = connection.prepare_cached(&query).and_then(|mut query| {
        query.query_map(params_from_iter(values), summary)?.collect::<rusqlite::Result<Vec<_>>>()
    });
    sql(connection, found)
}

fn one(connection: &Connection, condition: &str, value: &str) -> Result<Option<Session>> {
    let query = format!("SELECT {SUMMARY}, spec, source, error, log FROM sessions WHERE {condition}");
    let found = connection.prepare_cached(&query).and_then(|mut query| query.query_row([value], session).optional());
    sql(connection, found)
}

fn exists(connection: &Connection, condition: &str, value: &str) -> Result<bool> {
    let query = format!("SELECT EXISTS (SELECT 1 FROM sessions WHERE {condition})");
    let found = connection.prepare_cached(&query).and_then(|mut query| query.query_row([value], |row| row.get(0)));
    sql(connection, found)
}

fn executed(transaction: &Transaction<'_>, statement: &str, values: impl rusqlite::Params) -> Result<usize> {
    sql(transaction, transaction.prepare_cached(statement).and_then(|mut statement| statement.execute(values)))
}

/// Names the file in an error of SQLite.
pub(crate) fn sql<T>(connection: &Connection, done: rusqlite::Result<T>) -> Result<T> {
    done.map_err(|error| problem::error(Path::new(connection.path().unwrap_or_default()), "use", error))
}

fn session(row: &Row<'_>) -> rusqlite::Result<Session> {
    let spec: String = row.get("spec")?;
    let log: Option<String> = row.get("log")?;
    Ok(Session {
        summary: summary(row)?,
        spec: serde_json::from_str(&spec).map_err(|error| unreadable(row, "spec", error))?,
        source: row.get("source")?,
        error: row.get("error")?,
        log: log.map(|log| serde_json::from_str(&log).map_err(|error| unreadable(row, "log", error))).transpose()?,
    })
}

fn summary(row: &Row<'_>) -> rusqlite::Result<SessionSummary> {
    let text = |column: &str| row.get::<_, String>(column);
    let id = |column: &str| SandboxId::new(text(column)?).map_err(|error| unreadable(row, column, error));
    Ok(SessionSummary {
        number: row.get::<_, i64>("number")? as u64,
        id: SessionId::from_valid(id("id")?),
        name: row.get("name")?,
        state: named(row, "state", SessionState::named)?,
        wanted: named(row, "wanted", Wanted::named)?,
        revision: row.get::<_, i64>("revision")? as u64,
        provider: text("provider")?,
        sandbox: id("sandbox")?,
        project: row.get("project")?,
        profile: row.get("profile")?,
        workspace: row.get::<_, Option<String>>("workspace")?.map(PathBuf::from),
        auto_remove: row.get::<_, Option<bool>>("auto_remove")?.unwrap_or_default(),
        created_ms: row.get::<_, i64>("created_ms")? as u64,
        changed_ms: row.get::<_, i64>("changed_ms")? as u64,
        cause: named(row, "cause", Cause::named)?,
        exit_code: row.get("exit_code")?,
    })
}

/// Reads a column whose values have names.
pub(super) fn named<T>(row: &Row<'_>, column: &str, find: impl Fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    let name: String = row.get(column)?;
    find(&name).ok_or_else(|| unreadable(row, column, format!("unknown {column} {name:?}")))
}

/// The error for a value that this release cannot have written.
pub(super) fn unreadable(
    row: &Row<'_>,
    column: &str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    let index = row.as_ref().column_index(column).unwrap_or_default();
    rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Text, error.into())
}
