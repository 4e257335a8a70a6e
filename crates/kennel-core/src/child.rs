//! A program of ours that is started, told what to do on its standard input, and answers once on its standard output.

use crate::{Error, Result};
use kennel_types::ErrorCode;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};
use std::ffi::OsStr;
use std::io::{Seek, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;

/// Longest answer.
const ANSWER: u64 = 64 * 1024;

/// Starts `program`, hands it `input`, and reads its answer to the end. The program goes on; it is reaped when it ends.
pub async fn start_program(program: &Path, arguments: &[&OsStr], input: &[u8]) -> Result<Vec<u8>> {
    let what = || format!("start {}", program.display());
    let memory = rustix::fs::memfd_create("kennel", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| Error::io(what(), error))?;
    let mut file = std::fs::File::from(memory);
    file.write_all(input).and_then(|()| file.rewind()).map_err(|error| Error::io(what(), error))?;
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)
        .map_err(|error| Error::io(what(), error))?;
    rustix::io::ioctl_fionbio(&write, false).map_err(|error| Error::io(what(), error))?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().stdin(Stdio::from(file)).stdout(Stdio::from(write)).stderr(Stdio::null());
    let child = spawn(&mut command)
        .map_err(|error| Error::new(ErrorCode::StartFailed, format!("{}: {error}", what())).caused_by(error))?;
    // It holds the writing end of the pipe, which must close when the program closes it.
    drop(command);
    reap_later(child.id());
    let receiver = tokio::net::unix::pipe::Receiver::from_owned_fd(read).map_err(|error| Error::io(what(), error))?;
    let mut answer = Vec::new();
    receiver.take(ANSWER).read_to_end(&mut answer).await.map_err(|error| Error::io(what(), error))?;
    Ok(answer)
}

/// Starts it, also in the moment in which another thread has forked and still holds the program open for writing: it
/// was just put on disk.
fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let mut tries = 0;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy && tries < 1000 => {
                tries += 1;
                std::thread::yield_now();
            }
            done => return done,
        }
    }
}

/// Takes the child's status when it ends, so that no zombie stays in a program that lives long.
fn reap_later(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK) else { return };
    #[allow(deprecated)] // its successor needs `unsafe`; an `OwnedFd` that nobody else holds is what both ask for
    let Ok(pidfd) = AsyncFd::new(pidfd) else { return };
    tokio::spawn(async move {
        let _ = pidfd.readable().await;
        let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
    });
}
