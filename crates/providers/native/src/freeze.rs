//! Pausing with the cgroup freezer, version 2 or 1.
//!
//! On version 2, a sandbox with limits already has a cgroup. Any other sandbox gets one while it is paused: its
//! processes are moved there, and each freezes as it arrives. Processes that are forked meanwhile are moved too, until
//! none is left outside. When the sandbox is resumed, they are moved back to the jail's cgroup, and the temporary
//! cgroup is removed.

use crate::groups::{Groups, MOUNT};
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, SandboxId};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long freezing or thawing may take.
const WITHIN: Duration = Duration::from_secs(10);

/// The cgroup in which a sandbox is frozen.
struct Freezer {
    dir: PathBuf,
    /// The file that freezes and thaws the cgroup, and the values to write for thawed and frozen.
    switch: PathBuf,
    words: [&'static str; 2],
    /// The file that shows the state, and the line in it that means that all processes are frozen.
    told: PathBuf,
    line: &'static str,
    /// The mark of the freezer's hierarchy in `/proc/PID/cgroup`, and the mount point of the hierarchy.
    hierarchy: (&'static str, PathBuf),
}

impl Freezer {
    /// Returns the freezer of a sandbox, whether its cgroup exists or not. `None` if the machine has no freezer.
    fn for_sandbox(groups: &Path, id: &SandboxId) -> Option<Self> {
        if groups.join("cgroup.controllers").exists() {
            let dir = groups.join("kennel").join(id.as_str());
            let (switch, told) = (dir.join("cgroup.freeze"), dir.join("cgroup.events"));
            let hierarchy = ("0::", MOUNT.into());
            return Some(Self { dir, switch, words: ["0", "1"], told, line: "frozen 1", hierarchy });
        }
        let root = groups.join("freezer");
        let dir = root.join("kennel").join(id.as_str());
        let (switch, told) = (dir.join("freezer.state"), dir.join("freezer.state"));
        let hierarchy = (":freezer:", root.clone());
        let here = root.join("cgroup.procs").exists();
        here.then_some(Self { dir, switch, words: ["THAWED", "FROZEN"], told, line: "FROZEN", hierarchy })
    }

    fn is_frozen(&self) -> bool {
        std::fs::read_to_string(&self.told).is_ok_and(|text| text.lines().any(|line| line == self.line))
    }

    fn turn(&self, frozen: bool) -> std::io::Result<()> {
        std::fs::write(&self.switch, self.words[usize::from(frozen)])
    }

    fn members(&self) -> HashSet<i32> {
        let text = std::fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Moves all descendants of the process `jail` into the cgroup. Returns whether all were there already.
    fn gather(&self, jail: i32) -> bool {
        let inside = self.members();
        let outside: Vec<i32> = below(jail).into_iter().filter(|pid| !inside.contains(pid)).collect();
        for pid in &outside {
            // This fails if the process has ended meanwhile.
            let _ = std::fs::write(self.dir.join("cgroup.procs"), pid.to_string());
        }
        outside.is_empty()
    }

    /// Moves all processes back to the jail's cgroup. Returns whether the cgroup was empty already.
    fn release(&self, jail: i32) -> bool {
        let (mark, root) = &self.hierarchy;
        let groups = std::fs::read_to_string(format!("/proc/{jail}/cgroup")).unwrap_or_default();
        let own = groups.lines().find_map(|line| line.split_once(mark).map(|(_, path)| path.trim_start_matches('/')));
        let home = root.join(own.unwrap_or_default()).join("cgroup.procs");
        let members = self.members();
        for pid in &members {
            let _ = std::fs::write(&home, pid.to_string());
        }
        members.is_empty()
    }
}

/// Whether all processes of the sandbox are frozen.
pub(crate) fn is_frozen(groups: &Groups, id: &SandboxId) -> bool {
    groups.dir().and_then(|groups| Freezer::for_sandbox(groups, id)).is_some_and(|freezer| freezer.is_frozen())
}

/// The file in a sandbox's directory that exists while the sandbox is paused. It only wakes up watchers; whether the
/// sandbox is paused is read from the cgroup.
const PAUSED: &str = "paused";

/// Creates the file `paused` in a sandbox's directory, so that watchers notice the pause.
pub(crate) fn note(dir: &Path) -> Result<()> {
    let path = dir.join(PAUSED);
    std::fs::write(&path, "").map_err(|error| Error::io(format!("write {}", path.display()), error))
}

/// Removes the file `paused` from a sandbox's directory.
pub(crate) fn forget(dir: &Path) {
    let _ = std::fs::remove_file(dir.join(PAUSED));
}

/// Freezes all descendants of the process `jail`. If this fails, they are thawed again.
pub(crate) async fn freeze(groups: &Groups, id: &SandboxId, name: &str, jail: i32) -> Result<()> {
    let what = || format!("pause sandbox {name}");
    let freezer = groups
        .dir()
        .and_then(|groups| Freezer::for_sandbox(groups, id))
        .ok_or_else(|| Error::new(ErrorCode::Unsupported, format!("{}: this machine has no freezer cgroup", what())))?;
    let began = std::fs::create_dir_all(&freezer.dir).and_then(|()| freezer.turn(true));
    began.map_err(|error| Error::io(format!("{}: {}", what(), freezer.dir.display()), error))?;
    if until(|| freezer.gather(jail) && freezer.is_frozen()).await {
        return Ok(());
    }
    thaw(groups, id, name, jail).await?;
    Err(Error::new(ErrorCode::Internal, format!("{}: its processes did not freeze within {WITHIN:?}", what())))
}

/// Thaws all processes of a sandbox. It is no error if none was frozen.
pub(crate) async fn thaw(groups: &Groups, id: &SandboxId, name: &str, jail: i32) -> Result<()> {
    let found = groups.dir().and_then(|groups| Freezer::for_sandbox(groups, id));
    let Some(freezer) = found.filter(|freezer| freezer.switch.exists()) else {
        return Ok(());
    };
    let what = || format!("resume sandbox {name}");
    freezer.turn(false).map_err(|error| Error::io(what(), error))?;
    if has_limits(&freezer.dir) {
        return Ok(());
    }
    if !until(|| freezer.release(jail)).await {
        return Err(Error::new(
            ErrorCode::Internal,
            format!("{}: could not move all processes out of {}", what(), freezer.dir.display()),
        ));
    }
    let _ = std::fs::remove_dir(&freezer.dir);
    if let Some(parent) = freezer.dir.parent() {
        // This fails while other sandboxes have a cgroup there.
        let _ = std::fs::remove_dir(parent);
    }
    Ok(())
}

/// Whether a cgroup has limits, which means that the jail created it and will remove it. On version 1 this is always
/// false, because limits are in other hierarchies than the freezer.
fn has_limits(dir: &Path) -> bool {
    let set = |file: &str| std::fs::read_to_string(dir.join(file)).is_ok_and(|text| !text.starts_with("max"));
    ["memory.max", "cpu.max", "pids.max"].into_iter().any(set)
}

/// Polls until the condition holds. Returns false if it does not hold within [`WITHIN`].
async fn until(mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    let mut pause = Duration::from_micros(200);
    while !done() {
        if began.elapsed() > WITHIN {
            return false;
        }
        #[expect(clippy::disallowed_methods, reason = "a backoff: the kernel sends no event when a cgroup is frozen")]
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    true
}

/// Returns all descendants of a process, except zombies: they do not run, they cannot be moved, and a paused parent
/// does not reap them.
fn below(ancestor: i32) -> HashSet<i32> {
    let parents: Vec<(i32, i32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The program's name, in parentheses, may itself contain parentheses.
            let (_, after) = stat.rsplit_once(')')?;
            let mut fields = after.split_whitespace();
            let state = fields.next()?;
            (state != "Z").then_some((pid, fields.next()?.parse().ok()?))
        })
        .collect();
    let mut found = HashSet::new();
    let mut ancestors = vec![ancestor];
    while let Some(parent) = ancestors.pop() {
        for (pid, _) in parents.iter().filter(|(_, of)| *of == parent) {
            if found.insert(*pid) {
                ancestors.push(*pid);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that stands in for cgroupfs.
    #[test]
    fn freezers_of_both_cgroup_versions_are_found() {
        let id = SandboxId::new("box").unwrap();
        let mount = tempfile::tempdir().unwrap();
        assert!(Freezer::for_sandbox(mount.path(), &id).is_none());
        std::fs::create_dir_all(mount.path().join("freezer/kennel/box")).unwrap();
        std::fs::write(mount.path().join("freezer/cgroup.procs"), "").unwrap();
        let freezer = Freezer::for_sandbox(mount.path(), &id).unwrap();
        assert!(!freezer.is_frozen());
        freezer.turn(true).unwrap();
        assert!(freezer.is_frozen());
        freezer.turn(false).unwrap();
        assert!(!freezer.is_frozen());
        std::fs::write(mount.path().join("cgroup.controllers"), "").unwrap();
        std::fs::create_dir_all(mount.path().join("kennel/box")).unwrap();
        let freezer = Freezer::for_sandbox(mount.path(), &id).unwrap();
        freezer.turn(true).unwrap();
        assert_eq!(std::fs::read_to_string(mount.path().join("kennel/box/cgroup.freeze")).unwrap(), "1");
        std::fs::write(mount.path().join("kennel/box/cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        assert!(freezer.is_frozen());
        std::fs::write(mount.path().join("kennel/box/pids.max"), "7\n").unwrap();
        assert!(has_limits(&freezer.dir));
    }

    #[test]
    fn child_processes_are_found() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(below(own).contains(&i32::try_from(child.id()).unwrap()));
        child.kill().unwrap();
        // It stays a zombie, because `wait` was not called yet.
        let stat = format!("/proc/{}/stat", child.id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        assert!(!below(own).contains(&i32::try_from(child.id()).unwrap()));
        child.wait().unwrap();
    }
}
