//! What the keeper replies to a request.

use super::{IdleReport, ProcessInfo, Stat, StatsReport};
use minicbor::{Decode, Encode};

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
