//! Claims: who is changing a session right now.
//!
//! A claim is a lock on a file, held while a session is opened, started, stopped or removed. The kernel releases it
//! when the process ends, in whatever way. So a session that is `creating` and has no claim is known to be stuck, and
//! one with a claim is left to its process.

use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NextStep};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::session::SessionId;

/// How long an operation waits for another one on the same session.
const PATIENCE: Duration = Duration::from_mins(1);

/// The right to change a session. It ends when this is dropped.
pub(crate) struct Claim {
    path: PathBuf,
    _file: File,
}

/// The directory of a store's claims.
#[derive(Clone)]
pub(crate) struct Claims {
    dir: PathBuf,
}

impl Claims {
    /// The claims of the store in this file.
    pub(crate) fn of(store: &Path) -> Self {
        let mut dir = store.as_os_str().to_owned();
        dir.push(".claims");
        Self { dir: dir.into() }
    }

    /// Takes the claim on a session, if nobody has it.
    pub(crate) fn try_take(&self, session: &SessionId) -> Result<Option<Claim>> {
        let path = self.dir.join(session.as_str());
        let failed = |error: std::io::Error| Error::io(format!("claim session {session}"), error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(failed)?;
        loop {
            let mut options = OpenOptions::new();
            let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(failed(error.into())),
            }
            // The last holder removes the file. A lock on a removed file excludes nobody.
            let mine = file.metadata().map_err(failed)?;
            match std::fs::symlink_metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (mine.dev(), mine.ino()) => {
                    return Ok(Some(Claim { path, _file: file }));
                }
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
    }

    /// Takes the claim on a session, and waits while another process has it.
    pub(crate) async fn take(&self, session: &SessionId) -> Result<Claim> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(2);
        loop {
            if let Some(claim) = self.try_take(session)? {
                return Ok(claim);
            }
            if start.elapsed() > PATIENCE {
                let message =
                    format!("session {session} is being changed by another process for more than {PATIENCE:?}");
                let step = NextStep::ShowSession { name: session.to_string() };
                return Err(Error::new(ErrorCode::Conflict, message).suggest(step));
            }
            #[expect(clippy::disallowed_methods, reason = "the backoff between two attempts to take the claim")]
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // While the lock is held: whoever opened the file before this notices that it is gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::of(&dir.path().join("kennel.db"));
        let (one, two) = (SessionId::new("one").unwrap(), SessionId::new("two").unwrap());
        let claim = claims.try_take(&one).unwrap().expect("it is free");
        assert!(claims.try_take(&one).unwrap().is_none(), "it is taken");
        assert!(claims.try_take(&two).unwrap().is_some(), "another session is not affected");
        drop(claim);
        assert!(claims.try_take(&one).unwrap().is_some(), "it is free again");
        assert_eq!(std::fs::read_dir(&claims.dir).unwrap().count(), 0);
    }

    #[test]
    fn many_threads_never_hold_it_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::of(&dir.path().join("kennel.db"));
        let id = SessionId::new("one").unwrap();
        let holders = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut taken = 0;
                    while taken < 200 {
                        let Some(claim) = claims.try_take(&id).unwrap() else { continue };
                        assert_eq!(holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(claim);
                        taken += 1;
                    }
                });
            }
        });
    }
}
