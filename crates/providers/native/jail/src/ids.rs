//! User namespaces: how ids inside meet ids outside.

use crate::sys;
use kennel_jail::{IdMap, Ids};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::process::{Command, Stdio};

/// Writes the maps of a process in a new user namespace, with the rights of the host's root.
pub(crate) fn map(pid: i32, ids: &Ids) -> Result<(), String> {
    for (file, maps) in [("uid_map", &ids.users), ("gid_map", &ids.groups)] {
        let path = format!("/proc/{pid}/{file}");
        let line = |IdMap { inside, outside, count }: &IdMap| format!("{inside} {outside} {count}");
        let lines: Vec<String> = maps.iter().map(line).collect();
        fs::write(&path, lines.join("\n")).map_err(|error| format!("map ids in {path}: {error}"))?;
    }
    Ok(())
}

/// The same as an ordinary user, who may map itself, and more only by the programs that know what was given to it.
pub(crate) fn map_as_user(pid: i32, ids: &Ids) -> Result<(), String> {
    if let ([_], [_]) = (&*ids.users, &*ids.groups) {
        let path = format!("/proc/{pid}/setgroups");
        fs::write(&path, "deny").map_err(|error| format!("give up groups in {path}: {error}"))?;
        return map(pid, ids);
    }
    for (program, maps) in [("/usr/bin/newuidmap", &ids.users), ("/usr/bin/newgidmap", &ids.groups)] {
        let mut command = Command::new(program);
        command.arg(pid.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        for IdMap { inside, outside, count } in maps {
            command.args([inside, outside, count].map(ToString::to_string));
        }
        let done = command.output().map_err(|error| format!("run {program}: {error}"))?;
        if !done.status.success() {
            return Err(format!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim()));
        }
    }
    Ok(())
}

/// The user namespace of a process.
pub(crate) fn namespace_of(pid: i32) -> Result<OwnedFd, String> {
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("open {path}: {error}"))
}

/// A user namespace with these maps and nobody in it, to shift the ids of a mount by.
pub(crate) fn namespace(ids: &Ids) -> Result<OwnedFd, String> {
    let pid = match sys::fork_into(libc::CLONE_NEWUSER) {
        Ok(Some(pid)) => pid,
        Ok(None) => loop {
            // Waits to be killed; a signal that is no end does not end it.
            sys::die_with_parent();
            rustix::event::pause();
        },
        Err(error) => return Err(format!("make a user namespace: {error}")),
    };
    let namespace = map(pid, ids).and_then(|()| namespace_of(pid));
    kennel_keeper::sys::kill(pid, libc::SIGKILL);
    let _ = rustix::process::waitpid(rustix::process::Pid::from_raw(pid), rustix::process::WaitOptions::empty());
    namespace
}
