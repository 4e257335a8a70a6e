//! `kennel volume prune`.

use super::{list, size};
use crate::next_step::Hint;
use crate::output::{print, print_json};
use crate::progress::while_waiting;
use crate::result::JsonError;
use crate::{report, terminal};
use kennel_core::{Error, Result, VolumeOptions, printable};
use kennel_engine::{Engine, FoundVolume};
use kennel_types::{ErrorCode, VolumeInfo, format_bytes};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  kennel volume prune --dry-run          only list what would be removed
  kennel volume prune
  kennel volume prune --caches --force   also remove caches, and do not ask";

/// Remove data volumes whose sandbox is gone
///
/// Removes and prints the data volumes that no sandbox uses. A later sandbox of the same name would have got them again.
/// Nothing is removed on a provider whose volumes or sandboxes cannot be listed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Prune {
    /// Also remove caches that no sandbox uses
    #[arg(long)]
    caches: bool,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    force: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    volumes: &'a [VolumeInfo],
    /// Bytes.
    freed: u64,
    failed: Vec<Failed>,
}

/// A volume that could not be removed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failed {
    name: String,
    provider: String,
    error: JsonError,
}

impl Prune {
    pub(super) async fn run(&self, engine: &Engine) -> Result<u8> {
        let found = list(engine, VolumeOptions { sizes: true }).await?.unused(self.caches);
        if self.dry_run {
            let volumes: Vec<VolumeInfo> = found.into_iter().map(|found| found.info).collect();
            return Ok(self.show(&volumes, &[]));
        }
        if !found.is_empty() && !self.force && !agreed(&found)? {
            report::note("nothing was removed");
            return Ok(1);
        }
        let (mut removed, mut failed) = (Vec::new(), Vec::new());
        for volume in found {
            match while_waiting(&format!("removing {}", volume.info.name), volume.remove()).await {
                Ok(()) => removed.push(volume.info),
                // Meanwhile, a sandbox uses it, or someone else has removed it.
                Err(error) if matches!(error.code(), ErrorCode::Conflict | ErrorCode::NotFound) => {
                    report::warning(&error.to_string());
                }
                Err(error) => failed.push((volume.info, error)),
            }
        }
        Ok(self.show(&removed, &failed))
    }

    /// Prints the removed volumes, or those that would be removed, and returns the exit status.
    fn show(&self, volumes: &[VolumeInfo], failed: &[(VolumeInfo, Error)]) -> u8 {
        let status = failed.first().map_or(0, |(_, error)| report::exit_status(error));
        let freed = bytes(volumes);
        let printed = if self.json {
            let failed = failed.iter().map(|(volume, error)| Failed {
                name: volume.name.clone(),
                provider: volume.provider.clone(),
                error: JsonError::from_error(error),
            });
            print_json(&Object { volumes, freed, failed: failed.collect() })
        } else {
            for (_, error) in failed {
                report::error(error);
            }
            let verb = if self.dry_run { "would free" } else { "freed" };
            let lines = volumes.iter().map(line).chain([format!("{verb} {}", format_bytes(freed))]);
            print(&lines.collect::<Vec<_>>().join("\n"))
        };
        if printed == 0 { status } else { printed }
    }
}

fn line(volume: &VolumeInfo) -> String {
    format!("{}: {} ({})", printable(&volume.provider), printable(&volume.name), size(volume))
}

/// The total size of volumes, as far as it is known.
fn bytes<'a>(volumes: impl IntoIterator<Item = &'a VolumeInfo>) -> u64 {
    volumes.into_iter().filter_map(|volume| volume.size).fold(0, u64::saturating_add)
}

/// Shows the volumes, and asks whether to remove them.
fn agreed(found: &[FoundVolume]) -> Result<bool> {
    if !terminal::is_asking() {
        return Err(Error::new(ErrorCode::InvalidConfig, "cannot ask for confirmation: this is not a terminal")
            .hint("kennel volume prune --force, or --dry-run to see what it removes"));
    }
    let lines: Vec<String> = found.iter().map(|found| line(&found.info)).collect();
    report::say(&lines.join("\n"));
    let size = format_bytes(bytes(found.iter().map(|found| &found.info)));
    let answer = report::ask(&format!("Remove these volumes and their content ({size})? [y/N] "))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
