//! From what the engine says of a container to what a sandbox is. What is reported as enforced is what is there, not
//! what was once asked for.

use crate::labels;
use crate::mounts::WORKSPACE;
use crate::names::{self, NamePrefix};
use crate::plan::CAPABILITIES;
use bollard::models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum, HostConfig, PortMap};
use kennel_core::Error;
use kennel_types::{
    ByteSize, Enforcement, Layer, Limits, Mode, NetworkMode, Published, STARTUP, SandboxId, SandboxInfo, Status,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// A container that is a sandbox of this installation.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    /// The engine's own id of it.
    pub(crate) engine_id: String,
    /// Its first process, as this machine numbers it, while it runs.
    pub(crate) pid: Option<i32>,
    /// Whether the engine removes it when it ends.
    pub(crate) tied: bool,
    /// Whether a main process starts with it.
    pub(crate) main: bool,
    /// How long a start may take.
    pub(crate) startup: Duration,
    /// What its name begins with.
    pub(crate) prefix: NamePrefix,
    /// The sandbox.
    pub(crate) info: SandboxInfo,
}

impl Container {
    /// Reads an inspection; `None` if it is not a sandbox of that installation.
    pub(crate) fn read(inspected: ContainerInspectResponse, mode: &Mode, installation: &str) -> Option<Self> {
        let config = inspected.config.unwrap_or_default();
        let labels = config.labels.unwrap_or_default();
        let id = labels::sandbox_of(&labels, installation)?;
        let state = inspected.state.unwrap_or_default();
        let host = inspected.host_config.unwrap_or_default();
        let status = status(&state);
        let info = SandboxInfo {
            name: names::sandbox(inspected.name.as_deref(), &labels).unwrap_or_else(|| id.to_string()),
            provider: mode.provider.into(),
            status,
            created_ms: labels.get(labels::CREATED).and_then(|text| text.parse().ok()).unwrap_or_default(),
            exit_code: state.exit_code.filter(|_| status == Status::Stopped).and_then(|code| code.try_into().ok()),
            image: config.image,
            image_command: image_command(&labels),
            workdir: labels.get(labels::WORKDIR).cloned().unwrap_or_else(|| WORKSPACE.into()),
            workspace: workspace(&host),
            network: network(&host),
            ports: inspected.network_settings.and_then(|settings| settings.ports).map(published).unwrap_or_default(),
            enforcement: Enforcement { mode: mode.name.into(), layers: layers(mode, &host), limits: limits(&host) },
            id,
            labels: labels.clone().into_iter().collect(),
        };
        Some(Self {
            engine_id: inspected.id?,
            pid: state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0),
            tied: host.auto_remove.unwrap_or(false),
            main: labels.get(labels::MAIN).is_some_and(|text| text == "true"),
            startup: startup(&labels),
            prefix: NamePrefix::of(&labels),
            info,
        })
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.info.id
    }

    pub(crate) fn is_running(&self) -> bool {
        self.info.status == Status::Running
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.info.status == Status::Paused
    }

    /// Why it cannot be talked to, where it does not run.
    pub(crate) fn not_running(&self) -> Error {
        if self.is_paused() { Error::paused(&self.info.name) } else { Error::stopped(&self.info.name) }
    }
}

fn status(state: &ContainerState) -> Status {
    use ContainerStateStatusEnum as Engine;
    match state.status {
        Some(Engine::RUNNING | Engine::RESTARTING | Engine::STOPPING) => Status::Running,
        Some(Engine::PAUSED) => Status::Paused,
        Some(Engine::CREATED) => Status::Created,
        Some(Engine::EXITED | Engine::DEAD | Engine::REMOVING | Engine::EMPTY) | None => Status::Stopped,
    }
}

fn startup(labels: &HashMap<String, String>) -> Duration {
    labels.get(labels::STARTUP).and_then(|text| text.parse().ok()).map_or(STARTUP, Duration::from_millis)
}

fn network(host: &HostConfig) -> NetworkMode {
    match host.network_mode.as_deref() {
        Some("host") => NetworkMode::Host,
        Some("none") => NetworkMode::None,
        _ => NetworkMode::Bridge,
    }
}

/// Where ports are published: nowhere while it does not run.
fn published(ports: PortMap) -> Vec<Published> {
    let mut found = Vec::new();
    for (key, bindings) in ports {
        let Some((inside, protocol)) = key.split_once('/') else { continue };
        let (Ok(inside), Ok(protocol)) = (inside.parse(), protocol.parse()) else { continue };
        for binding in bindings.into_iter().flatten() {
            let address = format!("{}:{}", binding.host_ip.unwrap_or_default(), binding.host_port.unwrap_or_default());
            if let Ok(address) = address.parse() {
                found.push(Published { address, inside, protocol });
            }
        }
    }
    found.sort_by_key(|port| (port.inside, port.address.port()));
    found
}

fn workspace(host: &HostConfig) -> Option<PathBuf> {
    let mounts = host.mounts.as_deref().unwrap_or_default();
    let mount = mounts.iter().find(|mount| mount.target.as_deref() == Some(WORKSPACE))?;
    mount.source.as_ref().map(PathBuf::from)
}

fn image_command(labels: &HashMap<String, String>) -> Option<Vec<String>> {
    let command: Vec<String> = serde_json::from_str(labels.get(labels::IMAGE_COMMAND)?).ok()?;
    Some(command).filter(|command| !command.is_empty())
}

fn limits(host: &HostConfig) -> Limits {
    let set = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
    Limits {
        memory: set(host.memory).map(ByteSize),
        millicpus: set(host.nano_cpus).map(|nanos| u32::try_from(nanos / 1_000_000).unwrap_or(u32::MAX)),
        pids: set(host.pids_limit).map(|pids| u32::try_from(pids).unwrap_or(u32::MAX)),
    }
}

/// Those of the mode's layers that this container has.
fn layers(mode: &Mode, host: &HostConfig) -> Vec<Layer> {
    let own = |mode: &Option<String>| !mode.as_deref().unwrap_or_default().starts_with("host");
    let privileged = host.privileged.unwrap_or(false);
    let options = host.security_opt.as_deref().unwrap_or_default();
    let has = |layer: Layer| match layer {
        Layer::MountNamespace => true,
        Layer::PidNamespace => own(&host.pid_mode),
        Layer::IpcNamespace => own(&host.ipc_mode),
        Layer::UtsNamespace => own(&host.uts_mode),
        Layer::NetNamespace => network(host) != NetworkMode::Host,
        Layer::ReducedCapabilities => !privileged && has_few_capabilities(host),
        Layer::NoNewPrivileges => {
            options.iter().any(|option| matches!(option.as_str(), "no-new-privileges" | "no-new-privileges:true"))
        }
        Layer::Seccomp => {
            !privileged && !options.iter().any(|option| option.starts_with("seccomp") && option.ends_with("unconfined"))
        }
        // Nothing in an inspection tells of these.
        Layer::UserNamespace | Layer::CgroupNamespace | Layer::Landlock => false,
    };
    mode.layers.iter().copied().filter(|layer| has(*layer)).collect()
}

fn has_few_capabilities(host: &HostConfig) -> bool {
    let bare = |name: &String| name.to_ascii_uppercase().trim_start_matches("CAP_").to_owned();
    let dropped = host.cap_drop.iter().flatten().any(|name| bare(name) == "ALL");
    dropped && host.cap_add.iter().flatten().all(|name| CAPABILITIES.contains(&bare(name).as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode() -> &'static Mode {
        Mode::named("docker, root").unwrap()
    }

    /// An inspection as the engine sends it.
    fn inspected(state: &serde_json::Value, host: &serde_json::Value) -> ContainerInspectResponse {
        let inspected = serde_json::json!({
            "Id": "0123",
            "Name": "/kennel-renamed",
            "State": state,
            "HostConfig": host,
            "Config": {
                "Image": "busybox",
                "Labels": {
                    "kennel.id": "abc", "kennel.name": "box", "kennel.installation": "here", "kennel.main": "true",
                    "kennel.startup-ms": "1500", "kennel.name-prefix": "kennel-",
                    "kennel.created-ms": "17", "kennel.image-command": "[\"sh\"]", "kennel.workdir": "/srv", "a": "b",
                },
            },
        });
        serde_json::from_value(inspected).unwrap()
    }

    fn hardened() -> serde_json::Value {
        serde_json::json!({
            "NetworkMode": "bridge", "CapDrop": ["ALL"], "CapAdd": ["CAP_KILL", "SETUID"], "IpcMode": "private",
            "SecurityOpt": ["no-new-privileges"], "Memory": 1024, "NanoCpus": 500_000_000, "PidsLimit": 7,
            "AutoRemove": true, "Mounts": [{"Type": "bind", "Source": "/home/ann", "Target": "/workspace"}],
        })
    }

    fn read(state: &serde_json::Value, host: &serde_json::Value) -> Container {
        Container::read(inspected(state, host), mode(), "here").unwrap()
    }

    #[test]
    fn a_running_container_is_read_whole() {
        let found = read(&serde_json::json!({"Status": "running", "Pid": 42, "ExitCode": 0}), &hardened());
        assert_eq!((found.pid, found.tied, found.main, found.engine_id.as_str()), (Some(42), true, true, "0123"));
        assert_eq!((found.startup, found.prefix), (Duration::from_millis(1500), NamePrefix::default()));
        let info = found.info;
        assert_eq!((info.id.as_str(), info.name.as_str(), info.created_ms), ("abc", "renamed", 17));
        assert_eq!((info.status, info.exit_code), (Status::Running, None));
        assert_eq!(info.workspace, Some("/home/ann".into()));
        assert_eq!((info.workdir.as_str(), info.network), ("/srv", NetworkMode::Bridge));
        assert_eq!(info.image_command, Some(vec!["sh".into()]));
        assert_eq!(info.enforcement.layers, mode().layers);
        let limits = Limits { memory: Some(ByteSize(1024)), millicpus: Some(500), pids: Some(7) };
        assert_eq!(info.enforcement.limits, limits);
    }

    #[test]
    fn status_and_exit_code_are_the_engines() {
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
    }

    #[test]
    fn a_wall_that_is_not_there_is_not_reported() {
        let cases = [
            ("NetworkMode", serde_json::json!("host"), vec![Layer::NetNamespace]),
            ("PidMode", serde_json::json!("host"), vec![Layer::PidNamespace]),
            ("CapDrop", serde_json::json!([]), vec![Layer::ReducedCapabilities]),
            ("CapAdd", serde_json::json!(["SYS_ADMIN"]), vec![Layer::ReducedCapabilities]),
            ("SecurityOpt", serde_json::json!(["seccomp=unconfined"]), vec![Layer::NoNewPrivileges, Layer::Seccomp]),
            ("Privileged", serde_json::json!(true), vec![Layer::ReducedCapabilities, Layer::Seccomp]),
        ];
        for (key, value, missing) in cases {
            let mut host = hardened();
            host[key] = value;
            let found = read(&serde_json::json!({"Status": "created"}), &host).info.enforcement.layers;
            let gone: Vec<Layer> = mode().layers.iter().copied().filter(|layer| !found.contains(layer)).collect();
            assert_eq!(gone, missing, "{key}");
        }
    }

    #[test]
    fn a_container_of_another_installation_is_no_sandbox() {
        let state = serde_json::json!({"Status": "running"});
        assert!(Container::read(inspected(&state, &hardened()), mode(), "there").is_none());
    }
}
