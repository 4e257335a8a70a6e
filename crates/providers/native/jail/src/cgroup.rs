//! Limits: the sandbox's own cgroup, version 2 or 1, whichever the machine has.
//!
//! A limit that cannot be set is an error: a sandbox is never weaker than requested.

use crate::Cgroup;
use kennel_keeper::StartError;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The directories of one sandbox's cgroup, one per hierarchy. They are removed when this is dropped.
pub(crate) struct Group {
    dirs: Vec<PathBuf>,
    oom_events: Option<PathBuf>,
}

impl Group {
    /// Creates the cgroup and sets its limits.
    pub(crate) fn make(plan: &Cgroup) -> Result<Self, StartError> {
        Self::make_below(Path::new(&plan.parent), plan)
    }

    fn make_below(mount: &Path, plan: &Cgroup) -> Result<Self, StartError> {
        if mount.join("cgroup.controllers").exists() { Self::make_v2(mount, plan) } else { Self::make_v1(mount, plan) }
    }

    fn make_v2(mount: &Path, plan: &Cgroup) -> Result<Self, StartError> {
        let wanted =
            [("memory", plan.memory.is_some()), ("cpu", plan.millicpus.is_some()), ("pids", plan.pids.is_some())];
        let parent = mount.join("kennel");
        make_dir(&parent)?;
        for dir in [mount, parent.as_path()] {
            let on = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
            for (controller, _) in wanted.iter().filter(|(_, wanted)| *wanted) {
                if !on.split_whitespace().any(|word| word == *controller) {
                    write(&dir.join("cgroup.subtree_control"), &format!("+{controller}"))?;
                }
            }
        }
        let dir = parent.join(&plan.name);
        let mut group = Self { dirs: Vec::new(), oom_events: Some(dir.join("memory.events")) };
        make_dir(&dir)?;
        group.dirs.push(dir.clone());
        if let Some(memory) = plan.memory {
            write(&dir.join("memory.max"), &memory.to_string())?;
            write_if_there(&dir.join("memory.swap.max"), "0")?;
        }
        if let Some(millicpus) = plan.millicpus {
            write(&dir.join("cpu.max"), &format!("{} 100000", u64::from(millicpus) * 100))?;
        }
        if let Some(pids) = plan.pids {
            write(&dir.join("pids.max"), &pids.to_string())?;
        }
        Ok(group)
    }

    fn make_v1(mount: &Path, plan: &Cgroup) -> Result<Self, StartError> {
        let mut group = Self { dirs: Vec::new(), oom_events: None };
        if let Some(memory) = plan.memory {
            let dir = group.add_hierarchy(mount, "memory", plan)?;
            write(&dir.join("memory.limit_in_bytes"), &memory.to_string())?;
            write_if_there(&dir.join("memory.memsw.limit_in_bytes"), &memory.to_string())?;
            group.oom_events = Some(dir.join("memory.oom_control"));
        }
        if let Some(millicpus) = plan.millicpus {
            let dir = group.add_hierarchy(mount, "cpu", plan)?;
            write(&dir.join("cpu.cfs_period_us"), "100000")?;
            write(&dir.join("cpu.cfs_quota_us"), &(u64::from(millicpus) * 100).to_string())?;
        }
        if let Some(pids) = plan.pids {
            let dir = group.add_hierarchy(mount, "pids", plan)?;
            write(&dir.join("pids.max"), &pids.to_string())?;
        }
        Ok(group)
    }

    fn add_hierarchy(&mut self, mount: &Path, controller: &str, plan: &Cgroup) -> Result<PathBuf, StartError> {
        let hierarchy = mount.join(controller);
        if !hierarchy.join("cgroup.procs").exists() {
            return Err(
                format!("set the {controller} limit: this machine has no {controller} cgroup controller").into()
            );
        }
        let dir = hierarchy.join("kennel").join(&plan.name);
        make_dir(&dir)?;
        self.dirs.push(dir.clone());
        Ok(dir)
    }

    /// Moves a process into the cgroup, with everything it starts later.
    pub(crate) fn add(&self, pid: i32) -> Result<(), StartError> {
        self.dirs.iter().try_for_each(|dir| write(&dir.join("cgroup.procs"), &pid.to_string()))
    }

    /// Whether the kernel has killed a process of the cgroup because its memory ran out.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        let text = self.oom_events.as_ref().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        text.lines().filter_map(|line| line.strip_prefix("oom_kill ")).any(|count| count.trim() != "0")
    }

    /// Opens the file that counts OOM kills.
    pub(crate) fn oom_events(&self) -> Option<OwnedFd> {
        let path = self.oom_events.as_ref()?;
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }
}

impl Drop for Group {
    #[expect(clippy::disallowed_methods, reason = "a backoff: cgroup version 1 has no event for an empty cgroup")]
    fn drop(&mut self) {
        for dir in &self.dirs {
            // The last process may still be exiting.
            for _ in 0..2000 {
                match fs::remove_dir(dir) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        std::thread::sleep(std::time::Duration::from_micros(500));
                    }
                    _ => break,
                }
            }
            // The last sandbox also removes the parent. This fails while there are others.
            if let Some(parent) = dir.parent() {
                let _ = fs::remove_dir(parent);
            }
        }
    }
}

/// Creates a directory, also if another process removes its parent at the same time.
fn make_dir(dir: &Path) -> Result<(), StartError> {
    for _ in 0..100 {
        match fs::create_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if let Some(parent) = dir.parent() {
                    let _ = fs::create_dir(parent);
                }
            }
            Err(error) => return Err(format!("create the cgroup {}: {error}", dir.display()).into()),
        }
    }
    Err(format!("create the cgroup {}: its parent was removed again after each attempt", dir.display()).into())
}

fn write(path: &Path, value: &str) -> Result<(), StartError> {
    fs::write(path, value).map_err(|error| format!("write {value} to {}: {error}", path.display()).into())
}

fn write_if_there(path: &Path, value: &str) -> Result<(), StartError> {
    if path.exists() { write(path, value) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Cgroup {
        Cgroup {
            name: "box".into(),
            parent: String::new(),
            memory: Some(1 << 20),
            millicpus: Some(1500),
            pids: Some(7),
        }
    }

    /// A directory that stands in for cgroupfs: files appear when they are written.
    fn read(path: impl AsRef<Path>) -> String {
        let path = path.as_ref();
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn version_2() {
        let mount = tempfile::tempdir().unwrap();
        fs::write(mount.path().join("cgroup.controllers"), "cpu memory pids").unwrap();
        let group = Group::make_below(mount.path(), &plan()).unwrap();
        let dir = mount.path().join("kennel/box");
        assert_eq!(read(dir.join("memory.max")), "1048576");
        assert_eq!(read(dir.join("cpu.max")), "150000 100000");
        assert_eq!(read(dir.join("pids.max")), "7");
        group.add(42).unwrap();
        assert_eq!(read(dir.join("cgroup.procs")), "42");
    }

    #[test]
    fn version_1() {
        let mount = tempfile::tempdir().unwrap();
        for controller in ["memory", "cpu", "pids"] {
            fs::create_dir(mount.path().join(controller)).unwrap();
            fs::write(mount.path().join(controller).join("cgroup.procs"), "").unwrap();
        }
        let group = Group::make_below(mount.path(), &plan()).unwrap();
        assert_eq!(read(mount.path().join("memory/kennel/box/memory.limit_in_bytes")), "1048576");
        assert_eq!(read(mount.path().join("cpu/kennel/box/cpu.cfs_quota_us")), "150000");
        assert_eq!(read(mount.path().join("pids/kennel/box/pids.max")), "7");
        group.add(42).unwrap();
        assert_eq!(read(mount.path().join("cpu/kennel/box/cgroup.procs")), "42");
    }

    #[test]
    fn a_missing_controller_is_an_error() {
        let mount = tempfile::tempdir().unwrap();
        let Err(error) = Group::make_below(mount.path(), &plan()) else { panic!("a limit was ignored") };
        assert!(error.message().contains("memory"), "{error}");
    }
}
