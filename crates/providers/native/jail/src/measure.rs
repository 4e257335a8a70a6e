//! Measures a directory that an ordinary user cannot read completely: from inside a user namespace, where the ids of its
//! files exist.

use crate::{Clear, disk_usage};
use crate::{ids, sys};
use kennel_keeper::{StartError, sandbox_dir};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions};

/// Reads the request to measure a directory, and returns the size in bytes.
pub(crate) fn run() -> Result<u64, StartError> {
    let Clear { dir, ids } = minicbor::decode(&sandbox_dir::read_instructions()?)
        .map_err(|error| format!("read the request to measure a directory: {error}"))?;
    let failed = |error: rustix::io::Errno| format!("create a user namespace to measure {dir}: {error}");
    let (mapped, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    // The fork shares its descriptors with this process, so its end closes neither pipe.
    let (measured, report) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(failed)?;
    let Some(pid) = sys::fork_into(libc::CLONE_NEWUSER).map_err(failed)? else {
        sys::die_with_parent();
        let _ = rustix::io::read(&mapped, &mut [0]);
        if let Ok(size) = disk_usage(dir.as_ref()) {
            sandbox_dir::write_all(&report, &size.to_le_bytes());
        }
        kennel_keeper::sys::exit_now(0)
    };
    let done = ids::map_as_user(pid, &ids);
    if done.is_ok() {
        let _ = rustix::io::write(&tell, b".");
    } else {
        kennel_keeper::sys::kill(pid, libc::SIGKILL);
    }
    let _ = rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty());
    done?;
    let mut size = [0; 8];
    let count = rustix::io::read(&measured, &mut size);
    if count == Ok(size.len()) { Ok(u64::from_le_bytes(size)) } else { Err(format!("measure {dir}: it failed").into()) }
}
