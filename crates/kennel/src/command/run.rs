//! `kennel run`: a sandbox for one command, made, used and removed.

use crate::drive::{Ending, KEEPER_GRACE, drive};
use crate::life::{Watch, create, remove, say_ports};
use crate::options::{Patience, ProgramOptions, SandboxOptions};
use crate::progress::{pull, while_waiting};
use crate::providers::Providers;
use crate::report;
use crate::result::{Phase, Record};
use crate::settings::Settings;
use kennel_core::{Error, Keeper, Result, Sandbox};
use kennel_types::{ErrorCode, ExecSpec, GitProtection, SandboxSpec, Support};
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
  sort < names | kennel run -- uniq -c        standard input is passed on
  kennel run --json -- make test              output, exit code and timings as one JSON object

Exit status: that of the command; 124 if the time limit was reached, 125 if Kennel failed, 126 if the
command cannot be run, 127 if it was not found, 128+N if signal N ended it.";

/// Run a command in a new sandbox
///
/// Creates a sandbox, runs the command in it and removes the sandbox afterwards, even if this program is killed. The
/// current directory is mounted at /workspace. Signals are passed on to the command; a second Ctrl-C within two seconds
/// kills it. Without a command, runs the command of the image or, on a terminal, a shell, and uses the terminal as with -it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    #[command(flatten)]
    program: ProgramOptions,
    /// Time limit for the whole run, for example 30s or 2h, or `none` [default: 5m; `none` on a terminal]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Patience>,
    /// Remove the sandbox afterwards (the default)
    #[arg(long, conflicts_with = "keep")]
    rm: bool,
    /// Keep the sandbox running afterwards
    #[arg(long)]
    keep: bool,
    /// Collect the output and print one JSON object
    #[arg(long, conflicts_with = "tty")]
    json: bool,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

impl Run {
    /// Lets the provider begin.
    pub(crate) fn prepare(&self, providers: &mut Providers) {
        providers.prepare(self.sandbox.image.as_deref(), self.sandbox.network);
    }

    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        let mut record = Record::begin(self.json);
        let mut cleanup = Ok(());
        // Held to the end: the walls of a tied sandbox are taken down when nobody is on the line any more, and that need
        // not be while we still have something to do.
        let mut line = None;
        let outcome = self.outcome(providers, &mut record, &mut cleanup, &mut line).await;
        record.conclude(outcome, cleanup)
    }

    async fn outcome(
        &self,
        providers: &Providers,
        record: &mut Record,
        cleanup: &mut Result<()>,
        line: &mut Option<Keeper>,
    ) -> Result<Ending> {
        let mut settings = Settings::in_force()?;
        let mut watch = Watch::begin(self.limit(&settings))?;
        record.timeout = watch.limit;
        let image = self.sandbox.image(&settings).map(ToOwned::to_owned);
        let provider = watch.unless_ended(providers.for_new(&mut settings, image.as_deref())).await?;
        record.provider = Some(provider.name());
        let mut spec = self.sandbox.spec(&settings, provider.mode())?;
        // Whatever becomes of this process, the sandbox does not outlive it.
        spec.tied = !self.keeps(&settings);
        // The command that is set is what is run, not a main process beside it.
        spec.command = None;
        if provider.mode().layers.is_empty() {
            report::note(&format!("the {} provider isolates nothing", provider.name()));
        }
        if let Some(image) = &spec.image {
            watch.unless_ended(pull(&*provider, image, self.sandbox.pull(&settings))).await?;
        }
        let sandbox = create(provider, &spec, &mut watch).await?;
        record.sandbox = Some(sandbox.id().clone());
        record.ended(Phase::Create);
        let outcome = self.inside(&sandbox, &spec, &settings, record, watch, line).await;
        if !spec.tied && line.is_some() {
            report::note(&format!(
                "sandbox {} keeps running; to remove it: kennel rm --force {0}",
                sandbox.info().name
            ));
        } else {
            *cleanup = remove(&sandbox).await;
            record.ended(Phase::Remove);
        }
        outcome
    }

    /// Starts the sandbox and runs the command. Leaves the line to its keeper in `line` once there is one.
    async fn inside(
        &self,
        sandbox: &Sandbox,
        asked: &SandboxSpec,
        settings: &Settings,
        record: &mut Record,
        mut watch: Watch,
        line: &mut Option<Keeper>,
    ) -> Result<Ending> {
        let own = settings.sandbox.command.as_deref().or(sandbox.info().image_command.as_deref());
        let program = self.program.program(own)?;
        if self.json && program.tty {
            return Err(Error::new(ErrorCode::InvalidConfig, "--json needs a command, whose output it collects")
                .hint("kennel run --json -- COMMAND"));
        }
        let launched = while_waiting("starting the sandbox", watch.unless_ended(sandbox.launch())).await;
        let keeper = line.insert(launched?);
        // While the walls are put up: the command has not been sent yet.
        record.look_at(asked.workspace.as_deref(), !protects_hooks(sandbox, asked));
        let (left, command_limit) = (watch.left()?, self.command_limit(settings));
        let timeout = left.into_iter().chain(command_limit).min();
        if timeout == command_limit {
            record.timeout = timeout;
        }
        let spec = ExecSpec { timeout, last: !self.keeps(settings), ..program.spec() };
        let exec = watch.unless_ended(sandbox.exec(&spec)).await;
        // One that could not be started is not one that stays.
        if exec.is_err() && keeper.is_closed() {
            *line = None;
        }
        let exec = exec.map_err(|error| self.program.explain(error, "kennel run"))?;
        record.ended(Phase::Start);
        say_ports(sandbox, asked).await?;
        let mut wiring = program.wiring;
        wiring.until = timeout.and_then(|limit| Instant::now().checked_add(limit + KEEPER_GRACE));
        let mut signals = watch.signals;
        if wiring.raw {
            signals = signals.and_window()?;
        }
        let ending = drive(sandbox, exec, wiring, &mut record.sink, &mut signals).await;
        record.ended(Phase::Exec);
        ending
    }

    /// Whether the sandbox stays.
    fn keeps(&self, settings: &Settings) -> bool {
        self.keep || !(self.rm || settings.sandbox.auto_remove)
    }

    /// How long the command may take, if someone has said so. The flag is for everything, the command included.
    fn command_limit(&self, settings: &Settings) -> Option<Duration> {
        let set = settings.said("sandbox.commandTimeout", settings.sandbox.command_timeout.0);
        set.filter(|_| self.timeout.is_none())
    }

    fn limit(&self, settings: &Settings) -> Option<Duration> {
        let set = settings.sandbox.timeout.0;
        match self.timeout {
            Some(Patience(limit)) => limit,
            // Who sits at a terminal ends it when it is time; unless someone has said otherwise.
            None if self.program.wants_tty() => settings.said("sandbox.timeout", set),
            None => Some(set),
        }
    }
}

/// Whether git hooks of the workspace are read-only inside.
fn protects_hooks(sandbox: &Sandbox, asked: &SandboxSpec) -> bool {
    asked.protect_git != GitProtection::None && sandbox.provider().mode().mounts == Support::Given
}
