//! Sandboxes that Kennel stores on disk itself. Each has a directory, so that any later process can find and dial it.
//!
//! ```text
//! <root>/<id>/sandbox.json   the spec and what is enforced; locked while the sandbox is being started, and for a tied
//!                            sandbox as long as its creator lives
//!            /lock           held by the process that keeps the sandbox alive, as long as it runs; created by the
//!                            first start
//!            /sock           the keeper's socket
//!            /exit           the keeper's exit code, as text
//!            /log.0, log.1   the main process's log
//!            /ports          the published ports (native)
//! <root>/names/<name>        a symlink to the id of the sandbox with this name
//! ```
//!
//! None of these files can be reached from inside a sandbox.

mod life;
mod watch;

pub use watch::watch_records;

use crate::{Error, Result};
use kennel_types::{Enforcement, ErrorCode, NetworkMode, Owner, SandboxId, SandboxInfo, SandboxSpec, Status};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The sandboxes of one provider on disk.
#[derive(Clone)]
pub struct Records {
    provider: &'static str,
    root: PathBuf,
    /// Tied sandboxes that this process created. They live as long as its connection.
    made: Arc<Mutex<HashMap<SandboxId, Made>>>,
    clear: Clear,
}

/// Removes a directory and its content.
type Clear = Arc<dyn Fn(&Path) -> std::io::Result<()> + Send + Sync>;

/// A tied sandbox that this process created.
#[derive(Debug)]
struct Made {
    record: Record,
    /// Held to show others that this process lives; see [`Records::is_orphan`].
    _lock: std::fs::File,
}

/// The stored description of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The id.
    pub id: SandboxId,
    /// The name; the id if none was given.
    pub name: String,
    /// Time of creation, in milliseconds since 1970.
    pub created_ms: u64,
    /// The requested spec.
    pub spec: SandboxSpec,
    /// Working directory of commands.
    pub workdir: String,
    /// The network.
    pub network: NetworkMode,
    /// What is enforced while it runs.
    pub enforcement: Enforcement,
    /// The image as it was at the time of creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<TakenImage>,
    /// The first host id of its users, if the provider gave it a range of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_id: Option<u32>,
}

/// The image of a sandbox as it was at the time of creation. If the image's name later refers to another image, nothing
/// changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TakenImage {
    /// The directories of its layers, topmost first.
    pub layers: Vec<PathBuf>,
    /// The environment, each entry as `NAME=VALUE`.
    pub env: Vec<String>,
    /// The user of commands.
    pub user: Option<String>,
    /// The command that runs if no other is given.
    pub command: Vec<String>,
}

/// The directory of names. No sandbox can have this id.
const NAMES: &str = "names";
/// The age at which a directory without a record counts as abandoned.
const SETTLED: Duration = Duration::from_secs(2);

/// A lock that is held while a sandbox is being started.
pub struct Starting {
    _lock: Option<std::fs::File>,
}

impl Records {
    /// Manages the sandboxes below `root`, which may not exist yet.
    pub fn new(provider: &'static str, root: PathBuf) -> Self {
        Self { provider, root, made: Arc::default(), clear: Arc::new(|dir| std::fs::remove_dir_all(dir)) }
    }

    /// The directory of a sandbox.
    pub fn dir(&self, id: &SandboxId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// Stores a new sandbox. Fails if its name is in use.
    pub fn create(
        &self,
        spec: &SandboxSpec,
        workdir: String,
        network: NetworkMode,
        enforcement: Enforcement,
        image: Option<TakenImage>,
        first_id: Option<u32>,
    ) -> Result<Record> {
        let id = crate::new_id()?;
        let dir = self.dir(&id);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(|error| Error::io(format!("make {}", dir.display()), error))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = Record {
            name: spec.name.clone().unwrap_or_else(|| id.to_string()),
            id,
            created_ms: since.as_millis() as u64,
            spec: spec.clone(),
            workdir,
            network,
            enforcement,
            image,
            first_id,
        };
        let written = self.write(&record).and_then(|file| match &spec.name {
            Some(name) => self.take_name(name, &record.id).map(|()| file),
            None => Ok(file),
        });
        let file = written.inspect_err(|_| drop(std::fs::remove_dir_all(&dir)))?;
        if spec.tied {
            self.made().insert(record.id.clone(), Made { record: record.clone(), _lock: file });
        }
        Ok(record)
    }

    /// Sets the function that removes a sandbox's directory, for directories that the current user has no permission to
    /// remove.
    #[must_use]
    pub fn cleared_by(mut self, clear: impl Fn(&Path) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        self.clear = Arc::new(clear);
        self
    }

    fn made(&self) -> MutexGuard<'_, HashMap<SandboxId, Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the record. The record of a tied sandbox is locked before it has any content.
    fn write(&self, record: &Record) -> Result<std::fs::File> {
        let path = self.dir(&record.id).join("sandbox.json");
        let what = || format!("write {}", path.display());
        let json = serde_json::to_vec(record)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("{}: {error}", what())))?;
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| Error::io(what(), error))?;
        if record.spec.tied {
            let locked = rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive));
            locked.map_err(|error| Error::io(what(), error))?;
        }
        file.write_all(&json).map_err(|error| Error::io(what(), error))?;
        Ok(file)
    }

    fn take_name(&self, name: &str, id: &SandboxId) -> Result<()> {
        let names = self.root.join(NAMES);
        let path = names.join(name);
        let what = || format!("write {}", path.display());
        std::fs::create_dir_all(&names).map_err(|error| Error::io(what(), error))?;
        for _ in 0..3 {
            // A symlink is created atomically with its target, so no process ever reads half a name.
            match std::os::unix::fs::symlink(id.as_str(), &path) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    if self.named(name).is_some_and(|holder| self.dir(&holder).join("sandbox.json").exists()) {
                        return Err(Error::new(
                            ErrorCode::AlreadyExists,
                            format!("there is already a sandbox called {name}"),
                        )
                        .hint(format!("kennel rm {name}, or choose another --name")));
                    }
                    let _ = std::fs::remove_file(&path); // Left behind by a sandbox that is gone.
                }
                Err(error) => return Err(Error::io(what(), error)),
            }
        }
        Err(Error::new(ErrorCode::AlreadyExists, format!("another process is creating a sandbox called {name}")))
    }

    fn named(&self, name: &str) -> Option<SandboxId> {
        let target = std::fs::read_link(self.root.join(NAMES).join(name)).ok()?;
        SandboxId::new(target.to_str()?).ok()
    }

    /// Returns the sandbox with this id or name.
    pub fn find(&self, id_or_name: &str) -> Result<Record> {
        // A valid id or name contains no characters that could leave the directory.
        SandboxId::new(id_or_name).map_err(|_| Error::no_sandbox(crate::printable(id_or_name)))?;
        let id = SandboxId::new(id_or_name).ok();
        // Nobody else changes a tied sandbox of this process. It only has to exist still.
        let made = id.as_ref().and_then(|id| self.made().get(id).map(|made| made.record.clone()));
        if let Some(record) = made.filter(|record| self.dir(&record.id).join("sandbox.json").exists()) {
            return Ok(record);
        }
        let id = self.named(id_or_name).or(id);
        match id.map(|id| self.read(&id)) {
            Some(Ok(Some(record))) => Ok(record),
            Some(Err(error)) => Err(error),
            _ => Err(Error::no_sandbox(id_or_name)),
        }
    }

    /// Reads a record. Returns `None` if it does not exist or is not written yet.
    fn read(&self, id: &SandboxId) -> Result<Option<Record>> {
        let path = self.dir(id).join("sandbox.json");
        match std::fs::read(&path) {
            Ok(bytes) if bytes.is_empty() => Ok(None),
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| Error::new(ErrorCode::Internal, format!("read {}: {error}", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("read {}", path.display()), error)),
        }
    }

    /// Returns all sandboxes, oldest first. Leftovers of killed processes are removed on the way.
    pub fn list(&self) -> Result<Vec<Record>> {
        self.sort_out().map(|(records, _)| records)
    }

    /// Returns all sandboxes, oldest first, and the ids of leftovers that were removed.
    pub fn sort_out(&self) -> Result<(Vec<Record>, Vec<SandboxId>)> {
        let what = || format!("list {}", self.root.display());
        let entries = match std::fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
            Err(error) => return Err(Error::io(what(), error)),
        };
        let (mut records, mut swept) = (Vec::new(), Vec::new());
        for entry in entries {
            let entry = entry.map_err(|error| Error::io(what(), error))?;
            let Some(id) = entry.file_name().to_str().and_then(|name| SandboxId::new(name).ok()) else { continue };
            let gone = match self.read(&id)? {
                Some(record) if self.is_orphan(&record) => self.remove(&record).is_ok(),
                Some(record) => {
                    records.push(record);
                    false
                }
                // A sandbox that is being created or removed has no record.
                None if id.as_str() == NAMES || self.is_running(&id) || !is_settled(&entry) => false,
                None => (self.clear)(&self.dir(&id)).is_ok(),
            };
            swept.extend(gone.then_some(id));
        }
        records.sort_by_key(|record| record.created_ms);
        Ok((records, swept))
    }

    /// Whether the sandbox is tied, its creator was killed, and it never ran.
    fn is_orphan(&self, record: &Record) -> bool {
        if !record.spec.tied || self.is_owned(&record.id) || self.is_running(&record.id) {
            return false;
        }
        let Ok(file) = std::fs::File::open(self.dir(&record.id).join("sandbox.json")) else { return false };
        // Check again: it may have been started in between, and its creator may be gone since.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() && !self.is_running(&record.id)
    }

    /// Whether the sandbox lives as long as this process's connection: it is tied, and this process created it.
    /// Connections of others do not matter.
    pub fn is_owned(&self, id: &SandboxId) -> bool {
        self.made().contains_key(id)
    }

    /// Returns the current state of the sandbox.
    pub fn info(&self, record: &Record) -> SandboxInfo {
        let dir = self.dir(&record.id);
        let status = if self.is_running(&record.id) {
            Status::Running
        } else if dir.join("lock").exists() {
            Status::Stopped
        } else {
            Status::Created
        };
        let exit_code = match (status, &record.spec.command) {
            (Status::Stopped, Some(_)) => self.exit_code(&record.id),
            _ => None,
        };
        SandboxInfo {
            id: record.id.clone(),
            name: record.name.clone(),
            provider: self.provider.to_owned(),
            status,
            created_ms: record.created_ms,
            exit_code,
            image: record.spec.image.clone(),
            image_command: record
                .image
                .as_ref()
                .map(|image| image.command.clone())
                .filter(|command| !command.is_empty()),
            workdir: record.workdir.clone(),
            workspace: record.spec.workspace.clone(),
            network: record.network,
            ports: Vec::new(),
            labels: labels(&record.spec),
            enforcement: record.enforcement.clone(),
        }
    }

    /// Renames the sandbox. It must not be started at the same time: hold [`Self::starting`].
    pub fn rename(&self, record: &Record, name: &str, _starting: &Starting) -> Result<()> {
        crate::check_name(name)?;
        if record.spec.tied {
            return Err(Error::is_tied(&record.name));
        }
        if record.name == name {
            return Ok(());
        }
        self.take_name(name, &record.id)?;
        let mut renamed = record.clone();
        name.clone_into(&mut renamed.name);
        renamed.spec.name = Some(name.to_owned());
        if let Err(error) = self.rewrite(&renamed) {
            let _ = std::fs::remove_file(self.root.join(NAMES).join(name));
            return Err(error);
        }
        self.free_name(record);
        Ok(())
    }

    /// Replaces a record atomically.
    fn rewrite(&self, record: &Record) -> Result<()> {
        let dir = self.dir(&record.id);
        let what = || format!("write {}", dir.join("sandbox.json").display());
        let json = serde_json::to_vec(record)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("{}: {error}", what())))?;
        let partial = dir.join(".sandbox.json");
        let mut options = std::fs::OpenOptions::new();
        let written = options.write(true).create(true).truncate(true).mode(0o600).open(&partial);
        written
            .and_then(|mut file| file.write_all(&json))
            .and_then(|()| std::fs::rename(&partial, dir.join("sandbox.json")))
            .map_err(|error| Error::io(what(), error))
    }

    fn free_name(&self, record: &Record) {
        if self.named(&record.name).as_ref() == Some(&record.id) {
            let _ = std::fs::remove_file(self.root.join(NAMES).join(&record.name));
        }
    }

    /// Removes the directory and the name. Its content may come from inside the sandbox: symlinks are removed, never
    /// followed.
    pub fn remove(&self, record: &Record) -> Result<()> {
        self.free_name(record);
        self.made().remove(&record.id);
        // The record goes first. After a crash, the rest no longer counts as a sandbox and is swept.
        let dir = self.dir(&record.id);
        let _ = std::fs::remove_file(dir.join("sandbox.json"));
        match (self.clear)(&dir) {
            // The process that was about to start it is still creating files. It will notice that the record is gone
            // and clean up; otherwise the next listing does.
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty && record.spec.tied => Ok(()),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove {}", dir.display()), error))
            }
            _ => Ok(()),
        }
    }

    /// The directory that contains all sandboxes.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// The user's labels, and Kennel's own.
fn labels(spec: &SandboxSpec) -> BTreeMap<String, String> {
    // Sandboxes on disk are the caller's: nobody else can read them.
    let me = Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
    let mut all = spec.labels.clone();
    all.extend(crate::labels::own_labels(spec, spec.owner.unwrap_or(me)));
    all
}

/// Whether the entry is so old that no process can still be creating it.
fn is_settled(entry: &std::fs::DirEntry) -> bool {
    let age = entry.metadata().and_then(|found| found.modified()).ok().and_then(|changed| changed.elapsed().ok());
    age.is_some_and(|age| age > SETTLED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(root: &Path) -> Records {
        Records::new("test", root.to_owned())
    }

    fn create(records: &Records, name: Option<&str>) -> Result<Record> {
        let spec = SandboxSpec { name: name.map(Into::into), ..SandboxSpec::default() };
        let enforcement = Enforcement { mode: "test".into(), layers: Vec::new(), limits: spec.limits };
        records.create(&spec, "/".into(), NetworkMode::None, enforcement, None, None)
    }

    #[test]
    fn a_name_is_taken_once_and_free_again_after_removal() {
        let root = tempfile::tempdir().unwrap();
        let records = records(root.path());
        let first = create(&records, Some("box")).unwrap();
        assert_eq!(create(&records, Some("box")).unwrap_err().code(), ErrorCode::AlreadyExists);
        assert_eq!(records.list().unwrap().len(), 1);
        assert_eq!(records.find("box").unwrap().id, first.id);
        assert_eq!(records.find(first.id.as_str()).unwrap().name, "box");
        records.remove(&first).unwrap();
        assert_eq!(records.find("box").unwrap_err().code(), ErrorCode::NotFound);
        create(&records, Some("box")).unwrap();
    }

    #[test]
    fn a_name_left_by_a_crash_can_be_taken() {
        let root = tempfile::tempdir().unwrap();
        let records = records(root.path());
        let first = create(&records, Some("box")).unwrap();
        std::fs::remove_dir_all(records.dir(&first.id)).unwrap();
        assert!(create(&records, Some("box")).is_ok());
    }

    #[test]
    fn what_a_killed_maker_left_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let maker = records(root.path());
        let spec = SandboxSpec { tied: true, ..SandboxSpec::default() };
        let enforcement = Enforcement { mode: "test".into(), layers: Vec::new(), limits: spec.limits };
        let record = maker.create(&spec, "/".into(), NetworkMode::None, enforcement, None, None).unwrap();
        let kept = create(&maker, None).unwrap();
        // Half a sandbox: its maker was killed before it could write the record.
        let half = root.path().join("halfasandbox");
        std::fs::create_dir(&half).unwrap();
        std::fs::write(half.join("sandbox.json"), "").unwrap();
        let other = records(root.path());
        assert_eq!(other.list().unwrap().len(), 2, "its maker lives");
        assert!(half.exists(), "someone may be making it");
        let ago = SystemTime::now() - SETTLED * 2;
        std::fs::File::open(&half).unwrap().set_modified(ago).unwrap();
        drop(maker);
        assert_eq!(other.list().unwrap().into_iter().map(|record| record.id).collect::<Vec<_>>(), [kept.id]);
        assert!(!other.dir(&record.id).exists() && !half.exists());
    }

    #[test]
    fn a_lookup_cannot_leave_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let records = records(root.path());
        for bad in ["", "..", "../x", "names", "/etc", "a/b"] {
            assert_eq!(records.find(bad).unwrap_err().code(), ErrorCode::NotFound, "{bad}");
        }
    }

    #[tokio::test]
    async fn it_runs_as_long_as_the_lock_is_held() {
        let root = tempfile::tempdir().unwrap();
        let records = records(root.path());
        let record = create(&records, None).unwrap();
        assert_eq!(records.info(&record).status, Status::Created);
        let lock = std::fs::File::create(records.dir(&record.id).join("lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert_eq!(records.info(&record).status, Status::Running);
        drop(lock);
        records.wait_until_ended(&record.id).await.unwrap();
        assert_eq!(records.info(&record).status, Status::Stopped);
    }
}
