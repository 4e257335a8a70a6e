//! User namespaces: how ids inside meet ids outside.

use crate::sys;
use kennel_jail::IdMap;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::fs;

/// Writes the maps of a process in a new user namespace.
pub(crate) fn map(pid: i32, users: &IdMap, groups: &IdMap) -> Result<(), String> {
    for (file, map) in [("uid_map", users), ("gid_map", groups)] {
        let path = format!("/proc/{pid}/{file}");
        fs::write(&path, format!("{} {} {}\n", map.inside, map.outside, map.count))
            .map_err(|error| format!("map ids in {path}: {error}"))?;
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
pub(crate) fn namespace(users: &IdMap, groups: &IdMap) -> Result<OwnedFd, String> {
    let pid = match sys::fork_into(libc::CLONE_NEWUSER) {
        Ok(Some(pid)) => pid,
        Ok(None) => loop {
            // Waits to be killed; a signal that is no end does not end it.
            sys::die_with_parent();
            rustix::event::pause();
        },
        Err(error) => return Err(format!("make a user namespace: {error}")),
    };
    let namespace = map(pid, users, groups).and_then(|()| namespace_of(pid));
    kennel_keeper::sys::kill(pid, libc::SIGKILL);
    let _ = rustix::process::waitpid(rustix::process::Pid::from_raw(pid), rustix::process::WaitOptions::empty());
    namespace
}
