//! A command to run in a sandbox, and its result.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A program and its arguments, executed directly.
    Argv(Vec<String>),
    /// A string that the sandbox's shell runs.
    Shell(String),
    /// An interactive shell: `$SHELL`, then bash, then sh.
    LoginShell,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TermSize {
    /// Rows of text.
    pub rows: u16,
    /// Columns of text.
    pub cols: u16,
}

/// A command with its environment, user, terminal and limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecSpec {
    /// What to run.
    pub command: Command,
    /// Variables that are added to the sandbox's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; defaults to that of the sandbox.
    #[serde(default)]
    pub cwd: Option<String>,
    /// The user: `name`, `uid`, `name:group` or `uid:gid`. Defaults to that of the sandbox.
    #[serde(default)]
    pub user: Option<String>,
    /// Whether the caller writes to standard input. Otherwise the command reads end of file at once.
    #[serde(default)]
    pub stdin: bool,
    /// Run the command on a terminal of this size.
    #[serde(default)]
    pub tty: Option<TermSize>,
    /// End the command's whole process tree after this time.
    #[serde(default)]
    pub timeout: Option<Duration>,
    /// Whether the command keeps running when the connection that started it ends.
    #[serde(default)]
    pub detached: bool,
    /// Whether the sandbox ends with this command. This is faster than stopping the sandbox afterwards.
    #[serde(default)]
    pub last: bool,
    /// A text of at most 256 bytes, chosen by the caller. The list of commands returns it.
    #[serde(default)]
    pub tag: Option<String>,
    /// Whether the command waits while nobody reads its output, instead of losing the oldest bytes. Its exit status
    /// arrives when all output has been consumed.
    #[serde(default)]
    pub hold: bool,
    /// For how long a command that is not detached keeps running after its connection was lost, at most seven days. In
    /// this time it can be attached again. Dropping its handle still ends it at once.
    #[serde(default)]
    pub linger: Option<Duration>,
}

impl ExecSpec {
    /// A spec for a program and its arguments.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// A spec for a string that the shell runs.
    pub fn shell(script: impl Into<String>) -> Self {
        Self::new(Command::Shell(script.into()))
    }

    /// A spec for a command, with default values for everything else.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            stdin: false,
            tty: None,
            timeout: None,
            detached: false,
            last: false,
            tag: None,
            hold: false,
            linger: None,
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExitStatus {
    /// The exit code, if the command ended by itself.
    pub code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// The command timed out, and its process tree was ended.
    pub timed_out: bool,
    /// The command was killed because memory ran out.
    pub oom_killed: bool,
}

impl ExitStatus {
    /// Whether the command ended by itself with exit code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0) && !self.timed_out
    }

    /// The exit code that a shell would show: the command's own, 124 for a timeout, 128+n for signal n.
    pub fn shell_code(&self) -> i32 {
        match self {
            Self { timed_out: true, .. } => 124,
            Self { code: Some(code), .. } => *code,
            Self { signal: Some(signal), .. } => 128 + signal,
            _ => 125,
        }
    }
}
