//! A sandbox: what was requested, its current state, and what is enforced.

use crate::{ByteSize, EndCause, IsolationLayer, NextStep, Port, Published, SandboxId, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The specification of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxSpec {
    /// The name; defaults to the id.
    pub name: Option<String>,
    /// The image, for providers that run images.
    pub image: Option<String>,
    /// The main process. It starts with the sandbox, and the sandbox ends when it ends. Without one, the sandbox waits
    /// for commands.
    pub command: Option<Vec<String>>,
    /// Working directory of commands. Defaults to `/workspace`, or to the workspace's own path if the provider cannot
    /// mount it.
    pub workdir: Option<String>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// Labels, in addition to those that Kennel sets.
    pub labels: BTreeMap<String, String>,
    /// The session that it belongs to, by its id.
    pub session: Option<String>,
    /// The store that has recorded the session, by its random id. A session without a store is only a name.
    pub store: Option<String>,
    /// The project that it belongs to: the directory of a repository, or whatever else the caller calls a project.
    pub project: Option<String>,
    /// The profile that it was made from, by its name.
    pub profile: Option<String>,
    /// The pool that it is made for, by its name. It is a member of the pool until somebody claims it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// User of commands: `name`, `uid`, `name:group` or `uid:gid`.
    pub user: Option<String>,
    /// Host directory mounted at `/workspace`.
    pub workspace: Option<PathBuf>,
    /// Additional mounts.
    pub mounts: Vec<Mount>,
    /// The network; defaults to that of the provider.
    pub network: Option<NetworkMode>,
    /// Ports to publish on the host. This requires network `bridge`.
    pub ports: Vec<Port>,
    /// Unix sockets of the host that programs inside can connect to. The creator of a tied sandbox serves them; for any
    /// other sandbox, the engine starts a process that does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<SocketBridge>,
    /// Use the image's own command as the main process, if `command` is not given.
    pub image_main: bool,
    /// Make the root filesystem read-only. The workspace, mounts, volumes and `/tmp` stay writable.
    pub read_only: bool,
    /// Mount a volume at `/.data` that belongs to this sandbox. By default it is kept when the sandbox is removed, and
    /// the next sandbox of the same name gets it again.
    pub data: bool,
    /// Volumes that several sandboxes share, for example for downloads. They are never removed automatically.
    pub caches: Vec<Cache>,
    /// The container runtime, if not the engine's default: `runsc`, `kata`, `crun`.
    pub runtime: Option<String>,
    /// The engine's user namespace mode: `auto`, `keep-id`, or `host` for none. Defaults to that of the engine.
    pub userns: Option<String>,
    /// Programs from a home directory that are shown inside, if the root filesystem is the host's.
    pub toolchains: Option<Toolchains>,
    /// Allow sandboxes, such as those of bubblewrap, inside this one. This exposes more of the kernel.
    pub nesting: bool,
    /// Which parts of git repositories in writable mounts are read-only inside.
    pub protect_git: GitProtection,
    /// Resource limits.
    pub limits: Limits,
    /// The user outside for whom the sandbox is created; defaults to the calling user. Engines without a user namespace
    /// run commands as this user. On native, new files in a mount belong to the owner of that mount.
    pub owner: Option<Owner>,
    /// The sandbox ends, and is removed, when the connection of its creator closes.
    pub tied: bool,
    /// The sandbox is removed when it ends: when its main process ends, when it is stopped, or when it has been idle for too
    /// long. Its volumes stay.
    pub auto_remove: bool,
    /// Stop the sandbox after this many seconds without use.
    pub idle_seconds: Option<u64>,
    /// Pause the sandbox after this many milliseconds without use. This needs a resident process, see `kennel-engine`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_pause_ms: Option<u64>,
    /// The maximum time for a start, in milliseconds; see [`Self::startup`].
    pub startup_ms: Option<u64>,
}

impl SandboxSpec {
    /// The maximum time for a start. The default is [`STARTUP`].
    pub fn startup(&self) -> Duration {
        self.startup_ms.map_or(STARTUP, Duration::from_millis)
    }
}

/// The default maximum time for a start.
pub const STARTUP: Duration = Duration::from_secs(10);

/// A user and a group of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A host path that is mounted in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Absolute path on the host.
    pub host: PathBuf,
    /// Absolute path inside.
    pub target: String,
    /// Whether the mount is read-only inside.
    #[serde(default)]
    pub read_only: bool,
}

/// A Unix socket of the host that programs inside can connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SocketBridge {
    /// Absolute path of the socket on the host, without symlinks.
    pub host: PathBuf,
    /// Absolute path inside at which the keeper listens.
    pub target: String,
}

impl SocketBridge {
    /// The maximum number of bridges of one sandbox.
    pub const MOST: usize = 16;
}

impl std::fmt::Display for SocketBridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host.display(), self.target)
    }
}

/// Programs from a home directory, such as compilers and version managers. They are mounted read-only, and files with
/// logins are masked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Toolchains {
    /// The home directory that is searched for known toolchains.
    pub home: PathBuf,
    /// Additional directories with programs, in the home directory or elsewhere.
    pub more: Vec<PathBuf>,
    /// The caller's search path for programs. Those of its directories that are mounted are on the search path inside
    /// too.
    pub search: Vec<PathBuf>,
}

/// A volume that several sandboxes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Cache {
    /// The name. Sandboxes that use the same name share the volume.
    pub name: String,
    /// Absolute path inside.
    pub target: String,
    /// Whether this sandbox can only read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

impl Cache {
    /// Creates a cache that the sandbox can write.
    pub fn new(name: impl Into<String>, target: impl Into<String>) -> Self {
        Self { name: name.into(), target: target.into(), read_only: false }
    }
}

/// Which parts of a git repository at the top of a writable mount are read-only inside. Git on the host executes them,
/// so a sandbox must not change them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GitProtection {
    /// Nothing.
    None,
    /// The hooks.
    #[default]
    Hooks,
    /// The hooks and the repository's configuration (`.git/config`).
    Config,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schemars(inline))]
pub enum Pull {
    /// Every time.
    Always,
    /// If it is not there.
    #[default]
    Missing,
    /// Not at all.
    Never,
}

impl std::str::FromStr for Pull {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "always" => Ok(Self::Always),
            "missing" => Ok(Self::Missing),
            "never" => Ok(Self::Never),
            _ => Err(format!("invalid pull policy {text:?}: expected always, missing or never")),
        }
    }
}

/// The network of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// Its own network, with access to the outside.
    Bridge,
    /// The host's network.
    Host,
    /// Loopback only.
    None,
}

impl std::str::FromStr for NetworkMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "bridge" => Ok(Self::Bridge),
            "host" => Ok(Self::Host),
            "none" => Ok(Self::None),
            _ => Err(format!("invalid network mode {text:?}: expected bridge, host or none")),
        }
    }
}

impl std::fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bridge => "bridge",
            Self::Host => "host",
            Self::None => "none",
        })
    }
}

/// Resource limits of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Memory.
    pub memory: Option<ByteSize>,
    /// CPU, in thousandths of a CPU.
    pub millicpus: Option<u32>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Bytes written to the sandbox's own files.
    #[serde(default)]
    pub disk: Option<ByteSize>,
}

impl Limits {
    /// Whether there are no limits.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns these limits, and those of `others` where there is none.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            memory: self.memory.or(others.memory),
            millicpus: self.millicpus.or(others.millicpus),
            pids: self.pids.or(others.pids),
            disk: self.disk.or(others.disk),
        }
    }

    /// Whether there is a limit that needs a cgroup: on memory, CPU or processes.
    pub fn on_processes(&self) -> bool {
        *self != Self { disk: self.disk, ..Self::default() }
    }
}

/// The current description of a sandbox by its provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SandboxInfo {
    /// The id.
    pub id: SandboxId,
    /// The name.
    pub name: String,
    /// The provider.
    pub provider: String,
    /// The state.
    pub status: Status,
    /// Time of creation, in milliseconds since 1970.
    pub created_ms: u64,
    /// The exit code of the main process, once it has ended.
    pub exit_code: Option<i32>,
    /// Why the sandbox ended, if it is stopped and the reason is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_cause: Option<EndCause>,
    /// The image.
    pub image: Option<String>,
    /// The image's own command, which runs if no other is given.
    pub image_command: Option<Vec<String>>,
    /// Working directory of commands.
    pub workdir: String,
    /// The host directory that is mounted as the workspace.
    pub workspace: Option<PathBuf>,
    /// The network.
    pub network: NetworkMode,
    /// Published ports; empty while the sandbox does not run.
    #[serde(default)]
    pub ports: Vec<Published>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// What is enforced.
    pub enforcement: Enforcement,
}

/// The isolation and limits that are really in effect for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Enforcement {
    /// The name of the mode.
    pub mode: String,
    /// The isolation layers in effect.
    pub layers: Vec<IsolationLayer>,
    /// The limits in effect.
    pub limits: Limits,
}

/// Whether a provider can be used on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Availability {
    /// Whether the provider can be used.
    pub available: bool,
    /// The version of the backend, or what is missing.
    pub detail: String,
    /// What makes the provider usable.
    pub next_step: Option<NextStep>,
}
