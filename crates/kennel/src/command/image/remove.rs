//! `kennel image rm` and `kennel image prune`.

use crate::completion::images;
use crate::output::{print, print_json};
use crate::report;
use crate::result::JsonError;
use kennel_core::{Error, printable};
use kennel_engine::Engine;
use kennel_image::{Reference, Removed};
use kennel_types::format_bytes;
use serde::Serialize;

const RM_EXAMPLES: &str = "\
Examples:
  kennel image rm debian:12
  kennel image rm $(kennel image ls -q)";

const PRUNE_EXAMPLES: &str = "\
Examples:
  kennel image prune
  kennel image prune --all              also remove images that no sandbox uses";

/// Remove images
///
/// A layer is removed with the last image that contains it. Layers of a sandbox stay as long as the sandbox exists.
#[derive(Debug, clap::Args)]
#[command(after_help = RM_EXAMPLES)]
pub(super) struct Rm {
    /// Names or ids of images
    #[arg(value_name = "IMAGE", required = true, add = images())]
    images: Vec<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Remove unused layers and interrupted downloads
#[derive(Debug, clap::Args)]
#[command(after_help = PRUNE_EXAMPLES)]
pub(super) struct Prune {
    /// Also remove images that no sandbox uses
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
    pub(super) fn run(&self, engine: &Engine) -> u8 {
        let removed = engine.images().and_then(|store| store.remove(&self.images, &|| engine.image_layers_in_use()));
        show(removed, self.json, false)
    }
}

impl Prune {
    pub(super) fn run(&self, engine: &Engine) -> u8 {
        let removed = engine.images().and_then(|store| store.prune(self.all, &|| engine.image_layers_in_use()));
        show(removed, self.json, true)
    }
}

fn show(removed: Result<Removed, Error>, json: bool, freed_too: bool) -> u8 {
    if json {
        let (object, status) = match removed {
            Ok(Removed { images, layers, downloads, freed, in_use }) => {
                (Object { images, layers, downloads, freed, in_use, error: None }, 0)
            }
            Err(error) => (
                Object { error: Some(JsonError::from_error(&error)), ..Object::default() },
                report::exit_status(&error),
            ),
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
            "sandboxes use {} of the layers, which stay; kennel image prune removes them after the sandboxes",
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
