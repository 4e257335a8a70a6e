//! The versions of the store. `user_version` in the file is the number of migrations that were applied.
//!
//! A migration is never changed once it is released: a new one is added, and a file of the version before it goes into
//! the tests (`tests/stores`).

use super::{problem, random_hex};
use kennel_core::Result;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::path::Path;

/// The migrations, oldest first.
pub(super) const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE meta (
        key   TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE sessions (
        number     INTEGER PRIMARY KEY AUTOINCREMENT,
        id         TEXT NOT NULL UNIQUE,
        name       TEXT UNIQUE,
        state      TEXT NOT NULL,
        wanted     TEXT NOT NULL,
        revision   INTEGER NOT NULL,
        provider   TEXT NOT NULL,
        sandbox    TEXT NOT NULL UNIQUE,
        -- What was requested, as JSON. SQLite derives the columns after it, for lists and filters.
        spec       TEXT NOT NULL,
        project    TEXT GENERATED ALWAYS AS (spec ->> '$.project') STORED,
        profile    TEXT GENERATED ALWAYS AS (spec ->> '$.profile') STORED,
        workspace  TEXT GENERATED ALWAYS AS (spec ->> '$.workspace') STORED,
        auto_remove INTEGER GENERATED ALWAYS AS (spec ->> '$.autoRemove') STORED,
        source     TEXT,
        secret     TEXT,
        created_ms INTEGER NOT NULL,
        changed_ms INTEGER NOT NULL,
        -- The result: why it has its state, and what is left of its last run.
        cause      TEXT NOT NULL,
        exit_code  INTEGER,
        error      TEXT,
        log        TEXT
    ) STRICT;
    CREATE INDEX sessions_by_project ON sessions (project);
    CREATE INDEX sessions_by_state ON sessions (state);

    -- Events outlive their session, so that a reader that continues from a number learns of its removal.
    CREATE TABLE events (
        number   INTEGER PRIMARY KEY AUTOINCREMENT,
        session  TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        time_ms  INTEGER NOT NULL,
        before   TEXT,
        after    TEXT,
        cause    TEXT NOT NULL,
        detail   TEXT,
        UNIQUE (session, sequence)
    ) STRICT;
",
    "
    -- Who may call the server. Only the hash of a token is stored.
    CREATE TABLE tokens (
        id          TEXT PRIMARY KEY,
        name        TEXT NOT NULL UNIQUE,
        hash        TEXT NOT NULL UNIQUE,
        scope       TEXT NOT NULL,
        project     TEXT,
        -- JSON.
        directories TEXT NOT NULL,
        limits      TEXT NOT NULL,
        created_ms  INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;

    -- Requests that create something, so that a repeated request has no second effect. The id of what is created is
    -- recorded before it is created. Without a response, the request is not finished.
    CREATE TABLE idempotency (
        token      TEXT NOT NULL,
        key        TEXT NOT NULL,
        request    TEXT NOT NULL,
        subject    TEXT NOT NULL,
        status     INTEGER,
        response   TEXT,
        created_ms INTEGER NOT NULL,
        PRIMARY KEY (token, key)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX idempotency_by_time ON idempotency (created_ms);
",
    "
    -- The agent of a session. A relay that takes over increases the epoch; one with an older epoch can write no more.
    CREATE TABLE agents (
        session    TEXT PRIMARY KEY,
        epoch      INTEGER NOT NULL,
        -- What the relay needs to continue, as JSON. No secrets.
        definition TEXT NOT NULL,
        -- The command: its tag, and its id once it was started.
        tag        TEXT NOT NULL,
        process    INTEGER,
        started_ms INTEGER,
        -- The output that is stored, and so acknowledged. If `skipping`, the rest of its line is dropped.
        stdout     INTEGER NOT NULL,
        stderr     INTEGER NOT NULL,
        skipping   INTEGER NOT NULL,
        -- The length of all messages to the agent, the number of messages, and of those that clients see.
        stdin      INTEGER NOT NULL,
        sequence   INTEGER NOT NULL,
        position   INTEGER NOT NULL,
        bytes      INTEGER NOT NULL,
        -- What the relay knows about the conversation, and the last lines of standard error, as JSON.
        knowledge  TEXT NOT NULL,
        log        TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE messages (
        session   TEXT NOT NULL,
        sequence  INTEGER NOT NULL,
        -- The number among those that clients see.
        position  INTEGER,
        direction TEXT NOT NULL,
        time_ms   INTEGER NOT NULL,
        -- Where it begins in the agent's standard input or output, and its length.
        start     INTEGER NOT NULL,
        length    INTEGER NOT NULL,
        -- The envelope. `open` is 1 for a request without a response.
        id        TEXT,
        method    TEXT,
        open      INTEGER NOT NULL,
        content   BLOB NOT NULL,
        PRIMARY KEY (session, sequence)
    ) STRICT;
    CREATE UNIQUE INDEX messages_by_position ON messages (session, position) WHERE position IS NOT NULL;
    CREATE INDEX messages_open ON messages (session, id) WHERE open = 1;

    -- The beginning of a line that is not complete.
    CREATE TABLE partial_lines (
        session TEXT NOT NULL,
        start   INTEGER NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (session, start)
    ) STRICT;
",
];

/// Brings a store to the newest version. Refuses one that is newer than that.
pub(super) fn migrate(connection: &mut Connection, path: &Path, migrations: &[&str]) -> Result<()> {
    let failed = |error| problem::error(path, "migrate", error);
    let known = migrations.len() as u32;
    if version(connection).map_err(failed)? == known {
        return Ok(());
    }
    // Another process may have migrated it before this one got the lock, so the version is read again.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive).map_err(failed)?;
    let found = version(&transaction).map_err(failed)?;
    if found > known {
        return Err(problem::newer(path, found, known));
    }
    for migration in &migrations[found as usize..] {
        transaction.execute_batch(migration).map_err(failed)?;
    }
    if found == 0 {
        create_id(&transaction, path)?;
    }
    transaction.pragma_update(None, "user_version", known).map_err(failed)?;
    transaction.commit().map_err(failed)
}

fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn create_id(transaction: &Transaction<'_>, path: &Path) -> Result<()> {
    let id = random_hex::<8>()?;
    transaction
        .execute("INSERT INTO meta (key, value) VALUES ('id', ?1)", [id])
        .map(drop)
        .map_err(|error| problem::error(path, "write to", error))
}
