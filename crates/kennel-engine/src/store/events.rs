//! The numbered events of sessions. They are written in the transaction of the change that they describe.

use super::sessions::{named, sql, unreadable};
use super::{Store, now_ms};
use crate::session::{Cause, EventFilter, SessionEvent, SessionId, SessionState};
use kennel_core::Result;
use rusqlite::{Connection, Row, Transaction, named_params};

/// How many events are kept of sessions that were removed.
const KEPT: i64 = 10_000;

pub(super) struct NewEvent {
    pub(super) from: Option<SessionState>,
    pub(super) to: Option<SessionState>,
    pub(super) cause: Cause,
    pub(super) detail: Option<String>,
}

/// Adds an event to a session's history.
pub(super) fn append(transaction: &Transaction<'_>, session: &SessionId, event: &NewEvent) -> Result<()> {
    let inserted = transaction
        .prepare_cached(
            "INSERT INTO events (session, sequence, time_ms, before, after, cause, detail) \
             VALUES (:session, (SELECT coalesce(max(sequence), 0) + 1 FROM events WHERE session = :session), :now, \
                :before, :after, :cause, :detail)",
        )
        .and_then(|mut statement| {
            statement.execute(named_params! {
                ":session": session.as_str(),
                ":now": now_ms() as i64,
                ":before": event.from.map(SessionState::name),
                ":after": event.to.map(SessionState::name),
                ":cause": event.cause.name(),
                ":detail": event.detail,
            })
        });
    sql(transaction, inserted).map(drop)
}

impl Store {
    /// Returns the selected events, oldest first.
    pub(crate) async fn events(&self, filter: &EventFilter) -> Result<Vec<SessionEvent>> {
        let filter = filter.clone();
        self.read(move |connection| events(connection, &filter)).await
    }

    /// Forgets old events of sessions that were removed. The history of a session that exists is always complete.
    pub(crate) async fn trim_events(&self) -> Result<()> {
        self.write(|transaction| {
            let trimmed = transaction.execute(
                "DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?1 \
                    AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = events.session)",
                [KEPT],
            );
            sql(transaction, trimmed).map(drop)
        })
        .await
    }
}

fn events(connection: &Connection, filter: &EventFilter) -> Result<Vec<SessionEvent>> {
    let (after, limit) = (filter.after.min(i64::MAX as u64) as i64, filter.limit.map_or(-1, |limit| limit as i64));
    let found = match &filter.session {
        None => connection
            .prepare_cached("SELECT * FROM events WHERE number > ?1 ORDER BY number LIMIT ?2")
            .and_then(|mut query| query.query_map((after, limit), event)?.collect()),
        Some(session) => connection
            .prepare_cached("SELECT * FROM events WHERE session = ?3 AND number > ?1 ORDER BY sequence LIMIT ?2")
            .and_then(|mut query| query.query_map((after, limit, session.as_str()), event)?.collect()),
    };
    sql(connection, found)
}

fn event(row: &Row<'_>) -> rusqlite::Result<SessionEvent> {
    let state = |column: &str| match row.get::<_, Option<String>>(column)? {
        None => Ok(None),
        Some(_) => named(row, column, SessionState::named).map(Some),
    };
    let session: String = row.get("session")?;
    Ok(SessionEvent {
        number: row.get::<_, i64>("number")? as u64,
        session: SessionId::new(&session).map_err(|error| unreadable(row, "session", error))?,
        sequence: row.get::<_, i64>("sequence")? as u64,
        time_ms: row.get::<_, i64>("time_ms")? as u64,
        from: state("before")?,
        to: state("after")?,
        cause: named(row, "cause", Cause::named)?,
        detail: row.get("detail")?,
    })
}
