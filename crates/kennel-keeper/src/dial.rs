//! `keeper dial`: connects to a keeper whose socket the host cannot reach. The engine starts this program in the
//! container, and it copies bytes between its standard streams and the keeper. Its first line of output says whether it
//! reached the keeper.

use kennel_keeper::sys;
use kennel_proto::dial::{NOT_YET, REACHED, REFUSED};
use rustix::fd::{AsFd, BorrowedFd};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long to wait for a keeper that is just starting.
const WITHIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// Connects to the keeper at `path`, reports the result, and copies bytes in both directions until one side closes.
#[expect(clippy::disallowed_methods, reason = "a backoff: no event reports that the keeper listens")]
pub(crate) fn dial(path: &str) -> ExitCode {
    let until = Instant::now() + WITHIN;
    let stream = loop {
        match connect(path) {
            Ok(stream) => break stream,
            Err((REFUSED, why)) => return say(REFUSED, &why),
            Err((how, why)) if Instant::now() >= until => return say(how, &why),
            // Processes inside can write to the socket's directory, so no inotify event would be reliable.
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    let Ok(writer) = stream.try_clone() else { return say(NOT_YET, "too many descriptors are open") };
    say(REACHED, "");
    std::thread::spawn(move || {
        pass_on(sys::borrow(0), writer.as_fd());
        let _ = writer.shutdown(Shutdown::Write);
    });
    pass_on(stream.as_fd(), sys::borrow(1));
    ExitCode::SUCCESS
}

/// Copies bytes until the end. It does not use `io::copy`, which splices in the kernel: that locks the pipe while it
/// waits for the socket, and blocks the reader of the pipe.
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

/// Connects to the keeper. The peer must be process 1.
fn connect(path: &str) -> Result<UnixStream, (char, String)> {
    let not_yet = |error: io::Error| (NOT_YET, error.to_string());
    let kind = std::fs::symlink_metadata(path).map_err(not_yet)?.file_type();
    if !kind.is_socket() {
        return Err((REFUSED, "the file at its path is not a socket".into()));
    }
    let stream = UnixStream::connect(path).map_err(not_yet)?;
    let stream = rustix::fd::OwnedFd::from(stream);
    if sys::peer_pid(&stream) != Some(1) {
        return Err((REFUSED, "another process listens at its path".into()));
    }
    Ok(stream.into())
}

fn say(how: char, why: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{how}{why}").and_then(|()| out.flush());
    if said.is_ok() && how == REACHED { ExitCode::SUCCESS } else { ExitCode::from(125) }
}
