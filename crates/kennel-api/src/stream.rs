//! The WebSocket subprotocol `kennel.v1`: a command's input and output, numbered by byte.
//!
//! Binary messages carry data: one byte for the channel, eight bytes for the offset of the first payload byte (big endian),
//! and at most 64 KiB of payload. Text messages are JSON, with the kind in `type`. The first message of a client is `start`
//! or `attach`. Closing the connection never means end of file: the command continues, and can be attached again.

mod frame;
mod lines;
mod message;
mod progress;

pub use frame::{Frame, FrameError, HEADER, PAYLOAD, StreamChannel};
pub use lines::{EventData, ExecLine, ListedSandbox, LogLine, WatchLine};
pub use message::{ClientMessage, Lag, ServerMessage, StreamAttach, StreamStart};
pub use progress::{BuildLine, PullLine};

/// The name of the subprotocol, for `Sec-WebSocket-Protocol`.
pub const SUBPROTOCOL: &str = "kennel.v1";

/// How many bytes of one channel each side may send ahead of the other side's `ack`.
pub const WINDOW: u64 = 256 * 1024;

/// The longest text message.
pub const CONTROL: usize = 1024 * 1024;
