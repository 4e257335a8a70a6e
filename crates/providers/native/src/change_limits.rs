//! Changes the limits of a sandbox. While it runs, they are those of its cgroup; otherwise the next start uses them.

use crate::groups::Groups;
use crate::{Native, limits::HIERARCHIES};
use kennel_core::{Error, Provider as _, Result};
use kennel_provider::blocking;
use kennel_types::{ErrorCode, Limits, NextStep, SandboxId, Support};
use std::path::{Path, PathBuf};

impl Native {
    pub(crate) async fn change_limits_of(&self, id: &SandboxId, asked: Limits) -> Result<()> {
        let (record, info) = self.find(id.as_str()).await?;
        if asked.disk.is_some_and(|size| Some(size) != record.spec.limits.disk) {
            let step = NextStep::advice("create a new sandbox with this limit");
            return Err(Error::unsupported(self.name(), "changing the disk limit of a sandbox").suggest(step));
        }
        if asked.on_processes() && self.mode().limits != Support::Given {
            return Err(Error::unsupported(self.name(), "limits").context(format_args!("change sandbox {}", info.name)));
        }
        if record.spec.tied {
            return Err(Error::is_tied(&record.name));
        }
        let only_me = self.records.starting(&record).await?;
        // It may have been changed or started in the meantime.
        let (record, info) = self.find(id.as_str()).await?;
        let old = record.spec.limits;
        let new = asked.or(old);
        if info.status.is_up() {
            let writes = writes(&self.maker.groups, id, &old, &asked).map_err(|missing| {
                let message = format!("sandbox {} runs without a {missing} limit, so none can be added", record.name);
                let step = NextStep::advice("stop the sandbox, change its limits, and start it again");
                Error::new(ErrorCode::Unsupported, message).suggest(step)
            })?;
            let name = record.name.clone();
            blocking(move || write_all(&name, &writes)).await?;
        }
        let records = self.records.clone();
        blocking(move || records.change_limits(&record, new, &only_me)).await
    }
}

/// A file of a cgroup, with its new and its old value.
#[derive(Debug, PartialEq, Eq)]
struct Write {
    path: PathBuf,
    new: String,
    old: String,
}

/// Returns what must be written, in this order. Fails with the name of a limit for which there is no cgroup.
fn writes(
    groups: &Groups,
    id: &SandboxId,
    old: &Limits,
    asked: &Limits,
) -> std::result::Result<Vec<Write>, &'static str> {
    let Some(mount) = groups.dir() else { return Ok(Vec::new()) };
    let is_v2 = mount.join("cgroup.controllers").exists();
    let dir = |controller: &str| {
        let hierarchy = if is_v2 { HIERARCHIES[0] } else { controller };
        mount.join(hierarchy).join("kennel").join(id.as_str())
    };
    let mut writes = Vec::new();
    let mut add = |path: PathBuf, new: String, old: String| writes.push(Write { path, new, old });
    if let Some(new) = asked.memory {
        let old = old.memory.ok_or("memory")?;
        let dir = dir("memory");
        let names: &[&str] = match (is_v2, new > old) {
            (true, _) => &["memory.max"],
            // The limit on memory with swap is never below the one on memory.
            (false, true) => &["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"],
            (false, false) => &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
        };
        for path in names.iter().map(|name| dir.join(name)).filter(|path| path.exists() || !is_swap(path)) {
            add(path, new.0.to_string(), old.0.to_string());
        }
    }
    if let Some(new) = asked.millicpus {
        let old = old.millicpus.ok_or("CPU")?;
        let quota = |millis: u32| (u64::from(millis) * 100).to_string();
        if is_v2 {
            add(dir("cpu").join("cpu.max"), format!("{} 100000", quota(new)), format!("{} 100000", quota(old)));
        } else {
            add(dir("cpu").join("cpu.cfs_quota_us"), quota(new), quota(old));
        }
    }
    if let Some(new) = asked.pids {
        let old = old.pids.ok_or("process")?;
        add(dir("pids").join("pids.max"), new.to_string(), old.to_string());
    }
    Ok(writes)
}

/// Whether the file limits memory with swap, which not every kernel counts.
fn is_swap(path: &Path) -> bool {
    path.ends_with("memory.memsw.limit_in_bytes")
}

/// Writes all values. If one is refused, the ones before it are restored.
fn write_all(name: &str, writes: &[Write]) -> Result<()> {
    for (done, write) in writes.iter().enumerate() {
        let Err(error) = std::fs::write(&write.path, &write.new) else { continue };
        for before in writes[..done].iter().rev() {
            let _ = std::fs::write(&before.path, &before.old);
        }
        let what = format!("change the limits of sandbox {name}: write {} to {}", write.new, write.path.display());
        return Err(match error.kind() {
            // More memory is in use than the new limit allows.
            std::io::ErrorKind::ResourceBusy => Error::new(ErrorCode::Conflict, format!("{what}: more is in use"))
                .advise("end some of its processes first"),
            _ => Error::io(what, error),
        });
    }
    Ok(())
}
