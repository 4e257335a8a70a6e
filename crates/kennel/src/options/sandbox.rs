//! What a new sandbox is asked to be.

use super::value::{EnvironmentOptions, existing, label, mount};
use crate::environment::sudo_owner;
use kennel_core::{Error, Result};
use kennel_types::{ByteSize, ErrorCode, Limits, Mode, NetworkMode, SandboxSpec, Support, parse_cpus};
use std::path::{Path, PathBuf};

/// Options of `run` and `create`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxOptions {
    /// Its name; the id stands in for it if not given
    #[arg(long)]
    name: Option<String>,
    /// The image to run; goes to docker unless --provider says otherwise
    #[arg(long)]
    pub(crate) image: Option<String>,
    /// Mount this directory at /workspace [default: the current one]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Mount nothing at /workspace
    #[arg(long, conflicts_with = "workspace")]
    no_workspace: bool,
    /// Show a host path inside
    #[arg(short = 'v', long = "volume", value_name = "HOST:TARGET[:ro]")]
    volumes: Vec<String>,
    /// Working directory [default: /workspace]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    #[command(flatten)]
    env: EnvironmentOptions,
    /// Run as this user: a name or number, with :group if need be
    #[arg(short, long)]
    user: Option<String>,
    /// Memory, as in 512m or 4G
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// CPUs, as in 0.5 or 2
    #[arg(long, value_name = "COUNT", value_parser = parse_cpus)]
    cpus: Option<u32>,
    /// Processes and threads
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Option<u32>,
    /// bridge, host or none
    #[arg(long, value_name = "MODE")]
    pub(crate) network: Option<NetworkMode>,
    /// Attach a label
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
}

impl SandboxOptions {
    /// The library's word for it, on a provider of this mode.
    pub(crate) fn spec(&self, mode: &Mode) -> Result<SandboxSpec> {
        Ok(SandboxSpec {
            name: self.name.clone(),
            image: self.image.clone(),
            workdir: self.workdir.clone(),
            env: self.env.read()?,
            labels: self.labels.iter().map(|entry| label(entry)).collect::<Result<_>>()?,
            user: self.user.clone(),
            workspace: self.workspace()?,
            mounts: self.volumes.iter().map(|entry| mount(entry)).collect::<Result<_>>()?,
            network: self.network,
            limits: Limits { memory: self.memory, millicpus: self.cpus, pids: self.pids },
            // Where nothing is mounted, nothing is anyone else's.
            owner: sudo_owner().filter(|_| mode.mounts == Support::Given),
            ..SandboxSpec::default()
        })
    }

    fn workspace(&self) -> Result<Option<PathBuf>> {
        if self.no_workspace {
            return Ok(None);
        }
        if let Some(given) = &self.workspace {
            let path = existing(given, "--workspace")?;
            return if path.is_dir() {
                Ok(Some(path))
            } else {
                Err(Error::new(ErrorCode::InvalidConfig, format!("--workspace {}: not a directory", given.display())))
            };
        }
        let here = std::env::current_dir().map_err(|error| Error::io("find the current directory", error))?;
        if here == Path::new("/") {
            // Nobody who types `kennel run` means to hand out the whole machine.
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                "the current directory is /, which would be the workspace",
            )
            .hint("cd to a directory of your own, or say --no-workspace, or --workspace / if you mean it"));
        }
        Ok(Some(here))
    }
}
