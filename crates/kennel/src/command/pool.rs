//! `kennel pool`: manages warm pools.

mod ls;
mod rm;
mod set;

use crate::report;
use kennel_engine::Engine;

const EXAMPLES: &str = "\
Examples:
  kennel pool set quick --min 4                  4 members that fit any native sandbox
  kennel pool set dev --profile dev --max 8      only for the sandboxes of a profile
  kennel pool ls
  kennel pool rm quick

  kennel serve                                   makes the members, and keeps them
  kennel create --start --pool require           a sandbox from a pool, or an error";

/// List, set and remove warm pools
///
/// A pool has members that were made before anybody needs them, so that a sandbox starts faster. `kennel serve` makes them
/// and hands them out. They end with it. Without `kennel serve`, or if no member fits, a sandbox is created as usual.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct PoolCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Ls(ls::Ls),
    Set(Box<set::Set>),
    Rm(rm::Rm),
}

impl PoolCommand {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let done = match self.action {
            Action::Ls(command) => command.run(engine).await,
            Action::Set(command) => command.run(engine).await,
            Action::Rm(command) => command.run(engine).await,
        };
        done.unwrap_or_else(|error| report::failed(&error))
    }
}
