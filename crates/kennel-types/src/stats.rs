//! Resource usage of a sandbox.

use serde::{Deserialize, Serialize};

/// Resource usage of a sandbox, summed over all its processes. Values that the backend does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// CPU time since the start, in microseconds.
    pub cpu_micros: u64,
    /// Memory in use, in bytes.
    pub memory_bytes: u64,
    /// The memory limit in effect, in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// The number of processes.
    pub pids: u64,
    /// Bytes read from disk.
    pub read_bytes: Option<u64>,
    /// Bytes written to disk.
    pub written_bytes: Option<u64>,
    /// The number of processes killed because memory ran out.
    pub oom_kills: Option<u64>,
}
