//! Inspects sandboxes from the host: their processes, mounts, cgroups and files. Processes inside cannot influence the
//! result.

use std::path::{Path, PathBuf};

/// Returns the processes of this machine, without zombies, that have the mark in their environment, arguments or
/// mounts.
pub fn processes(mark: &str) -> Vec<u32> {
    let own = std::process::id();
    let carries = |pid: &u32| {
        let has = |file: &str| {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            bytes.windows(mark.len()).any(|window| window == mark.as_bytes())
        };
        has("environ") || has("cmdline") || (own_view(*pid) && has("mountinfo"))
    };
    pids().filter(|pid| *pid != own).filter(carries).collect()
}

/// Returns the processes that have the mark in their environment: those of a command with this mark.
pub fn marked(mark: &str) -> Vec<u32> {
    let carries = |pid: &u32| {
        let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        bytes.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    pids().filter(carries).collect()
}

/// Waits for the processes of a command with this mark, and returns them. The kernel reports a start before it has set
/// the new environment.
pub async fn marked_soon(mark: &str) -> Vec<u32> {
    crate::eventually("the command can be seen from outside", async || !marked(mark).is_empty()).await;
    marked(mark)
}

/// Returns the processes of a program that have this argument.
pub fn called(program: &str, argument: &str) -> Vec<u32> {
    let is_one = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.split('\0').next().is_some_and(|first| Path::new(first).ends_with(program)) && line.contains(argument)
    };
    pids().filter(is_one).collect()
}

/// Unmounts everything below a directory.
pub fn unmount_below(dir: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let below: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    for path in below.into_iter().rev().filter(|path| Path::new(path).starts_with(dir)) {
        let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc can be read");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Whether a process has another mount namespace than this one.
fn own_view(pid: u32) -> bool {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    namespace(&pid.to_string()) != namespace("self")
}

/// Returns a field in KiB of a process's status, such as `VmRSS` or `VmHWM`.
pub fn memory_kib(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Returns the path of the program that a process runs, in its own root.
pub fn program(pid: u32) -> Option<String> {
    Some(std::fs::read_link(format!("/proc/{pid}/exe")).ok()?.to_string_lossy().into_owned())
}

/// Returns descriptions of everything on this machine that still belongs to a home or to one of these sandboxes.
pub fn leftovers(mark: &str, ids: &[String], state: &Path) -> Vec<String> {
    let mut left = Vec::new();
    for pid in processes(mark) {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        left.push(format!("process {pid}: {}", String::from_utf8_lossy(&command).replace('\0', " ")));
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts can be read");
    left.extend(mounts.lines().filter(|line| line.contains(mark)).map(|line| format!("mount {line}")));
    let names_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ids.iter().any(|id| name.contains(id.as_str()))
    };
    let groups = walk(Path::new("/sys/fs/cgroup"), true).into_iter().filter(names_one);
    left.extend(groups.map(|path| format!("cgroup {}", path.display())));
    let files = walk(state, false).into_iter().filter(names_one);
    left.extend(files.map(|path| format!("file {}", path.display())));
    left
}

/// Returns all paths below a directory, without following symlinks.
pub fn walk(dir: &Path, directories_only: bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut ahead = vec![dir.to_owned()];
    while let Some(dir) = ahead.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir {
                ahead.push(entry.path());
            }
            if is_dir || !directories_only {
                found.push(entry.path());
            }
        }
    }
    found
}

/// Returns how many CPUs a process may use, according to its cgroup and those above it.
pub fn cpu_limit(pid: u32) -> Option<f64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let root = if controllers.is_empty() {
            // The version 2 hierarchy is mounted at the top, or next to those of version 1.
            ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
                .into_iter()
                .find(|root| Path::new(root).join("cgroup.controllers").exists())?
                .to_owned()
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            format!("/sys/fs/cgroup/{controllers}")
        } else {
            return None;
        };
        let group = PathBuf::from(format!("{root}{path}"));
        group.ancestors().take_while(|dir| dir.starts_with(&root)).find_map(quota)
    })
}

fn quota(group: &Path) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| *number > 0.0);
    let read = |file: &str| std::fs::read_to_string(group.join(file)).ok();
    if let Some(max) = read("cpu.max") {
        let (quota, period) = max.trim().split_once(' ')?;
        return Some(number(quota)? / number(period)?);
    }
    Some(number(&read("cpu.cfs_quota_us")?)? / number(&read("cpu.cfs_period_us")?)?)
}
