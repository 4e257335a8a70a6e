//! The directories of overlay layers in a sandbox's directory.

use rustix::fd::AsRawFd;
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The directory of the layers of other filesystems than the root; each has its own directory in it. In sandboxes of
/// ordinary users, only those of earlier versions have it.
pub const PARTS: &str = "parts";

/// Makes the directories accessible that overlayfs creates for itself, so that the user who owns them can remove them.
/// Overlayfs creates them with no permissions at all. What is missing, or belongs to another user, is left as it is.
///
/// No symlink below `sandbox` is followed: a volume, which is removed in the same way, has content from inside.
pub fn open_work_dirs(sandbox: &Path) {
    let root = rustix::fs::open(sandbox, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Ok(root) = root else { return };
    let dir_at = |path: &Path, access: OFlags| {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&root, path, access | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), beneath)
    };
    let open = |work_dir: &Path| {
        if let Ok(dir) = dir_at(&work_dir.join("work"), OFlags::PATH) {
            let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
            let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
        }
    };
    let in_dir = |name: &str| {
        let entries = dir_at(Path::new(name), OFlags::RDONLY).and_then(Dir::new).into_iter().flatten().flatten();
        let names = entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        names.filter(|name| name != "." && name != "..").map(|entry| Path::new(name).join(entry)).collect::<Vec<_>>()
    };
    open(Path::new("work"));
    for dir in in_dir("work") {
        open(&dir);
    }
    for dir in in_dir(PARTS) {
        open(&dir.join("work"));
    }
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

    #[test]
    fn no_symlink_is_followed() {
        let outside = tempfile::tempdir().unwrap();
        let mode = |dir: &Path| dir.metadata().unwrap().permissions().mode() & 0o777;
        let work = outside.path().join("etc/work");
        fs::create_dir_all(&work).unwrap();
        fs::set_permissions(&work, Permissions::from_mode(0o755)).unwrap();
        let link = |volume: &Path, from: &str, to: &Path| {
            fs::create_dir_all(volume.join(from).parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, volume.join(from)).unwrap();
        };
        for (from, to) in [
            ("work", outside.path().join("etc")),
            ("work", outside.path().to_owned()),
            ("work/work", work.clone()),
            ("work/x", outside.path().join("etc")),
            ("work/x/work", work.clone()),
            ("parts/x", outside.path().to_owned()),
            ("parts/x/work", outside.path().join("etc")),
            ("parts/x/work/work", work.clone()),
        ] {
            let volume = tempfile::tempdir().unwrap();
            link(volume.path(), from, &to);
            open_work_dirs(volume.path());
            assert_eq!(mode(&work), 0o755, "{from}");
        }
    }
}
