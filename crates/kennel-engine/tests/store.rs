//! The store's file: each problem has its own error, and nothing is ever lost or replaced silently.

mod common;

use common::{Bench, check_history, request};
use kennel_core::Provider;
use kennel_engine::{Cause, EventFilter, SessionFilter, SessionState, Sessions, Store, StoreProblem};
use kennel_mock::Mock;
use kennel_types::{ErrorCode, LimitReason, NextStep};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Stores of every released version, as SQL.
const VERSIONS: [&str; 3] =
    [include_str!("stores/v1.sql"), include_str!("stores/v2.sql"), include_str!("stores/v3.sql")];

fn raw(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

async fn problem(path: &Path) -> (kennel_core::Error, StoreProblem) {
    let error = Store::open(path).await.err().expect("it is refused");
    let problem = StoreProblem::from_error(&error).expect("it is about the store").clone();
    (error, problem)
}

#[tokio::test]
async fn a_store_of_every_version_is_migrated() {
    for (index, dump) in VERSIONS.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kennel.db");
        raw(&path).execute_batch(dump).unwrap();
        let found: u32 = raw(&path).pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        assert_eq!(found as usize, index + 1, "the dump sets its version");
        let store = Store::open(&path).await.unwrap();
        assert_eq!(store.id(), "5eed5eed5eed5eed");
        let sessions = Sessions::new(store, vec![Arc::new(Mock::new()) as Arc<dyn Provider>]);
        let listed = sessions.list(&SessionFilter::default()).await.unwrap();
        let names: Vec<_> = listed.iter().map(|session| (session.label(), session.state)).collect();
        assert_eq!(names, [("failed-one", SessionState::Failed), ("first", SessionState::Running)]);
        let failed = sessions.show("failed-one").await.unwrap();
        assert_eq!((failed.summary.cause, failed.summary.exit_code), (Cause::Exited, Some(3)));
        assert_eq!(failed.log.unwrap(), ["one", "two"]);
        assert_eq!(failed.summary.project.as_deref(), Some("/home/ann/project"));
        assert_eq!(sessions.secret("first").await.unwrap().as_deref(), Some("s3cret"));
        assert_eq!(sessions.events(&EventFilter::default()).await.unwrap().len(), 5);
        check_history(&sessions).await;
    }
}

/// The newest fixture is what this version writes, so a new migration needs a new one.
#[tokio::test]
async fn every_version_has_its_fixture() {
    let dir = tempfile::tempdir().unwrap();
    let (new, old) = (dir.path().join("new.db"), dir.path().join("old.db"));
    drop(Store::open(&new).await.unwrap());
    raw(&old).execute_batch(VERSIONS.last().unwrap()).unwrap();
    let read = |path: &Path| {
        let connection = raw(path);
        let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        let mut tables = connection.prepare("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").unwrap();
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
        // Only what the statements mean counts, not their spaces and comments.
        let plain = |sql: &str| {
            let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
            lines.flat_map(str::chars).filter(|char| !char.is_whitespace()).collect::<String>()
        };
        let tables = tables.query_map([], row).unwrap().map(Result::unwrap);
        let tables: std::collections::BTreeMap<_, _> = tables.map(|(name, sql)| (name, plain(&sql))).collect();
        (version as usize, tables)
    };
    assert_eq!(read(&new).0, VERSIONS.len(), "each version has a fixture");
    assert_eq!(read(&new), read(&old));
}

#[tokio::test]
async fn a_newer_store_is_refused_and_kept() {
    let bench = Bench::new().await;
    bench.open(request()).await;
    let connection = raw(&bench.store());
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let (error, problem) = problem(&bench.store()).await;
    assert_eq!(error.code(), ErrorCode::Unsupported, "{error}");
    assert!(matches!(problem, StoreProblem::Newer { found: 99, .. }), "{problem:?}");
    let rows: u32 = raw(&bench.store()).query_row("SELECT count(*) FROM sessions", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn a_damaged_store_is_moved_aside_and_never_replaced_silently() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kennel.db");
    std::fs::write(&path, "this is no database, but long enough to be taken for one".repeat(100)).unwrap();
    std::fs::write(dir.path().join("kennel.db-wal"), "more").unwrap();
    let (error, found) = problem(&path).await;
    let first = dir.path().join("kennel.db.corrupt-1");
    assert_eq!(found, StoreProblem::Corrupt { moved_to: first.clone() }, "{error}");
    assert_eq!(error.next_step(), Some(&NextStep::AdoptSandboxes));
    assert!(std::fs::read_to_string(&first).unwrap().starts_with("this is no database"));
    assert_eq!(std::fs::read_to_string(dir.path().join("kennel.db.corrupt-1-wal")).unwrap(), "more");
    assert!(!path.exists(), "no new store replaces it without a request");

    // A page in the middle of a real store.
    let id = {
        let mock = Mock::new();
        let sessions = Sessions::new(Store::open(&path).await.unwrap(), vec![Arc::new(mock) as Arc<dyn Provider>]);
        for _ in 0..20 {
            sessions.open(request()).await.unwrap();
        }
        sessions.store().id().to_owned()
    };
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xab);
    std::fs::write(&path, &bytes).unwrap();
    let (error, found) = problem(&path).await;
    let second = dir.path().join("kennel.db.corrupt-2");
    assert_eq!(found, StoreProblem::Corrupt { moved_to: second.clone() }, "{error}");
    assert_eq!(std::fs::read(&second).unwrap(), bytes);
    assert_ne!(Store::open(&path).await.unwrap().id(), id, "the next one is a new store");
}

/// A large store is not checked at every opening, but damage is noticed when it is used or reconciled.
#[tokio::test]
async fn damage_to_a_large_store_is_found_and_nothing_is_removed_because_of_it() {
    let bench = Bench::new().await;
    let id = bench.open(request()).await;
    let connection = raw(&bench.store());
    connection
        .execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) \
             INSERT INTO sessions (id, state, wanted, revision, provider, sandbox, spec, created_ms, changed_ms, cause) \
             SELECT 'x' || i, 'completed', 'stopped', 1, provider, 'y' || i, spec, 0, 0, 'exited' FROM sessions, n \
             WHERE id = '{id}'; \
             PRAGMA wal_checkpoint(TRUNCATE);"
        ))
        .unwrap();
    drop(connection);
    let (path, mock) = (bench.store(), bench.mock.clone());
    let Bench { dir, sessions, .. } = bench;
    drop(sessions);
    let mut bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() > 512 * 1024, "{}", bytes.len());
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 10 * 4096].fill(0xab);
    std::fs::write(&path, &bytes).unwrap();

    let sessions = Sessions::new(Store::open(&path).await.unwrap(), vec![Arc::new(mock.clone()) as Arc<dyn Provider>]);
    let error = sessions.plan().await.unwrap_err();
    assert_eq!(StoreProblem::from_error(&error), Some(&StoreProblem::Damaged), "{error}");
    drop(sessions);
    assert_eq!(mock.list().await.unwrap().len(), 1);
    let (error, found) = problem(&path).await;
    let moved_to = dir.path().join("kennel.db.corrupt-1");
    assert_eq!(found, StoreProblem::Corrupt { moved_to: moved_to.clone() }, "{error}");
    assert_eq!(std::fs::read(&moved_to).unwrap(), bytes);
    Store::open(&path).await.unwrap();
    let mut left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["kennel.db", "kennel.db.claims", "kennel.db.corrupt-1", "kennel.db.lock"]);
}

#[tokio::test]
async fn a_full_disk_loses_nothing() {
    let bench = Bench::new().await;
    let kept = bench.open(request()).await;
    let tmpfs = Tmpfs::mount(bench.dir.path(), 2 * 1024 * 1024);
    let sessions =
        Sessions::new(Store::open(tmpfs.0.join("kennel.db")).await.unwrap(), vec![Arc::new(bench.mock.clone()) as _]);
    let mut opened = Vec::new();
    let error = loop {
        match sessions.open(request()).await {
            Ok(session) => opened.push(session.summary.id),
            Err(error) => break error,
        }
        assert!(opened.len() < 10_000, "the disk never fills");
    };
    assert_eq!((error.code(), error.reason()), (ErrorCode::LimitExceeded, Some(LimitReason::OutOfDisk)), "{error}");
    assert_eq!(StoreProblem::from_error(&error), Some(&StoreProblem::Full), "{error}");
    assert!(opened.len() > 10, "{}", opened.len());
    for id in &opened {
        assert_eq!(sessions.show(id.as_str()).await.unwrap().summary.state, SessionState::Running);
    }
    check_history(&sessions).await;
    // Recorded data is still there for a later process, and the sandbox that could not be recorded is removed.
    drop(sessions);
    let store = Store::open(tmpfs.0.join("kennel.db")).await.unwrap();
    let sessions = Sessions::new(store, vec![Arc::new(bench.mock.clone()) as _]);
    let listed = sessions.list(&SessionFilter::default()).await.unwrap();
    assert!(opened.iter().all(|id| listed.iter().any(|session| session.id == *id)));
    assert_eq!(bench.sessions.show(kept.as_str()).await.unwrap().summary.state, SessionState::Running);
    assert!(bench.mock.list().await.unwrap().len() <= opened.len() + 1);
}

/// A small disk. The test needs root.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn mount(dir: &Path, bytes: usize) -> Self {
        let at = dir.join("small");
        std::fs::create_dir(&at).unwrap();
        let size = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        rustix::mount::mount("tmpfs", &at, "tmpfs", rustix::mount::MountFlags::empty(), Some(size.as_c_str())).unwrap();
        Self(at)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_locked_store_is_a_timeout_that_loses_nothing() {
    let bench = Bench::new().await;
    let id = bench.open(request()).await;
    let store = Store::open_patiently(bench.store(), Duration::from_millis(10)).await.unwrap();
    let sessions = Sessions::new(store, vec![Arc::new(bench.mock.clone()) as Arc<dyn Provider>]);
    let other = raw(&bench.store());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = bench.mock.list().await.unwrap();
    let error = sessions.open(request()).await.unwrap_err();
    assert_eq!(
        (error.code(), StoreProblem::from_error(&error)),
        (ErrorCode::Timeout, Some(&StoreProblem::Locked)),
        "{error}"
    );
    assert!(error.retryable());
    let error = sessions.stop(id.as_str(), Duration::ZERO).await.unwrap_err();
    assert_eq!(StoreProblem::from_error(&error), Some(&StoreProblem::Locked), "{error}");
    assert_eq!(bench.mock.list().await.unwrap(), before, "nothing was made or stopped without a record");
    assert_eq!(sessions.show(id.as_str()).await.unwrap().summary.state, SessionState::Running, "it can be read");
    other.execute_batch("ROLLBACK").unwrap();
    sessions.stop(id.as_str(), Duration::ZERO).await.unwrap();
    sessions.open(request()).await.unwrap();
    check_history(&sessions).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_write_at_once() {
    let bench = Bench::new().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let sessions = bench.another().await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let id = sessions.open(request()).await.unwrap().summary.id;
                sessions.stop(id.as_str(), Duration::ZERO).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(bench.sessions.list(&SessionFilter::default()).await.unwrap().len(), 40);
    bench.check().await;
}
