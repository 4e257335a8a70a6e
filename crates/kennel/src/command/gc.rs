//! `kennel gc`.

use crate::output::{print, print_json};
use crate::providers::Providers;
use crate::report;
use kennel_core::printable;

const EXAMPLES: &str = "\
Examples:
  kennel gc
  kennel --provider native gc     only of one provider
  kennel image prune --all        remove images that no sandbox uses";

/// Remove what killed programs left behind
///
/// Removes and prints what is left of a sandbox whose creator or guard process was killed: directories, cgroups and old
/// programs. Sandboxes are not removed, whether they run or not: see `kennel rm`. Listing sandboxes already removes most
/// leftovers, so there is rarely anything to do.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Gc {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Gc {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        let removed = match providers.sweep().await {
            Ok(removed) => removed,
            Err(error) => return report::failed(&error),
        };
        if self.json {
            return print_json(&removed);
        }
        if removed.is_empty() {
            report::note("there was nothing to remove");
            return 0;
        }
        print(&removed.iter().map(|what| printable(what)).collect::<Vec<_>>().join("\n"))
    }
}
