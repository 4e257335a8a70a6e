//! The messages of the protocol. The field numbers are the wire format: never reuse one.

use crate::{Place, Target, caps};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

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

/// The host's half of the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// The newest protocol generation that the host supports.
    #[n(0)]
    pub generation: u32,
    /// The secret, for a keeper that cannot tell peers inside from peers outside.
    #[n(1)]
    pub token: Option<ByteVec>,
    /// Whether a tied sandbox lives as long as this connection.
    #[n(2)]
    pub owner: bool,
}

/// The keeper's half of the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// The protocol generation that both sides support.
    #[n(0)]
    pub generation: u32,
    /// The keeper's version.
    #[n(1)]
    pub version: String,
    /// The process id of the main process, if there is one.
    #[n(2)]
    pub main: Option<u64>,
    /// What the keeper supports beyond the first keepers. They do not send this field, which means that they have none
    /// of these features.
    #[n(3)]
    #[cbor(default)]
    pub features: Features,
}

/// A set of features of a keeper, as bits. A host sends the request or field of a feature only to a keeper that has it:
/// a keeper closes the connection when it receives an unknown request, and skips an unknown field. A keeper with a
/// feature understands its messages; it may still refuse them as unsupported. Unknown bits are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct Features(#[n(0)] u64);

impl Features {
    /// [`Request::Symlink`].
    pub const SYMLINK: Self = Self(1);
    /// [`Request::Chmod`].
    pub const CHMOD: Self = Self(1 << 1);
    /// [`Request::Connect`].
    pub const CONNECT: Self = Self(1 << 2);
    /// [`Request::Listen`] and [`Request::Accept`].
    pub const LISTEN: Self = Self(1 << 3);
    /// [`Request::Idle`] and [`Request::EndIfIdle`].
    pub const IDLE: Self = Self(1 << 6);
    /// [`Spawn::tag`].
    pub const TAG: Self = Self(1 << 7);
    /// [`Spawn::hold`].
    pub const HOLD: Self = Self(1 << 8);
    /// [`Spawn::linger_ms`].
    pub const LINGER: Self = Self(1 << 9);
    /// The field `offset` of [`Request::Write`].
    pub const WRITE_AT: Self = Self(1 << 10);
    /// The field `depth` of [`Request::List`].
    pub const LIST_DEPTH: Self = Self(1 << 11);
    /// Starting a command with a tag, held output or a linger time.
    pub const COMMANDS: Self = Self(Self::TAG.0 | Self::HOLD.0 | Self::LINGER.0);
    /// Sockets inside.
    pub const SOCKETS: Self = Self(Self::CONNECT.0 | Self::LISTEN.0);
    /// All features that this crate knows.
    pub const ALL: Self =
        Self(Self::FIRST.0 | Self::SOCKETS.0 | Self::IDLE.0 | Self::COMMANDS.0 | Self::WRITE_AT.0 | Self::LIST_DEPTH.0);
    /// The features that keepers of generation 1 can have.
    pub const FIRST: Self = Self(Self::SYMLINK.0 | Self::CHMOD.0);

    /// Returns the features that are in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the features that are in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all features of `other` are in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

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
        /// missing file is created; a gap before the offset is filled with zeros. If the write is aborted, the bytes that
        /// have arrived stay. It cannot be combined with `sparse`. Needs [`Features::WRITE_AT`].
        #[n(5)]
        offset: Option<u64>,
    },
    /// Send the entries of a directory on `Stdout`, each as a length and an [`Entry`].
    #[n(6)]
    List {
        /// The directory.
        #[n(0)]
        path: ByteVec,
        /// The user to act as.
        #[n(1)]
        user: Option<String>,
        /// How many levels to list, from 1 to [`caps::LIST_DEPTH`]. The names of entries are then paths relative to the
        /// directory. Symlinks are not followed. More than [`caps::LISTED_ENTRIES`] entries are an error. Needs
        /// [`Features::LIST_DEPTH`].
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
    /// Send changes on `Stdout`, each as a length and a [`WatchItem`], until the stream is closed.
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
    /// Create a symlink. Needs [`Features::SYMLINK`].
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
    /// Set the permission bits of a file or directory. Needs [`Features::CHMOD`].
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
    /// Connect to something that listens inside, and reply `Ready` when it is connected. Bytes for it are sent on `Stdin`,
    /// and bytes from it on `Stdout`. `Eof` on a channel closes that direction; the keeper sends `Eof` on `Stdin` if the
    /// peer reads no more. The stream is done when both directions are closed. `Close` aborts the connection. Needs
    /// [`Features::CONNECT`].
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
    /// [`Features::LISTEN`].
    #[n(17)]
    Listen {
        /// Where to listen.
        #[n(0)]
        place: Place,
        /// The user who creates the socket, if it has a path.
        #[n(1)]
        user: Option<String>,
    },
    /// Accept a connection that has arrived at a listening socket. From then on, the stream is like that of `Connect`.
    /// Needs [`Features::LISTEN`].
    #[n(18)]
    Accept {
        /// The id of the connection.
        #[n(0)]
        connection: u64,
    },
    /// Return for how long the sandbox has not been used, see [`IdleReport`]. This request is not use. Needs
    /// [`Features::IDLE`].
    #[n(20)]
    Idle {
        /// Whether the idle time starts again at 0.
        #[n(0)]
        reset: bool,
    },
    /// End the sandbox as if its idle time had passed, if it is not in use. Returns an [`IdleReport`]. Needs
    /// [`Features::IDLE`].
    #[n(28)]
    EndIfIdle,
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

/// A command to run.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Spawn {
    /// The program or script.
    #[n(0)]
    pub command: SpawnCommand,
    /// Variables that are added to the keeper's base environment.
    #[n(1)]
    pub env: Vec<(ByteVec, ByteVec)>,
    /// Working directory.
    #[n(2)]
    pub cwd: Option<ByteVec>,
    /// The user to run as.
    #[n(3)]
    pub user: Option<String>,
    /// Whether the host sends standard input.
    #[n(4)]
    pub stdin: bool,
    /// Run the command on a terminal of this size.
    #[n(5)]
    pub tty: Option<Size>,
    /// End the process tree after this time.
    #[n(6)]
    pub timeout_ms: Option<u64>,
    /// The time between TERM and KILL when the process tree is ended, in milliseconds.
    #[n(7)]
    pub grace_ms: Option<u64>,
    /// Whether the command keeps running when its stream or connection ends.
    #[n(8)]
    pub detached: bool,
    /// Whether the sandbox ends with this command: all other processes are ended, and then the keeper.
    #[n(9)]
    pub last: bool,
    /// The signal that asks the command to end when the sandbox stops. Defaults to TERM.
    #[n(10)]
    pub stop_signal: Option<i32>,
    /// A text chosen by the host, of at most [`caps::TAG`](crate::caps::TAG) bytes. The list of commands returns it.
    /// Needs [`Features::TAG`].
    #[n(11)]
    pub tag: Option<String>,
    /// Whether the command waits while nobody reads its output, instead of losing the oldest bytes. `Exit` is sent when
    /// the host has consumed all output, so the output of a command that has ended can still be requested again. Needs
    /// [`Features::HOLD`].
    #[n(12)]
    #[cbor(default)]
    pub hold: bool,
    /// For how long a command that is not detached keeps running after its connection was lost, in milliseconds. In this
    /// time it can be attached again. If it ends meanwhile, its result is kept for as long. `Close` ends it at once.
    /// Needs [`Features::LINGER`].
    #[n(13)]
    pub linger_ms: Option<u64>,
}

impl Spawn {
    /// Creates the command for a sandbox's main process. It is detached, so that clients can attach and detach.
    pub fn main(argv: &[String]) -> Self {
        Self {
            command: SpawnCommand::Argv(argv.iter().map(|word| word.as_bytes().to_vec().into()).collect()),
            env: Vec::new(),
            cwd: None,
            user: None,
            stdin: false,
            tty: None,
            timeout_ms: None,
            grace_ms: None,
            detached: true,
            last: false,
            stop_signal: None,
            tag: None,
            hold: false,
            linger_ms: None,
        }
    }
}

/// The program or script of a command.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum SpawnCommand {
    /// A program, looked up in the command's `PATH`, and its arguments.
    #[n(0)]
    Argv(#[n(0)] Vec<ByteVec>),
    /// A string that the shell runs.
    #[n(1)]
    Shell(#[n(0)] ByteVec),
    /// An interactive shell.
    #[n(2)]
    LoginShell,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Size {
    /// Rows of text.
    #[n(0)]
    pub rows: u16,
    /// Columns of text.
    #[n(1)]
    pub cols: u16,
}

/// A request to attach to the output of a command. If the command holds its output, the bytes before the requested
/// offsets count as consumed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Attach {
    /// The command.
    #[n(0)]
    pub process: u64,
    /// The offset of the first wanted byte of standard output.
    #[n(1)]
    pub stdout: u64,
    /// The offset of the first wanted byte of standard error.
    #[n(2)]
    pub stderr: u64,
    /// The current size of the terminal.
    #[n(3)]
    pub size: Option<Size>,
}

/// The keeper's reply to a request.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Reply {
    /// The command runs. Output starts at these offsets. Requested bytes before them are lost.
    #[n(0)]
    Running {
        /// The id of the command.
        #[n(0)]
        process: u64,
        /// The offset of the first byte of standard output.
        #[n(1)]
        stdout: u64,
        /// The offset of the first byte of standard error.
        #[n(2)]
        stderr: u64,
        /// How many bytes of standard input the host may be ahead.
        #[n(3)]
        stdin_window: u64,
        /// How many bytes of standard input the keeper has received so far. The host continues at this offset.
        #[n(4)]
        stdin: u64,
        /// Whether the command runs on a terminal.
        #[n(5)]
        tty: bool,
        /// How many bytes of standard input were passed on to the command. The window starts here. Keepers of generation
        /// 1 do not send it, and send this number as `stdin`.
        #[n(6)]
        stdin_passed_on: Option<u64>,
    },
    /// Data may be sent.
    #[n(1)]
    Ready {
        /// How many bytes of `Stdin` the host may be ahead.
        #[n(0)]
        stdin_window: u64,
    },
    /// The request is done. The stream is closed.
    #[n(2)]
    Done(#[n(0)] Outcome),
    /// Data may be sent as segments of a sparse file. This is only a reply to a request with `sparse`.
    #[n(3)]
    ReadySparse {
        /// How many bytes of `Stdin` the host may be ahead.
        #[n(0)]
        stdin_window: u64,
    },
    /// The keeper listens.
    #[n(10)]
    Listening {
        /// The port, or 0 for a Unix socket.
        #[n(0)]
        port: u16,
        /// How many bytes of `Stdin` the host may be ahead. It is 0 if the host cannot send datagrams.
        #[n(1)]
        stdin_window: u64,
    },
}

/// The result of a finished request.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Outcome {
    /// No result.
    #[n(0)]
    Nothing,
    /// The metadata of a path.
    #[n(1)]
    Stat(#[n(0)] Stat),
    /// The list of commands.
    #[n(2)]
    Processes(#[n(0)] Vec<ProcessInfo>),
    /// The resource usage of the sandbox.
    #[n(3)]
    Stats(#[n(0)] StatsReport),
    /// For how long the sandbox has not been used.
    #[n(20)]
    Idle(#[n(0)] IdleReport),
}

/// For how long a sandbox has not been used.
///
/// A sandbox is in use while a command runs (also its main process) or a stream is open: an attached reader, a file
/// transfer, a watch. A command with held output counts until its output is consumed. A connection without a stream, a
/// ping and a request that is done at once are not use. Processes that a finished command has left behind are not use
/// either.
///
/// The time that the keeper spent frozen does not count: the idle time starts again at 0 when it resumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct IdleReport {
    /// Whether the sandbox is in use.
    #[n(0)]
    pub in_use: bool,
    /// The time since the last use in milliseconds, or 0 if the sandbox is in use.
    #[n(1)]
    pub idle_ms: u64,
}

/// A command that the keeper manages.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProcessInfo {
    /// The id.
    #[n(0)]
    pub process: u64,
    /// The program.
    #[n(1)]
    pub program: ByteVec,
    /// Whether it still runs.
    #[n(2)]
    pub running: bool,
    /// Whether it runs on a terminal.
    #[n(3)]
    pub tty: bool,
    /// Whether a client reads its output.
    #[n(4)]
    pub attached: bool,
    /// Whether the command keeps running without its connection.
    #[n(5)]
    pub detached: bool,
    /// The program and its arguments, up to [`caps::LISTED_ARGV`](crate::caps::LISTED_ARGV). For a script that the shell
    /// runs, the shell's arguments. This field and those below are not sent by keepers of generation 1.
    #[n(6)]
    #[cbor(default)]
    pub argv: Vec<ByteVec>,
    /// Whether arguments are missing, or the last one is cut off.
    #[n(7)]
    #[cbor(default)]
    pub argv_is_cut: bool,
    /// The tag that the host gave it.
    #[n(8)]
    pub tag: Option<String>,
    /// When it was started, in milliseconds since 1970.
    #[n(9)]
    pub started_ms: Option<u64>,
    /// How it ended.
    #[n(10)]
    pub exit: Option<ExitReport>,
    /// Its standard output.
    #[n(11)]
    pub stdout: Option<OutputOffsets>,
    /// Its standard error.
    #[n(12)]
    pub stderr: Option<OutputOffsets>,
    /// The number of bytes of standard input that it has received.
    #[n(13)]
    pub stdin: Option<u64>,
}

impl Default for ProcessInfo {
    fn default() -> Self {
        Self {
            process: 0,
            program: Vec::new().into(),
            running: false,
            tty: false,
            attached: false,
            detached: false,
            argv: Vec::new(),
            argv_is_cut: false,
            tag: None,
            started_ms: None,
            exit: None,
            stdout: None,
            stderr: None,
            stdin: None,
        }
    }
}

impl ProcessInfo {
    /// How many bytes of arguments each command may have in a list of this many, so that the list fits into a message.
    pub fn longest_argv(commands: usize) -> usize {
        caps::LISTED_ARGV.min(caps::CONTROL / 4 / commands.max(1))
    }

    /// Sets the arguments, up to `most` bytes.
    pub fn set_argv<'a>(&mut self, argv: impl IntoIterator<Item = &'a [u8]>, most: usize) {
        /// Bytes that the encoding of an argument needs.
        const HEAD: usize = 3;
        let mut left = most;
        for argument in argv {
            let fits = left.saturating_sub(HEAD).min(argument.len());
            if left <= HEAD {
                self.argv_is_cut = true;
                return;
            }
            left -= HEAD + fits;
            self.argv.push(argument[..fits].to_vec().into());
            if fits < argument.len() {
                self.argv_is_cut = true;
                return;
            }
        }
    }
}

/// The offsets of an output channel of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct OutputOffsets {
    /// The number of bytes that the keeper has read from the command.
    #[n(0)]
    pub produced: u64,
    /// Readers have consumed all bytes before this offset.
    #[n(1)]
    pub consumed: u64,
    /// The offset of the first byte that the keeper still has. If it is after `consumed`, the bytes between are lost.
    #[n(2)]
    pub kept: u64,
}

/// The result of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ExitReport {
    /// The exit code, if the command ended by itself.
    #[n(0)]
    pub code: Option<i32>,
    /// The signal that ended the command.
    #[n(1)]
    pub signal: Option<i32>,
    /// The command timed out.
    #[n(2)]
    pub timed_out: bool,
    /// The command was killed because memory ran out.
    #[n(3)]
    pub oom_killed: bool,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Failure {
    /// The kind of failure.
    #[n(0)]
    pub kind: FailureKind,
    /// A message for people. It comes from inside a sandbox, so it must never be printed unescaped.
    #[n(1)]
    pub message: String,
    /// Which limit was reached, if the kind is [`FailureKind::Limit`]. Earlier keepers do not send it, and earlier hosts
    /// skip it.
    #[n(2)]
    pub limit: Option<Limit>,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), limit: None }
    }

    /// A limit that was reached.
    pub fn limit(limit: Limit, message: impl Into<String>) -> Self {
        Self { limit: Some(limit), ..Self::new(FailureKind::Limit, message) }
    }
}

/// The limits that a request can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Limit {
    /// The size of a request or a file, or the number of its parts.
    #[n(0)]
    Size,
    /// Memory.
    #[n(1)]
    Memory,
    /// Disk space.
    #[n(2)]
    Disk,
    /// The number of commands, processes or open files.
    #[n(3)]
    Number,
    /// The number of requests at once.
    #[n(4)]
    Requests,
}

/// The kinds of [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum FailureKind {
    /// No such program, file or process.
    #[n(0)]
    NotFound,
    /// Permission denied.
    #[n(1)]
    Denied,
    /// The path already exists.
    #[n(2)]
    Exists,
    /// The request is not valid here.
    #[n(3)]
    Invalid,
    /// A limit was reached.
    #[n(4)]
    Limit,
    /// The program exists but cannot be executed.
    #[n(5)]
    NotExecutable,
    /// Any other failure.
    #[n(6)]
    Other,
    /// The path is not a regular file or directory, or contains a magic link.
    #[n(7)]
    Refused,
    /// The keeper or the kernel does not support it.
    #[n(8)]
    Unsupported,
    /// The sandbox could not be started.
    #[n(9)]
    NotStarted,
    /// The sandbox is ending, and accepts no requests any more.
    #[n(10)]
    Stopping,
}

/// The metadata of a path.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Stat {
    /// The kind of file.
    #[n(0)]
    pub kind: FileKind,
    /// The size in bytes.
    #[n(1)]
    pub size: u64,
    /// Permission bits.
    #[n(2)]
    pub mode: u32,
    /// Owner.
    #[n(3)]
    pub uid: u32,
    /// Group.
    #[n(4)]
    pub gid: u32,
    /// Time of the last modification, in milliseconds since 1970.
    #[n(5)]
    pub modified_ms: i64,
    /// The target of a symlink.
    #[n(6)]
    pub target: Option<ByteVec>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum FileKind {
    /// A regular file.
    #[n(0)]
    File,
    /// A directory.
    #[n(1)]
    Directory,
    /// A symlink.
    #[n(2)]
    Symlink,
    /// A FIFO, socket or device.
    #[n(3)]
    Other,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry {
    /// The name, or in a listing to a depth the relative path.
    #[n(0)]
    pub name: ByteVec,
    /// Its metadata.
    #[n(1)]
    pub stat: Stat,
    /// Whether it is a directory whose entries belong to the listing, but cannot be read.
    #[n(2)]
    #[cbor(default)]
    pub unreadable: bool,
}

/// A change below a watched path.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WatchItem {
    /// The kind of change.
    #[n(0)]
    pub kind: WatchKind,
    /// The changed path, relative to the watched path.
    #[n(1)]
    pub path: ByteVec,
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum WatchKind {
    /// The path was created.
    #[n(0)]
    Created,
    /// The path was modified.
    #[n(1)]
    Modified,
    /// The path was removed.
    #[n(2)]
    Removed,
    /// Changes before this one were lost.
    #[n(3)]
    Missed,
}

/// The resource usage of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct StatsReport {
    /// CPU time in microseconds.
    #[n(0)]
    pub cpu_micros: u64,
    /// Memory in use, in bytes.
    #[n(1)]
    pub memory_bytes: u64,
    /// The memory limit in bytes.
    #[n(2)]
    pub memory_limit_bytes: Option<u64>,
    /// The number of processes.
    #[n(3)]
    pub pids: u64,
    /// Bytes read from disk.
    #[n(4)]
    pub read_bytes: Option<u64>,
    /// Bytes written to disk.
    #[n(5)]
    pub written_bytes: Option<u64>,
    /// The number of processes killed because memory ran out.
    #[n(6)]
    pub oom_kills: Option<u64>,
}
