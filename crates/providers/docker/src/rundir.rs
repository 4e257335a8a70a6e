//! The run directories: one per sandbox, mounted into it, where its keeper creates its socket.
//!
//! Processes inside can write to them. So no symlink in them is followed, and nothing is removed by guessing.

use crate::plan::SOCKET;
use kennel_core::{Error, Result, Sweep};
use kennel_types::{NextStep, SandboxId};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A directory without a socket that is younger than this may be about to be locked by the process that creates a
/// container.
const SETTLED: Duration = Duration::from_secs(2);

/// An engine may create a container this long after the process that requested it was killed.
const CREATED_WITHIN: Duration = Duration::from_hours(24);

/// The beginning of the names of creation notes.
const CREATION: &str = ".create-";

/// Returns the directory name for the engine at this address. It is a hash.
pub(crate) fn part_of(address: &str) -> String {
    // FNV-1a. It only has to stay the same.
    let hash = address
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

/// All run directories of an installation.
pub(crate) struct RunDirs {
    root: PathBuf,
}

impl RunDirs {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    #[cfg(test)]
    fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path_of(&self, id: &SandboxId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// Creates the directory of a sandbox, if it does not exist, accessible only to this user.
    pub(crate) fn make(&self, id: &SandboxId) -> Result<PathBuf> {
        let path = self.path_of(id);
        let mut builder = std::fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|error| Error::io(format!("make the run directory {}", path.display()), error))?;
        Ok(path)
    }

    /// Creates the directory of a new sandbox and locks it. Whoever creates it owns the id: returns `None` if it
    /// already exists. As long as the result lives, others see that the creator of the sandbox lives.
    pub(crate) fn claim(&self, id: &SandboxId) -> Result<Option<(PathBuf, File)>> {
        let path = self.path_of(id);
        let failed = |error| Error::io(format!("make the run directory {}", path.display()), error);
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700).recursive(true).create(&self.root).map_err(failed)?;
        match builder.recursive(false).create(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
            made => made.map_err(failed)?,
        }
        let held = open_dir(&path).and_then(|dir| {
            rustix::fs::flock(&dir, FlockOperation::LockExclusive)?;
            Ok(dir)
        });
        let held = held.map_err(|error| Error::io(format!("lock the run directory {}", path.display()), error))?;
        let note = self.creation_note(id);
        std::fs::write(&note, "").map_err(|error| Error::io(format!("write {}", note.display()), error))?;
        Ok(Some((path, held)))
    }

    /// The file that exists until a sandbox is complete. It is not in its run directory, where processes inside could
    /// remove it, and it outlives that directory: an engine may create the container after its creator was killed.
    fn creation_note(&self, id: &SandboxId) -> PathBuf {
        self.root.join(format!("{CREATION}{id}"))
    }

    /// Notes that a sandbox is complete.
    pub(crate) fn complete(&self, id: &SandboxId) {
        let _ = std::fs::remove_file(self.creation_note(id));
    }

    /// Whether a sandbox is not complete. If its creator is gone, it never will be.
    pub(crate) fn is_incomplete(&self, id: &SandboxId) -> bool {
        self.creation_note(id).exists()
    }

    /// The file that exists if the last end of a sandbox was requested. It is not in its run directory, where processes
    /// inside could create it.
    fn stop_note(&self, id: &SandboxId) -> PathBuf {
        self.root.join(format!(".stop-{id}"))
    }

    /// Notes that a sandbox is about to be stopped on request.
    pub(crate) fn note_stop(&self, id: &SandboxId) -> Result<()> {
        let path = self.stop_note(id);
        std::fs::write(&path, "").map_err(|error| Error::io(format!("write {}", path.display()), error))
    }

    /// Whether the last end of a sandbox was requested.
    pub(crate) fn was_stopped(&self, id: &SandboxId) -> bool {
        self.stop_note(id).exists()
    }

    /// Forgets how a sandbox ended the last time.
    pub(crate) fn forget_stop(&self, id: &SandboxId) {
        let _ = std::fs::remove_file(self.stop_note(id));
    }

    /// Writes a file to the directory of a stopped sandbox, whatever an earlier run has left there.
    pub(crate) fn put(&self, id: &SandboxId, name: &str, text: &str) -> Result<()> {
        let path = self.path_of(id);
        let new = format!("{name}.new");
        let put = || -> std::io::Result<()> {
            let dir = open_dir(&path)?;
            match rustix::fs::unlinkat(&dir, &new, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(rustix::fs::openat(&dir, &new, flags, Mode::from_raw_mode(0o644))?);
            file.write_all(text.as_bytes())?;
            Ok(rustix::fs::renameat(&dir, &new, &dir, name)?)
        };
        put().map_err(|error| Error::io(format!("write {name} in the run directory {}", path.display()), error))
    }

    /// Whether a process holds the lock.
    pub(crate) fn is_held(&self, id: &SandboxId) -> bool {
        open_dir(&self.path_of(id))
            .is_ok_and(|dir| rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Waits for other processes that assign sandbox names, and then holds the lock as long as the result lives.
    pub(crate) async fn lock(&self) -> Result<File> {
        let root = self.root.clone();
        let failed = |error: std::io::Error| Error::io(format!("lock {}", self.root.display()), error);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&root);
        let dir = made.and_then(|()| open_dir(&root)).map_err(failed)?;
        if rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(dir);
        }
        let waited = tokio::task::spawn_blocking(move || {
            rustix::io::retry_on_intr(|| rustix::fs::flock(&dir, FlockOperation::LockExclusive)).map(|()| dir)
        });
        waited.await.map_err(std::io::Error::other).and_then(|locked| Ok(locked?)).map_err(failed)
    }

    /// Removes the directory and all notes of a sandbox that is gone. Returns whether there was a directory.
    pub(crate) fn remove(&self, id: &SandboxId) -> Result<bool> {
        self.complete(id);
        self.remove_dir(id)
    }

    fn remove_dir(&self, id: &SandboxId) -> Result<bool> {
        let path = self.path_of(id);
        self.forget_stop(id);
        match std::fs::remove_dir_all(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io(format!("remove the run directory {}", path.display()), error)
                .suggest(NextStep::run_on_host(format!("sudo rm -rf {}", path.display())))),
        }
    }

    /// Whether it is time to look for leftovers again. Calling this counts as looking.
    pub(crate) fn is_sweep_due(&self) -> bool {
        kennel_provider::is_sweep_due(&self.root)
    }

    /// Returns the directories whose containers have certainly been created. Call this before listing the containers: a
    /// container that is not in the list is then gone.
    pub(crate) fn settled(&self) -> Vec<SandboxId> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| SandboxId::new(entry.file_name().to_str()?).ok());
        ids.filter(|id| {
            let dir = self.path_of(id);
            // A keeper has been there, or the directory is too old for a container that is still being created.
            dir.join(SOCKET).symlink_metadata().is_ok() || (is_older(&dir, SETTLED) == Some(true) && !self.is_held(id))
        })
        .collect()
    }

    /// Finds those of the settled directories that belong to none of these sandboxes, and removes or only reports them.
    /// The list must be complete: a failed listing does not count.
    pub(crate) fn sweep(&self, settled: Vec<SandboxId>, alive: &HashSet<&SandboxId>, action: Sweep) -> Vec<SandboxId> {
        if action == Sweep::Remove {
            self.forget_creations(alive);
        }
        let gone = settled.into_iter().filter(|id| !alive.contains(id));
        // What cannot be removed now stays for the next time; `remove` of that id reports the reason.
        gone.filter(|id| action == Sweep::Report || self.remove_dir(id).unwrap_or(false)).collect()
    }

    /// Removes the notes of creations whose container will not appear any more.
    fn forget_creations(&self, alive: &HashSet<&SandboxId>) {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| {
            let id = SandboxId::new(entry.file_name().to_str()?.strip_prefix(CREATION)?).ok()?;
            is_older(&entry.path(), CREATED_WITHIN)?.then_some(id)
        });
        for id in ids.filter(|id| !alive.contains(id) && !self.is_held(id)) {
            self.complete(&id);
        }
    }
}

/// Opens the directory itself, without following a symlink at its path.
fn open_dir(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn is_older(path: &Path, age: Duration) -> Option<bool> {
    let modified = path.symlink_metadata().ok()?.modified().ok()?;
    Some(modified.elapsed().ok()? >= age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::time::SystemTime;

    fn age(path: &Path, age: Duration) {
        let dir = std::fs::File::open(path).unwrap();
        dir.set_modified(SystemTime::now() - age).unwrap();
    }

    #[test]
    fn removing_a_run_directory_follows_no_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::create_dir(&precious).unwrap();
        std::fs::write(precious.join("file"), "x").unwrap();
        let dirs = RunDirs::new(dir.path().join("run"));
        let id = SandboxId::new("abc").unwrap();
        let path = dirs.make(&id).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        symlink(&precious, path.join("link")).unwrap();
        assert!(dirs.remove(&id).unwrap());
        assert!(!dirs.remove(&id).unwrap());
        assert!(precious.join("file").exists());
    }

    #[test]
    fn writing_to_a_run_directory_follows_no_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "x").unwrap();
        let dirs = RunDirs::new(dir.path().join("run"));
        let id = SandboxId::new("abc").unwrap();
        let path = dirs.make(&id).unwrap();
        for name in ["filter", "filter.new"] {
            symlink(&precious, path.join(name)).unwrap();
        }
        dirs.put(&id, "filter", "new").unwrap();
        assert_eq!(std::fs::read_to_string(path.join("filter")).unwrap(), "new");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "x");
        assert!(!path.join("filter").is_symlink() && !path.join("filter.new").exists());
    }

    #[test]
    fn only_old_directories_without_a_container_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = RunDirs::new(dir.path().join("run"));
        let [alive, dead, young, ended] = ["alive", "dead", "young", "ended"].map(|name| SandboxId::new(name).unwrap());
        for id in [&alive, &dead, &young, &ended] {
            dirs.make(id).unwrap();
        }
        std::os::unix::net::UnixListener::bind(dirs.path_of(&ended).join(SOCKET)).unwrap();
        std::fs::create_dir(dirs.root().join("Not An Id")).unwrap();
        for name in ["alive", "dead", "Not An Id"] {
            age(&dirs.root().join(name), Duration::from_mins(2));
        }
        let mut found = dirs.sweep(dirs.settled(), &HashSet::from([&alive]), Sweep::Report);
        found.sort();
        assert_eq!(found, [dead.clone(), ended.clone()]);
        assert!(dirs.path_of(&dead).exists() && dirs.path_of(&ended).exists(), "a report removes nothing");
        dirs.sweep(dirs.settled(), &HashSet::from([&alive]), Sweep::Remove);
        assert!(
            dirs.path_of(&alive).exists() && dirs.path_of(&young).exists() && dirs.root().join("Not An Id").exists()
        );
        assert!(!dirs.path_of(&dead).exists() && !dirs.path_of(&ended).exists());
    }

    #[test]
    fn an_id_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = RunDirs::new(dir.path().join("run"));
        let id = SandboxId::new("abc").unwrap();
        let claim = dirs.claim(&id).unwrap();
        assert!(claim.is_some() && dirs.is_held(&id));
        assert!(dirs.claim(&id).unwrap().is_none());
        drop(claim);
        assert!(dirs.claim(&id).unwrap().is_none() && !dirs.is_held(&id), "it belongs to a sandbox, or is left over");
    }

    #[test]
    fn an_interrupted_creation_is_remembered_for_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = RunDirs::new(dir.path().join("run"));
        let [whole, removed, killed] = ["whole", "removed", "killed"].map(|name| SandboxId::new(name).unwrap());
        for id in [&whole, &removed, &killed] {
            assert!(dirs.claim(id).unwrap().is_some() && dirs.is_incomplete(id));
        }
        dirs.complete(&whole);
        assert!(dirs.remove(&removed).unwrap());
        assert!(!dirs.is_incomplete(&whole) && !dirs.is_incomplete(&removed));
        // Its directory may be swept before the engine has created the container.
        age(&dirs.path_of(&killed), Duration::from_mins(2));
        dirs.sweep(dirs.settled(), &HashSet::from([&whole]), Sweep::Remove);
        assert!(!dirs.path_of(&killed).exists() && dirs.is_incomplete(&killed));
        let note = dirs.root().join(".create-killed");
        std::fs::File::open(&note).unwrap().set_modified(SystemTime::now() - CREATED_WITHIN * 2).unwrap();
        dirs.sweep(Vec::new(), &HashSet::from([&killed]), Sweep::Remove);
        assert!(dirs.is_incomplete(&killed), "its container exists");
        dirs.sweep(Vec::new(), &HashSet::new(), Sweep::Report);
        assert!(dirs.is_incomplete(&killed), "a report removes nothing");
        dirs.sweep(Vec::new(), &HashSet::new(), Sweep::Remove);
        assert!(!dirs.is_incomplete(&killed));
    }

    #[test]
    fn a_requested_stop_is_remembered_until_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = RunDirs::new(dir.path().to_owned());
        let id = SandboxId::new("abc").unwrap();
        assert!(!dirs.was_stopped(&id));
        dirs.note_stop(&id).unwrap();
        assert!(dirs.was_stopped(&id));
        dirs.forget_stop(&id);
        assert!(!dirs.was_stopped(&id));
    }
}
