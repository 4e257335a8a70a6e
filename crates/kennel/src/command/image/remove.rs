//! `kennel image rm` and `kennel image prune`.

use super::{in_use, of, store};
use crate::completion::images;
use crate::output::{print, print_json};
use crate::report;
use crate::result::JsonError;
use kennel_core::{Error, printable};
use kennel_image::{Reference, Removed};
use kennel_types::format_bytes;
use serde::Serialize;

const RM_EXAMPLES: &str = "\
Examples:
  kennel image rm debian:12
  kennel image rm $(kennel image ls -q)";

const PRUNE_EXAMPLES: &str = "\
Examples:
  kennel image prune                    what has no name, and downloads that broke off
  kennel image prune --all              also images that no sandbox is made of";

/// Remove images
///
/// Layers go with the last image that has them. Those of a sandbox stay for as long as it is there.
#[derive(Debug, clap::Args)]
#[command(after_help = RM_EXAMPLES)]
pub(super) struct Rm {
    /// Names or ids
    #[arg(value_name = "IMAGE", required = true, add = images())]
    images: Vec<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Remove what is of no use
#[derive(Debug, clap::Args)]
#[command(after_help = PRUNE_EXAMPLES)]
pub(super) struct Prune {
    /// Also images that no sandbox is made of
    #[arg(short, long)]
    all: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    images: Vec<Reference>,
    layers: usize,
    downloads: usize,
    freed: u64,
    in_use: usize,
    error: Option<JsonError>,
}

impl Rm {
    pub(super) fn run(&self) -> u8 {
        let removed = store().and_then(|store| store.remove(&self.images, &in_use).map_err(of));
        show(removed, self.json, false)
    }
}

impl Prune {
    pub(super) fn run(&self) -> u8 {
        let removed = store().and_then(|store| store.prune(self.all, &in_use).map_err(of));
        show(removed, self.json, true)
    }
}

fn show(removed: Result<Removed, Error>, json: bool, freed_too: bool) -> u8 {
    if json {
        let (object, status) = match removed {
            Ok(Removed { images, layers, downloads, freed, in_use }) => {
                (Object { images, layers, downloads, freed, in_use, error: None }, 0)
            }
            Err(error) => {
                (Object { error: Some(JsonError::of(&error)), ..Object::default() }, report::exit_status(&error))
            }
        };
        return match print_json(&object) {
            0 => status,
            failed => failed,
        };
    }
    let removed = match removed {
        Ok(removed) => removed,
        Err(error) => return report::failed(&error),
    };
    if removed.in_use > 0 {
        report::warning(&format!(
            "sandboxes are made of {} of the layers: they stay until those are removed, and go with kennel image prune",
            removed.in_use
        ));
    }
    let mut lines: Vec<String> = removed.images.iter().map(|image| printable(&image.to_string())).collect();
    let freed = format!("freed {}", format_bytes(removed.freed));
    if freed_too {
        lines.push(freed);
    } else {
        report::note(&freed);
    }
    print(&lines.join("\n"))
}
