//! The messages. Field numbers are the wire format: never reuse one.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The stream it belongs to; 0 is the connection itself.
    pub stream: u32,
    /// What it says.
    pub body: Body,
}

/// What a frame says.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Host: the first frame of a connection.
    Hello(Hello),
    /// Keeper: the answer to it.
    Welcome(Welcome),
    /// Host: opens a stream.
    Open(Box<Request>),
    /// Keeper: the request was taken, or is done.
    Reply(Reply),
    /// Keeper: the request failed; the stream is over.
    Fail(Failure),
    /// Both: bytes of a channel, from this offset on.
    Data {
        /// Which channel.
        channel: Channel,
        /// The number of the first byte.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Both: no more bytes on this channel.
    Eof(Channel),
    /// Both: bytes of this channel before this number are consumed.
    Consumed {
        /// Which channel.
        channel: Channel,
        /// Everything before it is consumed.
        offset: u64,
    },
    /// Keeper: the command ended and all its output was sent; the stream is over.
    Exit(ExitReport),
    /// Host: a signal for the command's process group.
    Signal(i32),
    /// Host: the terminal's new size.
    Resize(Size),
    /// Both: the stream is over. From the host it ends a tied command, and detaches from another.
    Close,
    /// Host: are you there?
    Ping,
    /// Keeper: yes.
    Pong,
}

/// A direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// To the command, or the content of a file to write.
    Stdin = 0,
    /// From the command, the content of a file, or a list of entries.
    Stdout = 1,
    /// From the command.
    Stderr = 2,
}

/// The host introduces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// The newest generation it speaks.
    #[n(0)]
    pub generation: u32,
    /// The secret of a keeper that cannot tell inside from outside.
    #[n(1)]
    pub token: Option<ByteVec>,
    /// Whether a tied sandbox lives as long as this connection.
    #[n(2)]
    pub owner: bool,
}

/// The keeper's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// The generation both speak.
    #[n(0)]
    pub generation: u32,
    /// The keeper's version.
    #[n(1)]
    pub version: String,
    /// The id of the main process, if there is one.
    #[n(2)]
    pub main: Option<u64>,
}

/// What the host can ask for.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Request {
    /// Run a command.
    #[n(0)]
    Spawn(#[n(0)] Spawn),
    /// Take over the output of a command.
    #[n(1)]
    Attach(#[n(0)] Attach),
    /// The commands there are.
    #[n(2)]
    Processes,
    /// Send a signal to a command's whole tree; 0 ends it (TERM, grace, KILL).
    #[n(3)]
    Kill {
        /// Which command.
        #[n(0)]
        process: u64,
        /// The signal.
        #[n(1)]
        signal: i32,
    },
    /// Send a file's bytes on `Stdout`.
    #[n(4)]
    Read {
        /// The file.
        #[n(0)]
        path: ByteVec,
        /// As whom.
        #[n(1)]
        user: Option<String>,
        /// First byte.
        #[n(2)]
        offset: u64,
        /// How many at most.
        #[n(3)]
        limit: Option<u64>,
        /// Whether a file with holes may come as segments, see [`sparse`](crate::sparse). The keeper then says `ReadySparse`; one that
        /// does not know of it, or has no reason to, says `Ready` and sends plain bytes.
        #[n(4)]
        sparse: Option<bool>,
    },
    /// Write what comes on `Stdin` to a file: a temporary one beside it, renamed at the end.
    #[n(5)]
    Write {
        /// The file.
        #[n(0)]
        path: ByteVec,
        /// As whom.
        #[n(1)]
        user: Option<String>,
        /// Permission bits of a new file; those of the old one, or 0644, if not given.
        #[n(2)]
        mode: Option<u32>,
        /// Whether to make missing parents.
        #[n(3)]
        parents: bool,
        /// Whether the host would send segments, see [`sparse`](crate::sparse). It does so only if the keeper says `ReadySparse`.
        #[n(4)]
        sparse: Option<bool>,
    },
    /// Send the entries of a directory on `Stdout`, each as a length and an [`Entry`].
    #[n(6)]
    List {
        /// The directory.
        #[n(0)]
        path: ByteVec,
        /// As whom.
        #[n(1)]
        user: Option<String>,
    },
    /// What is at a path.
    #[n(7)]
    Stat {
        /// The path.
        #[n(0)]
        path: ByteVec,
        /// As whom.
        #[n(1)]
        user: Option<String>,
        /// Whether to follow a link at the end of the path.
        #[n(2)]
        follow: bool,
    },
    /// Make a directory.
    #[n(8)]
    Mkdir {
        /// The directory.
        #[n(0)]
        path: ByteVec,
        /// As whom.
        #[n(1)]
        user: Option<String>,
        /// Whether to make missing parents, and take an existing one.
        #[n(2)]
        parents: bool,
        /// Permission bits.
        #[n(3)]
        mode: Option<u32>,
    },
    /// Move a file or directory.
    #[n(9)]
    Move {
        /// From here.
        #[n(0)]
        from: ByteVec,
        /// To here.
        #[n(1)]
        to: ByteVec,
        /// As whom.
        #[n(2)]
        user: Option<String>,
        /// Whether an existing target may be replaced.
        #[n(3)]
        replace: bool,
    },
    /// Remove a file or directory. Links are removed, never followed.
    #[n(10)]
    Remove {
        /// What.
        #[n(0)]
        path: ByteVec,
        /// As whom.
        #[n(1)]
        user: Option<String>,
        /// Whether to remove what is in a directory too.
        #[n(2)]
        recursive: bool,
    },
    /// Send changes on `Stdout`, each as a length and a [`WatchItem`], until the stream is closed.
    #[n(11)]
    Watch {
        /// The file or directory.
        #[n(0)]
        path: ByteVec,
        /// As whom.
        #[n(1)]
        user: Option<String>,
        /// Whether directories below count.
        #[n(2)]
        recursive: bool,
    },
    /// What the sandbox uses.
    #[n(12)]
    Stats,
    /// End every command (TERM, grace, KILL), then the keeper itself.
    #[n(13)]
    Shutdown {
        /// Milliseconds between TERM and KILL.
        #[n(0)]
        grace_ms: u64,
    },
}

impl Request {
    /// The user it names, if it names one.
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
            | Self::Watch { user, .. } => user.as_deref(),
            _ => None,
        }
    }
}

/// A command to run.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Spawn {
    /// What to run.
    #[n(0)]
    pub command: SpawnCommand,
    /// Added to the keeper's base environment.
    #[n(1)]
    pub env: Vec<(ByteVec, ByteVec)>,
    /// Working directory.
    #[n(2)]
    pub cwd: Option<ByteVec>,
    /// User.
    #[n(3)]
    pub user: Option<String>,
    /// Whether the host will send standard input.
    #[n(4)]
    pub stdin: bool,
    /// A terminal of this size.
    #[n(5)]
    pub tty: Option<Size>,
    /// Ends the tree after this time.
    #[n(6)]
    pub timeout_ms: Option<u64>,
    /// Milliseconds between TERM and KILL when the tree is ended.
    #[n(7)]
    pub grace_ms: Option<u64>,
    /// Whether it lives on when the stream or connection ends.
    #[n(8)]
    pub detached: bool,
    /// Whether the sandbox ends with it: everything else in it is ended, and then the keeper.
    #[n(9)]
    pub last: bool,
    /// The signal by which the command itself is told to end with the sandbox; TERM if not given.
    #[n(10)]
    pub stop_signal: Option<i32>,
}

impl Spawn {
    /// A sandbox's main process: detached, so that it can be attached to and left again.
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
        }
    }
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum SpawnCommand {
    /// A program, looked up in the command's `PATH`, and its arguments.
    #[n(0)]
    Argv(#[n(0)] Vec<ByteVec>),
    /// A string for the shell.
    #[n(1)]
    Shell(#[n(0)] ByteVec),
    /// An interactive shell.
    #[n(2)]
    LoginShell,
}

/// A terminal's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Size {
    /// Rows of text.
    #[n(0)]
    pub rows: u16,
    /// Columns of text.
    #[n(1)]
    pub cols: u16,
}

/// Taking over a command's output.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Attach {
    /// Which command.
    #[n(0)]
    pub process: u64,
    /// The first byte of standard output that is wanted.
    #[n(1)]
    pub stdout: u64,
    /// The first byte of standard error that is wanted.
    #[n(2)]
    pub stderr: u64,
    /// The terminal's size now.
    #[n(3)]
    pub size: Option<Size>,
}

/// A request was taken, or is done.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Reply {
    /// A command runs. Output begins at these offsets; bytes before them, if asked for, are lost.
    #[n(0)]
    Running {
        /// Its id.
        #[n(0)]
        process: u64,
        /// First byte of standard output to come.
        #[n(1)]
        stdout: u64,
        /// First byte of standard error to come.
        #[n(2)]
        stderr: u64,
        /// How far standard input may be ahead.
        #[n(3)]
        stdin_window: u64,
        /// How much standard input was taken so far.
        #[n(4)]
        stdin: u64,
        /// Whether it runs on a terminal.
        #[n(5)]
        tty: bool,
    },
    /// Bytes may flow.
    #[n(1)]
    Ready {
        /// How far `Stdin` may be ahead.
        #[n(0)]
        stdin_window: u64,
    },
    /// Done; the stream is over.
    #[n(2)]
    Done(#[n(0)] Outcome),
    /// Bytes may flow, as segments of a file with holes. Only said where the request has asked for it.
    #[n(3)]
    ReadySparse {
        /// How far `Stdin` may be ahead.
        #[n(0)]
        stdin_window: u64,
    },
}

/// The result of a request that is done.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Outcome {
    /// Nothing to tell.
    #[n(0)]
    Nothing,
    /// What is at a path.
    #[n(1)]
    Stat(#[n(0)] Stat),
    /// The commands there are.
    #[n(2)]
    Processes(#[n(0)] Vec<ProcessInfo>),
    /// What the sandbox uses.
    #[n(3)]
    Stats(#[n(0)] StatsReport),
}

/// A command the keeper knows.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProcessInfo {
    /// Its id.
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
    /// Whether someone reads its output.
    #[n(4)]
    pub attached: bool,
    /// Whether it lives on without its connection.
    #[n(5)]
    pub detached: bool,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ExitReport {
    /// Exit code.
    #[n(0)]
    pub code: Option<i32>,
    /// Signal.
    #[n(1)]
    pub signal: Option<i32>,
    /// Its time ran out.
    #[n(2)]
    pub timed_out: bool,
    /// Memory ran out.
    #[n(3)]
    pub oom_killed: bool,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Failure {
    /// What kind.
    #[n(0)]
    pub kind: FailureKind,
    /// For a person; from inside a sandbox, so never shown raw.
    #[n(1)]
    pub message: String,
}

/// The kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum FailureKind {
    /// No such program, file or process.
    #[n(0)]
    NotFound,
    /// Not allowed.
    #[n(1)]
    Denied,
    /// Something is in the way.
    #[n(2)]
    Exists,
    /// The request makes no sense here.
    #[n(3)]
    Invalid,
    /// A cap was reached.
    #[n(4)]
    Limit,
    /// The program is there and cannot be run.
    #[n(5)]
    NotExecutable,
    /// Something else.
    #[n(6)]
    Other,
    /// The path is no regular file or directory, or leaves by a magic link.
    #[n(7)]
    Refused,
    /// The keeper or the kernel below it cannot do it.
    #[n(8)]
    Unsupported,
    /// The sandbox could not be started.
    #[n(9)]
    NotStarted,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Stat {
    /// What it is.
    #[n(0)]
    pub kind: FileKind,
    /// Bytes.
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
    /// Milliseconds since 1970.
    #[n(5)]
    pub modified_ms: i64,
    /// Where a link points.
    #[n(6)]
    pub target: Option<ByteVec>,
}

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum FileKind {
    /// Regular file.
    #[n(0)]
    File,
    /// Directory.
    #[n(1)]
    Directory,
    /// Symbolic link.
    #[n(2)]
    Symlink,
    /// FIFO, socket, device.
    #[n(3)]
    Other,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry {
    /// The name.
    #[n(0)]
    pub name: ByteVec,
    /// What is there.
    #[n(1)]
    pub stat: Stat,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WatchItem {
    /// What happened.
    #[n(0)]
    pub kind: WatchKind,
    /// To what, relative to the watched path.
    #[n(1)]
    pub path: ByteVec,
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum WatchKind {
    /// Appeared.
    #[n(0)]
    Created,
    /// Changed.
    #[n(1)]
    Modified,
    /// Went.
    #[n(2)]
    Removed,
    /// Changes were lost.
    #[n(3)]
    Missed,
}

/// What the sandbox uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct StatsReport {
    /// CPU time, microseconds.
    #[n(0)]
    pub cpu_micros: u64,
    /// Bytes of memory.
    #[n(1)]
    pub memory_bytes: u64,
    /// The memory limit.
    #[n(2)]
    pub memory_limit_bytes: Option<u64>,
    /// Processes.
    #[n(3)]
    pub pids: u64,
    /// Bytes read.
    #[n(4)]
    pub read_bytes: Option<u64>,
    /// Bytes written.
    #[n(5)]
    pub written_bytes: Option<u64>,
    /// Processes killed for memory.
    #[n(6)]
    pub oom_kills: Option<u64>,
}
