//! Files that processes lock, and that do not stay when nobody needs them.
//!
//! The last holder of a lock removes the file while it holds the lock. A process that opened the file before that gets a
//! lock that excludes nobody, because others lock the file that is created next. So whoever gets a lock checks first
//! that the file is still the one at its path.

use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Creates a directory for files that only this user may read.
pub(crate) fn create_dir(dir: &Path) -> Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Opens a file to lock it. Creates it if necessary.
pub(crate) fn open(path: &Path) -> Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// Locks a file, if nobody has locked it.
pub(crate) fn try_lock(file: &File) -> Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a file can be locked, and locks it.
pub(crate) fn lock(file: &File) -> Result<()> {
    rustix::io::retry_on_intr(|| flock(file, FlockOperation::LockExclusive)).map_err(Error::from)
}

/// Whether a locked file is still the one at its path. If not, it must be opened and locked again.
pub(crate) fn is_current(file: &File, path: &Path) -> Result<bool> {
    let mine = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (mine.dev(), mine.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a process holds the lock of the file at this path. Creates nothing.
pub(crate) fn is_locked(path: &Path) -> Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    // A shared lock, so that several processes can ask at once. It ends with this function.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
