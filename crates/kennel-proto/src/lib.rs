//! The protocol between a host and the keeper inside a sandbox. Frames, messages and their codec; no I/O.
//!
//! # Shape
//!
//! A connection is a byte stream. Both sides send frames: an eight-byte header (payload length, kind, stream) and a
//! payload. Stream 0 is the connection itself; every other stream is one request of the host and all that follows from
//! it. Control messages are CBOR with numbered fields (unknown ones are skipped, so a newer side can talk to an older
//! one); bytes of commands and files travel raw.
//!
//! # Flow
//!
//! Each stream has up to three channels of bytes: `Stdin` to the keeper, `Stdout` and `Stderr` from it. Bytes are
//! numbered from 0. A receiver tells how far it has consumed; a sender is never more than the window ahead of that. So
//! a reader that stops stops only its own channel, and after a lost connection everything that was not consumed can be
//! asked for again.
//!
//! # Trust
//!
//! Whatever arrives is hostile. Lengths are checked against the caps in [`caps`] before memory is taken, and a decoder
//! returns an error for anything else than what it expects. It never panics.

pub mod caps;
mod codec;
mod config;
pub mod dial;
pub mod log;
mod message;
pub mod sparse;

pub use codec::{DecodeError, Decoder, HEADER, encode, encode_data_header, try_encode};
pub use config::{KeeperConfig, LogSink};
pub use message::{
    Attach, Body, Channel, Entry, ExitReport, Failure, FailureKind, FileKind, Frame, Hello, Outcome, ProcessInfo,
    Reply, Request, Size, Spawn, SpawnCommand, Stat, StatsReport, WatchItem, WatchKind, Welcome,
};

/// The generation of the protocol this crate speaks. A host talks to any keeper of its own or an older generation.
pub const GENERATION: u32 = 1;
