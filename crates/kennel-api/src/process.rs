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
    /// A text of at most 240 bytes, which lists return.
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
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether it was ended because its time was over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Whether it was killed because memory ran out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// How many bytes of standard input it has received, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_bytes: Option<u64>,
    /// Its standard output, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<OutputView>,
    /// Its standard error, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<OutputView>,
}

/// How much a command has printed on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputView {
    /// The number of bytes that it has printed.
    pub printed_bytes: u64,
    /// The offset of the oldest byte that can still be read.
    pub stored_from: u64,
}

/// What a command has printed since the offsets of the request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessOutput {
    /// Standard output, or the terminal.
    pub stdout: OutputPart,
    /// Standard error.
    pub stderr: OutputPart,
    /// How the command ended, if it has ended and this is all of its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ProcessExit>,
}

/// A part of a channel. Exactly one of `text` and `base64` is there.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputPart {
    /// The offset of the first byte.
    pub offset: u64,
    /// The offset for the next request.
    pub next_offset: u64,
    /// The number of bytes that were lost between the offset of the request and these bytes.
    #[serde(default)]
    pub lost_bytes: u64,
    /// The bytes, if they are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The bytes in base64, if they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessExit {
    /// The exit code that a shell would show: the command's own, 124 for a timeout, 128+n for signal n.
    pub exit_code: i32,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// Whether it timed out.
    pub timed_out: bool,
    /// Whether it was killed because memory ran out.
    pub oom_killed: bool,
}

/// How much of its standard input a command has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StdinTaken {
    /// The offset for the next bytes. If it is lower than expected, the command has not read everything yet: send the
    /// rest again from here.
    pub offset: u64,
    /// Whether standard input is closed.
    pub closed: bool,
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
