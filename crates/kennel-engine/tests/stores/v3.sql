-- A store of version 3. It is never changed: tests/store.rs migrates it.
BEGIN;
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('id', '5eed5eed5eed5eed');

CREATE TABLE sessions (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    name       TEXT UNIQUE,
    state      TEXT NOT NULL,
    wanted     TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    provider   TEXT NOT NULL,
    sandbox    TEXT NOT NULL UNIQUE,
    spec       TEXT NOT NULL,
    project    TEXT GENERATED ALWAYS AS (spec ->> '$.project') STORED,
    profile    TEXT GENERATED ALWAYS AS (spec ->> '$.profile') STORED,
    workspace  TEXT GENERATED ALWAYS AS (spec ->> '$.workspace') STORED,
    auto_remove INTEGER GENERATED ALWAYS AS (spec ->> '$.autoRemove') STORED,
    source     TEXT,
    secret     TEXT,
    created_ms INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL,
    cause      TEXT NOT NULL,
    exit_code  INTEGER,
    error      TEXT,
    log        TEXT
) STRICT;
CREATE INDEX sessions_by_project ON sessions (project);
CREATE INDEX sessions_by_state ON sessions (state);
INSERT INTO sessions
    (id, name, state, wanted, revision, provider, sandbox, spec, secret, created_ms, changed_ms, cause, exit_code, log)
VALUES
    ('0123456789bc', 'first', 'running', 'running', 2, 'mock', 'bcd0123456789',
     '{"name":"first","image":"debian:13","command":null,"workdir":null,"env":{"A":"b"},"labels":{},"session":null,"store":null,"project":null,"profile":null,"workspace":"/home/ann/work","autoRemove":false}',
     's3cret', 1780000000000, 1780000000500, 'started', NULL, NULL),
    ('1123456789bc', 'failed-one', 'failed', 'stopped', 3, 'mock', 'ccd0123456789',
     '{"name":"failed-one","command":["make"],"project":"/home/ann/project","profile":"dev","autoRemove":true}',
     's3cret2', 1780000001000, 1780000002000, 'exited', 3, '["one","two"]');

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
INSERT INTO events (session, sequence, time_ms, before, after, cause, detail) VALUES
    ('0123456789bc', 1, 1780000000000, NULL, 'creating', 'requested', NULL),
    ('0123456789bc', 2, 1780000000500, 'creating', 'running', 'started', NULL),
    ('1123456789bc', 1, 1780000001000, NULL, 'creating', 'requested', NULL),
    ('1123456789bc', 2, 1780000001500, 'creating', 'running', 'started', NULL),
    ('1123456789bc', 3, 1780000002000, 'running', 'failed', 'exited', NULL);
CREATE TABLE tokens (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    hash        TEXT NOT NULL UNIQUE,
    scope       TEXT NOT NULL,
    project     TEXT,
    directories TEXT NOT NULL,
    limits      TEXT NOT NULL,
    created_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO tokens VALUES
    ('2123456789bc', 'ci', 'c3f2b0c7d1c5bb0e3d5d9b3f5b0c1f0e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c', 'exec', 'shop', '[]', '{}', 1780000003000);
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
INSERT INTO agents VALUES
    ('0123456789bc', 1, '{"name":"claude-code"}', 'relay-1', 7, 1780000000600, 30, 0, 0, 20, 2, 1, 50, '{}', '["one"]');
INSERT INTO messages VALUES
    ('0123456789bc', 1, NULL, 'client_to_agent', 1780000000700, 0, 20, '1', 'x', 0, X'7b7d0a'),
    ('0123456789bc', 2, 1, 'agent_to_client', 1780000000800, 0, 30, '1', NULL, 0, X'7b7d0a');

PRAGMA user_version = 3;
COMMIT;
