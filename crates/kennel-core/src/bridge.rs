//! Bridges: Unix sockets inside a sandbox whose connections are passed on to Unix sockets of the host.
//!
//! The path of the host's socket may be in a directory that processes inside can change. So the socket is opened once,
//! without following symlinks, and every connection goes to the socket that was opened.

use crate::{Error, ListenAt, Listener, Result, Sandbox, SandboxStream};
use kennel_types::ErrorCode;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The connections that the bridges of one sandbox pass on at once. Further ones wait at the socket inside.
const CONNECTIONS: usize = 128;

/// The permission bits of a socket inside. A sandbox does not separate its users from what it was given.
const MODE: u32 = 0o666;

/// A Unix socket of the host. All connections go to the same socket, whatever its path leads to later.
#[derive(Debug)]
pub struct HostSocket {
    path: PathBuf,
    file: OwnedFd,
}

impl HostSocket {
    /// Opens the socket at an absolute path that contains no symlinks.
    pub fn open(path: &Path) -> Result<Self> {
        let invalid = |why: &str| Error::new(ErrorCode::InvalidConfig, format!("socket {}: {why}", path.display()));
        if !path.is_absolute() {
            return Err(invalid("the path on the host must be absolute"));
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = rustix::io::retry_on_intr(|| rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve));
        let file = file.map_err(|error| match error {
            rustix::io::Errno::LOOP => invalid("a symlink has taken the place of a directory in the path"),
            error => invalid(&std::io::Error::from(error).to_string()).caused_by(std::io::Error::from(error)),
        })?;
        let stat = rustix::fs::fstat(&file).map_err(|error| Error::io(format!("open {}", path.display()), error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(invalid("it is not a socket"));
        }
        Ok(Self { path: path.to_owned(), file })
    }

    /// The path at which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to this socket.
    pub fn is_current(&self) -> bool {
        let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        match (rustix::fs::fstat(&self.file), rustix::fs::lstat(&self.path)) {
            (Ok(opened), Ok(there)) => identity(opened) == identity(there),
            _ => false,
        }
    }

    /// Connects to the socket. Fails with `ConnectionRefused` if nobody listens there any more.
    pub async fn connect(&self) -> std::io::Result<UnixStream> {
        UnixStream::connect(format!("/proc/self/fd/{}", self.file.as_raw_fd())).await
    }

    /// Checks that byte streams can be exchanged with it. It is no error if nobody listens there yet.
    pub async fn check_kind(&self) -> Result<()> {
        match self.connect().await {
            Err(error) if rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::PROTOTYPE) => {
                let message = format!("socket {}: it is not a stream socket", self.path.display());
                Err(Error::new(ErrorCode::InvalidConfig, message))
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(Error::io(format!("connect to the socket {}", self.path.display()), error))
            }
            _ => Ok(()),
        }
    }
}

/// The open bridges of a sandbox. Dropping them closes the sockets inside and all connections.
pub struct Bridges {
    listeners: Vec<(Listener, Arc<HostSocket>)>,
}

impl Sandbox {
    /// Listens at paths inside, each for a socket of the host. Missing directories are created.
    pub async fn bridge(&self, sockets: impl IntoIterator<Item = (HostSocket, String)>) -> Result<Bridges> {
        let mut listeners = Vec::new();
        for (host, target) in sockets {
            let listener = self.listen_for_bridge(&target).await;
            let what = format!("socket {target} inside");
            listeners.push((listener.map_err(|error| error.context(what))?, Arc::new(host)));
        }
        Ok(Bridges { listeners })
    }

    /// Listens as the sandbox's own user. If that user may not create the socket there, root inside does.
    async fn listen_for_bridge(&self, target: &str) -> Result<Listener> {
        match self.listen_below(target, None).await {
            Err(error) if error.code() == ErrorCode::PermissionDenied => {
                self.listen_below(target, Some("0:0")).await.map_err(|_| error)
            }
            done => done,
        }
    }

    async fn listen_below(&self, target: &str, user: Option<&str>) -> Result<Listener> {
        let at = ListenAt::Unix { path: target.into(), mode: MODE };
        match (self.listen(&at, user).await, Path::new(target).parent().and_then(Path::to_str)) {
            (Err(error), Some(dir)) if error.code() == ErrorCode::NotFound => {
                self.files(user).await?.mkdir(dir, true).await?;
                self.listen(&at, user).await
            }
            (done, _) => done,
        }
    }
}

impl Bridges {
    /// Passes connections on until the connection to the keeper is lost, and returns why it was.
    pub async fn serve(self) -> Error {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let mut serving = JoinSet::new();
        for (listener, host) in self.listeners {
            serving.spawn(serve_one(listener, host, room.clone()));
        }
        match serving.join_next().await {
            Some(Ok(error)) => error,
            Some(Err(error)) => Error::new(ErrorCode::Internal, format!("serve a socket: {error}")),
            None => std::future::pending().await,
        }
    }
}

async fn serve_one(mut listener: Listener, host: Arc<HostSocket>, room: Arc<Semaphore>) -> Error {
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(permit) = room.clone().acquire_owned().await else { return Error::new(ErrorCode::Internal, "no room") };
        match listener.accept().await {
            Ok((stream, _)) => {
                let host = host.clone();
                connections.spawn(async move {
                    pass_on(stream, &host).await;
                    drop(permit);
                });
            }
            Err(error) => return error,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Passes one connection on. If it breaks on one side, it is aborted on the other, so that nobody takes a part for
/// everything.
async fn pass_on(mut inside: SandboxStream, host: &HostSocket) {
    let passed = match host.connect().await {
        Ok(mut outside) => tokio::io::copy_bidirectional(&mut inside, &mut outside).await.map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = passed {
        tracing::debug!(socket = %host.path().display(), %error, "a bridged connection broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn said(path: &Path) -> String {
        HostSocket::open(path).map(|_| ()).unwrap_err().to_string()
    }

    #[tokio::test]
    async fn connections_go_to_the_socket_that_was_opened() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let (real, other) = (top.join("real"), top.join("other"));
        let listener = UnixListener::bind(&real).unwrap();
        let _other = UnixListener::bind(&other).unwrap();
        let socket = HostSocket::open(&real).unwrap();
        assert!(socket.is_current() && socket.connect().await.is_ok());
        std::fs::rename(&other, &real).unwrap();
        assert!(!socket.is_current());
        drop(listener);
        let error = socket.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "the other socket is not used instead");
    }

    #[tokio::test]
    async fn only_stream_sockets_without_symlinks_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("dir")).unwrap();
        let _listener = UnixListener::bind(top.join("dir/real")).unwrap();
        std::os::unix::fs::symlink("dir/real", top.join("link")).unwrap();
        std::os::unix::fs::symlink("dir", top.join("dirlink")).unwrap();
        std::fs::write(top.join("file"), "").unwrap();
        assert!(said(&top.join("link")).contains("not a socket"), "{}", said(&top.join("link")));
        assert!(said(&top.join("dirlink/real")).contains("a symlink"), "{}", said(&top.join("dirlink/real")));
        assert!(said(&top.join("file")).contains("not a socket"));
        assert!(said(&top.join("absent")).contains("No such file"));
        assert!(said(Path::new("real")).contains("must be absolute"));
        let _datagrams = std::os::unix::net::UnixDatagram::bind(top.join("datagrams")).unwrap();
        let error = HostSocket::open(&top.join("datagrams")).unwrap().check_kind().await.unwrap_err();
        assert!(error.to_string().contains("not a stream socket"), "{error}");
        assert!(HostSocket::open(&top.join("dir/real")).unwrap().check_kind().await.is_ok());
    }
}
