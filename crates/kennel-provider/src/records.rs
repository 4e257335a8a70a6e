//! Sandboxes that Kennel stores on disk itself. Each has a directory, so that any later process can find and dial it.
//!
//! ```text
//! <root>/<id>/sandbox.json   the spec and what is enforced; locked while the sandbox is being started, and for a tied
//!                            sandbox as long as its creator lives
//!            /lock           held by the process that keeps the sandbox alive, as long as it runs; created by the
//!                            first start
//!            /sock           the keeper's socket
//!            /exit           how it ended: the keeper's exit code, and `oom` if memory ran out
//!            /stop           exists if its last end was requested
//!            /paused         exists while it is paused (native)
//!            /log.0, log.1   the main process's log
//!            /ports          the published ports (native)
//! <root>/names/<name>        a symlink to the id of the sandbox with this name
//!       /.swept              its time tells when leftovers were last removed
//! ```
//!
//! None of these files can be reached from inside a sandbox.

mod ending;
mod lifecycle;
mod sweep;
mod watch;

pub use sweep::is_sweep_due;
pub use watch::watch_records;

use kennel_core::{Error, Result};
use kennel_types::{
    Enforcement, ErrorCode, Field, Limits, NetworkMode, NextStep, Owner, SandboxId, SandboxInfo, SandboxSpec, Status,
};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

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
    /// The name that it had when its data volume was named after it. It is not set if that is its current name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_name: Option<String>,
}

impl Record {
    /// The name that its data volume is named after, if it has one. A renamed sandbox keeps its volume.
    pub fn data_name(&self) -> Option<&str> {
        self.spec.data.then(|| self.data_name.as_deref().unwrap_or(&self.name))
    }
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

/// What a provider has decided about a new sandbox.
#[derive(Clone, Debug)]
pub struct NewRecord {
    /// Working directory of commands.
    pub workdir: String,
    /// The network.
    pub network: NetworkMode,
    /// What will be enforced while it runs.
    pub enforcement: Enforcement,
    /// The image as it is now.
    pub image: Option<TakenImage>,
    /// The first host id of its users, if it has a range of its own.
    pub first_id: Option<u32>,
}

/// The directory of names. No sandbox can have this id.
const NAMES: &str = "names";

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

    /// Stores a new sandbox. Fails if its id or name is in use.
    pub fn create(&self, id: &SandboxId, spec: &SandboxSpec, new: NewRecord) -> Result<Record> {
        self.make_dir(id)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let NewRecord { workdir, network, enforcement, image, first_id } = new;
        let record = Record {
            name: spec.name.clone().unwrap_or_else(|| id.to_string()),
            id: id.clone(),
            created_ms: since.as_millis() as u64,
            spec: spec.clone(),
            workdir,
            network,
            enforcement,
            image,
            first_id,
            data_name: None,
        };
        let written = self.write(&record).and_then(|file| match &spec.name {
            Some(name) => self.take_name(name, &record.id).map(|()| file),
            None => Ok(file),
        });
        let file = written.inspect_err(|_| drop(std::fs::remove_dir_all(self.dir(id))))?;
        if spec.tied {
            self.made().insert(record.id.clone(), Made { record: record.clone(), _lock: file });
        }
        Ok(record)
    }

    /// Creates the directory of a sandbox. Whoever creates it owns the id.
    fn make_dir(&self, id: &SandboxId) -> Result<()> {
        let dir = self.dir(id);
        let failed = |error| Error::io(format!("make {}", dir.display()), error);
        let taken = || Error::new(ErrorCode::AlreadyExists, format!("there is already a sandbox {id}"));
        if id.as_str() == NAMES || self.named(id.as_str()).is_some() {
            return Err(taken());
        }
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700);
        for _ in 0..3 {
            match builder.create(&dir) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    builder.recursive(true).create(&self.root).map_err(failed)?;
                    builder.recursive(false);
                }
                // A killed process may have left half a sandbox with this id.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && self.is_abandoned(id) => {
                    (self.clear)(&dir).map_err(failed)?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(taken()),
                Err(error) => return Err(failed(error)),
            }
        }
        Err(taken())
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
                        return Err(taken(name));
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
        SandboxId::new(id_or_name).map_err(|_| Error::no_sandbox(kennel_core::printable(id_or_name)))?;
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

    /// Returns all sandboxes, oldest first. Nothing is changed. Leftovers of killed processes are not sandboxes: see
    /// [`Self::sweep`].
    pub fn list(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for id in self.ids()? {
            records.extend(self.read(&id)?.filter(|record| !self.is_orphan(record)));
        }
        records.sort_by_key(|record| record.created_ms);
        Ok(records)
    }

    /// Returns the ids of all directories, whether they contain a sandbox or a leftover.
    fn ids(&self) -> Result<Vec<SandboxId>> {
        let failed = |error| Error::io(format!("list {}", self.root.display()), error);
        let entries = match std::fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let id = name.to_str().filter(|name| *name != NAMES).and_then(|name| SandboxId::new(name).ok());
            ids.extend(id);
        }
        Ok(ids)
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
        } else if std::fs::metadata(dir.join("lock")).is_ok_and(|lock| lock.len() > 0) {
            // A process that starts the sandbox for the first time has created the lock, but not taken it yet, if the
            // lock is empty.
            Status::Stopped
        } else {
            Status::Created
        };
        let (exit_code, end_cause) = match status {
            Status::Stopped => self.ending(record),
            _ => (None, None),
        };
        SandboxInfo {
            id: record.id.clone(),
            name: record.name.clone(),
            provider: self.provider.to_owned(),
            status,
            created_ms: record.created_ms,
            exit_code,
            end_cause,
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
        kennel_core::check_name(name)?;
        if record.spec.tied {
            return Err(Error::is_tied(&record.name));
        }
        if record.name == name {
            return Ok(());
        }
        self.take_name(name, &record.id)?;
        let mut renamed = record.clone();
        renamed.data_name = record.data_name().map(ToOwned::to_owned);
        name.clone_into(&mut renamed.name);
        renamed.spec.name = Some(name.to_owned());
        if let Err(error) = self.rewrite(&renamed) {
            let _ = std::fs::remove_file(self.root.join(NAMES).join(name));
            return Err(error);
        }
        self.free_name(record);
        Ok(())
    }

    /// Records other limits. The sandbox must not be started at the same time: hold [`Self::starting`].
    pub fn change_limits(&self, record: &Record, limits: Limits, _starting: &Starting) -> Result<()> {
        if record.spec.tied {
            return Err(Error::is_tied(&record.name));
        }
        let mut changed = record.clone();
        changed.spec.limits = limits;
        changed.enforcement.limits = limits;
        self.rewrite(&changed)
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

/// The error for a name that another sandbox has.
fn taken(name: &str) -> Error {
    let remove = NextStep::RemoveSandbox { name: name.to_owned(), force: false, volumes: false };
    Error::new(ErrorCode::AlreadyExists, format!("there is already a sandbox called {name}"))
        .suggest(NextStep::either([remove, NextStep::ChooseAnother { field: Field::Name }]))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn records(root: &Path) -> Records {
        Records::new("test", root.to_owned())
    }

    pub(super) fn new(spec: &SandboxSpec) -> NewRecord {
        let enforcement = Enforcement { mode: "test".into(), layers: Vec::new(), limits: spec.limits };
        NewRecord { workdir: "/".into(), network: NetworkMode::None, enforcement, image: None, first_id: None }
    }

    pub(super) fn create(records: &Records, name: Option<&str>) -> Result<Record> {
        let spec = SandboxSpec { name: name.map(Into::into), ..SandboxSpec::default() };
        records.create(&kennel_core::new_id().unwrap(), &spec, new(&spec))
    }

    #[test]
    fn an_id_is_used_once() {
        let root = tempfile::tempdir().unwrap();
        let records = records(root.path());
        let spec = SandboxSpec::default();
        let id = SandboxId::new("mine").unwrap();
        records.create(&id, &spec, new(&spec)).unwrap();
        assert_eq!(records.create(&id, &spec, new(&spec)).unwrap_err().code(), ErrorCode::AlreadyExists);
        assert_eq!(records.find("mine").unwrap().id, id);
        // The name of another sandbox is no free id, or a lookup would be ambiguous.
        create(&records, Some("box")).unwrap();
        let named = SandboxId::new("box").unwrap();
        assert_eq!(records.create(&named, &spec, new(&spec)).unwrap_err().code(), ErrorCode::AlreadyExists);
        let names = SandboxId::new(NAMES).unwrap();
        assert_eq!(records.create(&names, &spec, new(&spec)).unwrap_err().code(), ErrorCode::AlreadyExists);
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
    fn a_lookup_cannot_leave_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let records = records(root.path());
        for bad in ["", "..", "../x", "names", "/etc", "a/b"] {
            assert_eq!(records.find(bad).unwrap_err().code(), ErrorCode::NotFound, "{bad}");
        }
    }

    #[tokio::test]
    async fn a_sandbox_runs_as_long_as_its_lock_is_held() {
        let root = tempfile::tempdir().unwrap();
        let records = records(root.path());
        let record = create(&records, None).unwrap();
        assert_eq!(records.info(&record).status, Status::Created);
        let lock = std::fs::File::create(records.dir(&record.id).join("lock")).unwrap();
        assert_eq!(records.info(&record).status, Status::Created, "it is not started yet");
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        std::io::Write::write_all(&mut &lock, b"1").unwrap();
        assert_eq!(records.info(&record).status, Status::Running);
        drop(lock);
        records.wait_until_ended(&record.id).await.unwrap();
        assert_eq!(records.info(&record).status, Status::Stopped);
    }
}
