//! The kinds of problems that a store can have, and their errors.

use kennel_core::Error;
use kennel_types::{ErrorCode, LimitReason, NextStep};
use rusqlite::ErrorCode as Sqlite;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is wrong with a store. It is the source of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreProblem {
    /// A newer release of Kennel has migrated the store.
    #[error("the store has version {found}, and this release knows versions up to {known}")]
    Newer {
        /// The version of the store.
        found: u32,
        /// The highest version that this release knows.
        known: u32,
    },
    /// The file was damaged, and was moved aside with everything that is left in it.
    #[error("the store is damaged, and was moved to {}", moved_to.display())]
    Corrupt {
        /// Where it is now.
        moved_to: PathBuf,
    },
    /// The file turned out to be damaged while it was in use. It is moved aside when it is opened again.
    #[error("the store is damaged")]
    Damaged,
    /// Another process held the lock for too long. Nothing was changed.
    #[error("the store is locked")]
    Locked,
    /// The disk is full. Nothing was changed.
    #[error("the disk is full")]
    Full,
}

impl StoreProblem {
    /// Returns the problem of the store, if it caused the error.
    pub fn from_error(error: &Error) -> Option<&Self> {
        std::error::Error::source(error)?.downcast_ref()
    }
}

/// The error for a store of a newer release.
pub(crate) fn newer(path: &Path, found: u32, known: u32) -> Error {
    let message = format!(
        "open {}: a newer release of Kennel created it (version {found}, expected at most {known})",
        path.display()
    );
    Error::new(ErrorCode::Unsupported, message)
        .advise("install the newer release again, or use another state directory")
        .caused_by(StoreProblem::Newer { found, known })
}

/// The error for a store that was damaged and moved aside.
pub(crate) fn corrupt(path: &Path, moved_to: PathBuf, why: &str) -> Error {
    let message = format!("open {}: it is damaged ({why}), and was moved to {}", path.display(), moved_to.display());
    Error::new(ErrorCode::Internal, message)
        .suggest(NextStep::AdoptSandboxes)
        .caused_by(StoreProblem::Corrupt { moved_to })
}

/// The error for damage that a check has found.
pub(crate) fn damaged(path: &Path, found: &str) -> Error {
    Error::new(ErrorCode::Internal, format!("check {}: it is damaged ({found})", path.display()))
        .caused_by(StoreProblem::Damaged)
}

/// Whether an error says that the file is damaged or is not a database.
pub(crate) fn is_corruption(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(Sqlite::DatabaseCorrupt | Sqlite::NotADatabase))
}

/// The error for a failed operation on the store.
pub(crate) fn error(path: &Path, what: &str, error: rusqlite::Error) -> Error {
    let message = format!("{what} {}: {error}", path.display());
    match error.sqlite_error_code() {
        Some(Sqlite::DiskFull) => {
            Error::limit(LimitReason::OutOfDisk, message).suggest(NextStep::FreeDiskSpace).caused_by(StoreProblem::Full)
        }
        Some(Sqlite::DatabaseBusy | Sqlite::DatabaseLocked) => Error::new(ErrorCode::Timeout, message)
            .advise("another process is writing; try again")
            .caused_by(StoreProblem::Locked),
        Some(Sqlite::DatabaseCorrupt | Sqlite::NotADatabase) => {
            Error::new(ErrorCode::Internal, message).caused_by(StoreProblem::Damaged)
        }
        Some(Sqlite::PermissionDenied | Sqlite::ReadOnly | Sqlite::CannotOpen) => {
            Error::new(ErrorCode::PermissionDenied, message).suggest(NextStep::UseOwnDirectory).caused_by(error)
        }
        _ => Error::new(ErrorCode::Internal, message).caused_by(error),
    }
}

/// The error for a lock on the file that another process held for too long.
pub(crate) fn locked(path: &Path, busy: Duration) -> Error {
    Error::new(ErrorCode::Timeout, format!("open {}: another process held its lock for {busy:?}", path.display()))
        .advise("another process is opening it; try again")
        .caused_by(StoreProblem::Locked)
}
