//! `kennel exec` in a sandbox of a server.

use super::Exec;
use crate::interact::{Ending, KEEPER_GRACE, interact_at, terminal};
use crate::lifecycle::Deadline;
use crate::next_step::Hint;
use crate::options::ProgramOptions;
use crate::output::{print, print_json};
use crate::report;
use crate::result::{CommandReport, Phase};
use kennel_api::Millis;
use kennel_api::stream::StreamStart;
use kennel_client::Client;
use kennel_core::{Error, Result};
use kennel_types::{Command, ErrorCode, ExecSpec};
use std::time::Instant;

impl Exec {
    pub(crate) async fn run_at(self, client: &Client) -> u8 {
        let mut record = CommandReport::begin(self.options.json);
        if self.detach {
            return match self.detached_at(client).await {
                Ok(status) => status,
                Err(error) if self.options.json => record.conclude(Err(error), Ok(())),
                Err(error) => report::failed(&error),
            };
        }
        let outcome = self.outcome_at(client, &mut record).await;
        record.conclude(outcome, Ok(()))
    }

    async fn outcome_at(&self, client: &Client, record: &mut CommandReport) -> Result<Ending> {
        let mut spec = self.options.spec()?;
        spec.timeout = self.options.limit(|| Ok(None))?;
        let how = format!("kennel exec {}", self.id);
        AtServer { client, sandbox: &self.id, program: &self.program, spec, json: self.options.json, how: &how }
            .run(record, Deadline::begin(None)?)
            .await
    }

    async fn detached_at(&self, client: &Client) -> Result<u8> {
        if self.program.is_empty() {
            return Err(Error::new(ErrorCode::InvalidConfig, "--detach needs a command to leave running")
                .hint(format!("kennel exec -d {} -- COMMAND", self.id)));
        }
        let mut spec = self.options.spec()?;
        spec.timeout = self.options.limit(|| Ok(None))?;
        let sandbox = client.sandbox(&self.id).await?;
        let start = StreamStart { stdin: false, end_on_close: false, ..start(&self.program, spec)?.0 };
        let started = client.command(&sandbox.id, start).await?;
        let process = started.process();
        Ok(if self.options.json {
            print_json(&serde_json::json!({
                "processId": process,
                "sandboxId": sandbox.id,
                "provider": sandbox.provider,
                "error": null,
            }))
        } else {
            print(&process.to_string())
        })
    }
}

/// Returns what starts a command, and how it is connected.
fn start(program: &ProgramOptions, mut spec: ExecSpec) -> Result<(StreamStart, crate::interact::Interaction, bool)> {
    let program = program.program(None)?;
    let own = program.spec();
    spec.env.extend(own.env);
    let (argv, shell) = match own.command {
        Command::Argv(argv) => (Some(argv), None),
        Command::Shell(script) => (None, Some(script)),
        Command::LoginShell => (None, None),
    };
    let timeout = spec.timeout.map(|limit| Millis(limit.as_millis().try_into().unwrap_or(u64::MAX)));
    let start = StreamStart {
        argv,
        shell,
        env: spec.env,
        cwd: spec.cwd,
        user: spec.user,
        tty: own.tty.map(terminal),
        stdin: own.stdin,
        timeout,
        hold: true,
        end_on_close: true,
        tag: None,
    };
    Ok((start, program.interaction, program.tty))
}

/// A command in a sandbox of a server, connected to this program.
pub(crate) struct AtServer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) sandbox: &'a str,
    pub(crate) program: &'a ProgramOptions,
    /// The specification without the program.
    pub(crate) spec: ExecSpec,
    /// Whether the output is collected.
    pub(crate) json: bool,
    /// How this command was called, for hints.
    pub(crate) how: &'a str,
}

impl AtServer<'_> {
    pub(crate) async fn run(self, record: &mut CommandReport, mut deadline: Deadline) -> Result<Ending> {
        let Self { client, sandbox, program, spec, json, how } = self;
        record.timeout = spec.timeout;
        let (start, mut interaction, tty) = start(program, spec)?;
        if json && tty {
            return Err(Error::new(ErrorCode::InvalidConfig, "--json needs a command, whose output it collects")
                .hint(format!("{how} --json -- COMMAND")));
        }
        let found = deadline.unless_ended(client.sandbox(sandbox)).await?;
        record.provider = Some(found.provider.clone().into());
        record.sandbox = kennel_types::SandboxId::new(found.id.clone()).ok();
        let stream = deadline.unless_ended(client.command(&found.id, start)).await;
        let stream = stream.map_err(|error| program.explain(error, how))?;
        record.ended(Phase::Connect);
        interaction.until = record.timeout.and_then(|limit| Instant::now().checked_add(limit + KEEPER_GRACE));
        let mut signals = deadline.signals;
        if interaction.raw {
            signals = signals.and_window()?;
        }
        let ending = interact_at(client, &found.id, stream, interaction, &mut record.sink, &mut signals).await;
        record.ended(Phase::Exec);
        ending
    }
}
