//! The declaration of all settings. It is the only one: the check, the schema, the environment variables and the
//! built-in layer are derived from it. `x-aliases` are other names of a key, with the unit of a number without one.

use crate::quantity::{Cpus, HostPath, InnerPath, Name, Network, Port, Size, Time, Volume};
use kennel_types::{ByteSize, NetworkMode, Pull};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// All settings of Kennel.
///
/// Keys may be written in camelCase, snake_case or kebab-case. `${VAR}` in a text is a variable of the environment,
/// `${VAR:-default}` one that may be missing, `$$` a dollar sign. Relative paths of this machine start at the directory
/// of the file they stand in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Config {
    /// What a sandbox is when nothing else is said.
    pub sandbox: SandboxSection,
    /// Profiles: sandboxes with a name that stay.
    pub container: ContainerSection,
    /// The agent that `serve` starts for each session.
    pub agent: AgentSection,
    /// Images that Kennel pulls and keeps by itself.
    pub images: ImagesSection,
}

/// Images that Kennel pulls and keeps by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ImagesSection {
    /// Registries, each `host` or `host:port`, that may speak plain HTTP or have a certificate that nobody vouches for.
    pub insecure: Vec<String>,
    /// Places to ask before a registry, by its name, as in `"docker.io" = ["https://mirror.example"]`.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// What an image may take unpacked; `64g` if not given.
    #[schemars(with = "Size")]
    pub max_size: Option<ByteSize>,
}

/// What a sandbox is when nothing else is said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SandboxSection {
    /// Whether commands run in a sandbox; `false` runs them directly on this machine.
    pub enabled: bool,
    /// The provider; `auto` takes the first one that is there.
    #[schemars(extend("x-aliases" = {"backend": ""}))]
    pub provider: Provider,
    /// What happens when a sandbox is asked for and no provider is there.
    pub on_unavailable: OnUnavailable,
    /// The image.
    pub image: Option<String>,
    /// When the image is pulled.
    pub pull: Pull,
    /// The main process, program first.
    pub command: Option<Vec<String>>,
    /// Whether the image's own command is the main process of what `create` makes, where no other is named.
    pub image_command: bool,
    /// Whether nothing can be written but the workspace, volumes and `/tmp`; it needs an image.
    pub read_only: bool,
    /// What an engine runs containers with, as in `runsc`, `kata` or `crun`; its usual if not given.
    pub runtime: Option<String>,
    /// The user namespace that an engine gives it: `auto`, `keep-id` or `host`; the engine's usual if not given.
    pub userns: Option<String>,
    /// Working directory inside.
    #[schemars(with = "InnerPath")]
    pub workdir: String,
    /// Environment of every command.
    #[schemars(extend("x-aliases" = {"environment": ""}, "x-keys" = "variable"))]
    pub env: BTreeMap<String, String>,
    /// Labels, beside those Kennel sets itself.
    pub labels: BTreeMap<String, String>,
    /// User of commands: a name, an id, or `user:group`.
    pub user: Option<String>,
    /// Directory of this machine that is mounted at `/workspace`; the current one if not given.
    #[schemars(with = "HostPath", extend("x-aliases" = {"workspaceDir": ""}))]
    pub workspace: Option<PathBuf>,
    /// More mounts, each `host:container[:ro]` or a map.
    pub volumes: Vec<Volume>,
    /// Whether sandboxes with a name have a volume of their own at `/.data`, which outlives them.
    pub data: bool,
    /// Volumes that the sandboxes of a workspace share, each with where it is inside, as in `npm = "/root/.npm"`.
    #[schemars(with = "BTreeMap<String, InnerPath>", extend("x-keys" = "name"))]
    pub caches: BTreeMap<String, String>,
    /// The network: `bridge`, `host` or `none`.
    #[schemars(with = "Network", extend("x-aliases" = {"networkMode": ""}))]
    pub network: Option<Network>,
    /// Ports inside that are reachable on 127.0.0.1, each `container` or `host:container`.
    pub ports: Vec<Port>,
    /// Memory limit, as in `512m` or `4G`.
    #[schemars(with = "Size", extend("x-aliases" = {"memoryLimit": ""}))]
    pub memory: Option<ByteSize>,
    /// CPU limit, as in `0.5` or `4`.
    #[schemars(with = "Cpus", extend("x-aliases" = {"cpuLimit": ""}))]
    pub cpus: Option<Cpus>,
    /// Limit on processes and threads.
    #[schemars(range(min = 1), extend("x-aliases" = {"pidsLimit": ""}))]
    pub pids: Option<u32>,
    /// Room for what is written to a sandbox's own files, as in `512m` or `4G`.
    #[schemars(with = "Size", extend("x-aliases" = {"diskLimit": ""}))]
    pub disk: Option<ByteSize>,
    /// Whether programs of the home directory, as those of cargo, nvm or pyenv, can be read and run inside where the
    /// host's own root is below.
    pub toolchains: bool,
    /// More directories with programs that can be read and run there.
    #[schemars(with = "Vec<HostPath>")]
    pub extra_toolchains: Vec<PathBuf>,
    /// Whether other sandboxes, as those of bubblewrap, can be made inside. It opens up more of the kernel.
    pub nesting: bool,
    /// Whether `.git/config` is read-only inside, beside `.git/hooks`; with `false` neither is. The hooks if not given.
    pub protect_git: Option<bool>,
    /// How long a whole `run` may take.
    #[schemars(extend("x-aliases" = {"timeoutMs": "ms"}))]
    pub timeout: Time,
    /// How long one command may take. The built-in limit is for commands of an agent's tools; `run` and `exec` have one only where
    /// this is set, and their `--timeout` replaces it. It does not end what `exec --detach` leaves running.
    #[schemars(extend("x-aliases" = {"commandTimeoutMs": "ms"}))]
    pub command_timeout: Time,
    /// How long a sandbox may take to start; one that takes longer is ended.
    #[schemars(extend("x-aliases" = {"startupTimeoutSeconds": "s"}))]
    pub startup_timeout: Time,
    /// Whether a sandbox is removed when it ends. What `create` makes is removed only where this is set.
    pub auto_remove: bool,
    /// How long a sandbox may be without a command before it stops; for ever if not given.
    #[schemars(with = "Time", extend("x-aliases" = {"idleTimeoutMinutes": "m"}))]
    pub idle_timeout: Option<Time>,
    /// What the names of containers begin with; `native` and `local` make none.
    #[schemars(with = "Name", extend("x-aliases" = {"containerPrefix": ""}))]
    pub name_prefix: String,
    /// Virtual machines, for the `vm` provider.
    pub vm: VmSection,
}

impl Default for SandboxSection {
    fn default() -> Self {
        Self {
            enabled: true,
            provider: Provider::Auto,
            on_unavailable: OnUnavailable::Error,
            image: None,
            pull: Pull::Missing,
            command: None,
            image_command: false,
            read_only: false,
            runtime: None,
            userns: None,
            workdir: "/workspace".to_owned(),
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            user: None,
            workspace: None,
            volumes: Vec::new(),
            data: false,
            caches: BTreeMap::new(),
            network: None,
            ports: Vec::new(),
            memory: None,
            cpus: None,
            pids: None,
            disk: None,
            toolchains: true,
            extra_toolchains: Vec::new(),
            nesting: false,
            protect_git: None,
            timeout: Time(Duration::from_mins(5)),
            command_timeout: Time(Duration::from_mins(1)),
            startup_timeout: Time(Duration::from_secs(10)),
            auto_remove: true,
            idle_timeout: None,
            name_prefix: "kennel-".to_owned(),
            vm: VmSection::default(),
        }
    }
}

/// Virtual machines, for the `vm` provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct VmSection {
    /// Where the disks of machines are kept.
    #[schemars(with = "HostPath")]
    pub data_dir: Option<PathBuf>,
    /// Where the logs of their consoles are kept.
    #[schemars(with = "HostPath")]
    pub console_log_dir: Option<PathBuf>,
    /// The kernel.
    #[schemars(with = "HostPath")]
    pub kernel_path: Option<PathBuf>,
    /// The initial RAM disk.
    #[schemars(with = "HostPath")]
    pub initrd_path: Option<PathBuf>,
    /// The disk that every machine starts from.
    #[schemars(with = "HostPath")]
    pub base_disk_path: Option<PathBuf>,
    /// How long a machine may be without a session before it shuts down.
    pub idle_timeout: Time,
    /// CPUs of one machine.
    #[schemars(with = "Cpus", extend("x-aliases" = {"cpuCount": ""}))]
    pub cpus: Option<Cpus>,
    /// Memory of one machine.
    #[schemars(with = "Size", extend("x-aliases" = {"memoryMb": "m"}))]
    pub memory: Option<ByteSize>,
}

impl Default for VmSection {
    fn default() -> Self {
        Self {
            data_dir: None,
            console_log_dir: None,
            kernel_path: None,
            initrd_path: None,
            base_disk_path: None,
            idle_timeout: Time(Duration::from_mins(30)),
            cpus: None,
            memory: None,
        }
    }
}

/// Profiles: sandboxes with a name that stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ContainerSection {
    /// Whether profiles are used at all.
    pub enabled: bool,
    /// The provider of profiles; that of `sandbox` if not given.
    pub runtime: Option<Provider>,
    /// The profile that is used when none is named.
    #[schemars(with = "Name")]
    pub default_profile: Option<String>,
    /// The profiles, by name.
    #[schemars(extend("x-keys" = "name"))]
    pub profiles: BTreeMap<String, Profile>,
}

impl Default for ContainerSection {
    fn default() -> Self {
        Self { enabled: true, runtime: None, default_profile: None, profiles: BTreeMap::new() }
    }
}

/// A sandbox with a name that stays. What it leaves out is taken from `sandbox`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Profile {
    /// Its name: the same as its key.
    #[schemars(with = "Name")]
    pub name: Option<String>,
    /// Its provider.
    #[schemars(extend("x-aliases" = {"runtime": ""}))]
    pub provider: Option<Provider>,
    /// The image.
    pub image: Option<String>,
    /// When the image is pulled.
    pub pull: Option<Pull>,
    /// The main process, program first.
    pub command: Option<Vec<String>>,
    /// Working directory inside.
    #[schemars(with = "InnerPath")]
    pub workdir: Option<String>,
    /// Environment of every command.
    #[schemars(extend("x-aliases" = {"environment": ""}, "x-keys" = "variable"))]
    pub env: BTreeMap<String, String>,
    /// Labels, beside those Kennel sets itself.
    pub labels: BTreeMap<String, String>,
    /// User of commands: a name, an id, or `user:group`.
    pub user: Option<String>,
    /// Mounts, each `host:container[:ro]` or a map.
    pub volumes: Vec<Volume>,
    /// The network: `bridge`, `host` or `none`.
    #[schemars(with = "Network", extend("x-aliases" = {"networkMode": ""}))]
    pub network: Option<Network>,
    /// Ports inside that are reachable on 127.0.0.1, each `container` or `host:container`.
    pub ports: Vec<Port>,
    /// Memory limit, as in `512m` or `4G`.
    #[schemars(with = "Size", extend("x-aliases" = {"memoryLimit": ""}))]
    pub memory: Option<ByteSize>,
    /// CPU limit, as in `0.5` or `4`.
    #[schemars(with = "Cpus", extend("x-aliases" = {"cpuLimit": ""}))]
    pub cpus: Option<Cpus>,
    /// Limit on processes and threads.
    #[schemars(range(min = 1), extend("x-aliases" = {"pidsLimit": ""}))]
    pub pids: Option<u32>,
    /// How long one command may take.
    #[schemars(with = "Time", extend("x-aliases" = {"commandTimeoutMs": "ms"}))]
    pub command_timeout: Option<Time>,
    /// Whether it stays between commands.
    pub keep_alive: Option<bool>,
    /// How long it may be without a command before it stops; for ever if not given.
    #[schemars(with = "Time", extend("x-aliases" = {"idleTimeoutMinutes": "m"}))]
    pub idle_timeout: Option<Time>,
}

/// The agent that `serve` starts for each session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AgentSection {
    /// Whether it runs as a process of this machine or in a container.
    pub mode: AgentMode,
    /// The program; in a container the image's own one if not given.
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment.
    #[schemars(extend("x-aliases" = {"environment": ""}, "x-keys" = "variable"))]
    pub env: BTreeMap<String, String>,
    /// Its container, in container mode.
    pub container: AgentContainer,
}

/// The container of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AgentContainer {
    /// The image.
    pub image: Option<String>,
    /// Where the engine listens, as in `unix:///var/run/docker.sock`.
    pub docker_host: Option<String>,
    /// The network: `bridge`, `host` or `none`.
    #[schemars(with = "Network", extend("x-aliases" = {"networkMode": ""}))]
    pub network: Network,
    /// Memory limit, as in `512m` or `4G`.
    #[schemars(with = "Size", extend("x-aliases" = {"memoryLimit": ""}))]
    pub memory: Option<ByteSize>,
    /// CPU limit, as in `0.5` or `4`.
    #[schemars(with = "Cpus", extend("x-aliases" = {"cpuLimit": ""}))]
    pub cpus: Option<Cpus>,
    /// Limit on processes and threads.
    #[schemars(range(min = 1), extend("x-aliases" = {"pidsLimit": ""}))]
    pub pids: Option<u32>,
    /// Directory of this machine below which each session has its workspace.
    #[schemars(with = "HostPath")]
    pub workspace_host_base: Option<PathBuf>,
    /// Where a session sees its workspace.
    #[schemars(with = "InnerPath")]
    pub workspace_container_path: String,
    /// Whether the container is removed when the session ends.
    pub auto_remove: bool,
    /// How long the container may take to start.
    #[schemars(extend("x-aliases" = {"startupTimeoutSeconds": "s"}))]
    pub startup_timeout: Time,
}

impl Default for AgentContainer {
    fn default() -> Self {
        Self {
            image: None,
            docker_host: None,
            network: Network(NetworkMode::Bridge),
            memory: None,
            cpus: None,
            pids: None,
            workspace_host_base: None,
            workspace_container_path: "/workspace".to_owned(),
            auto_remove: true,
            startup_timeout: Time(Duration::from_secs(10)),
        }
    }
}

/// A provider of sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline, extend("x-renames" = {"macos-container": "apple"}))]
pub enum Provider {
    /// The first one that is there.
    #[default]
    Auto,
    /// Linux namespaces.
    Native,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// Apple's container program; also `macos-container`.
    Apple,
    /// A virtual machine for each project.
    Vm,
    /// A Kubernetes cluster.
    Kubernetes,
    /// Plain processes, for development.
    Local,
    /// In memory, for tests.
    Mock,
}

/// What happens when a sandbox is asked for and no provider is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum OnUnavailable {
    /// It is an error.
    #[default]
    Error,
    /// The command runs directly on this machine, without a sandbox.
    RunDirectly,
}

/// Where an agent runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum AgentMode {
    /// As a process of this machine.
    #[default]
    Process,
    /// In a container.
    Container,
}
