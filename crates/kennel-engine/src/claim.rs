//! Claims: who is changing a session right now.
//!
//! A claim is a lock on a file, held while a session is opened, started, stopped or removed. The kernel releases it
//! when the process ends, in whatever way. So a session that is `creating` and has no claim is known to be stuck, and
//! one with a claim is left to its process.

use crate::lock_file;
use crate::session::SessionId;
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NextStep};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
    /// Returns the claims of the store in this file.
    pub(crate) fn for_store(store: &Path) -> Self {
        let mut dir = store.as_os_str().to_owned();
        dir.push(".claims");
        Self { dir: dir.into() }
    }

    /// Takes the claim on a session, if nobody has it.
    pub(crate) fn try_take(&self, session: &SessionId) -> Result<Option<Claim>> {
        let path = self.dir.join(session.as_str());
        let failed = |error: std::io::Error| Error::io(format!("claim session {session}"), error);
        lock_file::create_dir(&self.dir).map_err(failed)?;
        loop {
            let file = lock_file::open(&path).map_err(failed)?;
            if !lock_file::try_lock(&file).map_err(failed)? {
                return Ok(None);
            }
            if lock_file::is_current(&file, &path).map_err(failed)? {
                return Ok(Some(Claim { path, _file: file }));
            }
        }
    }

    /// Whether a process has the claim on a session. Changes nothing.
    pub(crate) fn is_taken(&self, session: &SessionId) -> Result<bool> {
        lock_file::is_locked(&self.dir.join(session.as_str()))
            .map_err(|error| Error::io(format!("look for the claim on session {session}"), error))
    }

    /// Removes the files of claims whose process was killed.
    pub(crate) fn sweep(&self) -> Result<()> {
        let failed = |error| Error::io(format!("list {}", self.dir.display()), error);
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            if let Some(session) = name.to_str().and_then(|name| SessionId::new(name).ok()) {
                // It is removed when it is dropped.
                drop(self.try_take(&session)?);
            }
        }
        Ok(())
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
    fn a_claim_is_exclusive_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::for_store(&dir.path().join("kennel.db"));
        let (one, two) = (SessionId::new("one").unwrap(), SessionId::new("two").unwrap());
        let claim = claims.try_take(&one).unwrap().expect("it is free");
        assert!(claims.try_take(&one).unwrap().is_none(), "it is taken");
        assert!(claims.is_taken(&one).unwrap() && !claims.is_taken(&two).unwrap());
        assert!(claims.try_take(&two).unwrap().is_some(), "another session is not affected");
        drop(claim);
        assert!(!claims.is_taken(&one).unwrap());
        assert!(claims.try_take(&one).unwrap().is_some(), "it is free again");
        assert_eq!(std::fs::read_dir(&claims.dir).unwrap().count(), 0);
    }

    #[test]
    fn many_threads_never_hold_it_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::for_store(&dir.path().join("kennel.db"));
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
