//! `kennel image`: manages the images in Kennel's own store.

mod get;
mod ls;
mod remove;

use crate::signals::Signals;
use kennel_engine::Engine;
use kennel_image::{Digest, ImageConfig, Reference};
use serde::Serialize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kennel image pull debian:12                    from a registry
  docker save app | kennel image load -          from another engine
  kennel image load --name mine ./rootfs         from plain files
  kennel image ls
  kennel image rm debian:12
  kennel image prune --all                       remove all images that no sandbox uses

These images are for sandboxes that need no engine. Engines keep their own images.";

/// Pull, load, list and remove images
///
/// Each layer is verified, unpacked once, and shared by all images that contain it. Logins are those of `docker login` and
/// `podman login`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Image {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Ls(ls::Ls),
    Pull(get::Pull),
    Load(get::Load),
    Rm(remove::Rm),
    Prune(remove::Prune),
}

impl Image {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let mut signals = match Signals::listen() {
            Ok(signals) => signals,
            Err(error) => return crate::report::failed(&error),
        };
        let work = async {
            match self.action {
                Action::Ls(command) => command.run(engine),
                Action::Pull(command) => command.run(engine).await,
                Action::Load(command) => command.run(engine).await,
                Action::Rm(command) => command.run(engine),
                Action::Prune(command) => command.run(engine),
            }
        };
        tokio::select! {
            status = work => status,
            // The next pull continues the download. Layers that were not unpacked completely are removed later.
            signal = signals.end() => (128 + signal) as u8,
        }
    }
}

/// An image in JSON output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ImageJson {
    reference: Reference,
    id: Digest,
    manifest: Option<Digest>,
    size: u64,
    /// When the image was created, in seconds since 1970.
    created: Option<i64>,
    layers: Vec<PathBuf>,
    config: ImageConfig,
}

impl From<kennel_image::Image> for ImageJson {
    fn from(image: kennel_image::Image) -> Self {
        let kennel_image::Image { reference, id, manifest, layers, size, created, config, .. } = image;
        Self { reference, id, manifest, size, created, layers, config }
    }
}
