//! Opens a store's file: creates it, checks it, migrates it, or moves a damaged one aside.

use super::{Shared, Store, migrate, problem};
use crate::Failpoints;
use kennel_core::{Error, Result};
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A file up to this size is checked whenever it is opened, which takes about a millisecond. A larger one is checked by
/// reconciliation, and after damage was noticed.
const SMALL: u64 = 256 * 1024;

/// How many prepared statements a connection keeps.
const STATEMENTS: usize = 32;

pub(super) fn open(path: PathBuf, busy: Duration) -> Result<Store> {
    open_with(path, busy, migrate::MIGRATIONS)
}

fn open_with(path: PathBuf, busy: Duration, migrations: &[&str]) -> Result<Store> {
    // One process at a time: otherwise one could move aside what another has just created.
    let _lock = exclude_others(&path, busy)?;
    create_private(&path)?;
    let log = KeptLog::link(&path);
    match connect(&path, busy, migrations) {
        Ok((writer, reader, id)) => {
            let shared = Shared { path, id, writer: Mutex::new(writer), reader: Mutex::new(reader) };
            Ok(Store { shared: Arc::new(shared), failpoints: Failpoints::default(), observer: None })
        }
        Err(Refusal::Damaged(why)) => {
            let moved_to = move_aside(&path, &log)?;
            Err(problem::corrupt(&path, moved_to, &why))
        }
        Err(Refusal::Other(error)) => Err(error),
    }
}

/// Why a file cannot be used.
enum Refusal {
    Damaged(String),
    Other(Error),
}

/// Opens both connections, and returns them with the store's id.
fn connect(path: &Path, busy: Duration, migrations: &[&str]) -> Result<(Connection, Connection, String), Refusal> {
    let refuse = |error: rusqlite::Error| {
        if problem::is_corruption(&error) {
            Refusal::Damaged(error.to_string())
        } else {
            Refusal::Other(problem::error(path, "open", error))
        }
    };
    let mut writer = connection(path, busy).map_err(refuse)?;
    let small = std::fs::symlink_metadata(path).is_ok_and(|file| file.len() <= SMALL);
    if small || mark(path).exists() {
        let found = check(&writer).map_err(refuse)?;
        if found != "ok" {
            return Err(Refusal::Damaged(found));
        }
        let _ = std::fs::remove_file(mark(path));
    }
    migrate::migrate(&mut writer, path, migrations).map_err(|error| {
        match problem::StoreProblem::from_error(&error) {
            Some(problem::StoreProblem::Damaged) => Refusal::Damaged(error.to_string()),
            _ => Refusal::Other(error),
        }
    })?;
    let id = writer.query_row("SELECT value FROM meta WHERE key = 'id'", [], |row| row.get(0)).map_err(refuse)?;
    let reader = connection(path, busy).map_err(refuse)?;
    reader.pragma_update(None, "query_only", true).map_err(refuse)?;
    Ok((writer, reader, id))
}

/// Checks the whole file, and returns what is wrong with it, or "ok".
pub(super) fn check(connection: &Connection) -> rusqlite::Result<String> {
    connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
}

/// Marks a store that turned out to be damaged, so that it is checked when it is opened next.
pub(super) fn mark_damaged(path: &Path) {
    // Without the mark, the damage is found again.
    let _ = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(mark(path));
}

fn mark(path: &Path) -> PathBuf {
    with_suffix(path, ".damaged")
}

fn connection(path: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    // The file exists already, with the right permissions. SQLite gives its other files the same ones.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    // The symlinks of the directory are the user's own choice; only the file itself must not be one.
    let resolved = match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(dir)), Some(name)) => dir.join(name),
        _ => path.to_owned(),
    };
    let connection = Connection::open_with_flags(resolved, flags)?;
    connection.busy_timeout(busy)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "normal")?;
    Ok(connection)
}

/// Creates the directory and an empty file, which only the owner can read.
fn create_private(path: &Path) -> Result<()> {
    let failed = |error| Error::io(format!("create {}", path.display()), error);
    if let Some(dir) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    }
    // A file that exists is not opened here: closing it would release the locks that SQLite has on it in this process.
    match OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        created => return created.map(drop).map_err(failed),
    }
    let permissions = std::fs::symlink_metadata(path).map_err(failed)?.permissions();
    if permissions.mode() & 0o077 != 0 {
        // The secrets of sessions are in it.
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(failed)?;
    }
    Ok(())
}

/// Takes the lock on the file next to the store.
fn exclude_others(path: &Path, busy: Duration) -> Result<File> {
    let lock_path = with_suffix(path, ".lock");
    let failed = |error: std::io::Error| Error::io(format!("lock {}", lock_path.display()), error);
    if let Some(dir) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    }
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&lock_path).map_err(failed)?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if start.elapsed() < busy => {
                #[expect(clippy::disallowed_methods, reason = "the backoff between two attempts to take the lock")]
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(problem::locked(path, busy)),
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// A second name for the write-ahead log while the store is opened. SQLite deletes the log of a file that it does not
/// recognize, and the log may have the only copy of the last changes.
struct KeptLog(PathBuf);

impl KeptLog {
    fn link(path: &Path) -> Self {
        let kept = Self(with_suffix(path, "-wal.kept"));
        let _ = std::fs::remove_file(&kept.0);
        // Usually there is none.
        let _ = std::fs::hard_link(with_suffix(path, "-wal"), &kept.0);
        kept
    }
}

impl Drop for KeptLog {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Moves a damaged store and the files that belong to it to names that nothing else has.
fn move_aside(path: &Path, log: &KeptLog) -> Result<PathBuf> {
    let mut n = 1;
    let to = loop {
        let to = with_suffix(path, &format!(".corrupt-{n}"));
        if to.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            break to;
        }
        n += 1;
    };
    let shift = |from: &Path, to: &Path| match std::fs::rename(from, to) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|error| Error::io(format!("move the damaged {} aside", from.display()), error)),
    };
    // The file itself goes last: after a crash in between, it is still found to be damaged.
    shift(&log.0, &with_suffix(&to, "-wal"))?;
    shift(&with_suffix(path, "-wal"), &with_suffix(&to, "-wal"))?;
    shift(&with_suffix(path, "-shm"), &with_suffix(&to, "-shm"))?;
    shift(path, &to)?;
    let _ = std::fs::remove_file(mark(path));
    Ok(to)
}

/// Appends a suffix to the last component of a path.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut whole = path.as_os_str().to_owned();
    whole.push(suffix);
    whole.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::problem::StoreProblem;
    use std::os::unix::fs::MetadataExt;

    const PATIENCE: Duration = Duration::from_mins(1);

    fn at(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().join("state/kennel.db")
    }

    #[test]
    fn a_new_store_is_private_and_keeps_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(at(&dir), PATIENCE).unwrap();
        let id = store.id().to_owned();
        assert_eq!(id.len(), 16);
        for end in ["", "-wal", "-shm", ".lock"] {
            let mode = std::fs::metadata(with_suffix(&at(&dir), end)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{end}");
        }
        assert_eq!(open(at(&dir), PATIENCE).unwrap().id(), id, "at the same time");
        drop(store);
        std::fs::set_permissions(at(&dir), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(open(at(&dir), PATIENCE).unwrap().id(), id, "afterwards");
        assert_eq!(std::fs::metadata(at(&dir)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_older_store_is_migrated_and_a_newer_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let id = open(at(&dir), PATIENCE).unwrap().id().to_owned();
        let later = [migrate::MIGRATIONS, &["CREATE TABLE later (x TEXT) STRICT;"]].concat();
        let migrated = open_with(at(&dir), PATIENCE, &later).unwrap();
        assert_eq!(migrated.id(), id);
        let writer = super::super::lock(&migrated.shared.writer);
        writer.execute("INSERT INTO later (x) VALUES ('kept')", []).unwrap();
        drop(writer);
        drop(migrated);
        let error = open(at(&dir), PATIENCE).err().unwrap();
        assert_eq!(error.code(), kennel_types::ErrorCode::Unsupported, "{error}");
        let known = migrate::MIGRATIONS.len() as u32;
        assert_eq!(StoreProblem::from_error(&error), Some(&StoreProblem::Newer { found: known + 1, known }));
        let again = open_with(at(&dir), PATIENCE, &later).unwrap();
        let kept: String =
            super::super::lock(&again.shared.reader).query_row("SELECT x FROM later", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, "kept");
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let id = open(at(&dir), PATIENCE).unwrap().id().to_owned();
        let broken = [migrate::MIGRATIONS, &["CREATE TABLE later (x TEXT) STRICT; NONSENSE;"]].concat();
        assert!(open_with(at(&dir), PATIENCE, &broken).is_err());
        assert_eq!(open(at(&dir), PATIENCE).unwrap().id(), id, "it still has its version");
    }
}
