//! The declaration of all settings. The check, the schema, the environment variables and the built-in layer are derived
//! from it, so a setting is declared nowhere else.
//!
//! `x-aliases` maps each alternative name of a key to the unit of a plain number there (`""` if there is none). The doc
//! comments are the descriptions in the published schema.

use crate::quantity::{Cpus, HostPath, InnerPath, Name, Network, Port, Size, Socket, Time, Volume};
use kennel_types::{ByteSize, NetworkMode, Pull};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// All settings of Kennel.
///
/// Keys may be written in camelCase, snake_case or kebab-case. In a string, `${VAR}` is replaced by an environment
/// variable, `${VAR:-default}` by the variable or a default, and `$$` by a dollar sign. A relative path on the host
/// starts at the directory of the file that contains it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Config {
    /// Defaults for every sandbox.
    pub sandbox: SandboxSection,
    /// Profiles: named descriptions of sandboxes that stay.
    pub container: ContainerSection,
    /// The agent that `acp` and `agent run` start if no other is named.
    pub agent: AgentSection,
    /// Images that Kennel itself pulls and stores.
    pub images: ImagesSection,
}

/// Images that Kennel itself pulls and stores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ImagesSection {
    /// Registries, each `host` or `host:port`, that may use plain HTTP and whose certificates are not verified.
    pub insecure: Vec<String>,
    /// Mirrors to try before a registry, by the registry's name, as in `"docker.io" = ["https://mirror.example"]`.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Maximum size of an unpacked image; the default is `64g`.
    #[schemars(with = "Size")]
    pub max_size: Option<ByteSize>,
}

/// Defaults for every sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SandboxSection {
    /// Whether commands run in a sandbox. With `false` they run directly on the host.
    pub enabled: bool,
    /// The provider. `auto` uses the first one that is available.
    #[schemars(extend("x-aliases" = {"backend": ""}))]
    pub provider: Provider,
    /// What happens when a sandbox is requested and no provider is available.
    pub on_unavailable: OnUnavailable,
    /// The image.
    pub image: Option<String>,
    /// When to pull the image.
    pub pull: Pull,
    /// Command of the main process, program first.
    pub command: Option<Vec<String>>,
    /// Whether `create` runs the image's own command as the main process if no other command is given.
    pub image_command: bool,
    /// Whether the root filesystem is read-only. The workspace, volumes and `/tmp` stay writable. This needs an image.
    pub read_only: bool,
    /// Runtime that an engine uses for containers, as in `runsc`, `kata` or `crun`; the default is the engine's own.
    pub runtime: Option<String>,
    /// User namespace that an engine gives a sandbox: `auto`, `keep-id` or `host`; the default is the engine's own.
    pub userns: Option<String>,
    /// Working directory inside.
    #[schemars(with = "InnerPath")]
    pub workdir: String,
    /// Environment of every command.
    #[schemars(extend("x-aliases" = {"environment": ""}, "x-keys" = "variable"))]
    pub env: BTreeMap<String, String>,
    /// Labels, in addition to those that Kennel sets itself.
    pub labels: BTreeMap<String, String>,
    /// User of commands: a name, an id, or `user:group`.
    pub user: Option<String>,
    /// Directory of the host that is mounted at `/workspace`; the default is the current directory.
    #[schemars(with = "HostPath", extend("x-aliases" = {"workspaceDir": ""}))]
    pub workspace: Option<PathBuf>,
    /// Additional mounts, each `host:container[:ro]` or a map.
    pub volumes: Vec<Volume>,
    /// Whether a named sandbox has its own volume at `/.data`, which outlives it.
    pub data: bool,
    /// Volumes that all sandboxes of a workspace share, each with its path inside, as in `npm = "/root/.npm"`.
    #[schemars(with = "BTreeMap<String, InnerPath>", extend("x-keys" = "name"))]
    pub caches: BTreeMap<String, String>,
    /// The network: `bridge`, `host` or `none`.
    #[schemars(with = "Network", extend("x-aliases" = {"networkMode": ""}))]
    pub network: Option<Network>,
    /// Ports to publish on 127.0.0.1 of the host, each `container` or `host:container`, optionally with `/udp`.
    pub ports: Vec<Port>,
    /// Unix sockets of the host that programs inside can connect to, each `host:container` or a map.
    pub sockets: Vec<Socket>,
    /// Memory limit, as in `512m` or `4G`.
    #[schemars(with = "Size", extend("x-aliases" = {"memoryLimit": ""}))]
    pub memory: Option<ByteSize>,
    /// CPU limit, as in `0.5` or `4`.
    #[schemars(with = "Cpus", extend("x-aliases" = {"cpuLimit": ""}))]
    pub cpus: Option<Cpus>,
    /// Limit on the number of processes and threads.
    #[schemars(range(min = 1), extend("x-aliases" = {"pidsLimit": ""}))]
    pub pids: Option<u32>,
    /// Disk limit for the files that a sandbox writes outside its mounts, as in `512m` or `4G`.
    #[schemars(with = "Size", extend("x-aliases" = {"diskLimit": ""}))]
    pub disk: Option<ByteSize>,
    /// Whether a sandbox on the host's own files can read and run toolchains in the home directory, such as those of
    /// cargo, nvm or pyenv.
    pub toolchains: bool,
    /// Additional directories of programs that a sandbox on the host's own files can read and run.
    #[schemars(with = "Vec<HostPath>")]
    pub extra_toolchains: Vec<PathBuf>,
    /// Whether sandboxes such as those of bubblewrap can be created inside. This exposes more of the kernel.
    pub nesting: bool,
    /// Whether `.git/config` is read-only inside, in addition to `.git/hooks`. With `false` neither is. By default only
    /// the hooks are.
    pub protect_git: Option<bool>,
    /// Time limit of a whole `run`.
    #[schemars(extend("x-aliases" = {"timeoutMs": "ms"}))]
    pub timeout: Time,
    /// Time limit of one command. The built-in limit applies to commands of an agent's tools. `run` and `exec` have a
    /// limit only if this is set, and their `--timeout` overrides it. It does not apply to commands of `exec --detach`.
    #[schemars(extend("x-aliases" = {"commandTimeoutMs": "ms"}))]
    pub command_timeout: Time,
    /// Time limit for the start of a sandbox. A sandbox that takes longer is ended.
    #[schemars(extend("x-aliases" = {"startupTimeoutSeconds": "s"}))]
    pub startup_timeout: Time,
    /// Whether a sandbox is removed when it ends. A sandbox of `create` is removed only if this is set explicitly.
    pub auto_remove: bool,
    /// How long a sandbox may run without a command before it stops; the default is forever.
    #[schemars(with = "Time", extend("x-aliases" = {"idleTimeoutMinutes": "m"}))]
    pub idle_timeout: Option<Time>,
    /// How long a sandbox may run without a command before it is paused; the default is forever. A paused sandbox needs no
    /// CPU time, and the next command resumes it. This needs a resident process, and does not apply to `run`.
    #[schemars(with = "Time")]
    pub idle_pause: Option<Time>,
    /// Prefix of container names. `native` and `local` create no containers.
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
            sockets: Vec::new(),
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
            idle_pause: None,
            name_prefix: "kennel-".to_owned(),
            vm: VmSection::default(),
        }
    }
}

/// Virtual machines, for the `vm` provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct VmSection {
    /// Directory of the machines' disks.
    #[schemars(with = "HostPath")]
    pub data_dir: Option<PathBuf>,
    /// Directory of the machines' console logs.
    #[schemars(with = "HostPath")]
    pub console_log_dir: Option<PathBuf>,
    /// File of the kernel.
    #[schemars(with = "HostPath")]
    pub kernel_path: Option<PathBuf>,
    /// File of the initial RAM disk.
    #[schemars(with = "HostPath")]
    pub initrd_path: Option<PathBuf>,
    /// Disk image from which every machine starts.
    #[schemars(with = "HostPath")]
    pub base_disk_path: Option<PathBuf>,
    /// How long a machine may run without a session before it shuts down.
    pub idle_timeout: Time,
    /// Number of CPUs of one machine.
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

/// Profiles: named descriptions of sandboxes that stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ContainerSection {
    /// Whether profiles are used.
    pub enabled: bool,
    /// The provider of profiles; the default is that of `sandbox`.
    pub runtime: Option<Provider>,
    /// Name of the profile that is used if no other is given.
    #[schemars(with = "Name")]
    pub default_profile: Option<String>,
    /// The profiles, by name.
    #[schemars(extend("x-keys" = "name"))]
    pub profiles: BTreeMap<String, SandboxOverrides>,
}

impl Default for ContainerSection {
    fn default() -> Self {
        Self { enabled: true, runtime: None, default_profile: None, profiles: BTreeMap::new() }
    }
}

/// Settings that override those of the section `sandbox`. A profile consists of them, and so do the options of a single
/// command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[schemars(
    rename = "Profile",
    description = "A named description of a sandbox that stays. Settings that it does not contain are taken from `sandbox`."
)]
pub struct SandboxOverrides {
    /// Name of the profile, which must be its key.
    #[schemars(with = "Name")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
    /// The image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When to pull the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull: Option<Pull>,
    /// Command of the main process, program first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Whether the image's own command is the main process if no other command is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_command: Option<bool>,
    /// Whether the root filesystem is read-only. The workspace, volumes and `/tmp` stay writable. This needs an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Runtime that an engine uses for containers, as in `runsc`, `kata` or `crun`; the default is the engine's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// User namespace that an engine gives a sandbox: `auto`, `keep-id` or `host`; the default is the engine's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub userns: Option<String>,
    /// Working directory inside.
    #[schemars(with = "InnerPath")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Environment of every command.
    #[schemars(extend("x-aliases" = {"environment": ""}, "x-keys" = "variable"))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Labels, in addition to those that Kennel sets itself.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// User of commands: a name, an id, or `user:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Directory of the host that is mounted at `/workspace`; the default is the current directory.
    #[schemars(with = "HostPath", extend("x-aliases" = {"workspaceDir": ""}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    /// Whether no directory is mounted at `/workspace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_workspace: Option<bool>,
    /// Mounts, each `host:container[:ro]` or a map.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Whether the sandbox has its own volume at `/.data`, which outlives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<bool>,
    /// Volumes that all sandboxes of a workspace share, each with its path inside, as in `npm = "/root/.npm"`.
    #[schemars(with = "BTreeMap<String, InnerPath>", extend("x-keys" = "name"))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<String, String>,
    /// The network: `bridge`, `host` or `none`.
    #[schemars(with = "Network", extend("x-aliases" = {"networkMode": ""}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Ports to publish on 127.0.0.1 of the host, each `container` or `host:container`, optionally with `/udp`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Unix sockets of the host that programs inside can connect to, each `host:container` or a map.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<Socket>,
    /// Memory limit, as in `512m` or `4G`.
    #[schemars(with = "Size", extend("x-aliases" = {"memoryLimit": ""}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// CPU limit, as in `0.5` or `4`.
    #[schemars(with = "Cpus", extend("x-aliases" = {"cpuLimit": ""}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Limit on the number of processes and threads.
    #[schemars(range(min = 1), extend("x-aliases" = {"pidsLimit": ""}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Disk limit for the files that a sandbox writes outside its mounts, as in `512m` or `4G`.
    #[schemars(with = "Size", extend("x-aliases" = {"diskLimit": ""}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    /// Whether a sandbox on the host's own files can read and run toolchains in the home directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toolchains: Option<bool>,
    /// Additional directories of programs that a sandbox on the host's own files can read and run.
    #[schemars(with = "Vec<HostPath>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_toolchains: Vec<PathBuf>,
    /// Whether sandboxes such as those of bubblewrap can be created inside. This exposes more of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesting: Option<bool>,
    /// Whether `.git/config` is read-only inside, in addition to `.git/hooks`. With `false` neither is. By default only
    /// the hooks are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protect_git: Option<bool>,
    /// Time limit of one command.
    #[schemars(with = "Time", extend("x-aliases" = {"commandTimeoutMs": "ms"}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_timeout: Option<Time>,
    /// Time limit for the start of the sandbox. A sandbox that takes longer is ended.
    #[schemars(with = "Time", extend("x-aliases" = {"startupTimeoutSeconds": "s"}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_timeout: Option<Time>,
    /// Whether the sandbox keeps running between commands; the default is `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<bool>,
    /// How long the sandbox may run without a command before it stops; the default is forever.
    #[schemars(with = "Time", extend("x-aliases" = {"idleTimeoutMinutes": "m"}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Time>,
    /// How long the sandbox may run without a command before it is paused; the default is forever. The next command resumes
    /// it. This needs a resident process.
    #[schemars(with = "Time")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_pause: Option<Time>,
}

/// The agent that `acp` and `agent run` start if no other is named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AgentSection {
    /// Whether the agent runs as a process of the host or in a container.
    pub mode: AgentMode,
    /// Program of the agent. In a container, the default is the image's own command.
    pub command: Option<String>,
    /// Arguments of the agent.
    pub args: Vec<String>,
    /// Environment of the agent.
    #[schemars(extend("x-aliases" = {"environment": ""}, "x-keys" = "variable"))]
    pub env: BTreeMap<String, String>,
    /// Secrets of the agent, which reach only its process: a variable, and where its value comes from, as in `env:NAME`,
    /// `file:PATH` or `command:LINE`.
    #[schemars(extend("x-keys" = "variable"))]
    pub secrets: BTreeMap<String, String>,
    /// Container of the agent, in container mode.
    pub container: AgentContainer,
}

/// The container of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AgentContainer {
    /// The image.
    pub image: Option<String>,
    /// Address of the engine, as in `unix:///var/run/docker.sock`.
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
    /// Limit on the number of processes and threads.
    #[schemars(range(min = 1), extend("x-aliases" = {"pidsLimit": ""}))]
    pub pids: Option<u32>,
    /// Directory of the host that contains the workspaces of all sessions.
    #[schemars(with = "HostPath")]
    pub workspace_host_base: Option<PathBuf>,
    /// Path of a session's workspace in the container. By default it is at its own path. Paths in messages are rewritten.
    #[schemars(with = "InnerPath")]
    pub workspace_container_path: Option<String>,
    /// Whether the container is removed when the session ends.
    pub auto_remove: bool,
    /// Time limit for the start of the container.
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
            workspace_container_path: None,
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
    /// The first provider that is available.
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
    /// Plain processes of the host, for development.
    Local,
    /// In memory, for tests.
    Mock,
}

/// What happens when a sandbox is requested and no provider is available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum OnUnavailable {
    /// It is an error.
    #[default]
    Error,
    /// The command runs directly on the host, without a sandbox.
    RunDirectly,
}

/// Where an agent runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum AgentMode {
    /// As a process of the host.
    #[default]
    Process,
    /// In a container.
    Container,
}
