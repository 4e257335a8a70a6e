//! The cgroup of a sandbox, seen from outside: its resource usage, and what remains of it after a crash.

use crate::groups::Groups;
use kennel_core::Sweep;
use kennel_provider::Record;
use kennel_types::{Leftover, SandboxId, Stats};

/// The hierarchies that may contain Kennel's cgroups, of version 2 and version 1.
pub(crate) const HIERARCHIES: [&str; 5] = ["", "memory", "cpu", "pids", "freezer"];

/// Returns the resource usage, if the sandbox has a cgroup for all values. Otherwise the keeper counts.
pub(crate) fn stats(groups: &Groups, record: &Record) -> Option<Stats> {
    let groups = groups.dir()?;
    let limits = record.spec.limits;
    if !limits.on_processes() || !groups.join("cgroup.controllers").exists() {
        return None; // On version 1 there is a cgroup only for limited resources, so the keeper's sum is better.
    }
    let dir = groups.join("kennel").join(record.id.as_str());
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let field =
        |name: &str, key: &str| text(name)?.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    Some(Stats {
        cpu_micros: field("cpu.stat", "usage_usec ")?,
        memory_bytes: text("memory.current")?.trim().parse().ok()?,
        memory_limit_bytes: limits.memory.map(|size| size.0),
        pids: text("pids.current")?.trim().parse().ok()?,
        read_bytes: None,
        written_bytes: None,
        oom_kills: field("memory.events", "oom_kill "),
    })
}

/// Removes cgroups that a killed jail left behind, and kills the processes in them. Frozen processes die when they are
/// thawed.
pub(crate) async fn sweep(groups: &Groups, id: &SandboxId) {
    let Some(dir) = groups.dir() else { return };
    let groups = HIERARCHIES.map(|hierarchy| dir.join(hierarchy).join("kennel").join(id.as_str()));
    for group in groups.iter().filter(|group| group.exists()) {
        for (switch, go_on) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            if group.join(switch).exists() {
                let _ = std::fs::write(group.join(switch), go_on);
            }
        }
        // The last process may still be exiting.
        for _ in 0..200 {
            match std::fs::remove_dir(group) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "a backoff: cgroup version 1 has no event for an empty cgroup"
                    )]
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                _ => break,
            }
        }
        if let Some(parent) = group.parent() {
            let _ = std::fs::remove_dir(parent);
        }
    }
}

/// Finds cgroups that have been empty for long and belong to no known sandbox, and removes or only reports them. An
/// empty cgroup has no effect, whoever created it.
pub(crate) fn sweep_all(groups: &Groups, known: &[String], action: Sweep) -> Vec<Leftover> {
    const LONG: std::time::Duration = std::time::Duration::from_mins(1);
    let mut removed = Vec::new();
    let Some(dir) = groups.dir() else { return removed };
    for hierarchy in HIERARCHIES {
        let parent = dir.join(hierarchy).join("kennel");
        for entry in std::fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let made = entry.metadata().and_then(|meta| meta.modified());
            let old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > LONG));
            let path = entry.path();
            // The kernel refuses to remove a cgroup that contains processes.
            let done = || match action {
                Sweep::Report => std::fs::read(path.join("cgroup.procs")).is_ok_and(|processes| processes.is_empty()),
                Sweep::Remove => std::fs::remove_dir(&path).is_ok(),
            };
            if is_dir && old && !known.contains(&name) && done() {
                removed.push(Leftover::Cgroup { path });
            }
        }
    }
    removed
}
