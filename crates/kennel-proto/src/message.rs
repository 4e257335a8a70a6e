//! The messages of the protocol: what a frame can contain. The field numbers of the messages below this module are the
//! wire format: never reuse one.

mod command;
mod failure;
mod file;
mod handshake;
mod reply;
mod request;
mod usage;

pub use command::{Attach, ExitReport, OutputOffsets, ProcessInfo, Size, Spawn, SpawnCommand};
pub use failure::{Failure, FailureKind, Limit};
pub use file::{Entry, FileKind, Stat, WatchItem, WatchKind};
pub use handshake::{Features, Hello, Welcome};
pub use reply::{Outcome, Reply};
pub use request::Request;
pub use usage::{IdleReport, StatsReport};

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The stream that the frame belongs to; 0 is the connection itself.
    pub stream: u32,
    /// The content.
    pub body: Body,
}

/// The content of a frame. Each variant names its sender: the host, the keeper, or both.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Host: the first frame of a connection.
    Hello(Hello),
    /// Keeper: the reply to `Hello`.
    Welcome(Welcome),
    /// Host: opens a stream.
    Open(Box<Request>),
    /// Keeper: the request was accepted, or is done.
    Reply(Reply),
    /// Keeper: the request failed. The stream is closed.
    Fail(Failure),
    /// Both: bytes of a channel, starting at an offset.
    Data {
        /// The channel.
        channel: Channel,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Both: there are no more bytes on this channel.
    Eof(Channel),
    /// Both: the sender of this frame has consumed the channel's bytes before an offset.
    Consumed {
        /// The channel.
        channel: Channel,
        /// All bytes before this offset are consumed.
        offset: u64,
    },
    /// Keeper: the command ended and all its output was sent. The stream is closed.
    Exit(ExitReport),
    /// Host: a signal for the command's process group.
    Signal(i32),
    /// Host: the new size of the terminal.
    Resize(Size),
    /// Both: the stream is closed. From the host, this ends a tied command and detaches from any other.
    Close,
    /// Host: requests a `Pong`.
    Ping,
    /// Keeper: the reply to `Ping`.
    Pong,
}

/// A channel of bytes in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// Standard input of a command, the content of a file to write, or bytes for a connection inside.
    Stdin = 0,
    /// Standard output of a command, the content of a file, a list of entries, or bytes from a connection inside.
    Stdout = 1,
    /// Standard error of a command.
    Stderr = 2,
}
