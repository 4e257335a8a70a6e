-- A store of version 2. It is never changed: tests/store.rs migrates it.
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
PRAGMA user_version = 2;
COMMIT;
