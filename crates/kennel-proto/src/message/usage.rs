//! The use of a sandbox: its idle time and the resources it takes.

use minicbor::{Decode, Encode};

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
