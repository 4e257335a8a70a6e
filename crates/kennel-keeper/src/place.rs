//! The directory of a sandbox that Kennel keeps on disk (see `kennel_core::Records`), as whoever keeps it alive holds it.

use crate::{report, sys};
use kennel_proto::{KeeperConfig, LogSink};
use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::time::Duration;

/// Bytes in one log file before the other is used.
const LOG_CAP: u64 = 4 * 1024 * 1024;

/// What is held as long as the sandbox runs.
#[derive(Debug)]
pub struct Place {
    /// Held: the sandbox runs.
    pub lock: OwnedFd,
    /// The keeper's socket, listening.
    pub listener: OwnedFd,
    /// Takes the exit code, where there is a main process that can have one.
    pub exit: Option<OwnedFd>,
}

/// A descriptor of a file in the directory, which is the working directory.
fn open(name: &str, flags: OFlags) -> Result<OwnedFd, String> {
    let flags = flags | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(name, flags, Mode::from_raw_mode(0o600)).map_err(|error| failed("open", name, error))
}

fn failed(what: &str, name: &str, error: Errno) -> String {
    format!("{what} {name}: {}", crate::paths::reason(error))
}

impl Place {
    /// Takes the directory: makes it the working directory, locks it and listens in it.
    pub fn take(dir: &str, config: &mut KeeperConfig) -> Result<Self, String> {
        rustix::process::chdir(dir).map_err(|error| failed("enter", dir, error))?;
        let lock = open("lock", OFlags::RDWR)?;
        lock_soon(&lock).map_err(|error| failed("lock", "lock", error))?;
        // Who holds it, for those who cannot reach the keeper by its socket.
        let pid = rustix::process::getpid().to_string();
        rustix::fs::ftruncate(&lock, 0).map_err(|error| failed("write", "lock", error))?;
        rustix::io::write(&lock, pid.as_bytes()).map_err(|error| failed("write", "lock", error))?;
        let mut exit = None;
        if config.main.is_some() {
            exit = Some(open("exit", OFlags::WRONLY | OFlags::TRUNC)?);
            config.log = open_log()?;
        }
        let listener = listen("sock").map_err(|error| failed("listen at", "sock", error))?;
        Ok(Self { lock, listener, exit })
    }
}

/// The log's descriptors are the keeper's from now on.
fn open_log() -> Result<LogSink, String> {
    let first = open("log.0", OFlags::WRONLY | OFlags::APPEND)?.into_raw_fd();
    let second = open("log.1", OFlags::WRONLY | OFlags::APPEND)?.into_raw_fd();
    Ok(LogSink::Files { first, second, cap: LOG_CAP })
}

/// Whoever looks whether it runs holds the lock for a moment: try again. Whoever keeps it running holds it for long.
fn lock_soon(lock: &OwnedFd) -> Result<(), Errno> {
    let mut tries = 0;
    loop {
        match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) if tries < 1000 => tries += 1,
            other => return other,
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// A listening socket at a name in the working directory. Its directory keeps everyone else out.
fn listen(name: &str) -> Result<OwnedFd, Errno> {
    match rustix::fs::unlink(name) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(name)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// Says on standard output that all is well, or what is not, and lets go of the standard streams.
pub fn answer(result: Result<(), &str>) {
    let text = match result {
        Ok(()) => "ok".to_owned(),
        Err(message) => format!("error {message}"),
    };
    report::write_all(rustix::stdio::stdout(), text.as_bytes());
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        for fd in 0..3 {
            let _ = sys::put_at(&null, fd);
        }
    }
}
