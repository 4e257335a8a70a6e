//! `kennel volume`: manages data volumes and caches.

mod inspect;
mod ls;
mod prune;
mod rm;

use crate::progress::while_waiting;
use crate::providers::Providers;
use crate::report;
use kennel_core::{Error, Provider, Result, VolumeOptions, printable};
use kennel_types::{ErrorCode, NextStep, Support, VolumeInfo, format_bytes};
use std::sync::Arc;

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
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        let done = match self.action {
            Action::Ls(command) => command.run(providers).await,
            Action::Inspect(command) => command.run(providers).await,
            Action::Rm(command) => command.run(providers).await,
            Action::Prune(command) => command.run(providers).await,
        };
        done.unwrap_or_else(|error| report::failed(&error))
    }
}

/// A volume and its provider.
struct Found {
    provider: Arc<dyn Provider>,
    info: VolumeInfo,
}

/// Returns all volumes in the order of their names. Warns about providers that cannot list theirs; it is an error if that
/// is the named provider.
async fn list(providers: &Providers, options: VolumeOptions) -> Result<Vec<Found>> {
    if let Some(named) = providers.named().filter(|named| named.mode().volumes == Support::Refused) {
        report::warning(&format!("{} has no volumes", named.as_str()));
    }
    let listing = while_waiting("looking at the volumes", providers.volumes(options)).await?;
    for (name, error) in &listing.silent {
        report::warning(&format!("cannot list the volumes of {}: {error}", name.as_str()));
    }
    let mut found: Vec<Found> = listing.found.into_iter().map(|(provider, info)| Found { provider, info }).collect();
    found.sort_by(|a, b| (&a.info.name, &a.info.provider).cmp(&(&b.info.name, &b.info.provider)));
    Ok(found)
}

/// Returns the volume with this name. It is an error if several providers have one.
fn find<'a>(found: &'a [Found], name: &str) -> Result<&'a Found> {
    let named: Vec<&Found> = found.iter().filter(|found| found.info.name == name).collect();
    match named.as_slice() {
        [] => Err(Error::no_volume(printable(name))),
        [one] => Ok(one),
        several => {
            let kinds: Vec<_> = several.iter().map(|found| found.provider.mode().key.provider).collect();
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            let message = format!("several providers have a volume {}: {}", printable(name), names.join(", "));
            Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::use_provider(kinds)))
        }
    }
}

/// Returns the size of a volume as text, or `-` if it is not known.
fn size(volume: &VolumeInfo) -> String {
    volume.size.map_or_else(|| "-".to_owned(), format_bytes)
}
