//! The options for a new sandbox.

use super::host_path::existing;
use super::value::{EnvironmentOptions, label, mount, socket};
use crate::provider_name::ProviderName;
use crate::remote;
use kennel_api::CreateSandbox;
use kennel_config::{Cpus, Network, SandboxOverrides, Volume};
use kennel_core::{Error, Result};
use kennel_engine::{Engine, Settings, request};
use kennel_types::{
    ByteSize, ErrorCode, Field, Mode, Mount, NetworkMode, NextStep, Port, Protocol, Pull, SandboxSpec, parse_cpus,
};
use std::path::PathBuf;

/// Options of `run` and `create`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxOptions {
    /// Name of the sandbox [default: its id]
    #[arg(long)]
    name: Option<String>,
    /// Image to run. If Kennel's own image store does not have it, an engine runs it
    #[arg(long)]
    pub(crate) image: Option<String>,
    /// When to pull the image: always, missing or never [default: missing]
    #[arg(long, value_name = "WHEN")]
    pull: Option<Pull>,
    /// Directory to mount at /workspace [default: the current directory]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Do not mount a directory at /workspace
    #[arg(long, conflicts_with = "workspace")]
    no_workspace: bool,
    /// Bind mount a host path into the sandbox
    #[arg(short = 'v', long = "volume", value_name = "HOST:TARGET[:ro]")]
    volumes: Vec<String>,
    /// Working directory [default: /workspace]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    #[command(flatten)]
    env: EnvironmentOptions,
    /// User to run as: a name or number, optionally with :group
    #[arg(short, long)]
    user: Option<String>,
    /// Make the root filesystem read-only, except the workspace, volumes and /tmp; needs an image
    #[arg(long)]
    read_only: bool,
    /// Add a volume at /.data that outlives the sandbox; `kennel rm --volumes` removes it
    #[arg(long)]
    data: bool,
    /// Add a volume that the sandboxes of this workspace share, for example npm:/root/.npm
    #[arg(long = "cache", value_name = "NAME:TARGET")]
    caches: Vec<String>,
    /// OCI runtime of the engine, for example runsc, kata or crun
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,
    /// User namespace of the engine: auto (a separate range of ids), keep-id (your own id inside) or host (none)
    #[arg(long, value_name = "MODE")]
    userns: Option<String>,
    /// Memory limit, for example 512m or 4G
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// CPU limit, for example 0.5 or 2
    #[arg(long, value_name = "COUNT", value_parser = parse_cpus)]
    cpus: Option<u32>,
    /// Limit on the number of processes and threads
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Option<u32>,
    /// Limit on the files that are written outside of mounts, for example 512m or 4G
    #[arg(long, value_name = "SIZE")]
    disk: Option<ByteSize>,
    /// Allow nested sandboxes, for example those of bubblewrap; exposes more of the kernel
    #[arg(long)]
    nesting: bool,
    /// Make .git/config read-only, in addition to .git/hooks; =false makes both writable [default: only .git/hooks]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    protect_git: Option<bool>,
    /// Network mode: bridge, host or none
    #[arg(long, value_name = "MODE")]
    pub(crate) network: Option<NetworkMode>,
    /// Publish a port of the sandbox at 127.0.0.1; without HOST, at any free port
    #[arg(short, long = "publish", value_name = "[HOST:]PORT[/udp]")]
    ports: Vec<Port>,
    /// Let programs inside connect to a Unix socket of the host
    #[arg(long = "socket", value_name = "HOST:TARGET")]
    sockets: Vec<String>,
    /// Add a label
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
}

impl SandboxOptions {
    /// Returns the image from the options or the settings, if there is one.
    pub(crate) fn image<'a>(&'a self, settings: &'a Settings) -> Option<&'a str> {
        self.image.as_deref().or(settings.sandbox.image.as_deref())
    }

    /// Returns when to pull the image.
    pub(crate) fn pull(&self, settings: &Settings) -> Pull {
        self.pull.unwrap_or(settings.sandbox.pull)
    }

    /// Converts options and settings to a specification for a provider with this mode. Options override settings.
    pub(crate) fn spec(&self, engine: &Engine, settings: &Settings, mode: &Mode) -> Result<SandboxSpec> {
        let overrides = self.overrides(engine, settings)?;
        let workspace = request::workspace(settings, &overrides, engine.caller())?;
        request::spec(settings, &overrides, workspace, engine.caller(), mode)
    }

    /// Converts the options to what overrides the settings. Paths are resolved.
    pub(crate) fn overrides(&self, engine: &Engine, settings: &Settings) -> Result<SandboxOverrides> {
        let labels = self.labels.iter().map(|entry| label(entry, "--label")).collect::<Result<_>>()?;
        let mut overrides = SandboxOverrides {
            name: self.name.clone(),
            image: self.image.clone(),
            pull: self.pull,
            read_only: self.read_only.then_some(true),
            runtime: self.runtime.clone(),
            userns: self.userns.clone(),
            workdir: self.workdir.clone(),
            env: self.env.read()?,
            labels,
            user: self.user.clone(),
            no_workspace: self.no_workspace.then_some(true),
            data: self.data.then_some(true),
            caches: self.caches.iter().map(|entry| cache(entry)).collect::<Result<_>>()?,
            network: self.network.map(Network),
            ports: self.ports.iter().copied().map(port).collect(),
            memory: self.memory,
            cpus: self.cpus.map(Cpus),
            pids: self.pids,
            disk: self.disk,
            nesting: self.nesting.then_some(true),
            protect_git: self.protect_git,
            ..SandboxOverrides::default()
        };
        if !self.no_workspace {
            overrides.workspace = self.workspace(settings)?;
        }
        // A relative path must not lead out of the workspace, whoever chose that.
        if !self.volumes.is_empty() || !self.sockets.is_empty() {
            let workspace = request::workspace(settings, &overrides, engine.caller())?;
            let volume = |entry: &String| {
                let Mount { host, target, read_only } = mount(entry, workspace.as_deref())?;
                Ok(Volume { host, container: target, readonly: read_only })
            };
            overrides.volumes = self.volumes.iter().map(volume).collect::<Result<_>>()?;
            let socket = |entry: &String| socket(entry, workspace.as_deref());
            overrides.sockets = self.sockets.iter().map(socket).collect::<Result<_>>()?;
        }
        Ok(overrides)
    }

    /// Converts the options to a request to a server. Options that name files of this machine are refused. The current
    /// directory is copied (`upload`), or not wanted.
    pub(crate) fn request(&self, provider: Option<ProviderName>, upload: bool) -> Result<CreateSandbox> {
        for (given, option) in [
            (self.workspace.is_some(), "--workspace"),
            (!self.volumes.is_empty(), "--volume"),
            (!self.sockets.is_empty(), "--socket"),
        ] {
            if given {
                return Err(remote::not_seen(option));
            }
        }
        if !self.no_workspace && !upload {
            return Err(Error::new(
                ErrorCode::Unsupported,
                "mount the current directory: the server does not see the files of this machine",
            )
            .suggest(NextStep::advice("use --upload to copy it, or --no-workspace")));
        }
        let labels = self.labels.iter().map(|entry| label(entry, "--label")).collect::<Result<_>>()?;
        let provider = match provider {
            None => None,
            Some(ProviderName::Native) => Some(kennel_api::ProviderName::Native),
            Some(ProviderName::Podman) => Some(kennel_api::ProviderName::Podman),
            Some(ProviderName::Docker) => Some(kennel_api::ProviderName::Docker),
            Some(ProviderName::Local) => Some(kennel_api::ProviderName::Local),
            Some(ProviderName::Apple) => {
                return Err(Error::new(ErrorCode::Unsupported, "a server has no provider apple"));
            }
        };
        Ok(CreateSandbox {
            name: self.name.clone(),
            provider,
            image: self.image.clone(),
            pull: self.pull.map(|pull| match pull {
                Pull::Always => kennel_api::PullPolicy::Always,
                Pull::Missing => kennel_api::PullPolicy::Missing,
                Pull::Never => kennel_api::PullPolicy::Never,
            }),
            image_command: Some(false),
            read_only: self.read_only.then_some(true),
            runtime: self.runtime.clone(),
            userns: self.userns.clone(),
            workdir: self.workdir.clone(),
            env: self.env.read()?,
            labels,
            user: self.user.clone(),
            data: self.data.then_some(true),
            caches: self.caches.iter().map(|entry| cache(entry)).collect::<Result<_>>()?,
            network: self.network.map(|network| match network {
                NetworkMode::Bridge => kennel_api::Network::Bridge,
                NetworkMode::Host => kennel_api::Network::Host,
                NetworkMode::None => kennel_api::Network::None,
            }),
            ports: self
                .ports
                .iter()
                .map(|port| kennel_api::PortRequest {
                    inside: port.inside,
                    host: port.host,
                    udp: port.protocol == Protocol::Udp,
                })
                .collect(),
            memory: self.memory.map(|size| kennel_api::Bytes(size.0)),
            cpus: self.cpus.map(kennel_api::Cpus),
            pids: self.pids,
            disk: self.disk.map(|size| kennel_api::Bytes(size.0)),
            nesting: self.nesting.then_some(true),
            protect_git: self.protect_git,
            ..CreateSandbox::default()
        })
    }

    /// Returns the workspace that the user typed, as an option or in a variable.
    fn workspace(&self, settings: &Settings) -> Result<Option<PathBuf>> {
        let variable = || settings.in_environment("sandbox.workspace").map(PathBuf::from);
        let typed = self.workspace.clone().map(|dir| ("--workspace", dir));
        let typed = typed.or_else(|| variable().map(|dir| ("KENNEL_SANDBOX_WORKSPACE", dir)));
        let Some((what, dir)) = typed else { return Ok(None) };
        let path = existing(&dir, what)?;
        if path.is_dir() {
            Ok(Some(path))
        } else {
            Err(Error::new(ErrorCode::InvalidConfig, format!("{what} {}: not a directory", dir.display())))
        }
    }
}

fn port(port: Port) -> kennel_config::Port {
    kennel_config::Port { host: port.host, container: port.inside, protocol: port.protocol }
}

/// Parses a cache volume (`NAME:TARGET`).
fn cache(entry: &str) -> Result<(String, String)> {
    let bad = |why: &str| {
        Error::new(ErrorCode::InvalidConfig, format!("--cache {entry}: {why}")).suggest(NextStep::set(Field::Caches))
    };
    let (name, target) = entry.split_once(':').ok_or_else(|| bad("the path inside is missing"))?;
    kennel_core::check_name(name).map_err(|error| bad(&error.to_string()))?;
    if !target.starts_with('/') {
        return Err(bad("the path inside must be absolute"));
    }
    Ok((name.to_owned(), target.to_owned()))
}
