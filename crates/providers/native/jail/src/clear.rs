//! Removes what a sandbox leaves. Where an ordinary user made it, its files may belong to users that are only there inside,
//! and its directories may be shut: it is removed from inside.

use crate::{ids, sys};
use kennel_jail::{Clear, Ids, Rights};
use kennel_keeper::place;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions};
use std::io::ErrorKind;

/// Hears what to remove, and answers when it is gone.
pub(crate) fn as_told() -> Result<(), String> {
    let clear: Clear = minicbor::decode(&place::hear()?).map_err(|error| format!("read what to remove: {error}"))?;
    remove(&clear.dir, Rights::User, &clear.ids)
}

/// Removes a directory with all that is in it. That it is gone already is no error.
pub(crate) fn remove(dir: &str, rights: Rights, ids: &Ids) -> Result<(), String> {
    // Mostly there is nothing in it that the user could not remove alone.
    let gone = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    match std::fs::remove_dir_all(dir) {
        Err(error) if rights == Rights::User && !gone(&error) => remove_inside(dir, ids)?,
        _ => {}
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if !gone(&error) => Err(format!("remove {dir}: {error}")),
        _ => Ok(()),
    }
}

/// The same by root of a namespace with these users.
fn remove_inside(dir: &str, ids: &Ids) -> Result<(), String> {
    let failed = |error: rustix::io::Errno| format!("make a user namespace to remove {dir} in: {error}");
    let (mapped, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    let Some(pid) = sys::fork_into(libc::CLONE_NEWUSER).map_err(failed)? else {
        sys::die_with_parent();
        let _ = rustix::io::read(&mapped, &mut [0]);
        let _ = std::fs::remove_dir_all(dir);
        kennel_keeper::sys::exit_now(0)
    };
    let done = ids::map_as_user(pid, ids);
    if done.is_ok() {
        let _ = rustix::io::write(&tell, b".");
    } else {
        kennel_keeper::sys::kill(pid, libc::SIGKILL);
    }
    let _ = rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty());
    done
}
