//! Commands.

use crate::{ApiError, Millis};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A command to run to its end. Exactly one of `argv` and `shell` is required.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExecRequest {
    /// The program and its arguments, executed directly.
    pub argv: Option<Vec<String>>,
    /// A script for the sandbox's shell.
    pub shell: Option<String>,
    /// Variables that are added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// The working directory; defaults to that of the sandbox.
    pub cwd: Option<String>,
    /// The user: `name`, `uid`, `name:group` or `uid:gid`. Defaults to that of the sandbox.
    pub user: Option<String>,
    /// Standard input, as text.
    pub stdin: Option<String>,
    /// Standard input, in base64, for bytes that are not text.
    pub stdin_base64: Option<String>,
    /// The time after which the whole process tree is ended; defaults to 60 seconds. 0 means no limit.
    pub timeout: Option<Millis>,
    /// How many characters of each output stream are returned; defaults to 10,000. The rest is counted.
    #[schemars(range(max = 10_485_760))]
    pub output_limit: Option<u32>,
    /// Start the sandbox first if it is stopped; defaults to false.
    pub start: bool,
}

/// How a command ended.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecResult {
    /// The exit code that a shell would show: the command's own, 124 for a timeout, 128+n for signal n.
    pub exit_code: i32,
    /// The signal that ended the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Standard output as text. Bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error as text. Bytes that are not UTF-8 are replaced.
    pub stderr: String,
    /// The exact bytes of standard output in base64, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// The exact bytes of standard error in base64, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// Whether a part of the output was cut off.
    pub truncated: bool,
    /// How much was cut off.
    pub cut: OutputCut,
    /// Why the command did not end by itself: code `timeout`, or `limit_exceeded` with the reason `out_of_memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
    /// How long it took.
    pub timings: ExecTimings,
}

/// The number of bytes of output that were not returned.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputCut {
    /// Of standard output.
    pub stdout_bytes: u64,
    /// Of standard error.
    pub stderr_bytes: u64,
}

/// How long the parts of a request took, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecTimings {
    /// Until the sandbox was found, and started if that was requested.
    pub find_micros: u64,
    /// From the request to the sandbox until the command had ended.
    pub exec_micros: u64,
    /// Everything.
    pub total_micros: u64,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TerminalSize {
    /// Rows of text.
    pub rows: u16,
    /// Columns of text.
    pub cols: u16,
}
