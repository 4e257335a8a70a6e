//! The socket of the resident process, through which pools are used.
//!
//! A client sends one request, and the resident process sends one reply, with the descriptors of a claimed member. Both are
//! JSON, preceded by their length. Only processes of the same user get a reply: the socket is in the state directory, and
//! both sides check the user of the other.

use super::PoolStatus;
use crate::session::SessionId;
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, ProviderKind, SandboxId, SandboxSpec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

/// Bytes in the longest message. A specification can have an environment of 1 MiB.
const CAP: usize = 4 << 20;
/// Descriptors of a member.
const DESCRIPTORS: usize = 4;
/// How long a request may take. A member of an engine is checked first.
const WITHIN: Duration = Duration::from_secs(5);

/// A request to the resident process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum PoolRequest {
    /// Claims a member for a sandbox.
    Claim {
        /// The provider of the sandbox.
        provider: ProviderKind,
        /// The sandbox.
        spec: Box<SandboxSpec>,
        /// The session that it will belong to, if any.
        session: Option<ForSession>,
    },
    /// Lists the pools.
    List,
    /// The definitions have changed.
    Reload,
}

/// A session that needs a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ForSession {
    /// The store that will record it, by its id.
    pub(crate) store: String,
    /// Its workspace.
    pub(crate) workspace: ForWorkspace,
}

/// The workspace of a session that needs a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ForWorkspace {
    /// That of the specification.
    AsSpecified,
    /// A new directory in this one.
    Own(PathBuf),
    /// A directory with a clone of a git repository.
    Clone,
}

/// The session that a member was made for.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct MemberSession {
    /// Its id.
    pub(crate) id: SessionId,
    /// Its secret.
    pub(crate) secret: String,
    /// Whether the member has made the workspace.
    pub(crate) has_workspace: bool,
}

impl std::fmt::Debug for MemberSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemberSession").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A reply of the resident process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(crate) enum PoolReply {
    /// A part of a sandbox, whose descriptors are sent with this reply.
    Part {
        /// The pool.
        pool: String,
        /// What the provider must know of it.
        description: String,
    },
    /// A whole sandbox, which becomes the client's when the client renames it. Until then, the client keeps the connection.
    Sandbox {
        /// The pool.
        pool: String,
        /// The sandbox.
        id: SandboxId,
        /// The session that it was made for, if any.
        session: Option<MemberSession>,
    },
    /// No member is available.
    Miss {
        /// Why.
        reason: String,
    },
    /// The pools.
    Listed {
        /// With the numbers of members that wait.
        pools: Vec<PoolStatus>,
    },
    /// It is done.
    Done,
}

/// Sends a request to the resident process, and returns its reply, with its descriptors and the connection.
pub(crate) async fn ask(socket: &Path, request: &PoolRequest) -> Result<(PoolReply, Vec<OwnedFd>, UnixStream)> {
    let failed = |error: std::io::Error| Error::io(format!("use {}", socket.display()), error);
    let exchange = async {
        let stream = connect(socket).await.map_err(failed)?;
        check_peer(&stream)?;
        let bytes = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
        send(&stream, &bytes, &[]).await.map_err(failed)?;
        let (bytes, descriptors) = receive(&stream).await.map_err(failed)?;
        let reply = serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))?;
        Ok((reply, descriptors, stream))
    };
    let late = |_| Error::new(ErrorCode::Timeout, "the resident process did not reply");
    tokio::time::timeout(WITHIN, exchange).await.map_err(late)?
}

/// Reads the request of a client.
pub(crate) async fn read_request(stream: &UnixStream) -> Result<PoolRequest> {
    let failed = |error: std::io::Error| Error::io("read a request for a pool", error);
    check_peer(stream)?;
    let (bytes, _) = tokio::time::timeout(WITHIN, receive(stream))
        .await
        .map_err(|_| Error::new(ErrorCode::Timeout, "no request arrived"))?
        .map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))
}

/// Sends the reply to a client.
pub(crate) async fn write_reply(stream: &UnixStream, reply: &PoolReply, descriptors: &[OwnedFd]) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("reply to a request for a pool", error);
    let bytes = serde_json::to_vec(reply).map_err(|error| failed(error.into()))?;
    send(stream, &bytes, descriptors).await.map_err(failed)
}

/// Waits until the client has closed the connection.
pub(crate) async fn closed(stream: &UnixStream) {
    let mut byte = [0];
    let mut read = async || stream.async_io(Interest::READABLE, || Ok(rustix::io::read(stream, &mut byte)?)).await;
    // A client sends nothing after its request.
    while matches!(read().await, Ok(1..)) {}
}

/// Listens at this path, which replaces that of a resident process that was killed.
pub(crate) fn listen(path: &Path) -> Result<UnixListener> {
    let failed = |error: std::io::Error| Error::io(format!("listen at {}", path.display()), error);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(std::io::ErrorKind::InvalidInput.into()));
    };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // The address of a socket is short. The path may be long.
    let dir = std::fs::File::open(dir).map_err(failed)?;
    let short = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    let listener = UnixListener::bind(short).map_err(failed)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

async fn connect(path: &Path) -> std::io::Result<UnixStream> {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd())).await
}

/// Refuses a process of another user.
fn check_peer(stream: &UnixStream) -> Result<()> {
    let peer = stream.peer_cred().map_err(|error| Error::io("ask who uses the socket of pools", error))?.uid();
    if peer == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let message = format!("the socket of pools is used by user {peer}");
    Err(Error::new(ErrorCode::PermissionDenied, message))
}

/// Reads a message and its descriptors.
async fn receive(stream: &UnixStream) -> std::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
    let mut piece = vec![0; 64 << 10];
    loop {
        if let Some((length, message)) = bytes.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > CAP {
                return Err(std::io::Error::other(format!("a message of {length} bytes: expected at most {CAP}")));
            }
            if message.len() >= length {
                return Ok((message[..length].to_vec(), descriptors));
            }
        }
        let count = stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
                let mut passed = RecvAncillaryBuffer::new(&mut space);
                let mut piece = [IoSliceMut::new(&mut piece)];
                let received = rustix::net::recvmsg(stream, &mut piece, &mut passed, RecvFlags::CMSG_CLOEXEC)?;
                for message in passed.drain() {
                    if let RecvAncillaryMessage::ScmRights(passed) = message {
                        descriptors.extend(passed);
                    }
                }
                Ok(received.bytes)
            })
            .await?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&piece[..count]);
    }
}

/// Sends a message, and descriptors with its first bytes.
async fn send(stream: &UnixStream, message: &[u8], descriptors: &[OwnedFd]) -> std::io::Result<()> {
    let length = u32::try_from(message.len()).map_err(std::io::Error::other)?;
    let bytes = [&length.to_le_bytes()[..], message].concat();
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    let mut sent = 0;
    while sent < bytes.len() {
        sent += stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
                let mut passed = SendAncillaryBuffer::new(&mut space);
                if sent == 0 && !borrowed.is_empty() && !passed.push(SendAncillaryMessage::ScmRights(&borrowed)) {
                    return Err(std::io::Error::other("too many descriptors"));
                }
                let rest = [IoSlice::new(&bytes[sent..])];
                Ok(rustix::net::sendmsg(stream, &rest, &mut passed, SendFlags::NOSIGNAL)?)
            })
            .await?;
    }
    Ok(())
}
