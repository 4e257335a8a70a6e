//! `kennel exec`: runs a command in a running sandbox.

mod remote;

pub(crate) use remote::AtServer;

use crate::completion::sandboxes;
use crate::interact::{Ending, KEEPER_GRACE, interact};
use crate::lifecycle::Deadline;
use crate::next_step::Hint;
use crate::options::{ExecOptions, ProgramOptions};
use crate::output::{print, print_json};
use crate::report;
use crate::result::{CommandReport, Phase};
use kennel_core::{Error, Result, Sandbox};
use kennel_engine::{Engine, Settings};
use kennel_types::{ErrorCode, ExecSpec};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  kennel exec box -- ls -l
  kennel exec -it box                  start a shell
  kennel exec box -c 'cd src && make'
  kennel exec -d box -- ./server       leave it running, for `kennel attach box --process N`
  kennel exec --json box -- make test

Exit status: the same as that of `kennel run`.";

/// Run a command in a running sandbox
///
/// The command ends with this program, unless it is detached. Without a command, starts a shell on a terminal.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Exec {
    /// Id or name of the sandbox
    #[arg(add = sandboxes())]
    id: String,
    #[command(flatten)]
    program: ProgramOptions,
    /// Leave the command running, and print its number for `kennel attach --process`
    #[arg(short, long, conflicts_with = "interactive")]
    detach: bool,
    #[command(flatten)]
    options: ExecOptions,
}

impl Exec {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let mut record = CommandReport::begin(self.options.json);
        if self.detach {
            return match self.detached(engine, &mut record).await {
                Ok(status) => status,
                Err(error) if self.options.json => record.conclude(Err(error), Ok(())),
                Err(error) => report::failed(&error),
            };
        }
        let outcome = self.outcome(engine, &mut record).await;
        record.conclude(outcome, Ok(()))
    }

    async fn outcome(&self, engine: &Engine, record: &mut CommandReport) -> Result<Ending> {
        let mut deadline = Deadline::begin(None)?;
        let (sandbox, spec) = deadline.unless_ended(self.connect(engine, record)).await?;
        let how = format!("kennel exec {}", self.id);
        InSandbox { program: &self.program, spec, json: self.options.json, how: &how }
            .run(&sandbox, deadline, record)
            .await
    }

    /// Starts the command and leaves it running.
    async fn detached(&self, engine: &Engine, record: &mut CommandReport) -> Result<u8> {
        if self.program.is_empty() {
            return Err(Error::new(ErrorCode::InvalidConfig, "--detach needs a command to leave running")
                .hint(format!("kennel exec -d {} -- COMMAND", self.id)));
        }
        let (sandbox, mut spec) = self.connect(engine, record).await?;
        let own = self.program.program(None)?.spec();
        spec.env.extend(own.env);
        // A command on a terminal gets input from clients that attach later.
        let stdin = own.tty.is_some();
        let spec = ExecSpec { command: own.command, tty: own.tty, stdin, detached: true, ..spec };
        let exec = sandbox.exec(&spec).await.map_err(|error| self.explain(error))?;
        let process = exec.process();
        Ok(if self.options.json {
            let object = serde_json::json!({
                "processId": process,
                "sandboxId": sandbox.id(),
                "provider": sandbox.provider().name(),
                "error": null,
            });
            print_json(&object)
        } else {
            print(&process.to_string())
        })
    }

    /// Finds the sandbox and connects to its keeper. Returns a specification of the command without the program.
    async fn connect(&self, engine: &Engine, record: &mut CommandReport) -> Result<(Sandbox, ExecSpec)> {
        let mut spec = self.options.spec()?;
        spec.timeout = self.options.limit(|| {
            // The setting does not apply to a detached command.
            if self.detach { Ok(None) } else { Settings::command_timeout(engine.caller(), &engine.directories()?) }
        })?;
        let sandbox = crate::sandboxes::find(engine, &self.id).await?;
        record.provider = Some(sandbox.provider().name().into());
        record.sandbox = Some(sandbox.id().clone());
        sandbox.keeper().await?;
        record.ended(Phase::Connect);
        record.timeout = spec.timeout;
        Ok((sandbox, spec))
    }

    fn explain(&self, error: Error) -> Error {
        self.program.explain(error, &format!("kennel exec {}", self.id))
    }
}

/// A command that runs in a sandbox that stays, connected to this program.
pub(crate) struct InSandbox<'a> {
    pub(crate) program: &'a ProgramOptions,
    /// The specification without the program.
    pub(crate) spec: ExecSpec,
    /// Whether the output is collected.
    pub(crate) json: bool,
    /// How this command was called, for hints.
    pub(crate) how: &'a str,
}

impl InSandbox<'_> {
    /// Runs the command, and passes on its input, output and signals.
    pub(crate) async fn run(
        self,
        sandbox: &Sandbox,
        mut deadline: Deadline,
        record: &mut CommandReport,
    ) -> Result<Ending> {
        let Self { program: options, mut spec, json, how } = self;
        let program = options.program(None)?;
        if json && program.tty {
            return Err(Error::new(ErrorCode::InvalidConfig, "--json needs a command, whose output it collects")
                .hint(format!("{how} --json -- COMMAND")));
        }
        let own = program.spec();
        spec.env.extend(own.env);
        let spec = ExecSpec { command: own.command, stdin: own.stdin, tty: own.tty, ..spec };
        record.look_at(sandbox.info().workspace.as_deref(), true);
        let exec = deadline.unless_ended(sandbox.exec(&spec)).await.map_err(|error| options.explain(error, how))?;
        let mut signals = deadline.signals;
        let mut interaction = program.interaction;
        interaction.until = spec.timeout.and_then(|limit| Instant::now().checked_add(limit + KEEPER_GRACE));
        if interaction.raw {
            signals = signals.and_window()?;
        }
        let ending = interact(sandbox, exec, interaction, &mut record.sink, &mut signals).await;
        record.ended(Phase::Exec);
        ending
    }
}
