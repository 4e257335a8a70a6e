//! What a sandbox uses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resource use of a sandbox, summed over all its processes. `None` where this backend cannot tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// CPU time since the start, microseconds.
    pub cpu_micros: u64,
    /// Memory in use, bytes.
    pub memory_bytes: u64,
    /// The memory limit in force, bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Processes alive.
    pub pids: u64,
    /// Bytes read from storage.
    pub read_bytes: Option<u64>,
    /// Bytes written to storage.
    pub written_bytes: Option<u64>,
    /// Processes killed because memory ran out.
    pub oom_kills: Option<u64>,
}
