//! Removes what a sandbox leaves behind. In the sandbox of an ordinary user, files may belong to ids that exist only
//! inside, and directories may be inaccessible. So they are removed from inside a user namespace.

use crate::{Clear, Ids, Rights, open_work_dirs};
use crate::{ids, sys};
use kennel_keeper::StartError;
use kennel_keeper::sandbox_dir;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions};
use std::io::ErrorKind;

/// Reads the request to remove a directory, and removes it.
pub(crate) fn run() -> Result<(), StartError> {
    let clear: Clear = minicbor::decode(&sandbox_dir::read_instructions()?)
        .map_err(|error| format!("read the request to remove a directory: {error}"))?;
    remove(&clear.dir, Rights::User, &clear.ids)
}

/// Removes a directory and its content. It is no error if it does not exist.
pub(crate) fn remove(dir: &str, rights: Rights, ids: &Ids) -> Result<(), StartError> {
    // Usually the user can remove everything without a namespace.
    if rights == Rights::User {
        open_work_dirs(dir.as_ref());
    }
    let gone = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    match std::fs::remove_dir_all(dir) {
        Err(error) if rights == Rights::User && !gone(&error) => remove_inside(dir, ids)?,
        _ => {}
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if !gone(&error) => Err(format!("remove {dir}: {error}").into()),
        _ => Ok(()),
    }
}

/// Removes a directory as root of a user namespace with these ids.
fn remove_inside(dir: &str, ids: &Ids) -> Result<(), StartError> {
    let failed = |error: rustix::io::Errno| format!("create a user namespace to remove {dir}: {error}");
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
