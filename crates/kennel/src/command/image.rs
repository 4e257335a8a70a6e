//! `kennel image`: images that Kennel keeps by itself.

mod get;
mod ls;
mod remove;

use crate::environment;
use crate::places::Places;
use crate::signals::Signals;
use kennel_config::ImagesSection;
use kennel_core::{Error, Result};
use kennel_image::{Credentials, Digest, ImageConfig, Limits, PullOptions, Reference, Store};
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
    pub(crate) async fn run(self) -> u8 {
        let mut signals = match Signals::listen() {
            Ok(signals) => signals,
            Err(error) => return crate::report::failed(&error),
        };
        let work = async {
            match self.action {
                Action::Ls(command) => command.run(),
                Action::Pull(command) => command.run().await,
                Action::Load(command) => command.run().await,
                Action::Rm(command) => command.run(),
                Action::Prune(command) => command.run(),
            }
        };
        tokio::select! {
            status = work => status,
            // What has come so far is continued another time; what was unpacked is cleared away by then.
            signal = signals.end() => (128 + signal) as u8,
        }
    }
}

fn store() -> Result<Store> {
    Store::open(Places::find()?.images()).map_err(of)
}

/// Who we are to registries.
pub(crate) fn logins() -> Credentials {
    Credentials { files: environment::login_files(), programs: environment::program_dirs() }
}

/// What is asked for when an image is pulled, by the settings in force.
pub(crate) fn pull_options(settings: ImagesSection) -> PullOptions {
    let usual = Limits::default();
    PullOptions {
        limits: Limits { bytes: settings.max_size.map_or(usual.bytes, |size| size.0), ..usual },
        credentials: logins(),
        insecure: settings.insecure,
        mirrors: settings.mirrors,
        proxies: environment::proxies(),
        ..PullOptions::default()
    }
}

/// The layers that sandboxes are made of: each is noted in its sandbox's directory.
fn in_use() -> kennel_image::Result<std::collections::HashSet<Digest>> {
    // Without a place for them there are none.
    let Ok(places) = Places::find() else { return Ok(std::collections::HashSet::new()) };
    kennel_image::noted_below(&places.provider_state("native"))
}

/// The same error, as the rest of the program knows it.
pub(crate) fn of(error: kennel_image::Error) -> Error {
    let same = Error::new(error.code(), error.to_string());
    let same = match error.next_step() {
        Some(hint) => same.hint(hint),
        None => same,
    };
    same.caused_by(error)
}

/// An image, as a program reads it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ImageJson {
    reference: Reference,
    id: Digest,
    manifest: Option<Digest>,
    size: u64,
    /// Seconds since 1970.
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
