//! All caps of the protocol. A value above a cap causes an error, never an allocation.

/// Payload bytes of a data frame, without its offset.
pub const DATA: usize = 128 * 1024;
/// Payload bytes of a control message. It must hold the arguments and environment of a command.
pub const CONTROL: usize = 1024 * 1024;
/// The number of output bytes that a sender may be ahead of what the host has consumed, per channel.
pub const WINDOW: u64 = 512 * 1024;
/// The number of bytes of a command's standard input that the host may be ahead. It is small, because the keeper
/// buffers them.
pub const STDIN_WINDOW: u64 = 64 * 1024;
/// Data bytes in one segment of a sparse file.
pub const SEGMENT: u64 = 1024 * 1024;
/// Connections to one keeper.
pub const CONNECTIONS: usize = 64;
/// Streams on one connection.
pub const STREAMS: usize = 1024;
/// Commands that one keeper runs at the same time.
pub const PROCESSES: usize = 1024;
/// Ended commands whose result and last output are kept for a later attach.
pub const ENDED: usize = 64;
/// Bytes of output that one keeper buffers for all commands together.
pub const RINGS: usize = 4 * 1024 * 1024;
/// Bytes in a path.
pub const PATH: usize = 4096;
/// The number of arguments of a command, and the number of its environment entries.
pub const STRINGS: usize = 16 * 1024;
/// Sockets on which one keeper listens for hosts.
pub const LISTENERS: usize = 32;
/// Connections to one listening socket that no host has accepted yet. Further connections are closed.
pub const PENDING: usize = 64;
/// The number of milliseconds after which a connection that no host has accepted is closed.
pub const PENDING_MS: u64 = 30_000;
/// Bytes of messages of one listening socket that the host has not consumed. Connections and datagrams beyond them are
/// dropped.
pub const LISTEN_QUEUE: usize = 256 * 1024;
/// Bytes in a datagram. Longer ones are dropped.
pub const DATAGRAM: usize = 4096;
/// Peers of a listening UDP socket to which the host can reply. The oldest is forgotten first.
pub const PEERS: usize = 256;
/// Bytes in the tag of a command.
pub const TAG: usize = 256;
/// Bytes of a command's arguments that the list of commands returns, with three bytes more for each argument. It is
/// less if there are many commands.
pub const LISTED_ARGV: usize = 1024;
/// The longest linger time of a command, in milliseconds: seven days.
pub const LINGER_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// How many levels of directories one listing descends.
pub const LIST_DEPTH: u32 = 64;
/// Entries in a listing that descends into directories.
pub const LISTED_ENTRIES: usize = 200_000;
