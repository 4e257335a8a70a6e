//! `kennel build`.

use crate::lifecycle::Deadline;
use crate::options::label;
use crate::output::{print, print_json};
use crate::report;
use crate::result::JsonError;
use kennel_core::{ImageBuild, Result, printable};
use kennel_engine::Engine;
use kennel_types::{ByteSize, Limits, parse_cpus};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kennel build -t agent                       from ./Dockerfile or ./Containerfile
  kennel build -t agent -f images/agent.Dockerfile --build-arg VERSION=3 .
  kennel build -t agent --memory 2G --cpus 2
  kennel run --image agent -- make test";

/// Build an image
///
/// Builds from a Dockerfile or Containerfile and a directory, without the files that .dockerignore excludes. An
/// engine does the work: Podman, else Docker, or the one that --provider names. Its messages go to standard error,
/// and the name of the image to standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Build {
    /// Directory to build from
    #[arg(default_value = ".", value_name = "DIR")]
    context: PathBuf,
    /// Name of the image
    #[arg(short, long)]
    tag: String,
    /// Build file [default: Dockerfile or Containerfile in DIR]
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Value of an ARG in the build file
    #[arg(long = "build-arg", value_name = "NAME=VALUE")]
    args: Vec<String>,
    /// Memory limit of each step, for example 512m or 4G
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// CPU limit of each step, for example 0.5 or 2
    #[arg(long, value_name = "COUNT", value_parser = parse_cpus)]
    cpus: Option<u32>,
    /// Do not use cached steps
    #[arg(long)]
    no_cache: bool,
    /// Pull the base image even if it is present
    #[arg(long)]
    pull: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Build {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        match self.built(engine).await {
            Ok(provider) if self.json => print_json(&serde_json::json!({ "image": self.tag, "provider": provider })),
            Ok(_) => print(&printable(&self.tag)),
            Err(error) if self.json => {
                print_json(&serde_json::json!({ "error": JsonError::from_error(&error) }));
                report::exit_status(&error)
            }
            Err(error) => report::failed(&error),
        }
    }

    async fn built(&self, engine: &Engine) -> Result<&'static str> {
        let mut deadline = Deadline::begin(None)?;
        let settings = crate::sandboxes::settings(engine)?;
        let provider = deadline.unless_ended(engine.choose_for_builds(&settings)).await?.provider;
        let build = ImageBuild {
            context: self.context.clone(),
            file: self.file.clone(),
            tag: self.tag.clone(),
            args: self.args.iter().map(|entry| label(entry, "--build-arg")).collect::<Result<_>>()?,
            limits: Limits { memory: self.memory, millicpus: self.cpus, pids: None, disk: None },
            no_cache: self.no_cache,
            pull: self.pull,
        };
        deadline.unless_ended(provider.build_image(&build, &|line| report::progress(&line))).await?;
        Ok(provider.name())
    }
}
