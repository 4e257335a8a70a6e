//! A byte stream between the host and a socket inside a sandbox.

use crate::files::ready;
use crate::keeper::{Keeper, KeeperStream};
use crate::{Result, printable};
use kennel_proto::{Body, Channel, Features, Request, caps};
use kennel_types::IsolationLayer;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready as poll_ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Something that listens inside a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A TCP port on loopback: 127.0.0.1, then `::1`.
    Tcp(u16),
    /// A Unix socket with a path. Symlinks are followed as the sandbox would follow them. A relative path is below the
    /// sandbox's working directory.
    Unix(Vec<u8>),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(port) => write!(f, "TCP port {port}"),
            Self::Unix(path) => write!(f, "the socket {}", printable(&String::from_utf8_lossy(path))),
        }
    }
}

impl Target {
    /// The layer without which the socket is the host's own.
    pub(crate) fn layer(&self) -> IsolationLayer {
        match self {
            Self::Tcp(_) => IsolationLayer::NetNamespace,
            Self::Unix(_) => IsolationLayer::MountNamespace,
        }
    }
}

/// A byte stream to a socket inside a sandbox.
///
/// Shutting it down closes the direction to the inside; the other direction stays open until the peer closes it. Dropping
/// it before that aborts the connection, and what the peer has not received yet may be lost.
pub struct SandboxStream {
    stream: KeeperStream,
    /// Received bytes, of which those before `read` were returned.
    received: Vec<u8>,
    read: usize,
    window: u64,
    sent: u64,
    shut: bool,
}

impl Keeper {
    /// Connects to something that listens inside. The caller checks that this is not the host itself;
    /// [`Sandbox::connect`](crate::Sandbox::connect) does.
    pub async fn connect_inside(&self, target: &Target, user: Option<&str>) -> Result<SandboxStream> {
        self.require(Features::CONNECT, &format!("connect to {target} inside")).await?;
        let target = match target {
            Target::Tcp(port) => kennel_proto::Target::Tcp { port: *port },
            Target::Unix(path) => kennel_proto::Target::Unix { path: path.clone().into() },
        };
        let stream = self.open(Request::Connect { target, user: user.map(Into::into) })?;
        let window = ready(&stream).await?;
        Ok(SandboxStream::new(stream, window))
    }
}

impl SandboxStream {
    pub(crate) fn new(stream: KeeperStream, window: u64) -> Self {
        Self { stream, received: Vec::new(), read: 0, window, sent: 0, shut: false }
    }
}

impl AsyncRead for SandboxStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read == this.received.len() {
            this.received = poll_ready!(this.stream.poll_bytes(cx))?;
            this.read = 0;
        }
        let rest = &this.received[this.read..];
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        this.read += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SandboxStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.shut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let room = poll_ready!(this.stream.poll_room(cx, this.sent, this.window))?;
        let count = bytes.len().min(room.try_into().unwrap_or(usize::MAX)).min(caps::DATA);
        this.stream.send_data(Channel::Stdin, this.sent, &bytes[..count]);
        this.sent += count as u64;
        Poll::Ready(Ok(count))
    }

    /// There is nothing to do: the connection to the keeper sends everything at once.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !std::mem::replace(&mut this.shut, true) {
            this.stream.send(Body::Eof(Channel::Stdin));
        }
        this.stream.poll_passed_on(cx, this.sent)
    }
}
