//! `kennel agent image`: the image of an agent, built from its preset.

use super::preset;
use crate::completion;
use crate::environment::npm_registry;
use crate::lifecycle::Deadline;
use crate::output::{print, print_json};
use crate::report;
use kennel_acp::{AgentImage, REGISTRY};
use kennel_core::{Error, ImageBuild, Provider, Result};
use kennel_engine::Engine;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  kennel agent image claude-code
  kennel agent image --print gemini                 show the build file
  kennel agent image --version 0.98.0 claude-code   another version, beside the first
  kennel agent image --base my-company/node:22 codex
  kennel agent run --provider docker --agent claude-code \"fix the failing test\"";

/// Build the image of an agent
///
/// Writes a build file from the agent's preset, builds it with an engine (Podman, else Docker, or the one that --provider
/// names), and prints the name of the image. The name contains the version and a hash of the build file: an image that exists
/// is not built again, and other versions stay. With --agent, sandboxes of that engine use the image without being told.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Image {
    /// Name of the agent
    #[arg(add = completion::agents())]
    name: String,
    /// The base image; it must have Node and npm [default: that of the preset]
    #[arg(long, value_name = "IMAGE")]
    base: Option<String>,
    /// The version of the agent [default: that of the preset]
    #[arg(long)]
    version: Option<String>,
    /// Print the build file, and build nothing
    #[arg(long)]
    print: bool,
    /// Build again, without cached steps, even if the image exists
    #[arg(long)]
    no_cache: bool,
    /// Build again from the newest base image, which is pulled
    #[arg(long)]
    pull: bool,
    /// Print a JSON object
    #[arg(long, conflicts_with = "print")]
    json: bool,
}

impl Image {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let mut preset = preset(engine, &self.name)?;
        preset.base = self.base.clone().unwrap_or(preset.base);
        preset.version = self.version.clone().or(preset.version);
        let image = AgentImage::of(&preset)?;
        if self.print {
            return Ok(print(&image.dockerfile));
        }
        let mut deadline = Deadline::begin(None)?;
        let settings = crate::sandboxes::settings(engine)?;
        let provider = deadline.unless_ended(engine.choose_for_builds(&settings)).await?.provider;
        let again = self.no_cache || self.pull;
        let exists = !again && deadline.unless_ended(provider.image_id(&image.tag)).await?.is_some();
        if !exists {
            deadline.unless_ended(self.build(&*provider, &image)).await?;
        }
        if self.json {
            return Ok(print_json(&json!({ "image": image.tag, "provider": provider.name(), "built": !exists })));
        }
        Ok(print(&image.tag))
    }

    async fn build(&self, provider: &dyn Provider, image: &AgentImage) -> Result<()> {
        let failed = |error| Error::io("write the build file of the agent's image", error);
        let context = tempfile::Builder::new().prefix("kennel-agent-").tempdir().map_err(failed)?;
        std::fs::write(context.path().join("Dockerfile"), &image.dockerfile).map_err(failed)?;
        let build = ImageBuild {
            context: context.path().to_owned(),
            tag: image.tag.clone(),
            args: npm_registry().map(|address| (REGISTRY.to_owned(), address)).into_iter().collect(),
            no_cache: self.no_cache,
            pull: self.pull,
            ..ImageBuild::default()
        };
        let built = provider.build_image(&build, &|line| report::progress(&line)).await;
        built.map_err(|error| error.context(format!("build the image {}", image.tag)))
    }
}
