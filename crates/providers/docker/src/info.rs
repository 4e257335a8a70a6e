//! Converts the engine's description of a container to that of a sandbox. What is reported as enforced is what the
//! container has, not what was requested.

use crate::engine::EngineKind;
use crate::engine_mode::has_own_ids;
use crate::labels;
use crate::mounts::{OURS, WORKSPACE};
use crate::names::{self, NamePrefix};
use crate::plan::{CAPABILITIES, FIREWALL_CAPABILITY};
use kennel_core::Result;
use kennel_proto::ending::{IDLE, OWNER_GONE};
use kennel_provider::permit;
use kennel_types::{
    ByteSize, EndCause, Enforcement, IsolationLayer, Limits, Mode, NetworkMode, Operation, ProviderKind, Published,
    STARTUP, SandboxId, SandboxInfo, Status, Support,
};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The engine's description of a container, and the kind of engine.
pub(crate) struct Seen {
    pub(crate) inspected: Inspected,
    /// The description from Podman's own API.
    pub(crate) own: Option<Own>,
    pub(crate) kind: EngineKind,
}

/// The parts of an inspection that are used.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Inspected {
    id: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    state: ContainerState,
    #[serde(default)]
    config: Config,
    #[serde(default)]
    host_config: HostConfig,
    #[serde(default)]
    mounts: Option<Vec<MountPoint>>,
    #[serde(default)]
    network_settings: NetworkSettings,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NetworkSettings {
    ports: Option<HashMap<String, Option<Vec<PortBinding>>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct PortBinding {
    host_ip: String,
    host_port: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Config {
    image: Option<String>,
    labels: Option<HashMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct HostConfig {
    auto_remove: bool,
    cap_add: Option<Vec<String>>,
    cap_drop: Option<Vec<String>>,
    ipc_mode: String,
    memory: i64,
    nano_cpus: i64,
    network_mode: String,
    pid_mode: String,
    pids_limit: Option<i64>,
    privileged: bool,
    readonly_rootfs: bool,
    runtime: String,
    security_opt: Option<Vec<String>>,
    userns_mode: String,
    #[serde(rename = "UTSMode")]
    uts_mode: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct MountPoint {
    #[serde(rename = "Type")]
    kind: String,
    /// The name of a volume.
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    source: String,
    destination: String,
}

/// The state as text, because Podman has states that Docker's client library does not know.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ContainerState {
    status: String,
    pid: i64,
    exit_code: i64,
    #[serde(rename = "OOMKilled")]
    oom_killed: bool,
}

/// Information that only Podman's own API has.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Own {
    #[serde(default)]
    bounding_caps: Option<Vec<String>>,
    #[serde(default, rename = "OCIRuntime")]
    runtime: String,
    #[serde(default)]
    host_config: OwnHostConfig,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct OwnHostConfig {
    #[serde(rename = "IDMappings")]
    id_mappings: Option<IdMappings>,
}

/// Id mappings, each as `inside:outside:count`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct IdMappings {
    uid_map: Vec<String>,
}

/// A container that is a sandbox of this installation.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    /// The engine's id of the container.
    pub(crate) engine_id: String,
    /// The process id of its first process on this machine, while it runs.
    pub(crate) pid: Option<i32>,
    /// Whether it lives only as long as its creator is connected.
    pub(crate) tied: bool,
    /// Whether the engine removes it when it ends.
    pub(crate) auto_remove: bool,
    /// Whether it has a main process.
    pub(crate) main: bool,
    /// The time limit of a start.
    pub(crate) startup: Duration,
    /// The prefix of its name.
    pub(crate) prefix: NamePrefix,
    /// The host paths of its bind mounts, without Kennel's own.
    pub(crate) host_paths: Vec<PathBuf>,
    /// The directory of its keeper's socket, if it is on this machine. Otherwise the keeper is reached through the
    /// engine.
    pub(crate) run_dir: Option<PathBuf>,
    /// Whether the keeper program must be copied into it before each start.
    pub(crate) copied: bool,
    /// Whether it has no keeper.
    pub(crate) plain: bool,
    /// Whether its keeper needs the list of blocked addresses before each start.
    pub(crate) filter: bool,
    /// The container runtime.
    pub(crate) runtime: String,
    /// Whether its root filesystem is read-only.
    pub(crate) read_only: bool,
    /// The name of its own volume, if it has one.
    pub(crate) data: Option<String>,
    /// The names of all volumes in it.
    pub(crate) volumes: Vec<String>,
    /// The mode that it was created with.
    pub(crate) mode: &'static Mode,
    /// The description of the sandbox.
    pub(crate) info: SandboxInfo,
}

impl Container {
    /// Parses an inspection. Returns `None` if it is not a sandbox of that installation.
    pub(crate) fn read(seen: Seen, installation: &str) -> Option<Self> {
        let Seen { inspected, own, kind } = seen;
        let Inspected { id: engine_id, name, state, config, host_config: host, mounts, network_settings } = inspected;
        let labels = config.labels.unwrap_or_default();
        let id = labels::sandbox_of(&labels, installation)?;
        let mode = mode(&labels, kind);
        let mounts = mounts.unwrap_or_default();
        let status = status(&state.status);
        let main = labels.get(labels::MAIN).is_some_and(|text| text == "true");
        let exit_code = i32::try_from(state.exit_code).ok().filter(|_| status == Status::Stopped);
        let info = SandboxInfo {
            name: names::sandbox(name.as_deref(), &labels).unwrap_or_else(|| id.to_string()),
            provider: mode.provider().into(),
            status,
            created_ms: labels.get(labels::CREATED).and_then(|text| text.parse().ok()).unwrap_or_default(),
            exit_code: exit_code.filter(|_| main),
            end_cause: exit_code.map(|code| end_cause(main, code, state.oom_killed)),
            // The engine's own name for the image may be longer.
            image: labels.get(labels::IMAGE).cloned().or(config.image),
            image_command: image_command(&labels),
            workdir: labels.get(labels::WORKDIR).cloned().unwrap_or_else(|| WORKSPACE.into()),
            workspace: mounted_at(&mounts, WORKSPACE),
            network: network(&host),
            ports: network_settings.ports.filter(|_| status == Status::Running).map(published).unwrap_or_default(),
            enforcement: Enforcement {
                mode: mode.name(),
                layers: layers(mode, &host, own.as_ref()),
                limits: limits(&host),
            },
            id,
            labels: labels::visible(&labels),
        };
        Some(Self {
            engine_id,
            pid: i32::try_from(state.pid).ok().filter(|pid| *pid > 0),
            tied: host.auto_remove && labels.get(labels::AUTO_REMOVE).is_none_or(|text| text != "true"),
            auto_remove: host.auto_remove,
            main,
            startup: startup(&labels),
            prefix: NamePrefix::from_labels(&labels),
            read_only: host.readonly_rootfs,
            runtime: own.map_or(host.runtime, |own| own.runtime),
            data: labels.get(labels::DATA).filter(|name| !name.is_empty()).cloned(),
            copied: mounts.iter().any(|mount| mount.kind == "volume" && mount.destination == OURS),
            plain: mode.keeper == Support::Refused,
            filter: info.network == NetworkMode::Bridge
                && info.enforcement.layers.contains(&IsolationLayer::NetworkFilter),
            run_dir: mounted_at(&mounts, &format!("{OURS}/run")),
            host_paths: host_paths(&mounts),
            volumes: mounts.into_iter().filter(|mount| mount.kind == "volume").filter_map(|mount| mount.name).collect(),
            mode,
            info,
        })
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.info.id
    }

    pub(crate) fn is_running(&self) -> bool {
        self.info.status == Status::Running
    }

    /// Checks whether an operation is allowed in the current state. Returns whether there is anything to do.
    pub(crate) fn permit(&self, operation: Operation) -> Result<bool> {
        permit(&self.info.name, self.info.status, self.tied, operation)
    }
}

/// Why a container ended, if that was not requested. Without a main process, its keeper's exit code tells.
pub(crate) fn end_cause(main: bool, exit_code: i32, oom_killed: bool) -> EndCause {
    match exit_code {
        _ if oom_killed => EndCause::OutOfMemory,
        _ if main => EndCause::Exited,
        0 => EndCause::Requested,
        IDLE => EndCause::Idle,
        OWNER_GONE => EndCause::OwnerGone,
        _ => EndCause::Killed,
    }
}

/// Converts the engine's name of a state.
pub(crate) fn status(word: &str) -> Status {
    match word {
        "running" | "restarting" | "stopping" => Status::Running,
        "paused" => Status::Paused,
        "created" | "configured" | "initialized" => Status::Created,
        _ => Status::Stopped,
    }
}

/// Returns the mode that it was created with.
fn mode(labels: &HashMap<String, String>, kind: EngineKind) -> &'static Mode {
    // Anybody who uses the engine can write labels. A mode that does not belong to this engine is ignored.
    let made_by = labels.get(labels::MODE).and_then(|name| Mode::named(name));
    let provider = kind.provider();
    made_by.filter(|mode| mode.key.provider == provider).unwrap_or_else(|| Mode::first_of(provider))
}

fn startup(labels: &HashMap<String, String>) -> Duration {
    labels.get(labels::STARTUP).and_then(|text| text.parse().ok()).map_or(STARTUP, Duration::from_millis)
}

fn network(host: &HostConfig) -> NetworkMode {
    match host.network_mode.as_str() {
        "host" => NetworkMode::Host,
        "none" => NetworkMode::None,
        _ => NetworkMode::Bridge,
    }
}

/// Returns the published ports; none while it does not run.
fn published(ports: HashMap<String, Option<Vec<PortBinding>>>) -> Vec<Published> {
    let mut found = Vec::new();
    for (key, bindings) in ports {
        let Some((inside, protocol)) = key.split_once('/') else { continue };
        let (Ok(inside), Ok(protocol)) = (inside.parse(), protocol.parse()) else { continue };
        for binding in bindings.into_iter().flatten() {
            if let Ok(address) = format!("{}:{}", binding.host_ip, binding.host_port).parse() {
                found.push(Published { address, inside, protocol });
            }
        }
    }
    found.sort_by_key(|port| (port.inside, port.address.port()));
    found
}

/// Returns the host path that is mounted at `target`.
fn mounted_at(mounts: &[MountPoint], target: &str) -> Option<PathBuf> {
    mounts.iter().find(|mount| mount.kind == "bind" && mount.destination == target).map(|it| it.source.clone().into())
}

fn host_paths(mounts: &[MountPoint]) -> Vec<PathBuf> {
    let of_user = |mount: &&MountPoint| mount.kind == "bind" && !Path::new(&mount.destination).starts_with(OURS);
    mounts.iter().filter(of_user).map(|mount| mount.source.clone().into()).collect()
}

fn image_command(labels: &HashMap<String, String>) -> Option<Vec<String>> {
    let command: Vec<String> = serde_json::from_str(labels.get(labels::IMAGE_COMMAND)?).ok()?;
    Some(command).filter(|command| !command.is_empty())
}

fn limits(host: &HostConfig) -> Limits {
    let set = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
    Limits {
        memory: set(host.memory).map(ByteSize),
        millicpus: set(host.nano_cpus).map(|nanos| u32::try_from(nanos / 1_000_000).unwrap_or(u32::MAX)),
        pids: set(host.pids_limit.unwrap_or_default()).map(|pids| u32::try_from(pids).unwrap_or(u32::MAX)),
        disk: None,
    }
}

/// Returns the layers of the mode that this container really has.
fn layers(mode: &Mode, host: &HostConfig, own: Option<&Own>) -> Vec<IsolationLayer> {
    let apart = |mode: &str| !mode.starts_with("host");
    let privileged = host.privileged;
    let options = host.security_opt.as_deref().unwrap_or_default();
    let has = |layer: IsolationLayer| match layer {
        IsolationLayer::MountNamespace => true,
        IsolationLayer::UserNamespace => match (has_own_ids(mode), own) {
            // An engine whose mode has this layer runs in a user namespace itself.
            (false, _) => true,
            (true, Some(own)) => has_another_root(own),
            // An engine that remaps ids does so for all containers that do not opt out.
            (true, None) => mode.key.provider == ProviderKind::Docker && apart(&host.userns_mode),
        },
        IsolationLayer::PidNamespace => apart(&host.pid_mode),
        IsolationLayer::IpcNamespace => apart(&host.ipc_mode),
        IsolationLayer::UtsNamespace => apart(&host.uts_mode),
        IsolationLayer::NetNamespace => network(host) != NetworkMode::Host,
        // The keeper loads the rules, or the container exits.
        IsolationLayer::NetworkFilter => match network(host) {
            NetworkMode::Bridge => capabilities(host, own).iter().any(|name| name == FIREWALL_CAPABILITY),
            NetworkMode::None => true,
            NetworkMode::Host => false,
        },
        IsolationLayer::ReducedCapabilities => !privileged && has_few_capabilities(host, own),
        IsolationLayer::NoNewPrivileges => {
            options.iter().any(|option| matches!(option.as_str(), "no-new-privileges" | "no-new-privileges:true"))
        }
        IsolationLayer::Seccomp => {
            !privileged && !options.iter().any(|option| option.starts_with("seccomp") && option.ends_with("unconfined"))
        }
        // An inspection does not show these.
        IsolationLayer::CgroupNamespace | IsolationLayer::Landlock => false,
    };
    mode.layers.iter().copied().filter(|layer| has(*layer)).collect()
}

/// Whether root inside is mapped to another id, according to the engine's actual mapping.
fn has_another_root(own: &Own) -> bool {
    let maps = own.host_config.id_mappings.as_ref().map(|maps| maps.uid_map.as_slice()).unwrap_or_default();
    let outside = |map: &String| {
        let mut parts = map.split(':');
        (parts.next() == Some("0")).then(|| parts.next().and_then(|id| id.parse::<u32>().ok())).flatten()
    };
    maps.iter().find_map(outside).is_some_and(|root| root != 0)
}

fn has_few_capabilities(host: &HostConfig, own: Option<&Own>) -> bool {
    // The keeper drops the capability for its rules.
    let few =
        || capabilities(host, own).iter().all(|name| CAPABILITIES.contains(&&**name) || name == FIREWALL_CAPABILITY);
    let dropped = || host.cap_drop.iter().flatten().any(|name| bare(name) == "ALL");
    own.map_or_else(dropped, |own| own.bounding_caps.is_some()) && few()
}

/// Returns the capabilities of the container. Docker reports those that were added. Podman reports there the difference
/// to a configurable default, so its own API is used.
fn capabilities(host: &HostConfig, own: Option<&Own>) -> Vec<String> {
    let names = own.map_or(host.cap_add.as_ref(), |own| own.bounding_caps.as_ref());
    names.into_iter().flatten().map(|name| bare(name)).collect()
}

fn bare(name: &str) -> String {
    name.to_ascii_uppercase().trim_start_matches("CAP_").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode() -> &'static Mode {
        Mode::named("docker, root").unwrap()
    }

    /// An inspection as the engine sends it.
    fn inspected(state: &serde_json::Value, host: &serde_json::Value) -> Inspected {
        let inspected = serde_json::json!({
            "Id": "0123",
            "Name": "/kennel-renamed",
            "State": state,
            "HostConfig": host,
            "Mounts": [
                {"Type": "bind", "Source": "/home/ann", "Destination": "/workspace"},
                {"Type": "volume", "Source": "/var/lib/x", "Destination": "/.kennel"},
                {"Type": "bind", "Source": "/state/abc", "Destination": "/.kennel/run"},
            ],
            "Config": {
                "Image": "busybox",
                "Labels": {
                    "kennel.id": "abc", "kennel.name": "box", "kennel.installation": "here", "kennel.main": "true",
                    "kennel.mode": "docker, root", "kennel.image": "busybox",
                    "kennel.startup-ms": "1500", "kennel.name-prefix": "kennel-",
                    "kennel.created-ms": "17", "kennel.image-command": "[\"sh\"]", "kennel.workdir": "/srv", "a": "b",
                },
            },
        });
        serde_json::from_value(inspected).unwrap()
    }

    fn hardened() -> serde_json::Value {
        serde_json::json!({
            "NetworkMode": "bridge", "CapDrop": ["ALL"], "CapAdd": ["CAP_KILL", "SETUID", "NET_ADMIN"], "IpcMode": "private",
            "SecurityOpt": ["no-new-privileges"], "Memory": 1024, "NanoCpus": 500_000_000, "PidsLimit": 7,
            "AutoRemove": true,
        })
    }

    fn seen(state: &serde_json::Value, host: &serde_json::Value) -> Seen {
        Seen { inspected: inspected(state, host), own: None, kind: EngineKind::Docker }
    }

    fn read(state: &serde_json::Value, host: &serde_json::Value) -> Container {
        Container::read(seen(state, host), "here").unwrap()
    }

    #[test]
    fn a_running_container_is_read_completely() {
        let found = read(&serde_json::json!({"Status": "running", "Pid": 42, "ExitCode": 0}), &hardened());
        assert_eq!((found.pid, found.tied, found.main, found.engine_id.as_str()), (Some(42), true, true, "0123"));
        assert_eq!((found.startup, found.prefix), (Duration::from_millis(1500), NamePrefix::default()));
        assert_eq!(found.run_dir, Some("/state/abc".into()));
        let info = found.info;
        assert_eq!((info.id.as_str(), info.name.as_str(), info.created_ms), ("abc", "renamed", 17));
        assert_eq!((info.status, info.exit_code), (Status::Running, None));
        assert_eq!(info.workspace, Some("/home/ann".into()));
        assert_eq!((info.workdir.as_str(), info.network), ("/srv", NetworkMode::Bridge));
        assert_eq!(info.image_command, Some(vec!["sh".into()]));
        assert_eq!(info.enforcement.layers, mode().layers);
        let limits = Limits { memory: Some(ByteSize(1024)), millicpus: Some(500), pids: Some(7), disk: None };
        assert_eq!(info.enforcement.limits, limits);
    }

    #[test]
    fn status_and_exit_code_are_those_of_the_engine() {
        let of = |state: serde_json::Value| {
            let info = read(&state, &hardened()).info;
            (info.status, info.exit_code)
        };
        let state = |status: &str| serde_json::json!({"Status": status, "Pid": 0, "ExitCode": 137});
        assert_eq!(of(state("created")), (Status::Created, None));
        assert_eq!(of(state("paused")), (Status::Paused, None));
        for ended in ["exited", "dead", "removing"] {
            assert_eq!(of(state(ended)), (Status::Stopped, Some(137)), "{ended}");
        }
        assert_eq!(read(&state("exited"), &hardened()).pid, None);
        // States that only Podman has.
        for (word, status) in
            [("initialized", Status::Created), ("stopping", Status::Running), ("new", Status::Stopped)]
        {
            assert_eq!(of(state(word)).0, status, "{word}");
        }
    }

    #[test]
    fn missing_isolation_layers_are_not_reported() {
        let cases = [
            (
                "NetworkMode",
                serde_json::json!("host"),
                vec![IsolationLayer::NetNamespace, IsolationLayer::NetworkFilter],
            ),
            ("CapAdd", serde_json::json!(["CAP_KILL"]), vec![IsolationLayer::NetworkFilter]),
            ("PidMode", serde_json::json!("host"), vec![IsolationLayer::PidNamespace]),
            ("CapDrop", serde_json::json!([]), vec![IsolationLayer::ReducedCapabilities]),
            ("CapAdd", serde_json::json!(["SYS_ADMIN", "NET_ADMIN"]), vec![IsolationLayer::ReducedCapabilities]),
            (
                "SecurityOpt",
                serde_json::json!(["seccomp=unconfined"]),
                vec![IsolationLayer::NoNewPrivileges, IsolationLayer::Seccomp],
            ),
            ("Privileged", serde_json::json!(true), vec![IsolationLayer::ReducedCapabilities, IsolationLayer::Seccomp]),
        ];
        for (key, value, missing) in cases {
            let mut host = hardened();
            host[key] = value;
            let found = read(&serde_json::json!({"Status": "created"}), &host).info.enforcement.layers;
            let gone: Vec<IsolationLayer> =
                mode().layers.iter().copied().filter(|layer| !found.contains(layer)).collect();
            assert_eq!(gone, missing, "{key}");
        }
    }

    #[test]
    fn a_container_in_the_hosts_user_namespace_is_reported_as_such() {
        let with = |userns: &str| {
            let mut host = hardened();
            host["UsernsMode"] = userns.into();
            let mut seen = seen(&serde_json::json!({"Status": "running"}), &host);
            let labels = seen.inspected.config.labels.as_mut().unwrap();
            labels.insert(labels::MODE.into(), "docker, root, userns remap".into());
            Container::read(seen, "here").unwrap().info.enforcement.layers.contains(&IsolationLayer::UserNamespace)
        };
        assert!(with(""));
        assert!(!with("host"));
    }

    #[test]
    fn podmans_actual_capabilities_are_reported() {
        let state = serde_json::json!({"Status": "created"});
        let with = |caps: serde_json::Value| {
            let mut seen = seen(&state, &serde_json::json!({"CapDrop": ["ALL"]}));
            seen.own = serde_json::from_value(serde_json::json!({ "BoundingCaps": caps })).unwrap();
            seen.kind = EngineKind::Podman;
            let info = Container::read(seen, "here").unwrap().info;
            assert_eq!((info.provider.as_str(), info.enforcement.mode.as_str()), ("podman", "podman, root"));
            info.enforcement.layers.contains(&IsolationLayer::ReducedCapabilities)
        };
        assert!(with(serde_json::json!(["CAP_KILL", "CAP_SETUID"])));
        assert!(!with(serde_json::json!(["CAP_KILL", "CAP_SYS_ADMIN"])));
        assert!(!with(serde_json::Value::Null), "a missing field means no");
    }

    #[test]
    fn a_user_namespace_is_reported_if_ids_are_mapped() {
        let with = |mappings: serde_json::Value| {
            let mut seen = seen(&serde_json::json!({"Status": "running"}), &hardened());
            let labels = seen.inspected.config.labels.as_mut().unwrap();
            labels.insert(labels::MODE.into(), "podman, root, userns auto".into());
            let own = serde_json::json!({ "BoundingCaps": [], "HostConfig": { "IDMappings": mappings } });
            seen.own = serde_json::from_value(own).unwrap();
            seen.kind = EngineKind::Podman;
            Container::read(seen, "here").unwrap().info.enforcement.layers.contains(&IsolationLayer::UserNamespace)
        };
        assert!(with(serde_json::json!({"UidMap": ["0:1000000000:1024"], "GidMap": ["0:1000000000:1024"]})));
        assert!(with(serde_json::json!({"UidMap": ["0:1:999", "999:0:1", "1000:1000:64537"]})));
        assert!(!with(serde_json::json!({"UidMap": ["0:0:4294967295"]})));
        assert!(!with(serde_json::Value::Null), "a missing field means no");
    }

    #[test]
    fn containers_of_other_installations_are_ignored() {
        let state = serde_json::json!({"Status": "running"});
        assert!(Container::read(seen(&state, &hardened()), "there").is_none());
    }
}
