//! `kennel gc`.

use crate::output::{print, print_json};
use crate::report;
use crate::sandboxes::report_silent;
use kennel_core::{Sweep, printable};
use kennel_engine::{Engine, FoundLeftover};

const EXAMPLES: &str = "\
Examples:
  kennel gc
  kennel gc --dry-run             only print what would be removed
  kennel --provider native gc     only of one provider
  kennel image prune --all        remove images that no sandbox uses";

/// Remove what killed programs left behind
///
/// Removes and prints what is left of a sandbox whose creator was killed: directories and cgroups, and also helper
/// programs of earlier versions. Sandboxes are not removed, whether they run or not: see `kennel rm`. Creating a sandbox also removes
/// leftovers now and then, so there is rarely anything to do.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Gc {
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Gc {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let action = if self.dry_run { Sweep::Report } else { Sweep::Remove };
        let found = match engine.sweep(action).await {
            Ok((found, silent)) => {
                report_silent(&silent);
                found
            }
            Err(error) => return report::failed(&error),
        };
        if self.json {
            return print_json(&found);
        }
        if found.is_empty() {
            report::note(if self.dry_run { "there is nothing to remove" } else { "there was nothing to remove" });
            return 0;
        }
        let line = |found: &FoundLeftover| format!("{}: {}", found.provider, printable(&found.what.to_string()));
        print(&found.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}
