//! `kennel pause` and `kennel unpause`.

use super::each::Targets;
use kennel_core::Sandbox;
use kennel_engine::Engine;

const PAUSE: &str = "\
Examples:
  kennel pause box
  kennel pause $(kennel ls -q)";

/// Pause all processes in a sandbox
///
/// Paused processes keep their memory and use no CPU time. `kennel unpause` resumes them.
#[derive(Debug, clap::Args)]
#[command(after_help = PAUSE)]
pub(crate) struct Pause {
    #[command(flatten)]
    targets: Targets,
}

const UNPAUSE: &str = "\
Examples:
  kennel unpause box
  kennel unpause $(kennel ls -q --filter status=paused)";

/// Resume a paused sandbox
#[derive(Debug, clap::Args)]
#[command(after_help = UNPAUSE)]
pub(crate) struct Unpause {
    #[command(flatten)]
    targets: Targets,
}

impl Pause {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        self.targets.each(engine, Sandbox::pause).await
    }
}

impl Unpause {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        self.targets.each(engine, Sandbox::unpause).await
    }
}
