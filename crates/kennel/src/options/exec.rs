//! The options of a command in a sandbox that exists.

use super::{EnvironmentOptions, TimeLimit};
use kennel_core::Result;
use kennel_types::{Command, ExecSpec};
use std::time::Duration;

/// Options of `exec`, `profile exec` and `session exec`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExecOptions {
    /// Working directory [default: that of the sandbox; for a profile, the current directory as mounted inside]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    #[command(flatten)]
    env: EnvironmentOptions,
    /// User to run as: a name or number, optionally with :group
    #[arg(short, long)]
    user: Option<String>,
    /// Time limit for the command, for example 30s or 2h, or `none` [default: sandbox.commandTimeout, if set]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<TimeLimit>,
    /// Collect the output and print one JSON object
    #[arg(long, conflicts_with = "tty")]
    pub(crate) json: bool,
}

impl ExecOptions {
    /// Returns a specification without the program and the time limit.
    pub(crate) fn spec(&self) -> Result<ExecSpec> {
        let mut spec = ExecSpec::new(Command::LoginShell);
        spec.env = self.env.read()?;
        spec.cwd.clone_from(&self.workdir);
        spec.user.clone_from(&self.user);
        Ok(spec)
    }

    /// Returns the time limit, or the one that applies if the user gave none.
    pub(crate) fn limit(&self, usual: impl FnOnce() -> Result<Option<Duration>>) -> Result<Option<Duration>> {
        self.timeout.map_or_else(usual, |TimeLimit(limit)| Ok(limit))
    }
}
