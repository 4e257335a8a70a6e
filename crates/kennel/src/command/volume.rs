//! `kennel volume`: manages data volumes and caches.

mod inspect;
mod ls;
mod prune;
mod rm;

use crate::progress::while_waiting;
use crate::report;
use kennel_core::{Result, VolumeOptions};
use kennel_engine::{Engine, VolumeListing};
use kennel_types::{Mode, Support, VolumeInfo, format_bytes};

const EXAMPLES: &str = "\
Examples:
  kennel volume ls
  kennel volume inspect data-box
  kennel volume rm data-box
  kennel volume prune --dry-run          list the data volumes whose sandbox is gone

`kennel create --data` adds a data volume to a sandbox, and `--cache` adds a cache.";

/// List and remove data volumes and caches
///
/// Volumes outlive sandboxes. The next sandbox of the same name gets the data volume again, and the sandboxes of a workspace
/// share its caches.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Volume {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Ls(ls::Ls),
    Inspect(inspect::Inspect),
    Rm(rm::Rm),
    Prune(prune::Prune),
}

impl Volume {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let done = match self.action {
            Action::Ls(command) => command.run(engine).await,
            Action::Inspect(command) => command.run(engine).await,
            Action::Rm(command) => command.run(engine).await,
            Action::Prune(command) => command.run(engine).await,
        };
        done.unwrap_or_else(|error| report::failed(&error))
    }
}

/// Lists all volumes. Warns about providers that cannot list theirs; it is an error if that is the named provider.
async fn list(engine: &Engine, options: VolumeOptions) -> Result<VolumeListing> {
    if let Some(named) = engine.named().filter(|named| Mode::first_of(*named).volumes == Support::Refused) {
        report::warning(&format!("{} has no volumes", named.name()));
    }
    let listing = while_waiting("looking at the volumes", engine.volumes(options)).await?;
    for silent in &listing.silent {
        report::warning(&format!("cannot list the volumes of {}: {}", silent.provider.name(), silent.error));
    }
    Ok(listing)
}

/// Returns the size of a volume as text, or `-` if it is not known.
fn size(volume: &VolumeInfo) -> String {
    volume.size.map_or_else(|| "-".to_owned(), format_bytes)
}
