//! Leftovers of killed processes among the sandboxes on disk.

use super::{Record, Records};
use kennel_core::{Result, Sweep};
use kennel_types::SandboxId;
use rustix::fs::FlockOperation;
use std::path::Path;
use std::time::Duration;

/// The age at which a directory without a record counts as abandoned.
const SETTLED: Duration = Duration::from_secs(2);
/// How often the creation of a sandbox removes leftovers of others.
const SWEEP_EVERY: Duration = Duration::from_mins(10);
/// The file whose time tells when leftovers were last removed.
const SWEPT: &str = ".swept";

/// Whether leftovers below this directory should be removed again. If so, it notes that they are removed now: two
/// processes do not do the same work.
pub fn is_sweep_due(root: &Path) -> bool {
    let path = root.join(SWEPT);
    let age = path.symlink_metadata().and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
    if age.is_some_and(|age| age < SWEEP_EVERY) {
        return false;
    }
    std::fs::write(&path, "").is_ok()
}

impl Records {
    /// Finds directories that killed processes left behind, and returns their ids. With [`Sweep::Remove`] they are
    /// removed, and only those that could be removed are returned.
    pub fn sweep(&self, action: Sweep) -> Result<Vec<SandboxId>> {
        let mut swept = Vec::new();
        for id in self.ids()? {
            let found = match self.read(&id)? {
                Some(record) => self.is_orphan(&record) && (action == Sweep::Report || self.remove(&record).is_ok()),
                None => self.is_abandoned(&id) && (action == Sweep::Report || (self.clear)(&self.dir(&id)).is_ok()),
            };
            swept.extend(found.then_some(id));
        }
        Ok(swept)
    }

    /// Whether the sandbox is tied, its creator was killed, and it never ran.
    pub(super) fn is_orphan(&self, record: &Record) -> bool {
        if !record.spec.tied || self.is_owned(&record.id) || self.is_running(&record.id) {
            return false;
        }
        let Ok(file) = std::fs::File::open(self.dir(&record.id).join("sandbox.json")) else { return false };
        // Check again: it may have been started in between, and its creator may be gone since.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() && !self.is_running(&record.id)
    }

    /// Whether the directory has no record, and is so old that no process can still be creating or removing it.
    pub(super) fn is_abandoned(&self, id: &SandboxId) -> bool {
        let changed = self.dir(id).symlink_metadata().and_then(|found| found.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        age.is_some_and(|age| age > SETTLED) && matches!(self.read(id), Ok(None)) && !self.is_running(id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{create, new, records};
    use super::*;
    use kennel_types::SandboxSpec;
    use std::time::SystemTime;

    fn age(path: &Path, age: Duration) {
        std::fs::File::open(path).unwrap().set_modified(SystemTime::now() - age).unwrap();
    }

    #[test]
    fn leftovers_of_a_killed_creator_are_found_and_removed_only_on_request() {
        let root = tempfile::tempdir().unwrap();
        let creator = records(root.path());
        let spec = SandboxSpec { tied: true, ..SandboxSpec::default() };
        let tied = creator.create(&kennel_core::new_id().unwrap(), &spec, new(&spec)).unwrap().id;
        let kept = create(&creator, None).unwrap().id;
        // Half a sandbox: its creator was killed before it could write the record.
        let half = SandboxId::new("half").unwrap();
        let half_dir = root.path().join("half");
        std::fs::create_dir(&half_dir).unwrap();
        std::fs::write(half_dir.join("sandbox.json"), "").unwrap();
        let other = records(root.path());
        assert_eq!(other.list().unwrap().len(), 2, "its creator lives");
        assert_eq!(other.sweep(Sweep::Remove).unwrap(), [], "someone may be creating it");
        age(&half_dir, SETTLED * 2);
        drop(creator);
        let mut expected = vec![half, tied.clone()];
        expected.sort();
        let listed = || other.list().unwrap().into_iter().map(|record| record.id).collect::<Vec<_>>();
        let sorted = |mut ids: Vec<SandboxId>| {
            ids.sort();
            ids
        };
        assert_eq!(listed(), std::slice::from_ref(&kept));
        assert_eq!(sorted(other.sweep(Sweep::Report).unwrap()), expected);
        assert!(other.dir(&tied).exists() && half_dir.exists(), "neither a listing nor a report removes anything");
        assert_eq!(sorted(other.sweep(Sweep::Remove).unwrap()), expected);
        assert!(!other.dir(&tied).exists() && !half_dir.exists());
        assert_eq!(listed(), [kept]);
    }

    #[test]
    fn an_id_left_by_a_crash_can_be_used_again() {
        let root = tempfile::tempdir().unwrap();
        let records = records(root.path());
        let (id, spec) = (SandboxId::new("mine").unwrap(), SandboxSpec::default());
        std::fs::create_dir(root.path().join("mine")).unwrap();
        assert!(records.create(&id, &spec, new(&spec)).is_err(), "someone may be creating it");
        age(&root.path().join("mine"), SETTLED * 2);
        records.create(&id, &spec, new(&spec)).unwrap();
    }

    #[test]
    fn a_sweep_is_due_after_an_interval() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_sweep_due(dir.path()));
        assert!(!is_sweep_due(dir.path()));
        age(&dir.path().join(SWEPT), SWEEP_EVERY * 2);
        assert!(is_sweep_due(dir.path()));
    }
}
