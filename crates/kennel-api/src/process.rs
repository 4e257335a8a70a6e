//! Commands that go on in a sandbox.

use crate::{Millis, TerminalSize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A command to start. It keeps running when the request has ended. Exactly one of `argv` and `shell` is required.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct StartProcess {
    /// The program and its arguments, executed directly.
    pub argv: Option<Vec<String>>,
    /// A script for the sandbox's shell.
    pub shell: Option<String>,
    /// Variables that are added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// The working directory; defaults to that of the sandbox.
    pub cwd: Option<String>,
    /// The user; defaults to that of the sandbox.
    pub user: Option<String>,
    /// Whether a client will write to its standard input. Otherwise it reads end of file at once.
    pub stdin: bool,
    /// Run the command on a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// The time after which the whole process tree is ended; by default never.
    pub timeout: Option<Millis>,
    /// Wait while nobody reads the output, instead of losing the oldest bytes.
    pub hold: bool,
    /// A text of at most 256 bytes, which lists return.
    pub tag: Option<String>,
}

/// A command in a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessView {
    /// The id of the command in its sandbox.
    pub process: u64,
    /// The program and its arguments. Long ones are cut off.
    pub argv: Vec<String>,
    /// Whether it is the main process, with which the sandbox ends.
    #[serde(default)]
    pub main: bool,
    /// Whether it still runs.
    pub running: bool,
    /// Whether it runs on a terminal.
    pub terminal: bool,
    /// Whether a client reads its output.
    pub attached: bool,
    /// Whether it keeps running without a client.
    pub detached: bool,
    /// The text that the client gave it.
    pub tag: Option<String>,
    /// When it was started, in milliseconds since 1970, if it is known.
    pub started_ms: Option<u64>,
    /// The exit code that a shell would show, once it has ended.
    pub exit_code: Option<i32>,
}

/// The id of a command that was started.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartedProcess {
    /// The id of the command in its sandbox.
    pub process: u64,
}

/// Sends a signal to a command's whole process tree.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignalRequest {
    /// The number of the signal. 0 ends the command: TERM, a grace period, KILL.
    #[schemars(range(min = 0, max = 64))]
    pub signal: i32,
}
