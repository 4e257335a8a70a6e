//! The files of sandboxes that are paused while they are idle, and the lock between use and pause.

use super::IdleTimes;
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NextStep, ProviderKind, SandboxId};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How long a use waits until the resident process has paused the sandbox, or has decided not to.
const PATIENCE: Duration = Duration::from_secs(30);

/// The suffix of the file that exists while the resident process has paused a sandbox.
const PAUSED: &str = ".paused";

/// The directory of sandboxes that are paused while they are idle.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    dir: PathBuf,
}

/// What the file of a sandbox holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) provider: ProviderKind,
    #[serde(flatten)]
    pub(crate) times: IdleTimes,
}

/// A lock that excludes a pause. Any number of processes can hold it.
pub(crate) struct Shared {
    _file: File,
}

/// A lock that excludes all use. Only this process holds it.
pub(crate) struct Exclusive {
    _file: File,
}

impl Idle {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(id.as_str())
    }

    fn paused(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(format!("{id}{PAUSED}"))
    }

    /// Notes the idle times of a sandbox that will be created.
    pub(crate) fn add(&self, id: &SandboxId, entry: &Entry) -> Result<()> {
        let failed = |error: std::io::Error| Error::io(format!("note the idle times of sandbox {id}"), error);
        let text = serde_json::to_string(entry).map_err(|error| failed(error.into()))?;
        crate::lock_file::create_dir(&self.dir).map_err(failed)?;
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(self.path(id));
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)
    }

    /// Removes the files of a sandbox.
    pub(crate) fn remove(&self, id: &SandboxId) {
        for path in [self.paused(id), self.path(id)] {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Returns the ids of all sandboxes here.
    pub(crate) fn list(&self) -> Result<Vec<SandboxId>> {
        let failed = |error| Error::io(format!("list {}", self.dir.display()), error);
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let names = entries.map(|entry| entry.map(|entry| entry.file_name()).map_err(failed));
        let names: Vec<_> = names.collect::<Result<_>>()?;
        let ids = names.iter().filter_map(|name| name.to_str().filter(|name| !name.ends_with(PAUSED)));
        Ok(ids.filter_map(|name| SandboxId::new(name).ok()).collect())
    }

    /// Returns what is noted about a sandbox. `None` if nothing is noted, or nothing that can be read.
    pub(crate) fn entry(&self, id: &SandboxId) -> Option<Entry> {
        let text = std::fs::read(self.path(id)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Whether the sandbox has an idle pause.
    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.path(id).exists()
    }

    /// Whether the resident process has paused the sandbox.
    pub(crate) fn is_paused(&self, id: &SandboxId) -> bool {
        self.paused(id).exists()
    }

    /// Notes that the resident process pauses the sandbox. This is called before the pause.
    pub(crate) fn note_pause(&self, id: &SandboxId, _lock: &Exclusive) -> Result<()> {
        let path = self.paused(id);
        File::create(&path).map(drop).map_err(|error| Error::io(format!("write {}", path.display()), error))
    }

    /// Notes that the sandbox is not paused, or that a user has paused it.
    pub(crate) fn forget_pause(&self, id: &SandboxId) -> Result<()> {
        match std::fs::remove_file(self.paused(id)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io(format!("note that sandbox {id} is awake"), error))
            }
            _ => Ok(()),
        }
    }

    /// Excludes a pause. Waits while the resident process pauses or stops the sandbox. Returns `None` if the sandbox has no
    /// idle pause.
    pub(crate) async fn lock_shared(&self, id: &SandboxId) -> Result<Option<Shared>> {
        let Some(file) = open(id, &self.path(id))? else { return Ok(None) };
        until_locked(id, &file, FlockOperation::NonBlockingLockShared).await?;
        Ok(Some(Shared { _file: file }))
    }

    /// Excludes all use, if nobody uses the sandbox right now.
    pub(crate) fn try_lock_exclusive(&self, id: &SandboxId) -> Result<Option<Exclusive>> {
        let Some(file) = open(id, &self.path(id))? else { return Ok(None) };
        let locked = try_lock(id, &file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(locked.then_some(Exclusive { _file: file }))
    }

    /// If the resident process has paused the sandbox, excludes everybody else who would resume it. Whoever waits for this
    /// lock finds that the sandbox is awake.
    pub(crate) async fn lock_pause(&self, id: &SandboxId) -> Result<Option<Exclusive>> {
        let Some(file) = open(id, &self.paused(id))? else { return Ok(None) };
        until_locked(id, &file, FlockOperation::NonBlockingLockExclusive).await?;
        Ok(self.is_paused(id).then_some(Exclusive { _file: file }))
    }
}

fn open(id: &SandboxId, path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("open the lock of sandbox {id}"), error)),
    }
}

fn try_lock(id: &SandboxId, file: &File, operation: FlockOperation) -> Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(Error::io(format!("lock sandbox {id}"), error)),
    }
}

async fn until_locked(id: &SandboxId, file: &File, operation: FlockOperation) -> Result<()> {
    let began = Instant::now();
    let mut pause = Duration::from_micros(200);
    while !try_lock(id, file, operation)? {
        if began.elapsed() > PATIENCE {
            let message = format!("sandbox {id} is being paused, resumed or stopped for more than {PATIENCE:?}");
            return Err(
                Error::new(ErrorCode::Timeout, message).suggest(NextStep::InspectSandbox { name: id.to_string() })
            );
        }
        #[expect(clippy::disallowed_methods, reason = "the backoff between two attempts to lock")]
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_types::SandboxSpec;

    fn idle(dir: &Path) -> (Idle, SandboxId) {
        let (idle, id) = (Idle::new(dir.join("idle")), SandboxId::new("box").unwrap());
        let spec = SandboxSpec { idle_pause_ms: Some(1000), idle_seconds: Some(3), ..SandboxSpec::default() };
        idle.add(&id, &Entry { provider: ProviderKind::Native, times: IdleTimes::from_spec(&spec).unwrap() }).unwrap();
        (idle, id)
    }

    #[test]
    fn idle_entries_are_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let (idle, id) = idle(dir.path());
        let entry = idle.entry(&id).unwrap();
        assert_eq!(entry.provider, ProviderKind::Native);
        assert_eq!(entry.times.pause(), Duration::from_secs(1));
        assert_eq!(entry.times.stop_after_pause(), Some(Duration::from_secs(2)));
        assert_eq!(idle.list().unwrap(), std::slice::from_ref(&id));
        idle.remove(&id);
        assert!(idle.list().unwrap().is_empty() && idle.entry(&id).is_none() && !idle.has(&id));
    }

    #[tokio::test]
    async fn shared_use_excludes_a_pause() {
        let dir = tempfile::tempdir().unwrap();
        let (idle, id) = idle(dir.path());
        let one = idle.lock_shared(&id).await.unwrap().expect("it has an idle pause");
        let two = idle.lock_shared(&id).await.unwrap().expect("it has an idle pause");
        drop(one);
        assert!(idle.try_lock_exclusive(&id).unwrap().is_none(), "it is in use");
        drop(two);
        let lock = idle.try_lock_exclusive(&id).unwrap().expect("nobody uses it");
        idle.note_pause(&id, &lock).unwrap();
        assert!(idle.is_paused(&id));
        assert_eq!(idle.list().unwrap().len(), 1, "the note is no sandbox");
        assert!(idle.lock_pause(&id).await.unwrap().is_some());
        idle.forget_pause(&id).unwrap();
        assert!(idle.lock_pause(&id).await.unwrap().is_none());
        let other = SandboxId::new("other").unwrap();
        assert!(idle.lock_shared(&other).await.unwrap().is_none(), "nothing is noted about this one");
    }
}
