//! The directories of overlay layers in a sandbox's directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The directory of the layers of other filesystems than the root; each has its own directory in it. In sandboxes of
/// ordinary users, only those of earlier versions have it.
pub const PARTS: &str = "parts";

/// Makes the directories accessible that overlayfs creates for itself, so that the user who owns them can remove them.
/// Overlayfs creates them with no permissions at all. What is missing, or belongs to another user, is left as it is.
pub fn open_work_dirs(sandbox: &Path) {
    let open = |work_dir: &Path| {
        let _ = fs::set_permissions(work_dir.join("work"), Permissions::from_mode(0o700));
    };
    let in_dir = |name: &str| fs::read_dir(sandbox.join(name)).into_iter().flatten().flatten();
    open(&sandbox.join("work"));
    in_dir("work").for_each(|entry| open(&entry.path()));
    in_dir(PARTS).for_each(|entry| open(&entry.path().join("work")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_directories_become_accessible() {
        let sandbox = tempfile::tempdir().unwrap();
        let paths = ["work/work", "work/usr/work", "parts/usr/work/work", "upper/var/work"];
        let dirs = paths.map(|dir| sandbox.path().join(dir));
        for dir in &dirs {
            fs::create_dir_all(dir).unwrap();
            fs::set_permissions(dir, Permissions::from_mode(0o000)).unwrap();
        }
        open_work_dirs(sandbox.path());
        let mode = |dir: &Path| dir.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(dirs.each_ref().map(|dir| mode(dir)), [0o700, 0o700, 0o700, 0]);
        open_work_dirs(&sandbox.path().join("missing"));
    }
}
