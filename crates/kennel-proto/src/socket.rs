//! Sockets inside a sandbox: what a host connects to, where a keeper listens for a host, and what arrives there.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use std::net::SocketAddr;

/// Something that listens inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Target {
    /// A TCP port on loopback: 127.0.0.1, then `::1`.
    #[n(0)]
    Tcp {
        /// The port.
        #[n(0)]
        port: u16,
    },
    /// A Unix socket with a path. It is resolved like the path of a file request.
    #[n(1)]
    Unix {
        /// The path.
        #[n(0)]
        path: ByteVec,
    },
}

/// Where a keeper listens inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ListenAddress {
    /// A TCP port on 127.0.0.1 and, if the sandbox has IPv6, on `::1`. With port 0 the kernel chooses the port.
    #[n(0)]
    Tcp {
        /// The port.
        #[n(0)]
        port: u16,
    },
    /// A Unix socket with a path. It replaces a socket on which nobody listens, and nothing else. It is removed when the
    /// listen stream is closed.
    #[n(1)]
    Unix {
        /// The path.
        #[n(0)]
        path: ByteVec,
        /// Permission bits of the socket.
        #[n(1)]
        mode: u32,
    },
    /// Datagrams on a UDP port on 127.0.0.1 and, if the sandbox has IPv6, on `::1`. The host sends its replies on `Stdin`.
    #[n(2)]
    Udp {
        /// The port.
        #[n(0)]
        port: u16,
    },
}

/// A message on a listen stream: the keeper sends connections and datagrams on `Stdout`, and the host sends datagrams on
/// `Stdin`. Each is preceded by its length as four bytes, little-endian.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ListenItem {
    /// A connection, which waits for [`Request::Accept`](crate::Request::Accept).
    #[n(0)]
    Connection {
        /// The id of the connection.
        #[n(0)]
        connection: u64,
        /// The address that the peer connected to, before any redirection. `None` for a Unix socket.
        #[n(1)]
        destination: Option<SocketAddr>,
        /// The address of the peer. `None` for a Unix socket.
        #[n(2)]
        peer: Option<SocketAddr>,
    },
    /// A datagram from or for a peer.
    #[n(1)]
    Datagram {
        /// The number of the peer. The keeper chooses it and remembers only the latest peers.
        #[n(0)]
        peer: u64,
        /// The bytes.
        #[n(1)]
        bytes: ByteVec,
    },
}
