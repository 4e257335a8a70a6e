//! Where cgroups are created: for root anywhere, for an ordinary user below a delegated cgroup.

use rustix::fs::{Access, AtFlags, CWD};
use std::path::{Path, PathBuf};

/// The mount point of cgroups.
pub(crate) const MOUNT: &str = "/sys/fs/cgroup";

/// The cgroup in which cgroups can be created, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Groups(Option<PathBuf>);

impl Groups {
    /// For root.
    pub(crate) fn of_root() -> Self {
        Self(Some(MOUNT.into()))
    }

    /// For an ordinary user: below a cgroup that systemd or someone else delegated. Only version 2 supports delegation.
    pub(crate) fn delegated() -> Self {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self(delegated(Path::new(MOUNT), &own))
    }

    /// The directory of the cgroup.
    pub(crate) fn dir(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}

/// Returns the highest cgroup above this process that the user may manage. Processes can be moved only within it. It
/// must not contain processes itself, or the kernel does not let it distribute resources.
fn delegated(mount: &Path, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut dir = mount.to_owned();
    let above = Path::new(path).components().map(|name| {
        dir.push(name);
        dir.clone()
    });
    above.into_iter().find(|dir| is_ours(dir))
}

fn is_ours(dir: &Path) -> bool {
    let may = |path: PathBuf, what| rustix::fs::accessat(CWD, &path, what, AtFlags::EACCESS).is_ok();
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let controllers = text("cgroup.controllers");
    may(dir.to_owned(), Access::WRITE_OK | Access::EXEC_OK)
        && ["cgroup.procs", "cgroup.subtree_control"].iter().all(|file| may(dir.join(file), Access::WRITE_OK))
        && ["memory", "pids"].iter().all(|name| controllers.split_whitespace().any(|word| word == *name))
        && text("cgroup.procs").trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Creates a directory that represents a cgroup. The test may write everywhere in it.
    fn group(mount: &Path, path: &str, controllers: &str, members: &str) {
        let dir = mount.join(path);
        fs::create_dir_all(&dir).unwrap();
        let files = [("cgroup.controllers", controllers), ("cgroup.procs", members), ("cgroup.subtree_control", "")];
        for (file, text) in files {
            fs::write(dir.join(file), text).unwrap();
        }
    }

    #[test]
    fn the_highest_delegated_cgroup_is_used() {
        let mount = tempfile::tempdir().unwrap();
        fs::create_dir(mount.path().join("user.slice")).unwrap();
        group(mount.path(), "user.slice/me", "memory pids", "");
        group(mount.path(), "user.slice/me/app", "memory pids", "");
        group(mount.path(), "user.slice/me/app/term", "memory pids", "42\n");
        let found = delegated(mount.path(), "0::/user.slice/me/app/term\n");
        assert_eq!(found, Some(mount.path().join("user.slice/me")));
        assert_eq!(delegated(mount.path(), "4:memory:/x\n"), None, "version 1");
        assert_eq!(delegated(mount.path(), "0::/\n"), None);
    }

    #[test]
    fn cgroups_with_processes_or_without_memory_are_not_used() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "busy", "memory pids", "1\n");
        group(mount.path(), "poor", "cpu pids", "");
        assert_eq!(delegated(mount.path(), "0::/busy\n"), None);
        assert_eq!(delegated(mount.path(), "0::/poor\n"), None);
    }
}
