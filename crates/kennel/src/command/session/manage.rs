//! `kennel session exec`, `start`, `stop`, `rm` and `adopt`.

use super::{print_session, sessions};
use crate::command::each::each;
use crate::command::exec::InSandbox;
use crate::interact::Ending;
use crate::lifecycle::Deadline;
use crate::next_step::Hint;
use crate::options::{ExecOptions, ProgramOptions, TimeLimit};
use crate::output::{print, print_json};
use crate::progress::while_waiting;
use crate::report;
use crate::result::{CommandReport, Phase};
use kennel_core::{Error, RemoveOptions, Result, Sandbox, printable};
use kennel_engine::{Engine, STOP_GRACE, Settings};
use kennel_types::{ErrorCode, ExecSpec};

const EXEC_EXAMPLES: &str = "\
Examples:
  kennel session exec fix -- git status
  kennel session exec fix                   open a shell
  kennel session exec --json fix -- make test

Exit status: the same as that of `kennel run`.";

const START_EXAMPLES: &str = "\
Examples:
  kennel session start fix";

const STOP_EXAMPLES: &str = "\
Examples:
  kennel session stop fix
  kennel session stop --timeout 1s fix";

const RM_EXAMPLES: &str = "\
Examples:
  kennel session rm fix
  kennel session rm --force --volumes fix job
  kennel session rm $(kennel session ls --state failed --json | jq -r '.[].id')";

const ADOPT_EXAMPLES: &str = "\
Examples:
  kennel session adopt            list the sandboxes of lost databases
  kennel session adopt --all      take them over";

/// Run a command in the sandbox of a session
///
/// Without a command, opens a shell on a terminal.
#[derive(Debug, clap::Args)]
#[command(after_help = EXEC_EXAMPLES)]
pub(super) struct Exec {
    /// Id or name of the session
    id: String,
    #[command(flatten)]
    program: ProgramOptions,
    #[command(flatten)]
    options: ExecOptions,
}

impl Exec {
    pub(super) async fn run(self, engine: &Engine) -> u8 {
        let mut record = CommandReport::begin(self.options.json);
        let outcome = self.outcome(engine, &mut record).await;
        record.conclude(outcome, Ok(()))
    }

    async fn outcome(&self, engine: &Engine, record: &mut CommandReport) -> Result<Ending> {
        let mut deadline = Deadline::begin(None)?;
        let (sandbox, spec) = deadline.unless_ended(self.connect(engine, record)).await?;
        let how = format!("kennel session exec {}", self.id);
        InSandbox { program: &self.program, spec, json: self.options.json, how: &how }
            .run(&sandbox, deadline, record)
            .await
    }

    async fn connect(&self, engine: &Engine, record: &mut CommandReport) -> Result<(Sandbox, ExecSpec)> {
        let sandbox = sessions(engine).await?.sandbox(&self.id).await?;
        record.provider = Some(sandbox.provider().name().into());
        record.sandbox = Some(sandbox.id().clone());
        sandbox.keeper().await?;
        record.ended(Phase::Connect);
        let mut spec = self.options.spec()?;
        spec.timeout = self.options.limit(|| Settings::command_timeout(engine.caller(), &engine.directories()?))?;
        record.timeout = spec.timeout;
        Ok((sandbox, spec))
    }
}

/// Start a stopped session again
#[derive(Debug, clap::Args)]
#[command(after_help = START_EXAMPLES)]
pub(super) struct Start {
    /// Id or name of the session
    id: String,
    /// Print the session as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Start {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let sessions = sessions(engine).await?;
        let session = while_waiting("starting the session", sessions.start(&self.id)).await?;
        Ok(print_session(&session, self.json))
    }
}

/// Stop a session
///
/// Asks all processes in its sandbox to end, and kills them after the grace period. The result is recorded. The workspace
/// is kept.
#[derive(Debug, clap::Args)]
#[command(after_help = STOP_EXAMPLES)]
pub(super) struct Stop {
    /// Id or name of the session
    id: String,
    /// Grace period before processes are killed [default: 10s]
    #[arg(short, long, value_name = "TIME")]
    timeout: Option<TimeLimit>,
    /// Print the session as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Stop {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let grace = self.timeout.map_or(STOP_GRACE, |TimeLimit(limit)| limit.unwrap_or_default());
        let sessions = sessions(engine).await?;
        let session = while_waiting("stopping the session", sessions.stop(&self.id, grace)).await?;
        Ok(print_session(&session, self.json))
    }
}

/// Remove sessions
///
/// Removes their sandboxes and their records. Their workspaces and events are kept, and so are their volumes, unless
/// --volumes is given. A failure for one does not stop the others.
#[derive(Debug, clap::Args)]
#[command(after_help = RM_EXAMPLES)]
pub(super) struct Rm {
    /// Ids or names of the sessions
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Also remove running sessions
    #[arg(short, long)]
    force: bool,
    /// Also remove their volumes
    #[arg(long)]
    volumes: bool,
    /// Print a JSON array
    #[arg(long)]
    pub(super) json: bool,
}

impl Rm {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let sessions = sessions(engine).await?;
        let options = RemoveOptions { volumes: self.volumes, force: self.force };
        let remove = async |name: &str| {
            let removing = Box::pin(sessions.remove(name, options));
            while_waiting(&format!("removing session {name}"), removing).await?;
            Ok(printable(name))
        };
        Ok(each(&self.ids, self.json, "removed", remove).await)
    }
}

/// Take over sandboxes of a lost database
///
/// After a damaged database was moved aside, its sandboxes still exist, but no session knows them. Kennel never removes
/// them by itself. This command lists them and, with --all or their ids, records a session for each.
#[derive(Debug, clap::Args)]
#[command(after_help = ADOPT_EXAMPLES)]
pub(super) struct Adopt {
    /// Ids or names of the sandboxes
    ids: Vec<String>,
    /// All sandboxes of lost databases
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Print a JSON array
    #[arg(long)]
    pub(super) json: bool,
}

impl Adopt {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let sessions = sessions(engine).await?;
        let found = sessions.plan().await?.foreign;
        if self.ids.is_empty() && !self.all {
            if self.json {
                return Ok(print_json(&found));
            }
            let lines: Vec<String> = found
                .iter()
                .map(|it| format!("{}  {}  {}", it.sandbox, printable(&it.provider), printable(&it.name)))
                .collect();
            if lines.is_empty() {
                report::note("there are no sandboxes of other stores");
                return Ok(0);
            }
            return Ok(print(&lines.join("\n")));
        }
        let wanted = |it: &&kennel_engine::Foreign| {
            self.all || self.ids.iter().any(|id| *id == it.name || *id == it.sandbox.as_str())
        };
        for id in &self.ids {
            if !found.iter().any(|it| *id == it.name || *id == it.sandbox.as_str()) {
                let message = format!("there is no sandbox {} of another store", printable(id));
                return Err(Error::new(ErrorCode::NotFound, message).hint("kennel session adopt"));
            }
        }
        let mut adopted = Vec::new();
        for foreign in found.iter().filter(wanted) {
            adopted.push(sessions.adopt(foreign).await?);
        }
        if self.json {
            return Ok(print_json(&adopted));
        }
        let names: Vec<String> = adopted.iter().map(|session| printable(session.summary.label())).collect();
        Ok(if names.is_empty() { 0 } else { print(&names.join("\n")) })
    }
}
