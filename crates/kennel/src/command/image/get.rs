//! `kennel image pull` and `kennel image load`.

use super::ImageJson;
use crate::next_step::Hint;
use crate::output::{print, print_json};
use crate::progress::Bars;
use crate::result::JsonError;
use crate::sandboxes::settings;
use crate::{input, report};
use kennel_core::{Error, Result, printable};
use kennel_engine::Engine;
use kennel_image::{LoadOptions, PullOptions, Reference};
use kennel_types::ErrorCode;
use serde::Serialize;
use std::path::{Path, PathBuf};

const PULL_EXAMPLES: &str = "\
Examples:
  kennel image pull debian:12
  kennel image pull registry.example:5000/team/app@sha256:…
  kennel --quiet image pull debian        without progress

The next pull continues an interrupted one. Mirrors, and registries without HTTPS, are
settings: `kennel config show images`.";

const LOAD_EXAMPLES: &str = "\
Examples:
  kennel image load app.tar                          an archive of `docker save`, or an OCI layout
  docker save app | kennel image load -
  kennel image load --name mine:1 ./rootfs           plain files
  kennel image load --name mine:1 rootfs.tar.zst     for example of `docker export` or `mmdebstrap`";

/// Pull an image from a registry
///
/// Asks the registry even if the image is present, because the name may refer to another image by now. Does not download
/// layers that are present.
#[derive(Debug, clap::Args)]
#[command(after_help = PULL_EXAMPLES)]
pub(super) struct Pull {
    /// Name of the image; `debian` means `docker.io/library/debian:latest`
    #[arg(value_name = "IMAGE")]
    image: String,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Load images from an archive, an OCI layout or plain files
///
/// Detects the format: an archive of `docker save`, an OCI layout as an archive or a directory, or a root filesystem as an
/// archive or a directory. Archives may be compressed with gzip or zstd. Device files are skipped.
#[derive(Debug, clap::Args)]
#[command(after_help = LOAD_EXAMPLES)]
pub(super) struct Load {
    /// A file, a directory, or - for standard input
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Name for the image; plain files have no name of their own
    #[arg(long, value_name = "IMAGE")]
    name: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// What `--json` prints if the image could not be pulled or loaded.
#[derive(Serialize)]
struct Failed {
    error: JsonError,
}

fn failed(json: bool, error: &Error) -> u8 {
    if !json {
        return report::failed(error);
    }
    match print_json(&Failed { error: JsonError::from_error(error) }) {
        0 => report::exit_status(error),
        status => status,
    }
}

/// Adds a hint to an error that has none.
fn or_hint(error: Error, hint: &str) -> Error {
    if error.next_step().is_some() { error } else { error.hint(hint) }
}

fn named(text: &str) -> Result<Reference> {
    text.parse()
}

impl Pull {
    pub(super) async fn run(self, engine: &Engine) -> u8 {
        match self.pull(engine).await {
            Ok(image) if self.json => print_json(&ImageJson::from(image)),
            Ok(image) => print(&printable(&image.reference.to_string())),
            Err(error) => failed(self.json, &error),
        }
    }

    async fn pull(&self, engine: &Engine) -> Result<kennel_image::Image> {
        let reference = named(&self.image)?;
        let set = engine.pull_options(settings(engine)?.images);
        let options = PullOptions { when: kennel_types::Pull::Always, ..set };
        let bars = Bars::new(format!("pulling {reference}"));
        let pulled = engine.images()?.pull(&reference, &options, &|progress| bars.show_image(progress)).await;
        pulled.map_err(|error| or_hint(error, "try again; if it is refused again, tell the author of the image"))
    }
}

impl Load {
    pub(super) async fn run(self, engine: &Engine) -> u8 {
        match self.load(engine).await {
            Ok(images) if self.json => print_json(&images.into_iter().map(ImageJson::from).collect::<Vec<_>>()),
            Ok(images) => {
                let names: Vec<String> = images.iter().map(|image| printable(&image.reference.to_string())).collect();
                print(&names.join("\n"))
            }
            Err(error) => failed(self.json, &error),
        }
    }

    async fn load(&self, engine: &Engine) -> Result<Vec<kennel_image::Image>> {
        let name = self.name.as_deref().map(named).transpose()?;
        let options = LoadOptions { name, limits: engine.pull_options(settings(engine)?.images).limits };
        let standard_input = self.path.as_os_str() == "-";
        if standard_input && input::kind() == input::StdinKind::Terminal {
            let message = "standard input is a terminal, not an archive";
            return Err(Error::new(ErrorCode::InvalidConfig, message).hint("docker save IMAGE | kennel image load -"));
        }
        let path = if standard_input { Path::new("/dev/stdin") } else { &self.path };
        let bars = Bars::new(format!("loading {}", self.path.display()));
        let loaded = engine.images()?.load(path, &options, &|progress| bars.show_image(progress)).await;
        loaded.map_err(|error| or_hint(error, "kennel image load --help lists what can be loaded"))
    }
}
