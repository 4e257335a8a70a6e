//! Binds the sockets on which the keeper listens: to ports on loopback, and to paths.

use super::Socket;
use crate::connect::{LOOPBACK, enter};
use crate::paths::{self, failure};
use crate::report::Inode;
use crate::requests::invalid;
use crate::worker;
use kennel_proto::{Failure, FailureKind, KeeperConfig};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// How often the kernel chooses a port again, if the one that it chose is not free on both addresses.
const CHOICES: usize = 16;

/// The path of a listening Unix socket, as in the request.
#[derive(Clone, Default)]
pub(super) struct SocketPath {
    pub(super) path: Vec<u8>,
    pub(super) user: Option<String>,
    /// Another file that has taken its place is not removed.
    pub(super) inode: Option<Inode>,
}

impl SocketPath {
    /// Removes the socket, in a fork that acts as the user who created it.
    pub(super) fn remove(&self, config: &KeeperConfig) {
        let path = worker::absolute(config, &self.path);
        let Ok((dir, name)) = paths::parent(&path) else { return };
        if self.inode.is_some() && self.inode == inode(&dir, name) {
            let _ = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
        }
    }
}

/// Binds sockets to the same port of both loopback addresses. Returns the sockets and their port. A sandbox without IPv6
/// has one.
pub(super) fn on_loopback<S>(
    port: u16,
    bind: impl Fn(SocketAddr) -> std::io::Result<S>,
    address: impl Fn(&S) -> std::io::Result<SocketAddr>,
    finish: impl Fn(S) -> std::io::Result<Socket>,
) -> Result<(Vec<Socket>, u16), Failure> {
    let failed = |error: std::io::Error| {
        let message = format!("listen on port {port} in the sandbox: {}", reason(&error));
        Failure::new(
            match error.kind() {
                ErrorKind::AddrInUse => FailureKind::Exists,
                ErrorKind::PermissionDenied => FailureKind::Denied,
                _ => FailureKind::Other,
            },
            message,
        )
    };
    let mut tries = 0;
    loop {
        let first = bind(SocketAddr::new(LOOPBACK[0], port)).map_err(failed)?;
        let chosen = address(&first).map_err(failed)?.port();
        let mut sockets = vec![finish(first).map_err(failed)?];
        match bind(SocketAddr::new(LOOPBACK[1], chosen)) {
            Ok(second) => sockets.push(finish(second).map_err(failed)?),
            // The kernel has chosen a port that is free on the first address only.
            Err(error) if error.kind() == ErrorKind::AddrInUse && port == 0 && tries < CHOICES => {
                tries += 1;
                continue;
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(failed(error)),
            Err(_) => {}
        }
        return Ok((sockets, chosen));
    }
}

fn reason(error: &std::io::Error) -> String {
    Errno::from_io_error(error).map_or_else(|| error.to_string(), paths::reason)
}

/// In a worker: listens on a Unix socket with a path. It replaces a socket on which nobody listens.
pub(crate) fn at_path(path: &[u8], mode: u32) -> Result<(OwnedFd, Option<Inode>), Failure> {
    let (dir, name) = paths::parent(path)?;
    enter(&dir).map_err(|error| failure(path, error))?;
    rustix::process::umask(Mode::from_raw_mode(!mode & 0o777));
    let name_here = Path::new(std::ffi::OsStr::from_bytes(name));
    let listener = match UnixListener::bind(name_here) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_abandoned(&dir, name) => {
            rustix::fs::unlinkat(&dir, name, AtFlags::empty()).map_err(|error| failure(path, error))?;
            UnixListener::bind(name_here)
        }
        done => done,
    };
    let listener = listener.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::ADDRINUSE) => failure(path, Errno::EXIST),
        Some(error) => failure(path, error),
        None => invalid("the name of the socket is too long"),
    })?;
    Ok((listener.into(), inode(&dir, name)))
}

/// Whether a socket is in this place, and nobody has it open. A datagram socket cannot be connected with a stream socket,
/// so whoever listens there notices nothing.
fn is_abandoned(dir: &OwnedFd, name: &[u8]) -> bool {
    let refused = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(name)?)
    };
    inode(dir, name).is_some() && refused() == Err(Errno::CONNREFUSED)
}

/// Identifies the socket in this place, if there is one.
fn inode(dir: &OwnedFd, name: &[u8]) -> Option<Inode> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::Socket).then_some((stat.st_dev, stat.st_ino))
}
