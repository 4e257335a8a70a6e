//! Agents of sessions and their messages in the store.

use super::sessions::{named, sql, unreadable};
use super::{Store, now_ms};
use crate::messages::{AgentRecord, Batch, Continued, Direction, Message, OutputRecord};
use crate::session::{SessionId, no_session};
use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};
use serde_json::Value;

const MESSAGE: &str = "sequence, position, direction, time_ms, start, id, method, open, content";

impl Store {
    /// Records the agent of a session. Fails with `conflict` if there is one.
    pub(crate) async fn insert_agent(&self, session: &SessionId, tag: &str, definition: Value) -> Result<()> {
        let (session, tag) = (session.clone(), tag.to_owned());
        self.write(move |transaction| {
            let inserted = transaction.execute(
                "INSERT OR IGNORE INTO agents \
                    (session, epoch, definition, tag, stdout, stderr, skipping, stdin, sequence, position, bytes, \
                     knowledge, log) \
                 SELECT ?1, 1, ?2, ?3, 0, 0, 0, 0, 0, 0, 0, '{}', '[]' FROM sessions WHERE id = ?1",
                params![session.as_str(), definition.to_string(), tag],
            );
            match sql(transaction, inserted)? {
                0 => Err(Error::new(ErrorCode::Conflict, format!("session {session} has an agent, or was removed"))),
                _ => Ok(()),
            }
        })
        .await
    }

    pub(crate) async fn agent_started(&self, session: &SessionId, process: u64) -> Result<()> {
        let session = session.clone();
        self.write(move |transaction| {
            let updated = transaction.execute(
                "UPDATE agents SET process = ?2, started_ms = coalesce(started_ms, ?3) WHERE session = ?1",
                params![session.as_str(), process as i64, now_ms() as i64],
            );
            match sql(transaction, updated)? {
                0 => Err(no_session(&session)),
                _ => Ok(()),
            }
        })
        .await
    }

    pub(crate) async fn agent(&self, session: &SessionId) -> Result<Option<AgentRecord>> {
        let session = session.clone();
        self.read(move |connection| agent(connection, &session)).await
    }

    pub(crate) async fn take_over(&self, session: &SessionId) -> Result<Continued> {
        let session = session.clone();
        self.write(move |transaction| {
            let taken =
                transaction.execute("UPDATE agents SET epoch = epoch + 1 WHERE session = ?1", [session.as_str()]);
            sql(transaction, taken)?;
            let Some(agent) = agent(transaction, &session)? else {
                return Err(Error::new(ErrorCode::NotFound, format!("session {session} has no agent")));
            };
            let pieces = transaction
                .prepare_cached("SELECT content FROM partial_lines WHERE session = ?1 ORDER BY start")
                .and_then(|mut query| {
                    query.query_map([session.as_str()], |row| row.get::<_, Vec<u8>>(0))?.collect::<Result<Vec<_>, _>>()
                });
            let query = format!("SELECT {MESSAGE} FROM messages WHERE session = ?1 AND open = 1 ORDER BY sequence");
            let open = transaction.prepare_cached(&query).and_then(|mut query| {
                query.query_map([session.as_str()], message)?.collect::<rusqlite::Result<Vec<_>>>()
            });
            Ok(Continued { agent, partial: sql(transaction, pieces)?.concat(), open: sql(transaction, open)? })
        })
        .await
    }

    /// Commits batches of several relays. Returns for each whether its relay may write; if not, the batch was left out.
    pub(crate) async fn commit_batches(&self, batches: Vec<Batch>) -> Result<Vec<bool>> {
        self.write(move |transaction| batches.iter().map(|batch| commit(transaction, batch)).collect()).await
    }

    /// Returns messages that follow a number, in the order of this column.
    pub(crate) async fn messages(
        &self,
        session: &SessionId,
        column: &'static str,
        after: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<Message>> {
        let session = session.clone();
        self.read(move |connection| {
            let query = format!(
                "SELECT {MESSAGE} FROM messages WHERE session = ?1 AND {column} > ?2 ORDER BY {column} LIMIT ?3"
            );
            let after = i64::try_from(after).unwrap_or(i64::MAX);
            let found = connection.prepare_cached(&query).and_then(|mut query| {
                let mut rows = query.query(params![session.as_str(), after, limit as i64])?;
                let (mut found, mut size) = (Vec::new(), 0);
                while let Some(row) = rows.next()? {
                    let message = message(row)?;
                    size += message.content.len();
                    if size > bytes && !found.is_empty() {
                        break;
                    }
                    found.push(message);
                }
                Ok(found)
            });
            sql(connection, found)
        })
        .await
    }

    pub(crate) async fn messages_to_agent(&self, session: &SessionId, offset: u64) -> Result<Vec<Message>> {
        let session = session.clone();
        self.read(move |connection| {
            let query = format!(
                "SELECT {MESSAGE} FROM messages WHERE session = ?1 AND start + length > ?2 \
                    AND direction IN ('client_to_agent', 'relay_to_agent') ORDER BY sequence"
            );
            let found = connection.prepare_cached(&query).and_then(|mut query| {
                query.query_map(params![session.as_str(), offset as i64], message)?.collect::<rusqlite::Result<_>>()
            });
            sql(connection, found)
        })
        .await
    }
}

fn commit(transaction: &Transaction<'_>, batch: &Batch) -> Result<bool> {
    sql(transaction, try_commit(transaction, batch))
}

fn try_commit(transaction: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<bool> {
    let Batch { session, epoch, messages, answered, output, line_is_complete, partial, knowledge, log } = batch;
    let mut update = transaction.prepare_cached(
        "UPDATE agents SET \
            stdout = coalesce(?3, stdout), stderr = coalesce(?4, stderr), skipping = coalesce(?5, skipping), \
            stdin = stdin + ?6, sequence = sequence + ?7, position = position + ?8, bytes = bytes + ?9, \
            knowledge = coalesce(?10, knowledge), log = coalesce(?11, log) \
         WHERE session = ?1 AND epoch = ?2",
    )?;
    let length = |of_agent| {
        let chosen = messages.iter().filter(|message| message.direction.is_of_agent() == of_agent);
        chosen.map(|message| message.content.len() as i64).sum::<i64>()
    };
    let (to_agent, of_agent) = (length(false), length(true));
    let is_current = update.execute(params![
        session,
        *epoch as i64,
        output.map(|output| output.stdout as i64),
        output.map(|output| output.stderr as i64),
        output.map(|output| output.skipping),
        to_agent,
        messages.len() as i64,
        messages.iter().filter(|message| message.position.is_some()).count() as i64,
        to_agent + of_agent,
        knowledge.as_ref().map(Value::to_string),
        log.as_ref().map(|log| Value::from(log.clone()).to_string()),
    ])?;
    if is_current == 0 {
        return Ok(false);
    }
    let mut insert = transaction.prepare_cached(
        "INSERT INTO messages \
            (session, sequence, position, direction, time_ms, start, length, id, method, open, content) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    for message in messages {
        insert.execute(params![
            session,
            message.sequence as i64,
            message.position.map(|position| position as i64),
            message.direction.name(),
            message.time_ms as i64,
            message.start as i64,
            message.content.len() as i64,
            message.id,
            message.method,
            message.open,
            message.content,
        ])?;
    }
    let mut answer = transaction.prepare_cached("UPDATE messages SET open = 0 WHERE session = ?1 AND sequence = ?2")?;
    for sequence in answered {
        answer.execute(params![session, *sequence as i64])?;
    }
    if *line_is_complete {
        transaction.prepare_cached("DELETE FROM partial_lines WHERE session = ?1")?.execute([session])?;
    }
    if let Some((start, content)) = partial {
        let mut insert =
            transaction.prepare_cached("INSERT INTO partial_lines (session, start, content) VALUES (?1, ?2, ?3)")?;
        insert.execute(params![session, *start as i64, content])?;
    }
    Ok(true)
}

fn agent(connection: &Connection, session: &SessionId) -> Result<Option<AgentRecord>> {
    let found = connection
        .prepare_cached("SELECT * FROM agents WHERE session = ?1")
        .and_then(|mut query| query.query_row([session.as_str()], |row| record(row, session)).optional());
    sql(connection, found)
}

fn record(row: &Row<'_>, session: &SessionId) -> rusqlite::Result<AgentRecord> {
    let number = |column: &str| row.get::<_, i64>(column).map(|number| number as u64);
    let json = |column: &str| {
        let text: String = row.get(column)?;
        serde_json::from_str::<Value>(&text).map_err(|error| unreadable(row, column, error))
    };
    let log = json("log")?;
    let log = log.as_array().into_iter().flatten().filter_map(|line| line.as_str().map(ToOwned::to_owned));
    Ok(AgentRecord {
        session: session.clone(),
        epoch: number("epoch")?,
        definition: json("definition")?,
        tag: row.get("tag")?,
        process: row.get::<_, Option<i64>>("process")?.map(|process| process as u64),
        started_ms: row.get::<_, Option<i64>>("started_ms")?.map(|time| time as u64),
        output: OutputRecord {
            stdout: number("stdout")?,
            stderr: number("stderr")?,
            skipping: row.get::<_, i64>("skipping")? != 0,
        },
        stdin: number("stdin")?,
        sequence: number("sequence")?,
        position: number("position")?,
        bytes: number("bytes")?,
        knowledge: json("knowledge")?,
        log: log.collect(),
    })
}

fn message(row: &Row<'_>) -> rusqlite::Result<Message> {
    Ok(Message {
        sequence: row.get::<_, i64>("sequence")? as u64,
        position: row.get::<_, Option<i64>>("position")?.map(|position| position as u64),
        direction: named(row, "direction", Direction::named)?,
        time_ms: row.get::<_, i64>("time_ms")? as u64,
        start: row.get::<_, i64>("start")? as u64,
        id: row.get("id")?,
        method: row.get("method")?,
        open: row.get::<_, i64>("open")? != 0,
        content: row.get("content")?,
    })
}
