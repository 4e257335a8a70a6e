//! `kennel gc`.

use crate::output::{print, print_json};
use crate::providers::Providers;
use crate::report;
use kennel_core::printable;

const EXAMPLES: &str = "\
Examples:
  kennel gc                       removes what killed programs left behind
  kennel --provider native gc     of one provider only
  kennel image prune --all        images that no sandbox is made of";

/// Remove what killed programs have left behind
///
/// Sandboxes are not touched, whether they run or not: see `kennel rm`. What is left of one whose maker or guard was
/// killed (directories, control groups, old programs) is removed, and printed. Listing sandboxes does most of it on the
/// way, so there is rarely anything to do.
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
