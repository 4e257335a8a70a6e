//! A sandbox: what is asked for, what is there, what is enforced.

use crate::{ByteSize, Layer, Port, Published, SandboxId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Everything a sandbox is asked to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxSpec {
    /// A name; the id stands in for it if not given.
    pub name: Option<String>,
    /// The image, for providers that run images.
    pub image: Option<String>,
    /// The main process. It starts with the sandbox, and the sandbox ends with it. Without one the sandbox waits for
    /// commands.
    pub command: Option<Vec<String>>,
    /// Working directory of commands; `/workspace` if not given (the workspace itself where nothing can be mounted).
    pub workdir: Option<String>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// Labels, beside those Kennel sets itself.
    pub labels: BTreeMap<String, String>,
    /// The session that it belongs to, by its id.
    pub session: Option<String>,
    /// The project that it belongs to: the directory of a repository, or whatever else the caller calls a project.
    pub project: Option<String>,
    /// The profile that it was made from, by its name.
    pub profile: Option<String>,
    /// User of commands: `name`, `uid`, `name:group` or `uid:gid`.
    pub user: Option<String>,
    /// Host directory mounted at `/workspace`.
    pub workspace: Option<PathBuf>,
    /// More mounts.
    pub mounts: Vec<Mount>,
    /// The network; the provider's default if not given.
    pub network: Option<NetworkMode>,
    /// Ports inside that can be reached on the host. They need the network `bridge`.
    pub ports: Vec<Port>,
    /// Without a command, the image's own is the main process.
    pub image_main: bool,
    /// Nothing can be written but the workspace, mounts, volumes and `/tmp`.
    pub read_only: bool,
    /// A volume of its own at `/.data`. It stays when the sandbox is removed, unless it is asked to go too, and one of the
    /// same name finds it again.
    pub data: bool,
    /// Volumes that sandboxes share, for what is costly to get again. They stay.
    pub caches: Vec<Cache>,
    /// What an engine runs containers with, if not its usual: `runsc`, `kata`, `crun`.
    pub runtime: Option<String>,
    /// The user namespace that an engine gives it: `auto`, `keep-id`, or `host` for none; the engine's usual if not given.
    pub userns: Option<String>,
    /// Programs of a home directory that are shown where the host's own root is below.
    pub toolchains: Option<Toolchains>,
    /// Other sandboxes, as those of bubblewrap, can be made inside. It opens up more of the kernel.
    pub nesting: bool,
    /// What of git repositories in writable mounts is read-only inside.
    pub protect_git: GitProtection,
    /// Limits.
    pub limits: Limits,
    /// The user outside on whose behalf the sandbox is made; the calling user if not given. Engines without a user namespace
    /// run commands as this user. On native, files made in a mount belong to the owner of that mount.
    pub owner: Option<Owner>,
    /// The sandbox ends, and is removed, with the connection of the one who made it.
    pub tied: bool,
    /// The sandbox is removed when it ends: when its main process ends, when it is stopped, or when it has been idle for too
    /// long. Its volumes stay.
    pub auto_remove: bool,
    /// Seconds without a command or connection after which it stops by itself.
    pub idle_seconds: Option<u64>,
    /// Milliseconds that a start may take; see [`Self::startup`].
    pub startup_ms: Option<u64>,
}

impl SandboxSpec {
    /// How long a start may take: ten seconds if nothing else is said.
    pub fn startup(&self) -> Duration {
        self.startup_ms.map_or(STARTUP, Duration::from_millis)
    }
}

/// How long a start may take.
pub const STARTUP: Duration = Duration::from_secs(10);

/// A user outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A host path shown inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Absolute path outside.
    pub host: PathBuf,
    /// Absolute path inside.
    pub target: String,
    /// Whether the inside may only read it.
    #[serde(default)]
    pub read_only: bool,
}

/// Programs that a person keeps in the home directory, as compilers and what manages them. They are shown to be read,
/// without what gives access to anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toolchains {
    /// The home directory, in which those that are known are looked for.
    pub home: PathBuf,
    /// More directories with programs, in the home directory or anywhere.
    pub more: Vec<PathBuf>,
    /// Where the caller looks for programs. Those places that are shown are searched inside too.
    pub search: Vec<PathBuf>,
}

/// A volume that sandboxes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cache {
    /// Its name: whoever names the same one gets the same.
    pub name: String,
    /// Absolute path inside.
    pub target: String,
}

/// What of a git repository at the top of a writable mount is read-only inside, because git on the host runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GitProtection {
    /// Nothing.
    None,
    /// The hooks.
    #[default]
    Hooks,
    /// The hooks and the repository's own settings (`.git/config`).
    Config,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
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
            _ => Err(format!("{text:?} is no time to pull: use always, missing or never")),
        }
    }
}

/// What network a sandbox sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// Its own network with a way out.
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
            _ => Err(format!("{text:?} is not a network mode: use bridge, host or none")),
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

/// Upper bounds on what a sandbox may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Memory.
    pub memory: Option<ByteSize>,
    /// CPU, in thousandths of one.
    pub millicpus: Option<u32>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// What is written to the sandbox's own files.
    #[serde(default)]
    pub disk: Option<ByteSize>,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether anything is limited that processes use: what control groups are for.
    pub fn on_processes(&self) -> bool {
        *self != Self { disk: self.disk, ..Self::default() }
    }
}

/// Where a sandbox is in its life.
///
/// ```text
///   create          start            stop, or its end          start
/// ---------> created -----> running ------------------> stopped -----> running
///               \              \                           |
///                +--------------+---------- remove --------+--> gone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Made, never started.
    Created,
    /// Its keeper runs.
    Running,
    /// Everything in it stands still.
    Paused,
    /// Ended or stopped; can be started again.
    Stopped,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Created, Self::Running, Self::Paused, Self::Stopped];

    /// Whether there are processes in it.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        })
    }
}

/// A sandbox as its provider sees it now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxInfo {
    /// Its id.
    pub id: SandboxId,
    /// Its name.
    pub name: String,
    /// The provider that holds it.
    pub provider: String,
    /// Where it is in its life.
    pub status: Status,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
    /// The exit code of its main process, once that has ended.
    pub exit_code: Option<i32>,
    /// The image.
    pub image: Option<String>,
    /// The image's own command, run when none is given.
    pub image_command: Option<Vec<String>>,
    /// Working directory of commands.
    pub workdir: String,
    /// Host directory at the workspace.
    pub workspace: Option<PathBuf>,
    /// The network it has.
    pub network: NetworkMode,
    /// Ports that can be reached on the host now: none while it does not run.
    #[serde(default)]
    pub ports: Vec<Published>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// What is enforced.
    pub enforcement: Enforcement,
}

/// What a sandbox is really held by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Enforcement {
    /// The row of the mode table.
    pub mode: String,
    /// Layers of isolation in force.
    pub layers: Vec<Layer>,
    /// Limits in force.
    pub limits: Limits,
}

/// Whether a provider can be used here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Availability {
    /// Whether it can be used.
    pub available: bool,
    /// The version of what is underneath, or what is missing.
    pub detail: String,
    /// The command that gets what is missing.
    pub fix: Option<String>,
}
