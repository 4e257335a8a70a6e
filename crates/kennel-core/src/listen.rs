//! Sockets inside a sandbox whose connections and datagrams the host serves.

use crate::files::{Items, ready};
use crate::keeper::{Keeper, KeeperStream};
use crate::{Error, Result, SandboxStream, printable};
use kennel_proto::{Channel, Features, ListenAddress, ListenItem, Reply, Request, caps};
use kennel_types::{ErrorCode, IsolationLayer, LimitReason};
use std::net::SocketAddr;
use std::sync::Arc;

/// Where to listen inside a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAt {
    /// A TCP port on loopback. With port 0 the kernel chooses one.
    Tcp(u16),
    /// A Unix socket with a path, which is removed at the end. It replaces a socket on which nobody listens; anything else
    /// at the path is an error.
    Unix {
        /// The path. A relative one is below the sandbox's working directory.
        path: Vec<u8>,
        /// Permission bits of the socket.
        mode: u32,
    },
}

impl std::fmt::Display for ListenAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(port) => write!(f, "TCP port {port}"),
            Self::Unix { path, .. } => write!(f, "the socket {}", printable(&String::from_utf8_lossy(path))),
        }
    }
}

impl ListenAt {
    /// The layer without which the socket is the host's own.
    pub(crate) fn layer(&self) -> IsolationLayer {
        match self {
            Self::Tcp(_) => IsolationLayer::NetNamespace,
            Self::Unix { .. } => IsolationLayer::MountNamespace,
        }
    }
}

/// Where an accepted connection comes from. A Unix socket has no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The address that the program inside connected to, before any redirection.
    pub destination: Option<SocketAddr>,
    /// The address of the program's end.
    pub peer: Option<SocketAddr>,
}

/// A socket on which the keeper listens inside. Dropping it closes the socket, but no accepted connection.
pub struct Listener {
    keeper: Keeper,
    items: Items,
    port: u16,
    /// The connection that is being accepted.
    accepting: Option<(KeeperStream, Origin)>,
}

/// The datagrams that arrive at a UDP port inside. Dropping it closes the port.
pub struct Datagrams {
    items: Items,
    port: u16,
    replies: Replies,
}

/// Sends datagrams from a UDP port inside to the peers whose datagrams have arrived there.
#[derive(Clone)]
pub struct Replies {
    stream: Arc<KeeperStream>,
    window: u64,
    sent: Arc<tokio::sync::Mutex<u64>>,
}

impl Keeper {
    /// Listens inside. The caller checks that this is not the host itself; [`Sandbox::listen`](crate::Sandbox::listen)
    /// does.
    pub async fn listen_inside(&self, at: &ListenAt, user: Option<&str>) -> Result<Listener> {
        let address = match at {
            ListenAt::Tcp(port) => ListenAddress::Tcp { port: *port },
            ListenAt::Unix { path, mode } => ListenAddress::Unix { path: path.clone().into(), mode: *mode },
        };
        let (stream, port, _) = self.listen(address, user, &at.to_string()).await?;
        Ok(Listener { keeper: self.clone(), items: Items::new(stream), port, accepting: None })
    }

    /// Receives the datagrams that arrive at a UDP port on loopback inside. The caller checks that this is not the host
    /// itself; [`Sandbox::listen_datagrams`](crate::Sandbox::listen_datagrams) does.
    pub async fn listen_datagrams(&self, port: u16) -> Result<Datagrams> {
        let (stream, port, window) =
            self.listen(ListenAddress::Udp { port }, None, &format!("UDP port {port}")).await?;
        let replies = Replies { stream: Arc::new(stream.sender()), window, sent: Arc::default() };
        Ok(Datagrams { items: Items::new(stream), port, replies })
    }

    async fn listen(&self, address: ListenAddress, user: Option<&str>, what: &str) -> Result<(KeeperStream, u16, u64)> {
        self.require(Features::LISTEN, &format!("listen on {what} inside")).await?;
        let stream = self.open(Request::Listen { address, user: user.map(Into::into) })?;
        match stream.reply().await? {
            Reply::Listening { port, stdin_window } => Ok((stream, port, stdin_window.min(caps::WINDOW))),
            _ => Err(broken("it does not say that it listens")),
        }
    }
}

impl Listener {
    /// The port, or 0 for a Unix socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for a connection. A connection that is not accepted within half a minute is closed, and so is one that
    /// arrives while 64 are waiting. If the future is dropped, no connection is lost.
    pub async fn accept(&mut self) -> Result<(SandboxStream, Origin)> {
        loop {
            let (stream, _) = match &mut self.accepting {
                Some(accepting) => accepting,
                none => {
                    let item = self.items.next().await?.ok_or_else(|| broken("it listens no more"))?;
                    let ListenItem::Connection { connection, destination, peer } = item else {
                        return Err(broken("a datagram where a connection was due"));
                    };
                    let stream = self.keeper.open(Request::Accept { connection })?;
                    none.insert((stream, Origin { destination, peer }))
                }
            };
            let accepted = ready(stream).await;
            let Some((stream, origin)) = self.accepting.take() else { continue };
            match accepted {
                Ok(window) => return Ok((SandboxStream::new(stream, window), origin)),
                // It was not accepted in time.
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Datagrams {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for a datagram. Returns the number of its peer, for a reply, and its bytes, of which there are at most 4096.
    pub async fn receive(&mut self) -> Result<(u64, Vec<u8>)> {
        match self.items.next().await? {
            Some(ListenItem::Datagram { peer, bytes }) if bytes.len() <= caps::DATAGRAM => Ok((peer, bytes.into())),
            Some(_) => Err(broken("no valid datagram")),
            None => Err(broken("it listens no more")),
        }
    }

    /// A handle for replies.
    pub fn replies(&self) -> Replies {
        self.replies.clone()
    }
}

impl Replies {
    /// Sends a datagram to a peer. Like any datagram, it may get lost. The keeper remembers the latest 256 peers.
    pub async fn send(&self, peer: u64, bytes: &[u8]) -> Result<()> {
        if bytes.len() > caps::DATAGRAM {
            let message = format!("the datagram is longer than {} bytes", caps::DATAGRAM);
            return Err(Error::limit(LimitReason::TooLarge, message));
        }
        let item = ListenItem::Datagram { peer, bytes: bytes.to_vec().into() };
        let message = minicbor::to_vec(&item)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("write a datagram for the keeper: {error}")))?;
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_le_bytes();
        let message = [&length[..], &message].concat();
        let length = message.len() as u64;
        let spare = self.window.checked_sub(length).ok_or_else(|| broken("its window is too small for a datagram"))?;
        let mut sent = self.sent.lock().await;
        // The whole message is sent or nothing, also if the future is dropped while it waits for room.
        self.stream.room(*sent, spare + 1).await?;
        self.stream.send_data(Channel::Stdin, *sent, &message);
        *sent += length;
        Ok(())
    }
}

fn broken(what: &str) -> Error {
    Error::new(ErrorCode::Internal, format!("the keeper broke the protocol: {what}"))
}
