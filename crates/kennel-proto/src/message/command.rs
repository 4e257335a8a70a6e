//! Commands: how one is started, listed and attached to, and how it ended.

use crate::caps;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

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
    /// Needs [`Features::TAG`](crate::Features::TAG).
    #[n(11)]
    pub tag: Option<String>,
    /// Whether the command waits while nobody reads its output, instead of losing the oldest bytes. `Exit` is sent when
    /// the host has consumed all output, so the output of a command that has ended can still be requested again. Needs
    /// [`Features::HOLD`](crate::Features::HOLD).
    #[n(12)]
    #[cbor(default)]
    pub hold: bool,
    /// For how long a command that is not detached keeps running after its connection was lost, in milliseconds. In
    /// this time it can be attached again. If it ends meanwhile, its result is kept for as long. `Close` ends it at
    /// once. Needs [`Features::LINGER`](crate::Features::LINGER).
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
    /// The program and its arguments, up to [`caps::LISTED_ARGV`](crate::caps::LISTED_ARGV). For a script that the
    /// shell runs, the shell's arguments. This field and those below are not sent by keepers of generation 1.
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
