//! What the host can ask of the keeper.

use super::{Attach, Spawn};
use crate::{ListenAddress, Target};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// A request of the host.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Request {
    /// Run a command.
    #[n(0)]
    Spawn(#[n(0)] Spawn),
    /// Attach to the output of a command.
    #[n(1)]
    Attach(#[n(0)] Attach),
    /// List the commands.
    #[n(2)]
    Processes,
    /// Send a signal to a command's whole process tree. Signal 0 ends it (TERM, grace period, KILL). If the command has
    /// ended, signal 0 releases the output that it holds: only the newest bytes are kept.
    #[n(3)]
    Kill {
        /// The command.
        #[n(0)]
        process: u64,
        /// The signal.
        #[n(1)]
        signal: i32,
    },
    /// Send the content of a file on `Stdout`.
    #[n(4)]
    Read {
        /// The file.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// The offset of the first byte.
        #[n(2)]
        offset: u64,
        /// The maximum number of bytes.
        #[n(3)]
        limit: Option<u64>,
        /// Whether the keeper may send a sparse file as segments, see [`sparse`](crate::sparse). If it does, it replies
        /// `ReadySparse`. A keeper without this feature, or without a reason to use it, replies `Ready` and sends plain
        /// bytes.
        #[n(4)]
        sparse: Option<bool>,
    },
    /// Write the bytes from `Stdin` to a file: first to a temporary file next to it, which is renamed at the end.
    #[n(5)]
    Write {
        /// The file.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// Permission bits of the file. Defaults to those of the existing file, or 0644.
        #[n(2)]
        mode: Option<u32>,
        /// Whether to create missing parent directories.
        #[n(3)]
        parents: bool,
        /// Whether the host can send segments, see [`sparse`](crate::sparse). It sends them only if the keeper replies
        /// `ReadySparse`.
        #[n(4)]
        sparse: Option<bool>,
        /// Write in place, starting at this offset, and not to a temporary file. The other bytes of the file stay. A
        /// missing file is created; a gap before the offset is filled with zeros. If the write is aborted, the bytes
        /// that have arrived stay. It cannot be combined with `sparse`. Needs
        /// [`Features::WRITE_AT`](crate::Features::WRITE_AT).
        #[n(5)]
        offset: Option<u64>,
    },
    /// Send the entries of a directory on `Stdout`, each as a length and an [`Entry`](crate::Entry).
    #[n(6)]
    List {
        /// The directory.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// How many levels to list, from 1 to [`caps::LIST_DEPTH`](crate::caps::LIST_DEPTH). The names of entries are
        /// then paths relative to the directory. Symlinks are not followed. More than
        /// [`caps::LISTED_ENTRIES`](crate::caps::LISTED_ENTRIES) entries are an error. Needs
        /// [`Features::LIST_DEPTH`](crate::Features::LIST_DEPTH).
        #[n(2)]
        depth: Option<u32>,
    },
    /// Return the metadata of a path.
    #[n(7)]
    Stat {
        /// The path.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// Whether to follow a symlink at the end of the path.
        #[n(2)]
        follow: bool,
    },
    /// Create a directory.
    #[n(8)]
    Mkdir {
        /// The directory.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// Whether to create missing parents, and to accept an existing directory.
        #[n(2)]
        parents: bool,
        /// Permission bits.
        #[n(3)]
        mode: Option<u32>,
    },
    /// Move a file or directory.
    #[n(9)]
    Move {
        /// The old path.
        #[n(0)]
        from: ByteVec,
        /// The new path.
        #[n(1)]
        to: ByteVec,
        /// The user to act as.
        #[n(2)]
        user: Option<String>,
        /// Whether an existing target may be replaced.
        #[n(3)]
        replace: bool,
    },
    /// Remove a file or directory. Symlinks are removed, never followed.
    #[n(10)]
    Remove {
        /// The path.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// Whether to remove the content of a directory too.
        #[n(2)]
        recursive: bool,
    },
    /// Send changes on `Stdout`, each as a length and a [`WatchItem`](crate::WatchItem), until the stream is closed.
    #[n(11)]
    Watch {
        /// The file or directory.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// Whether to watch the directories below too.
        #[n(2)]
        recursive: bool,
    },
    /// Return the resource usage of the sandbox.
    #[n(12)]
    Stats,
    /// End every command (TERM, grace period, KILL), then the keeper itself.
    #[n(13)]
    Shutdown {
        /// The time between TERM and KILL, in milliseconds.
        #[n(0)]
        grace_ms: u64,
    },
    /// Create a symlink. Needs [`Features::SYMLINK`](crate::Features::SYMLINK).
    #[n(14)]
    Symlink {
        /// The symlink. Its parent directory must exist.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// The text of the symlink. It has the same cap as a path, and is not resolved.
        #[n(2)]
        target: ByteVec,
        /// Whether to replace what is at the path, in one step. A directory is never replaced.
        #[n(3)]
        replace: bool,
    },
    /// Set the permission bits of a file or directory. Needs [`Features::CHMOD`](crate::Features::CHMOD).
    #[n(15)]
    Chmod {
        /// The file or directory.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// Permission bits. A file does not get its set-user-id and set-group-id bits.
        #[n(2)]
        mode: u32,
        /// Whether to follow a symlink at the end of the path. If not, a symlink is refused.
        #[n(3)]
        follow: bool,
    },
    /// Connect to something that listens inside, and reply `Ready` when it is connected. Bytes for it are sent on
    /// `Stdin`, and bytes from it on `Stdout`. `Eof` on a channel closes that direction; the keeper sends `Eof` on
    /// `Stdin` if the peer reads no more. The stream is done when both directions are closed. `Close` aborts the
    /// connection. Needs [`Features::CONNECT`](crate::Features::CONNECT).
    #[n(16)]
    Connect {
        /// What to connect to.
        #[n(0)]
        target: Target,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
    },
    /// Listen inside for the host, and reply `Listening`. Connections and datagrams are sent on `Stdout` as
    /// [`ListenItem`](crate::ListenItem). When the stream is closed, the keeper stops listening. Needs
    /// [`Features::LISTEN`](crate::Features::LISTEN).
    #[n(17)]
    Listen {
        /// Where to listen.
        #[n(0)]
        address: ListenAddress,
        /// The user who creates the socket, if it has a path.
        #[n(1)]
        user: Option<String>,
    },
    /// Accept a connection that has arrived at a listening socket. From then on, the stream is like that of `Connect`.
    /// Needs [`Features::LISTEN`](crate::Features::LISTEN).
    #[n(18)]
    Accept {
        /// The id of the connection.
        #[n(0)]
        connection: u64,
    },
    /// Return for how long the sandbox has not been used, see [`IdleReport`](crate::IdleReport). This request is not
    /// use. Needs [`Features::IDLE`](crate::Features::IDLE).
    #[n(20)]
    Idle {
        /// Whether the idle time starts again at 0.
        #[n(0)]
        reset: bool,
    },
    /// End the sandbox as if its idle time had passed, if it is not in use. Returns an
    /// [`IdleReport`](crate::IdleReport). Needs [`Features::IDLE`](crate::Features::IDLE).
    #[n(28)]
    EndIfIdle,
    /// Tie the sandbox to this connection, or untie it: while it is tied, it ends when the connection is lost. A sandbox that
    /// is started again is not tied. Needs [`Features::TIE`](crate::Features::TIE).
    #[n(29)]
    Tie {
        /// Whether it is tied from now on.
        #[n(0)]
        tied: bool,
    },
}

impl Request {
    /// The kind of request, for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Spawn(_) => "spawn",
            Self::Attach(_) => "attach",
            Self::Processes => "processes",
            Self::Kill { .. } => "kill",
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::List { .. } => "list",
            Self::Stat { .. } => "stat",
            Self::Mkdir { .. } => "mkdir",
            Self::Move { .. } => "move",
            Self::Remove { .. } => "remove",
            Self::Watch { .. } => "watch",
            Self::Stats => "stats",
            Self::Shutdown { .. } => "shutdown",
            Self::Symlink { .. } => "symlink",
            Self::Chmod { .. } => "chmod",
            Self::Connect { .. } => "connect",
            Self::Listen { .. } => "listen",
            Self::Accept { .. } => "accept",
            Self::Idle { .. } => "idle",
            Self::EndIfIdle => "end if idle",
            Self::Tie { .. } => "tie",
        }
    }

    /// Returns the user to act as, if the request names one.
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Spawn(spawn) => spawn.user.as_deref(),
            Self::Read { user, .. }
            | Self::Write { user, .. }
            | Self::List { user, .. }
            | Self::Stat { user, .. }
            | Self::Mkdir { user, .. }
            | Self::Move { user, .. }
            | Self::Remove { user, .. }
            | Self::Watch { user, .. }
            | Self::Symlink { user, .. }
            | Self::Chmod { user, .. }
            | Self::Connect { user, .. }
            | Self::Listen { user, .. } => user.as_deref(),
            _ => None,
        }
    }
}
