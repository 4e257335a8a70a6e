//! The options for a new sandbox.

use super::host_path::{existing, not_there};
use super::value::{EnvironmentOptions, label, mount};
use crate::environment::{self, sudo_owner};
use crate::next_step::Hint;
use crate::settings::Settings;
use kennel_config::{SandboxSection, Volume};
use kennel_core::{Error, Result};
use kennel_types::{
    ByteSize, Cache, ErrorCode, GitProtection, Limits, Mode, Mount, NetworkMode, Port, Protocol, ProviderKind, Pull,
    SandboxSpec, Support, Toolchains, parse_cpus,
};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Options of `run` and `create`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxOptions {
    /// Name of the sandbox [default: its id]
    #[arg(long)]
    name: Option<String>,
    /// Image to run; an engine runs it if Kennel's own image store does not have it
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
    /// Reserved for sandboxes with settings of their own
    #[arg(long, value_name = "NAME", hide = true)]
    profile: Option<String>,
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
    pub(crate) fn spec(&self, settings: &Settings, mode: &Mode) -> Result<SandboxSpec> {
        if self.profile.is_some() {
            return Err(Error::new(ErrorCode::Unsupported, "--profile: there are no profiles yet")
                .hint("put its settings under `sandbox` in kennel.toml: kennel config set sandbox.memory 2g"));
        }
        let set = &settings.sandbox;
        let mut env = set.env.clone();
        env.extend(self.env.read()?);
        let mut labels = set.labels.clone();
        labels.extend(self.labels.iter().map(|entry| label(entry, "--label")).collect::<Result<Vec<_>>>()?);
        let workspace = self.workspace(settings)?;
        let mounts = self.mounts(settings, workspace.as_deref())?;
        Ok(SandboxSpec {
            name: self.name.clone(),
            image_main: false,
            read_only: self.read_only || set.read_only,
            // Without a name, the volume could never be found again.
            data: self.data || (set.data && self.name.is_some()),
            caches: self.caches(set, workspace.as_deref())?,
            runtime: self.runtime.clone().or_else(|| set.runtime.clone()),
            userns: self.userns.clone().or_else(|| set.userns.clone()),
            image: self.image(settings).map(ToOwned::to_owned),
            command: set.command.clone(),
            workdir: self.workdir.clone().or_else(|| settings.said("sandbox.workdir", set.workdir.clone())),
            env,
            labels,
            session: None,
            store: None,
            project: workspace.as_deref().map(project_of),
            profile: None,
            user: self.user.clone().or_else(|| set.user.clone()),
            workspace,
            mounts,
            network: self.network.or(set.network.map(|network| network.0)),
            ports: self.ports(set),
            toolchains: toolchains(set, mode.key.provider == ProviderKind::Native && self.image(settings).is_none())?,
            nesting: self.nesting || set.nesting,
            protect_git: match self.protect_git.or(set.protect_git) {
                None => GitProtection::Hooks,
                Some(true) => GitProtection::Config,
                Some(false) => GitProtection::None,
            },
            limits: Limits {
                memory: self.memory.or(set.memory),
                millicpus: self.cpus.or(set.cpus.map(|cpus| cpus.0)),
                pids: self.pids.or(set.pids),
                disk: self.disk.or(set.disk),
            },
            // Without mounts, no file needs a particular owner.
            owner: sudo_owner().filter(|_| mode.mounts == Support::Given),
            tied: false,
            auto_remove: false,
            idle_seconds: set.idle_timeout.map(|time| time.0.as_secs().max(1)),
            startup_ms: Some(set.startup_timeout.0.as_millis().try_into().unwrap_or(u64::MAX)),
        })
    }

    /// Returns the ports of the settings and the options. An option replaces a setting for the same port inside.
    fn ports(&self, set: &SandboxSection) -> Vec<Port> {
        let set =
            set.ports.iter().map(|port| Port { host: port.host, inside: port.container, protocol: Protocol::Tcp });
        let typed =
            |port: &Port| self.ports.iter().any(|typed| (typed.inside, typed.protocol) == (port.inside, port.protocol));
        set.filter(|port| !typed(port)).chain(self.ports.iter().copied()).collect()
    }

    /// Returns the mounts of the settings and the options. An option replaces a setting for the same target.
    fn mounts(&self, settings: &Settings, workspace: Option<&Path>) -> Result<Vec<Mount>> {
        let typed: Vec<Mount> = self.volumes.iter().map(|entry| mount(entry, workspace)).collect::<Result<_>>()?;
        let mut mounts = Vec::new();
        for Volume { host, container, readonly } in &settings.sandbox.volumes {
            if typed.iter().all(|mount| mount.target != *container) {
                let real = settings.real_path(host).map_err(|error| not_there(host, "sandbox.volumes:", error))?;
                mounts.push(Mount { host: real, target: container.clone(), read_only: *readonly });
            }
        }
        mounts.extend(typed);
        Ok(mounts)
    }

    /// Returns the caches of the settings and the options. An option replaces a setting with the same name.
    fn caches(&self, set: &SandboxSection, workspace: Option<&Path>) -> Result<Vec<Cache>> {
        let typed = self.caches.iter().map(|entry| cache(entry, &format!("--cache {entry}"), workspace));
        let typed = typed.collect::<Result<Vec<_>>>()?;
        let mut caches = Vec::new();
        for (name, target) in &set.caches {
            let set = cache(&format!("{name}:{target}"), &format!("sandbox.caches.{name}"), workspace)?;
            if typed.iter().all(|typed| typed.name != set.name) {
                caches.push(set);
            }
        }
        caches.extend(typed);
        Ok(caches)
    }

    fn workspace(&self, settings: &Settings) -> Result<Option<PathBuf>> {
        if self.no_workspace {
            return Ok(None);
        }
        let variable = || settings.in_environment("sandbox.workspace").map(PathBuf::from);
        let typed = self.workspace.clone().map(|dir| ("--workspace", dir));
        let typed = typed.or_else(|| variable().map(|dir| ("KENNEL_SANDBOX_WORKSPACE", dir)));
        let typed = typed.map(|(what, dir)| existing(&dir, what).map(|path| (what, dir, path)));
        let set = settings.sandbox.workspace.as_ref().map(|dir| {
            let what = "sandbox.workspace:";
            let real = settings.real_path(dir).map_err(|error| not_there(dir, what, error))?;
            Ok((what, dir.clone(), real))
        });
        if let Some(given) = typed.or(set) {
            let (what, dir, path) = given?;
            return if path.is_dir() {
                Ok(Some(path))
            } else {
                Err(Error::new(ErrorCode::InvalidConfig, format!("{what} {}: not a directory", dir.display())))
            };
        }
        let here = std::env::current_dir().map_err(|error| Error::io("find the current directory", error))?;
        if here == Path::new("/") {
            // This is probably a mistake: it would give the sandbox all files of the host.
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                "the current directory is /, which would be the workspace",
            )
            .hint("cd to a directory of your own, or use --no-workspace, or --workspace / if you mean it"));
        }
        Ok(Some(here))
    }
}

/// Returns the project of a workspace: the git repository that contains it, or the workspace itself.
fn project_of(workspace: &Path) -> String {
    let repository = workspace.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok());
    repository.unwrap_or(workspace).display().to_string()
}

/// Returns the toolchains in the home directory of the calling user, if sandboxes can use them.
fn toolchains(set: &SandboxSection, shows_home: bool) -> Result<Option<Toolchains>> {
    let home = environment::home_of_caller().filter(|home| set.toolchains && shows_home && home.is_absolute());
    let Some(home) = home else { return Ok(None) };
    for dir in set.extra_toolchains.iter().map(|dir| home.join(dir)) {
        let is_dir = existing(&dir, "extraToolchains")?.is_dir();
        if !is_dir {
            let message = format!("extraToolchains {}: it is not a directory", dir.display());
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
    }
    Ok(Some(Toolchains { home, more: set.extra_toolchains.clone(), search: environment::program_dirs() }))
}

/// Parses a cache volume (`NAME:TARGET`). Only sandboxes with a workspace in the same project share it.
fn cache(entry: &str, said: &str, workspace: Option<&Path>) -> Result<Cache> {
    let bad = |why: &str| {
        Error::new(ErrorCode::InvalidConfig, format!("{said}: {why}"))
            .hint("use NAME:TARGET, for example npm:/root/.npm")
    };
    let (name, target) = entry.split_once(':').ok_or_else(|| bad("the path inside is missing"))?;
    kennel_core::check_name(name).map_err(|error| bad(&error.to_string()))?;
    if !target.starts_with('/') {
        return Err(bad("the path inside must be absolute"));
    }
    let project = workspace.map(|dir| Sha256::digest(dir.as_os_str().as_encoded_bytes()));
    let project = project.map(|hash| format!("{:02x}{:02x}{:02x}{:02x}-", hash[0], hash[1], hash[2], hash[3]));
    Ok(Cache { name: format!("{}{name}", project.unwrap_or_default()), target: target.to_owned() })
}
