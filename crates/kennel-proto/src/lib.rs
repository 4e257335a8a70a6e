//! The protocol between the host and the keeper in a sandbox: frames, messages and their codec. This crate does no I/O.
//!
//! # Frames
//!
//! A connection is a byte stream. Both sides send frames: an eight-byte header (payload length, kind, stream) and a
//! payload. Stream 0 is the connection itself. Every other stream is one request of the host and everything that
//! follows from it. Control messages are CBOR with numbered fields. Unknown fields are skipped, so a newer side can
//! talk to an older one. The bytes of commands and files are sent raw.
//!
//! # Generations and features
//!
//! The host sends the newest generation that it supports, and the keeper replies with the generation that both support
//! (see [`GENERATION`]). Each request or field that the first keepers did not have has a bit in [`Features`]. The keeper
//! lists its features in its [`Welcome`]. A host does not send a request or field that the keeper did not list; it
//! returns an error instead.
//!
//! # Flow control
//!
//! Each stream has up to three channels of bytes: `Stdin` to the keeper, `Stdout` and `Stderr` from it. Bytes are
//! numbered from 0. The receiver reports how far it has consumed them, and the sender is never more than one window
//! ahead. So a reader that stops blocks only its own channel. After a lost connection, everything that was not consumed
//! can be requested again.
//!
//! # Trust
//!
//! All input is hostile. Lengths are checked against [`caps`] before memory is allocated. A decoder returns an error
//! for unexpected input and never panics.

pub mod caps;
mod codec;
mod config;
pub mod dial;
pub mod ending;
pub mod log;
mod message;
mod socket;
pub mod sparse;

pub use codec::{DecodeError, Decoder, HEADER, encode, encode_data_header, try_encode};
pub use config::{KeeperConfig, LogSink};
pub use message::{
    Attach, Body, Channel, Entry, ExitReport, Failure, FailureKind, Features, FileKind, Frame, Hello, IdleReport,
    Limit, Outcome, OutputOffsets, ProcessInfo, Reply, Request, Size, Spawn, SpawnCommand, Stat, StatsReport,
    WatchItem, WatchKind, Welcome,
};
pub use socket::{ListenAddress, ListenItem, Target};

/// The protocol generation that this crate implements. A host supports keepers of its own and of older generations.
///
/// - Generation 1: commands, files, watches and resource usage. An open connection counts as use of the sandbox. Such a
///   keeper has at most the features [`Features::FIRST`].
/// - Generation 2: for long-running hosts. Only commands and open streams count as use of the sandbox. The keeper has
///   further requests and fields, each with its bit in [`Features`].
pub const GENERATION: u32 = 2;
