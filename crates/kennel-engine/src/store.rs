//! The store: one SQLite file with everything that no provider knows. It holds what was requested of a session, what
//! happened to it, and how it ended. It holds nothing that can be derived, and it is never the truth about which
//! sandboxes exist.
//!
//! Several processes use one store at once. Each has one connection that writes, in transactions that take the write
//! lock at their start, and one that reads. A transaction that was committed survives SIGKILL; a power loss may undo
//! the last ones, but never damages the file (`synchronous = NORMAL` with a write-ahead log).

mod events;
mod messages;
mod migrate;
mod open;
mod problem;
mod sessions;

pub use problem::StoreProblem;
pub(crate) use sessions::{Change, NewSession, Outcome, sql};

use crate::Failpoints;
use kennel_core::{Error, Result};
use kennel_provider::blocking;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a write waits for the write of another process.
const BUSY: Duration = Duration::from_secs(10);

/// An open store. Clones share it.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    failpoints: Failpoints,
    observer: Option<Arc<StoreObserver>>,
}

/// Receives how long each use of a store took. It must not block.
pub type StoreObserver = dyn Fn(StoreUse, Duration) + Send + Sync;

/// How a store was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreUse {
    /// It was read.
    Read,
    /// It was changed.
    Write,
}

struct Shared {
    path: PathBuf,
    id: String,
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
}

impl Store {
    /// Opens the store in a file, and creates it if it does not exist. The file is readable by its owner only.
    ///
    /// A store of an older version is migrated. Three errors are special, and [`StoreProblem::from_error`] tells them apart:
    /// a store of a newer version is refused; a damaged one is moved aside, and the next call creates a new one; one
    /// that stays locked is a timeout.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::open_patiently(path, BUSY).await
    }

    /// Opens the store, and waits at most this long for the lock of another process, now and in each later write.
    pub async fn open_patiently(path: impl Into<PathBuf>, busy: Duration) -> Result<Self> {
        let path = path.into();
        blocking(move || open::open(path, busy)).await
    }

    /// The random id of the store. Sandboxes of its sessions have it in their labels.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The same store, which tells an observer how long each use takes, waiting included.
    #[must_use]
    pub fn observed(mut self, observer: Arc<StoreObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    #[must_use]
    pub(crate) fn with_failpoints(mut self, failpoints: Failpoints) -> Self {
        self.failpoints = failpoints;
        self
    }

    /// Changes the store in one transaction, which is rolled back if `change` fails.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        let work = move || {
            let mut connection = lock(&store.shared.writer);
            let failed = |error| problem::error(&store.shared.path, "write to", error);
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
            let done = change(&transaction)?;
            store.failpoints.reach("store: before commit");
            transaction.commit().map_err(failed)?;
            store.failpoints.reach("store: after commit");
            Ok(done)
        };
        self.timed(StoreUse::Write, work).await
    }

    /// Reads from the store, in one transaction.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        let work = move || {
            let mut connection = lock(&store.shared.reader);
            let failed = |error| problem::error(&store.shared.path, "read", error);
            let transaction = connection.transaction().map_err(failed)?;
            query(&transaction)
        };
        self.timed(StoreUse::Read, work).await
    }

    async fn timed<T: Send + 'static>(
        &self,
        usage: StoreUse,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let began = Instant::now();
        let done = blocking(work).await.inspect_err(|error| self.notice(error));
        if let Some(observer) = &self.observer {
            observer(usage, began.elapsed());
        }
        done
    }

    /// Checks the whole file. If it is damaged, that is an error, and the next call of [`Self::open`] moves it aside.
    pub async fn check(&self) -> Result<()> {
        self.read(|connection| {
            let path = Path::new(connection.path().unwrap_or_default());
            match open::check(connection).map_err(|error| problem::error(path, "check", error))?.as_str() {
                "ok" => Ok(()),
                found => Err(problem::damaged(path, found)),
            }
        })
        .await
    }

    fn notice(&self, error: &Error) {
        if StoreProblem::from_error(error) == Some(&StoreProblem::Damaged) {
            open::mark_damaged(&self.shared.path);
        }
    }
}

fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    // A transaction that panicked was rolled back when it was dropped.
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The current time, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Random bytes as hexadecimal digits.
pub(crate) fn random_hex<const BYTES: usize>() -> Result<String> {
    use std::fmt::Write;
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(kennel_types::ErrorCode::Internal, format!("read random bytes: {error}")))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
