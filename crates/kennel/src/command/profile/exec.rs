//! `kennel profile exec`, and commands of `kennel run --profile`.

use super::define::command_limit;
use super::lifecycle::{report_changes, start};
use crate::command::exec::InSandbox;
use crate::completion;
use crate::interact::Ending;
use crate::lifecycle::Deadline;
use crate::options::{ExecOptions, ProgramOptions, TimeLimit};
use crate::result::{CommandReport, Phase};
use kennel_core::{Result, Sandbox};
use kennel_engine::{Engine, PoolUse};
use kennel_types::{ErrorCode, ExecSpec};

const EXAMPLES: &str = "\
Examples:
  kennel profile exec dev -- make test
  kennel profile exec dev -c 'cd src && make'
  kennel profile exec dev                      open a shell
  kennel profile exec --json dev -- make test

Exit status: the same as that of `kennel run`.";

/// Run a command in the sandbox of a profile
///
/// Starts the sandbox if it does not run. In the profile's workspace, the command runs in the current directory, as mounted inside.
/// Without a command, opens a shell on a terminal.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Exec {
    /// Name of the profile
    #[arg(add = completion::profiles())]
    name: String,
    #[command(flatten)]
    program: ProgramOptions,
    #[command(flatten)]
    options: ExecOptions,
}

impl Exec {
    pub(super) async fn run(self, engine: &Engine) -> u8 {
        let mut record = CommandReport::begin(self.options.json);
        let outcome = Box::pin(self.outcome(engine, &mut record)).await;
        record.conclude(outcome, Ok(()))
    }

    async fn outcome(&self, engine: &Engine, record: &mut CommandReport) -> Result<Ending> {
        let how = format!("kennel profile exec {}", self.name);
        InProfile {
            name: &self.name,
            program: &self.program,
            spec: self.options.spec()?,
            timeout: self.options.timeout,
            json: self.options.json,
            how: &how,
        }
        .run(engine, record)
        .await
    }
}

/// A command that runs in the sandbox of a profile.
pub(crate) struct InProfile<'a> {
    pub(crate) name: &'a str,
    pub(crate) program: &'a ProgramOptions,
    /// The specification without the program and the time limit.
    pub(crate) spec: ExecSpec,
    pub(crate) timeout: Option<TimeLimit>,
    pub(crate) json: bool,
    /// How this command was called, for hints.
    pub(crate) how: &'a str,
}

impl InProfile<'_> {
    /// Starts the sandbox if needed, and runs the command.
    pub(crate) async fn run(self, engine: &Engine, record: &mut CommandReport) -> Result<Ending> {
        let mut deadline = Deadline::begin(None)?;
        let (sandbox, spec) = deadline.unless_ended(self.connect(engine, record)).await?;
        InSandbox { program: self.program, spec, json: self.json, how: self.how }.run(&sandbox, deadline, record).await
    }

    async fn connect(&self, engine: &Engine, record: &mut CommandReport) -> Result<(Sandbox, ExecSpec)> {
        const ATTEMPTS: u32 = 3;
        let mut attempt = 1;
        let sandbox = loop {
            let started = start(engine, self.name, None, PoolUse::Prefer).await?;
            report_changes(self.name, &started);
            match started.sandbox.keeper().await {
                Ok(_) => break started.sandbox,
                // It was idle, and stopped just after it was found running.
                Err(error) if error.code() == ErrorCode::Stopped && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        };
        record.provider = Some(sandbox.provider().name().into());
        record.sandbox = Some(sandbox.id().clone());
        record.ended(Phase::Connect);
        let profiles = engine.profiles()?;
        let profile = profiles.get(self.name)?;
        let mut spec = self.spec.clone();
        if spec.cwd.is_none() {
            spec.cwd = profiles.directory_inside(&profile, &sandbox)?;
        }
        spec.timeout = match self.timeout {
            Some(TimeLimit(limit)) => limit,
            None => command_limit(&profile.overrides).or_else(|| {
                let settings = profiles.settings();
                settings.said("sandbox.commandTimeout", settings.sandbox.command_timeout.0)
            }),
        };
        record.timeout = spec.timeout;
        Ok((sandbox, spec))
    }
}
