//! `kennel volume ls`.

use super::{list, size};
use crate::output::{print, print_json, table};
use kennel_core::{Result, VolumeOptions, printable};
use kennel_engine::Engine;
use kennel_types::VolumeInfo;

const EXAMPLES: &str = "\
Examples:
  kennel volume ls
  kennel volume ls --no-size             faster if there are many files
  kennel volume ls --json | jq '.[] | select(.usedBy == []).name'
  kennel volume rm $(kennel volume ls -q)";

/// List volumes
///
/// Lists the volumes of all providers. Reports on standard error which providers cannot be reached.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Ls {
    /// Print only names
    #[arg(short = 'q', long = "names", conflicts_with = "json")]
    names: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Do not measure sizes
    #[arg(long)]
    no_size: bool,
}

impl Ls {
    pub(super) async fn run(&self, engine: &Engine) -> Result<u8> {
        let options = VolumeOptions { sizes: !self.no_size && !self.names };
        let listing = list(engine, options).await?;
        let found: Vec<&VolumeInfo> = listing.found.iter().map(|found| &found.info).collect();
        if self.json {
            return Ok(print_json(&found));
        }
        if self.names {
            let names: Vec<String> = found.iter().map(|volume| printable(&volume.name)).collect();
            return Ok(if names.is_empty() { 0 } else { print(&names.join("\n")) });
        }
        Ok(print(&volumes_table(&found)))
    }
}

fn volumes_table(found: &[&VolumeInfo]) -> String {
    let row = |volume: &&VolumeInfo| {
        let users: Vec<String> = volume.used_by.iter().map(|user| printable(&user.name)).collect();
        [
            printable(&volume.name),
            volume.kind.to_string(),
            printable(&volume.provider),
            size(volume),
            if users.is_empty() { "-".to_owned() } else { users.join(", ") },
            volume.workspace.as_ref().map_or_else(|| "-".to_owned(), |dir| printable(&dir.to_string_lossy())),
        ]
    };
    table(["NAME", "KIND", "PROVIDER", "SIZE", "USED BY", "WORKSPACE"], found.iter().map(row))
}
