//! A command to run inside a sandbox, and how it ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A program and its arguments, run as they are.
    Argv(Vec<String>),
    /// A string for the sandbox's shell.
    Shell(String),
    /// An interactive shell: `$SHELL`, then bash, then sh.
    LoginShell,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TermSize {
    /// Rows of text.
    pub rows: u16,
    /// Columns of text.
    pub cols: u16,
}

/// A command with everything around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecSpec {
    /// What to run.
    pub command: Command,
    /// Added to the sandbox's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; the sandbox's own if not given.
    #[serde(default)]
    pub cwd: Option<String>,
    /// `name`, `uid`, `name:group` or `uid:gid`; the sandbox's own user if not given.
    #[serde(default)]
    pub user: Option<String>,
    /// Whether something will be written to its standard input. Without, it reads end of file at once.
    #[serde(default)]
    pub stdin: bool,
    /// Run it on a terminal of this size.
    #[serde(default)]
    pub tty: Option<TermSize>,
    /// End its whole process tree after this time.
    #[serde(default)]
    pub timeout: Option<Duration>,
    /// Whether it lives on when the connection that started it ends.
    #[serde(default)]
    pub detached: bool,
    /// Whether the sandbox ends with it. Quicker than stopping it afterwards.
    #[serde(default)]
    pub last: bool,
}

impl ExecSpec {
    /// A program and its arguments.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// A string for the shell.
    pub fn shell(script: impl Into<String>) -> Self {
        Self::new(Command::Shell(script.into()))
    }

    /// A command with nothing around it.
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
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExitStatus {
    /// The exit code, if it ended by itself.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its time ran out and its tree was ended.
    pub timed_out: bool,
    /// It was killed because memory ran out.
    pub oom_killed: bool,
}

impl ExitStatus {
    /// Whether it ended by itself with 0.
    pub fn success(&self) -> bool {
        self.code == Some(0) && !self.timed_out
    }

    /// What a shell would show: the code, 124 for a timeout, 128+n for a signal.
    pub fn shell_code(&self) -> i32 {
        match self {
            Self { timed_out: true, .. } => 124,
            Self { code: Some(code), .. } => *code,
            Self { signal: Some(signal), .. } => 128 + signal,
            _ => 125,
        }
    }
}
