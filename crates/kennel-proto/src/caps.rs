//! Every cap of the protocol, in one place. Past a cap there is an error, never an allocation.

/// Payload bytes of a data frame, without its offset.
pub const DATA: usize = 128 * 1024;
/// Payload bytes of a control message: arguments and environment of a command fit, as the kernel would take them.
pub const CONTROL: usize = 1024 * 1024;
/// How far a sender of output may be ahead of what the host has consumed, per channel.
pub const WINDOW: u64 = 512 * 1024;
/// The same for the standard input of a command. Small: the keeper holds it.
pub const STDIN_WINDOW: u64 = 64 * 1024;
/// Data bytes of one segment of a file with holes.
pub const SEGMENT: u64 = 1024 * 1024;
/// Connections to one keeper.
pub const CONNECTIONS: usize = 64;
/// Streams on one connection.
pub const STREAMS: usize = 1024;
/// Commands of one keeper that run at once.
pub const PROCESSES: usize = 1024;
/// Ended commands whose result and last output are kept for a later attach.
pub const ENDED: usize = 64;
/// Bytes of output that one keeper holds, all commands together.
pub const RINGS: usize = 4 * 1024 * 1024;
/// Bytes of a path.
pub const PATH: usize = 4096;
/// Arguments and environment entries of a command, each.
pub const STRINGS: usize = 16 * 1024;
