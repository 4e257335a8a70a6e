//! `kennel serve`.

use crate::output::print;
use crate::report;
use crate::signals::{ENDING, Signals};
use kennel_core::Result;
use kennel_engine::{Engine, Resident};

const EXAMPLES: &str = "\
Examples:
  kennel serve
  kennel create --name box --idle-pause 1m --idle-timeout 1h";

/// Pause and stop idle sandboxes, until interrupted
///
/// Runs the resident process. It pauses sandboxes that have an idle pause, and stops them after their idle timeout. The
/// next command in such a sandbox resumes or starts it. There can be one resident process for each user, or for each
/// `KENNEL_HOME`. All other commands work with and without it. When it ends, sandboxes keep running, and a paused sandbox
/// is resumed by its next use.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {}

impl Serve {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        serve(engine).await.map_or_else(|error| report::failed(&error), |()| 0)
    }
}

async fn serve(engine: &Engine) -> Result<()> {
    let mut signals = Signals::listen()?;
    let resident = Resident::begin(engine).await?;
    // A program that has started this one waits for the line.
    if print("watching idle sandboxes; interrupt with Ctrl-C") != 0 {
        return Ok(());
    }
    let ended = async { while !ENDING.contains(&signals.next().await) {} };
    resident.run(ended).await
}
