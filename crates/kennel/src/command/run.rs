//! `kennel run`: creates a sandbox, runs one command in it, and removes it.

mod remote;
mod upload;

use super::profile::InProfile;
use crate::completion;
use crate::interact::{Ending, KEEPER_GRACE, interact};
use crate::lifecycle::{Deadline, create, say_ports};
use crate::next_step::Hint;
use crate::options::{PoolOptions, ProgramOptions, SandboxOptions, TimeLimit};
use crate::progress::{pull, while_waiting};
use crate::report;
use crate::result::{CommandReport, Phase};
use crate::sandboxes::{choose, settings};
use kennel_config::SandboxOverrides;
use kennel_core::{Error, Keeper, Result, Sandbox};
use kennel_engine::{EarlyJail, Engine, PoolUse, Settings, discard};
use kennel_types::{Command, ErrorCode, ExecSpec, GitProtection, SandboxSpec, Support};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  kennel run -- make test                     run a command in the current directory
  kennel run -c 'make 2>&1 | tail -3'         run a shell command
  kennel run                                  start a shell
  kennel run -it -- vi notes                  run a full-screen program
  kennel run --network none --memory 512m --timeout 30s -- ./untrusted
  kennel run -p 3000:80 -- ./server           port 80 inside is http://127.0.0.1:3000
  kennel run -v ./data:/data:ro -e TOKEN -- ./report
  kennel run --image debian -- cat /etc/os-release
  kennel run --server http://127.0.0.1:7070 --upload -- make test
  sort < names | kennel run -- uniq -c        standard input is passed on
  kennel run --json -- make test              output, exit code and timings as one JSON object

Exit status: that of the command; 124 if the time limit was reached, 125 if Kennel failed,
126 if the command cannot be run, 127 if it was not found, 128+N if signal N ended it.";

/// Run a command in a new sandbox
///
/// Creates a sandbox, runs the command in it and removes the sandbox afterwards, even if this program is killed. The
/// current directory is mounted at /workspace. Signals are passed on to the command; a second Ctrl-C within two seconds
/// kills it. Without a command, runs the command of the image or, on a terminal, a shell. The shell runs as with -it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    #[command(flatten)]
    program: ProgramOptions,
    /// Time limit for the whole run, for example 30s or 2h, or `none` [default: 5m; `none` on a terminal]
    #[arg(long, value_name = "TIME")]
    timeout: Option<TimeLimit>,
    /// Remove the sandbox afterwards (the default)
    #[arg(long, conflicts_with = "keep")]
    rm: bool,
    /// Keep the sandbox running afterwards
    #[arg(long)]
    keep: bool,
    /// Run the command in the sandbox of this profile, and start it if needed [default: container.defaultProfile]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["keep", "rm"], add = completion::profiles())]
    profile: Option<String>,
    /// Use a new sandbox, even if the settings name a default profile
    #[arg(long, conflicts_with = "profile")]
    no_profile: bool,
    /// With --server: copy the current directory to /workspace of the sandbox; changes are not copied back
    #[arg(long, conflicts_with_all = ["workspace", "no_workspace", "profile"])]
    upload: bool,
    /// Collect the output and print one JSON object
    #[arg(long, conflicts_with = "tty")]
    json: bool,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

impl Run {
    /// Lets the provider start to prepare a sandbox.
    pub(crate) fn prepare(&self, engine: &mut Engine, early: Option<EarlyJail>) {
        // A member of a pool is prepared already.
        if self.profile.is_none() && self.pool.usage(PoolUse::Never) == PoolUse::Never {
            engine.prepare(self.sandbox.image.as_deref(), self.sandbox.network, early);
        }
    }

    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let mut record = CommandReport::begin(self.json);
        let mut cleanup = Ok(());
        // The connection is held to the end. A tied sandbox is cleaned up when it closes, and this should not compete
        // with work that is left to do here.
        let mut line = None;
        let outcome = self.outcome(engine, &mut record, &mut cleanup, &mut line).await;
        record.conclude(outcome, cleanup)
    }

    async fn outcome(
        &self,
        engine: &Engine,
        record: &mut CommandReport,
        cleanup: &mut Result<()>,
        line: &mut Option<Keeper>,
    ) -> Result<Ending> {
        if self.upload {
            let message = "--upload is for the sandboxes of a server; here, the current directory is mounted";
            return Err(Error::new(ErrorCode::InvalidConfig, message).hint("leave out --upload, or use --server"));
        }
        let mut settings = settings(engine)?;
        let profile = if self.no_profile { None } else { self.profile.as_deref() };
        let default = if self.no_profile || profile.is_some() { None } else { settings.default_profile()? };
        if let Some(name) = profile.or(default) {
            return Box::pin(self.in_profile(name, engine, &settings, record)).await;
        }
        let mut deadline = Deadline::begin(self.limit(&settings))?;
        record.timeout = deadline.limit;
        let image = self.sandbox.image(&settings).map(ToOwned::to_owned);
        let provider = deadline.unless_ended(choose(engine, &mut settings, image.as_deref())).await?;
        record.provider = Some(provider.name().into());
        let mut spec = self.sandbox.spec(engine, &settings, provider.mode())?;
        // A tied sandbox does not outlive this process, even if the process is killed.
        spec.tied = !self.keeps(&settings);
        // The command from the settings is run below. It is not the main process.
        spec.command = None;
        if provider.mode().layers.is_empty() {
            report::note(&format!("the {} provider isolates nothing", provider.name()));
        }
        if let Some(image) = &spec.image {
            deadline.unless_ended(pull(&*provider, image, self.sandbox.pull(&settings))).await?;
        }
        let claimed = self.pool.claim(engine, &*provider, &spec, PoolUse::Never).await?;
        let (sandbox, pool) = create(claimed, provider, &spec, &mut deadline).await?;
        self.pool.report(pool.as_ref());
        record.sandbox = Some(sandbox.id().clone());
        record.ended(Phase::Create);
        let outcome = self.inside(engine, &sandbox, &spec, &settings, record, deadline, line).await;
        if !spec.tied && line.is_some() {
            report::note(&format!(
                "sandbox {} keeps running; to remove it: kennel rm --force {0}",
                sandbox.info().name
            ));
        } else {
            *cleanup = discard(&sandbox).await;
            record.ended(Phase::Remove);
        }
        outcome
    }

    /// Runs the command in the sandbox of a profile. Options that describe a sandbox are refused, because the sandbox
    /// may exist already.
    async fn in_profile(
        &self,
        name: &str,
        engine: &Engine,
        settings: &Settings,
        record: &mut CommandReport,
    ) -> Result<Ending> {
        let mut given = self.sandbox.overrides(engine, settings)?;
        let mut spec = ExecSpec::new(Command::LoginShell);
        (spec.env, spec.cwd, spec.user) = (std::mem::take(&mut given.env), given.workdir.take(), given.user.take());
        if given != SandboxOverrides::default() || self.keep || self.rm || self.pool.is_given() {
            let message = format!("the options describe a new sandbox, but the command runs in that of profile {name}");
            return Err(Error::new(ErrorCode::InvalidConfig, message)
                .hint(format!("kennel profile edit {name}, or use --no-profile for a new sandbox")));
        }
        let (program, timeout, json) = (&self.program, self.timeout, self.json);
        InProfile { name, program, spec, timeout, json, how: "kennel run" }.run(engine, record).await
    }

    /// Starts the sandbox and runs the command. Stores the connection to the keeper in `line`.
    #[expect(clippy::too_many_arguments, reason = "they are the parts of one run")]
    async fn inside(
        &self,
        engine: &Engine,
        sandbox: &Sandbox,
        asked: &SandboxSpec,
        settings: &Settings,
        record: &mut CommandReport,
        mut deadline: Deadline,
        line: &mut Option<Keeper>,
    ) -> Result<Ending> {
        let own = settings.sandbox.command.as_deref().or(sandbox.info().image_command.as_deref());
        let program = self.program.program(own)?;
        if self.json && program.tty {
            return Err(Error::new(ErrorCode::InvalidConfig, "--json needs a command, whose output it collects")
                .hint("kennel run --json -- COMMAND"));
        }
        let launched = while_waiting("starting the sandbox", deadline.unless_ended(sandbox.launch())).await;
        let keeper = line.insert(launched?);
        // The command may connect at once.
        if asked.tied && !asked.sockets.is_empty() {
            let bridges = deadline.unless_ended(engine.bridge(sandbox, &asked.sockets)).await?;
            tokio::spawn(bridges.serve());
        }
        // This is done while the sandbox starts. The command has not been sent yet.
        record.look_at(asked.workspace.as_deref(), !protects_hooks(sandbox, asked));
        let (left, command_limit) = (deadline.left()?, self.command_limit(settings));
        let timeout = left.into_iter().chain(command_limit).min();
        if timeout == command_limit {
            record.timeout = timeout;
        }
        let spec = ExecSpec { timeout, last: !self.keeps(settings), ..program.spec() };
        let exec = deadline.unless_ended(sandbox.exec(&spec)).await;
        // A sandbox that could not be started is removed, even with `--keep`.
        if exec.is_err() && keeper.is_closed() {
            *line = None;
        }
        let exec = exec.map_err(|error| self.program.explain(error, "kennel run"))?;
        record.ended(Phase::Start);
        say_ports(sandbox, asked).await?;
        let mut interaction = program.interaction;
        interaction.until = timeout.and_then(|limit| Instant::now().checked_add(limit + KEEPER_GRACE));
        let mut signals = deadline.signals;
        if interaction.raw {
            signals = signals.and_window()?;
        }
        let ending = interact(sandbox, exec, interaction, &mut record.sink, &mut signals).await;
        record.ended(Phase::Exec);
        ending
    }

    /// Whether the sandbox is kept after the command.
    fn keeps(&self, settings: &Settings) -> bool {
        self.keep || !(self.rm || settings.sandbox.auto_remove)
    }

    /// Returns the time limit of the command from the settings. It does not apply with `--timeout`, which limits the
    /// whole run.
    fn command_limit(&self, settings: &Settings) -> Option<Duration> {
        let set = settings.said("sandbox.commandTimeout", settings.sandbox.command_timeout.0);
        set.filter(|_| self.timeout.is_none())
    }

    fn limit(&self, settings: &Settings) -> Option<Duration> {
        let set = settings.sandbox.timeout.0;
        match self.timeout {
            Some(TimeLimit(limit)) => limit,
            // On a terminal, there is no limit by default, because the user can end the command.
            None if self.program.wants_tty() => settings.said("sandbox.timeout", set),
            None => Some(set),
        }
    }
}

/// Whether the git hooks of the workspace are read-only in the sandbox.
fn protects_hooks(sandbox: &Sandbox, asked: &SandboxSpec) -> bool {
    asked.protect_git != GitProtection::None && sandbox.provider().mode().mounts == Support::Given
}
