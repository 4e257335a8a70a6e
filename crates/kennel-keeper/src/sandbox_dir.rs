//! The directory of a sandbox on disk (see `kennel_provider::Records`), as the process that keeps the sandbox alive uses
//! it.

use crate::{StartError, report, sys};
use kennel_proto::{Body, Failure, FailureKind, Frame, KeeperConfig, LogSink, encode};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::time::Duration;

/// Bytes in one log file before the other is used.
const LOG_CAP: u64 = 4 * 1024 * 1024;

/// Bytes in the longest message that is accepted.
const MESSAGE_CAP: usize = 64 * 1024 * 1024;

/// The open files in a sandbox's directory, held as long as the sandbox runs.
#[derive(Debug)]
pub struct SandboxDir {
    /// The lock. The sandbox runs as long as it is held.
    pub lock: OwnedFd,
    /// The keeper's listening socket.
    pub listener: OwnedFd,
    /// The file for the exit code. A tied sandbox without a main process has none: it is removed when it ends.
    pub exit: Option<OwnedFd>,
}

/// Opens a file in the directory, which is the working directory.
fn open(name: &str, flags: OFlags) -> Result<OwnedFd, StartError> {
    let flags = flags | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(name, flags, Mode::from_raw_mode(0o600)).map_err(|error| failed("open", name, error))
}

fn failed(what: &str, name: &str, error: Errno) -> StartError {
    format!("{what} {name}: {}", crate::paths::reason(error)).into()
}

impl SandboxDir {
    /// Makes the directory the working directory, locks it and listens in it.
    #[expect(clippy::disallowed_methods, reason = "the program keeps its directory as its working directory")]
    pub fn take(dir: &str, config: &mut KeeperConfig) -> Result<Self, StartError> {
        rustix::process::chdir(dir).map_err(|error| failed("enter", dir, error))?;
        let lock = open("lock", OFlags::RDWR)?;
        lock_soon(&lock).map_err(|error| failed("lock", "lock", error))?;
        // The id of the holder, for processes that cannot reach the keeper through its socket.
        let pid = rustix::process::getpid().to_string();
        // Only if it contains an old id. Some filesystems write a truncated file to disk as soon as anyone closes it.
        if !rustix::fs::fstat(&lock).is_ok_and(|lock| lock.st_size == 0) {
            rustix::fs::ftruncate(&lock, 0).map_err(|error| failed("write", "lock", error))?;
        }
        rustix::io::write(&lock, pid.as_bytes()).map_err(|error| failed("write", "lock", error))?;
        let mut exit = None;
        if config.main.is_some() || !config.tied {
            exit = Some(open("exit", OFlags::WRONLY | OFlags::TRUNC)?);
        }
        if config.main.is_some() {
            config.log = open_log()?;
        }
        let listener = listen("sock").map_err(|error| failed("listen at", "sock", error))?;
        Ok(Self { lock, listener, exit })
    }
}

/// Opens the log files. The keeper owns their descriptors from now on.
fn open_log() -> Result<LogSink, StartError> {
    let first = open("log.0", OFlags::WRONLY | OFlags::APPEND)?.into_raw_fd();
    let second = open("log.1", OFlags::WRONLY | OFlags::APPEND)?.into_raw_fd();
    Ok(LogSink::Files { first, second, cap: LOG_CAP })
}

/// Takes the lock. A process that checks whether the sandbox runs holds it for a moment, so this retries. A process
/// that keeps the sandbox running holds it for long.
#[expect(clippy::disallowed_methods, reason = "a backoff: no event reports that a lock is free")]
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

/// Creates a listening socket in the working directory. The permissions of the directory keep others out.
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

/// Reads the instructions from the parent on standard input: a length, and that many bytes.
pub fn read_instructions() -> Result<Vec<u8>, StartError> {
    let message = read_message(rustix::stdio::stdin());
    message.map_err(|error| format!("read the instructions on standard input: {error}").into())
}

/// Reads a length, and that many bytes.
pub fn read_message(from: impl AsFd) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    read_exact(from.as_fd(), &mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_CAP {
        return Err(std::io::Error::other(format!("the message has {length} bytes: expected at most {MESSAGE_CAP}")));
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

/// Writes everything. If nobody reads it any more, nobody needs it.
pub fn write_all(to: impl AsFd, bytes: &[u8]) {
    report::write_all(to, bytes);
}

/// If the parent is the keeper's first host, the rest of standard input is for the keeper: the descriptor is moved to
/// another number, which is noted in the configuration.
pub fn keep_host(config: &mut KeeperConfig) -> Result<(), StartError> {
    const FIRST_FREE: i32 = 3;
    if config.host_fd.is_some() {
        let host = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), FIRST_FREE);
        config.host_fd = Some(host.map_err(|error| failed("keep", "the host's connection", error))?.into_raw_fd());
    }
    Ok(())
}

/// Reports success or an error on standard input, and releases the standard streams. If the host continues to talk to
/// the keeper (`goes_on`), success is not reported, and an error is sent as a protocol message.
pub fn answer(result: Result<(), &StartError>, goes_on: bool) {
    let bytes = match result {
        Ok(()) if goes_on => Vec::new(),
        Ok(()) => b"ok".to_vec(),
        Err(error) if goes_on => {
            let failure = Failure::new(FailureKind::NotStarted, error.message());
            let mut bytes = Vec::new();
            encode(&Frame { stream: 0, body: Body::Fail(failure) }, &mut bytes);
            bytes
        }
        Err(error) => format!("error {error}").into_bytes(),
    };
    report::write_all(rustix::stdio::stdin(), &bytes);
    sys::forget_standard_streams();
}
