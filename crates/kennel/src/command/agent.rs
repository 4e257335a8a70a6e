//! `kennel agent`: known agents, and single turns.

mod image;
mod printer;
mod run;
mod show;

use crate::report;
use kennel_core::Result;
use kennel_engine::{Directories, Engine};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kennel agent ls
  kennel agent show claude-code
  kennel agent image claude-code
  kennel agent run --agent claude-code \"fix the failing test\"
  kennel agent run --command ./agent --permission allow --json \"add a test\"

To use an agent in an editor, see `kennel acp`.";

/// Run coding agents, and show which are known
///
/// An agent is known by its preset: how it is installed and started, which variables it needs, and where it writes. Your own
/// presets are files `agents/NAME.toml` in the directory of your settings.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct AgentCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Run(Box<run::Run>),
    Ls(show::Ls),
    Show(show::Show),
    Image(image::Image),
}

impl AgentCommand {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let done = match self.action {
            Action::Run(command) => return Box::pin(command.run(engine)).await,
            Action::Ls(command) => command.run(engine),
            Action::Show(command) => command.run(engine),
            Action::Image(command) => Box::pin(command.run(engine)).await,
        };
        done.unwrap_or_else(|error| report::failed(&error))
    }
}

/// Returns the directory of the user's own presets.
pub(crate) fn presets(engine: &Engine) -> Option<PathBuf> {
    Directories::config_of(engine.caller()).map(|config| config.join("agents"))
}

/// Returns the preset of this name.
pub(crate) fn preset(engine: &Engine, name: &str) -> Result<kennel_acp::Preset> {
    kennel_acp::Preset::find(name, presets(engine).as_deref())
}
