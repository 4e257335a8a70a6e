//! The way to a keeper whose socket no host can reach: the engine starts this beside it, and passes on what goes in and comes
//! out. The first line says whether the keeper was reached.

use kennel_keeper::sys;
use kennel_proto::dial::{NOT_YET, REACHED, REFUSED};
use rustix::fd::{AsFd, BorrowedFd};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a keeper that is just starting is waited for.
const WITHIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// Connects to the keeper at `path`, says how that went, and passes bytes both ways until one side hangs up.
#[expect(clippy::disallowed_methods, reason = "a backoff: no event tells when the keeper listens")]
pub(crate) fn dial(path: &str) -> ExitCode {
    let until = Instant::now() + WITHIN;
    let stream = loop {
        match connect(path) {
            Ok(stream) => break stream,
            Err((REFUSED, why)) => return say(REFUSED, &why),
            Err((how, why)) if Instant::now() >= until => return say(how, &why),
            // The socket is in a directory that the inside can write to: no event is sure.
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    let Ok(writer) = stream.try_clone() else { return say(NOT_YET, "no descriptor is left") };
    say(REACHED, "");
    std::thread::spawn(move || {
        pass_on(sys::borrow(0), writer.as_fd());
        let _ = writer.shutdown(Shutdown::Write);
    });
    pass_on(stream.as_fd(), sys::borrow(1));
    ExitCode::SUCCESS
}

/// Passes bytes on until there are no more. Not by the kernel alone, as `io::copy` has it: that locks the pipe while it waits for
/// the socket, and whoever reads the pipe waits too.
fn pass_on(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = match rustix::io::read(from, &mut buffer) {
            Ok(0) => return,
            Ok(read) => read,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        };
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            match rustix::io::write(to, rest) {
                Ok(written) => rest = &rest[written..],
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The keeper, and nobody else: it is process 1.
fn connect(path: &str) -> Result<UnixStream, (char, String)> {
    let not_yet = |error: io::Error| (NOT_YET, error.to_string());
    let kind = std::fs::symlink_metadata(path).map_err(not_yet)?.file_type();
    if !kind.is_socket() {
        return Err((REFUSED, "it is no socket, and is refused".into()));
    }
    let stream = UnixStream::connect(path).map_err(not_yet)?;
    let stream = rustix::fd::OwnedFd::from(stream);
    if sys::peer_pid(&stream) != Some(1) {
        return Err((REFUSED, "another process than the keeper answers, and is refused".into()));
    }
    Ok(stream.into())
}

fn say(how: char, why: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{how}{why}").and_then(|()| out.flush());
    if said.is_ok() && how == REACHED { ExitCode::SUCCESS } else { ExitCode::from(125) }
}
