//! The directory of a sandbox that Kennel keeps on disk (see `kennel_core::Records`), as whoever keeps it alive holds it.

use crate::{report, sys};
use kennel_proto::{Body, Failure, FailureKind, Frame, KeeperConfig, LogSink, encode};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::time::Duration;

/// Bytes in one log file before the other is used.
const LOG_CAP: u64 = 4 * 1024 * 1024;

/// Longest thing that we may be told.
const TOLD_CAP: usize = 64 * 1024 * 1024;

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
    #[expect(clippy::disallowed_methods, reason = "the program keeps its directory as its working directory")]
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
#[expect(clippy::disallowed_methods, reason = "a backoff: a lock tells nobody when it is free")]
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

/// What the one who started us has to say: a length, and that many bytes, on standard input.
pub fn hear() -> Result<Vec<u8>, String> {
    read_told(rustix::stdio::stdin()).map_err(|error| format!("read what to do: {error}"))
}

/// A length, and that many bytes.
pub fn read_told(from: impl AsFd) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    read_exact(from.as_fd(), &mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > TOLD_CAP {
        return Err(std::io::Error::other(format!("{length} bytes are too many")));
    }
    let mut bytes = vec![0; length];
    read_exact(from.as_fd(), &mut bytes)?;
    Ok(bytes)
}

fn read_exact(from: BorrowedFd<'_>, mut bytes: &mut [u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::read(from, &mut *bytes))? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => bytes = &mut bytes[count..],
        }
    }
    Ok(())
}

/// Writes all of it. If nobody reads any more, nobody wants it.
pub fn write_all(to: impl AsFd, bytes: &[u8]) {
    report::write_all(to, bytes);
}

/// If the one who started us is the keeper's first host, what follows on standard input is for the keeper: its
/// descriptor is moved out of the way, and its number noted.
pub fn keep_host(config: &mut KeeperConfig) -> Result<(), String> {
    const FIRST_FREE: i32 = 3;
    if config.host_fd.is_some() {
        let host = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), FIRST_FREE);
        config.host_fd = Some(host.map_err(|error| failed("keep", "the host's line", error))?.into_raw_fd());
    }
    Ok(())
}

/// Says on standard input that all is well, or what is not, and lets go of the standard streams. A host that goes on
/// with the keeper hears from that one, and of a failure in its words.
pub fn answer(result: Result<(), &str>, goes_on: bool) {
    let bytes = match result {
        Ok(()) if goes_on => Vec::new(),
        Ok(()) => b"ok".to_vec(),
        Err(message) if goes_on => {
            let failure = Failure { kind: FailureKind::NotStarted, message: message.to_owned() };
            let mut bytes = Vec::new();
            encode(&Frame { stream: 0, body: Body::Fail(failure) }, &mut bytes);
            bytes
        }
        Err(message) => format!("error {message}").into_bytes(),
    };
    report::write_all(rustix::stdio::stdin(), &bytes);
    sys::forget_standard_streams();
}
