//! `kennel profile start`, `stop`, `restart` and `logs`.

use super::profiles;
use crate::completion;
use crate::lifecycle::Deadline;
use crate::options::PoolOptions;
use crate::output::print;
use crate::progress::{Bars, while_waiting};
use crate::report;
use kennel_core::Result;
use kennel_engine::profiles::Started;
use kennel_engine::{Engine, PoolUse};
use kennel_types::Pull;

const START_EXAMPLES: &str = "\
Examples:
  kennel profile start dev
  kennel profile start --pull dev     pull the image first, even if it is present";

const STOP_EXAMPLES: &str = "\
Examples:
  kennel profile stop dev";

const RESTART_EXAMPLES: &str = "\
Examples:
  kennel profile restart dev
  kennel profile restart --pull dev     use the newest image; volumes are kept";

const LOGS_EXAMPLES: &str = "\
Examples:
  kennel profile logs dev
  kennel profile logs --tail 50 -f dev";

/// Start the sandbox of a profile
///
/// Creates it if there is none. Does nothing if it already runs. Simultaneous starts create only one sandbox.
#[derive(Debug, clap::Args)]
#[command(after_help = START_EXAMPLES)]
pub(super) struct Start {
    /// Name of the profile
    #[arg(add = completion::profiles())]
    name: String,
    /// Pull the image even if it is present
    #[arg(long)]
    pull: bool,
    #[command(flatten)]
    pool: PoolOptions,
}

impl Start {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let mut deadline = Deadline::begin(None)?;
        let (pull, pool) = (self.pull.then_some(Pull::Always), self.pool.usage(PoolUse::Prefer));
        let started = deadline.unless_ended(start(engine, &self.name, pull, pool)).await?;
        self.pool.report(started.pool.as_ref());
        report_changes(&self.name, &started);
        Ok(print(&self.name))
    }
}

/// Starts the sandbox of a profile, and shows progress.
pub(super) async fn start(engine: &Engine, name: &str, pull: Option<Pull>, pool: PoolUse) -> Result<Started> {
    let profiles = profiles(engine)?.with_pool(pool);
    let bars = Bars::new(format!("starting profile {name}"));
    let tell = |progress| bars.show(progress);
    bars.wait(Box::pin(profiles.start(name, pull, &tell))).await
}

/// Starts the sandbox of a profile for the server. It does not ask a pool, because the process that keeps pools is this one.
pub(crate) async fn start_profile(engine: &Engine, name: &str) -> Result<()> {
    let started = start(engine, name, None, PoolUse::Never).await?;
    report_changes(name, &started);
    Ok(())
}

/// Tells the user if the profile has changed since its sandbox was created.
pub(super) fn report_changes(name: &str, started: &Started) {
    if let Some(instead_of) = started.instead_of {
        report::warning(&format!(
            "profile {name} uses {}, because {} is not available",
            started.sandbox.provider().name(),
            instead_of.name()
        ));
    }
    if let Some(workspace) = &started.chosen_workspace {
        report::note(&format!(
            "profile {name} names no workspace: from now on it is for {}; to choose another: \
             kennel profile edit {name} --workspace DIR",
            workspace.display()
        ));
    }
    if started.profile_changed {
        report::note(&format!(
            "profile {name} has changed since its sandbox was created; to apply it: kennel profile restart {name}"
        ));
    }
    if started.image_changed {
        report::note(&format!(
            "the image has changed since the sandbox was created; to use it: kennel profile restart --pull {name}"
        ));
    }
}

/// Stop the sandbox of a profile
///
/// Asks all processes in it to end, and kills them after ten seconds. The next use starts it again.
#[derive(Debug, clap::Args)]
#[command(after_help = STOP_EXAMPLES)]
pub(super) struct Stop {
    /// Name of the profile
    #[arg(add = completion::profiles())]
    name: String,
}

impl Stop {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let profiles = profiles(engine)?;
        if !while_waiting("stopping the sandbox", profiles.stop(&self.name)).await? {
            report::note(&format!("profile {} was not running", self.name));
        }
        Ok(print(&self.name))
    }
}

/// Restart the sandbox of a profile
///
/// If the profile has changed, or if --pull finds another image, the sandbox is created again. Files that were written
/// outside of the workspace, mounts and volumes are then lost.
#[derive(Debug, clap::Args)]
#[command(after_help = RESTART_EXAMPLES)]
pub(super) struct Restart {
    /// Name of the profile
    #[arg(add = completion::profiles())]
    name: String,
    /// Pull the image, and use it if it has changed
    #[arg(long)]
    pull: bool,
}

impl Restart {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let profiles = profiles(engine)?;
        let bars = Bars::new(format!("restarting profile {}", self.name));
        let tell = |progress| bars.show(progress);
        let started = bars.wait(Box::pin(profiles.restart(&self.name, self.pull, &tell))).await?;
        drop(bars);
        if started.created {
            report::note("the sandbox was created again");
        }
        report_changes(&self.name, &started);
        Ok(print(&self.name))
    }
}

/// Show the output of a profile's main process
#[derive(Debug, clap::Args)]
#[command(after_help = LOGS_EXAMPLES)]
pub(super) struct Logs {
    /// Name of the profile
    #[arg(add = completion::profiles())]
    name: String,
    /// Follow the output until the sandbox ends
    #[arg(short, long)]
    follow: bool,
    /// Show only the last COUNT lines
    #[arg(short = 'n', long, value_name = "COUNT")]
    tail: Option<usize>,
}

impl Logs {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let sandbox = profiles(engine)?.sandbox(&self.name).await?;
        crate::command::logs::show(&sandbox, self.follow, self.tail).await
    }
}
