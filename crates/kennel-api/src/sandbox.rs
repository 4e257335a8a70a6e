//! Sandboxes.

use crate::{Bytes, Cpus, Millis};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A sandbox to create. Everything that is left out has the default of the server's settings.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CreateSandbox {
    /// The name; defaults to the id.
    pub name: Option<String>,
    /// The provider; defaults to the first that works, but never `local`.
    pub provider: Option<ProviderName>,
    /// The image, for providers that run images.
    pub image: Option<String>,
    /// When to pull the image.
    pub pull: Option<PullPolicy>,
    /// The main process, program first. The sandbox ends when it ends. Without one, the sandbox waits for commands.
    pub command: Option<Vec<String>>,
    /// Use the image's own command as the main process, if `command` is not given.
    pub image_command: Option<bool>,
    /// Make the root filesystem read-only.
    pub read_only: Option<bool>,
    /// The container runtime. Needs the scope `admin`.
    pub runtime: Option<String>,
    /// The engine's user namespace mode. Needs the scope `admin`.
    pub userns: Option<String>,
    /// The working directory of commands.
    pub workdir: Option<String>,
    /// The environment of every command. `${VAR}` is not expanded.
    pub env: BTreeMap<String, String>,
    /// Labels, in addition to those that Kennel sets.
    pub labels: BTreeMap<String, String>,
    /// The project that the sandbox belongs to; defaults to that of the token, or to the repository of the workspace.
    pub project: Option<String>,
    /// The user of commands: `name`, `uid`, `name:group` or `uid:gid`.
    pub user: Option<String>,
    /// The absolute path of a directory on the server's host, mounted at `/workspace`. Without one there is no workspace.
    pub workspace: Option<String>,
    /// Additional mounts.
    pub mounts: Vec<MountRequest>,
    /// Mount a volume at `/.data` that outlives the sandbox.
    pub data: Option<bool>,
    /// Volumes that sandboxes share: the name, and the path inside.
    pub caches: BTreeMap<String, String>,
    /// The network. `host` needs the scope `admin`.
    pub network: Option<Network>,
    /// Ports to publish on the server's host.
    pub ports: Vec<PortRequest>,
    /// The memory limit.
    pub memory: Option<Bytes>,
    /// The CPU limit.
    pub cpus: Option<Cpus>,
    /// The limit on processes and threads.
    #[schemars(range(min = 1))]
    pub pids: Option<u32>,
    /// The limit on bytes that are written outside mounts.
    pub disk: Option<Bytes>,
    /// Allow sandboxes inside this one. Needs the scope `admin`.
    pub nesting: Option<bool>,
    /// Whether `.git/config` is read-only inside, in addition to the hooks. `false` protects neither, and needs the scope
    /// `admin`.
    pub protect_git: Option<bool>,
    /// The time limit of a start.
    pub startup_timeout: Option<Millis>,
    /// Stop the sandbox after this time without use.
    pub idle_timeout: Option<Millis>,
    /// Pause the sandbox after this time without use.
    pub idle_pause: Option<Millis>,
    /// Remove the sandbox after this time, whatever runs in it. It can be renewed. Without one, or with 0, it does not
    /// expire.
    pub ttl: Option<Millis>,
    /// Remove the sandbox when it ends.
    pub auto_remove: bool,
    /// Also start the sandbox; defaults to true.
    pub start: bool,
}

impl Default for CreateSandbox {
    fn default() -> Self {
        Self {
            name: None,
            provider: None,
            image: None,
            pull: None,
            command: None,
            image_command: None,
            read_only: None,
            runtime: None,
            userns: None,
            workdir: None,
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            project: None,
            user: None,
            workspace: None,
            mounts: Vec::new(),
            data: None,
            caches: BTreeMap::new(),
            network: None,
            ports: Vec::new(),
            memory: None,
            cpus: None,
            pids: None,
            disk: None,
            nesting: None,
            protect_git: None,
            startup_timeout: None,
            idle_timeout: None,
            idle_pause: None,
            ttl: None,
            auto_remove: false,
            start: true,
        }
    }
}

/// The name of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProviderName {
    /// Linux namespaces, without an engine.
    Native,
    /// Containers of Podman.
    Podman,
    /// Containers of Docker.
    Docker,
    /// Plain processes without isolation. Needs the scope `admin`.
    Local,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PullPolicy {
    /// Every time.
    Always,
    /// If it is not there.
    Missing,
    /// Not at all.
    Never,
}

/// The network of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Its own network, with access to the outside.
    Bridge,
    /// The host's network.
    Host,
    /// Loopback only.
    None,
}

/// A path of the server's host that is mounted in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MountRequest {
    /// The absolute path on the host.
    pub host: String,
    /// The absolute path inside.
    pub target: String,
    /// Whether it is read-only inside.
    #[serde(default)]
    pub read_only: bool,
}

/// A port to publish on the server's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortRequest {
    /// The port inside.
    #[schemars(range(min = 1))]
    pub inside: u16,
    /// The port on 127.0.0.1 of the host; any free one if not given.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub host: Option<u16>,
    /// Whether it is a UDP port.
    #[serde(default)]
    pub udp: bool,
}

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxStatus {
    /// Created, but never started.
    Created,
    /// It runs.
    Running,
    /// All processes are paused.
    Paused,
    /// Ended or stopped. It can be started again.
    Stopped,
}

/// A sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxView {
    /// The id.
    pub id: String,
    /// The name.
    pub name: String,
    /// The provider.
    pub provider: String,
    /// The state.
    pub status: SandboxStatus,
    /// The time of creation, in milliseconds since 1970.
    pub created_ms: u64,
    /// The exit code of the main process, once it has ended.
    pub exit_code: Option<i32>,
    /// Why the sandbox ended, if it is stopped and the reason is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_cause: Option<String>,
    /// The image.
    pub image: Option<String>,
    /// The working directory of commands.
    pub workdir: String,
    /// The directory of the server's host that is mounted as the workspace.
    pub workspace: Option<String>,
    /// The project.
    pub project: Option<String>,
    /// The profile that it was made from.
    pub profile: Option<String>,
    /// The session that it belongs to.
    pub session: Option<String>,
    /// The network.
    pub network: Network,
    /// Published ports; empty while the sandbox does not run.
    pub ports: Vec<PublishedPort>,
    /// The address and port on the host of the first published TCP port, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The name of the mode, which says what is enforced.
    pub mode: String,
    /// The isolation layers in effect.
    pub layers: Vec<String>,
    /// The limits in effect.
    pub limits: LimitsView,
    /// When the sandbox is removed, in milliseconds since 1970, if it was created with a `ttl`.
    pub expires_at: Option<u64>,
}

/// A published port.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PublishedPort {
    /// The port inside.
    pub inside: u16,
    /// The address and port on the host.
    pub address: String,
    /// `tcp` or `udp`.
    pub protocol: String,
}

/// Limits in effect.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitsView {
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// CPU, in thousandths of a CPU.
    pub millicpus: Option<u32>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Bytes written to the sandbox's own files.
    pub disk_bytes: Option<u64>,
}

/// Changes a sandbox. Everything that is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ChangeSandbox {
    /// Labels to set. `null` removes a label. Kennel's own labels cannot be changed.
    pub labels: BTreeMap<String, Option<String>>,
    /// The memory limit.
    pub memory: Option<Bytes>,
    /// The CPU limit.
    pub cpus: Option<Cpus>,
    /// The limit on processes and threads.
    #[schemars(range(min = 1))]
    pub pids: Option<u32>,
    /// The limit on bytes that are written outside mounts. No provider can change it yet.
    pub disk: Option<Bytes>,
}

/// Gives a sandbox more time, or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewRequest {
    /// The time from now until the sandbox is removed. 0 means that it does not expire.
    pub ttl: Millis,
}

/// Stops a sandbox.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct StopRequest {
    /// The time between TERM and KILL; defaults to 10 seconds, at most 10 minutes.
    pub grace: Option<Millis>,
}

/// Renames a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenameRequest {
    /// The new name.
    pub name: String,
}

/// The state in which a sandbox was when the wait ended.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitResult {
    /// Whether the sandbox has ended. If not, the time of the request was over first.
    pub ended: bool,
    /// The exit code of the main process, if it has ended and there was one.
    pub exit_code: Option<i32>,
    /// The state; absent if the sandbox was removed.
    pub status: Option<SandboxStatus>,
}

/// Resource usage of a sandbox, summed over all its processes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStats {
    /// CPU time since the start.
    pub cpu_micros: u64,
    /// Memory in use.
    pub memory_bytes: u64,
    /// The memory limit in effect.
    pub memory_limit_bytes: Option<u64>,
    /// The number of processes.
    pub pids: u64,
    /// Bytes read from disk.
    pub read_bytes: Option<u64>,
    /// Bytes written to disk.
    pub written_bytes: Option<u64>,
    /// The number of processes killed because memory ran out.
    pub oom_kills: Option<u64>,
}
