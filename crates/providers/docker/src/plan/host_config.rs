//! The host's side of a container: mounts, limits, capabilities, network and published ports.

use super::{Facts, KeeperSetup};
use crate::engine::EngineKind;
use crate::mounts::{KEEPER, OURS, WORKSPACE, own_mount, own_volume, scratch};
use crate::volumes::Volume;
use bollard::models::{
    HostConfig, HostConfigLogConfig, Mount, PortBinding, PortMap, RestartPolicy, RestartPolicyNameEnum,
};
use kennel_core::Result;
use kennel_types::{NetworkMode, Port, SandboxSpec};
use std::collections::HashMap;

/// The capabilities that the keeper needs to switch users, signal their processes, write files for them, and read the
/// arguments of calls that it carries out. All others are dropped.
pub(crate) const CAPABILITIES: [&str; 8] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID", "SYS_PTRACE"];

/// The capability that the keeper needs to load firewall rules. It drops it before anything else runs.
pub(crate) const FIREWALL_CAPABILITY: &str = "NET_ADMIN";

/// The default limit on processes and threads.
const DEFAULT_PIDS: u32 = 4096;

/// Returns the engine's settings for a container.
pub(super) fn host_config(spec: &SandboxSpec, facts: Facts<'_>) -> Result<HostConfig> {
    let limits = &spec.limits;
    let memory = limits.memory.map(|size| i64::try_from(size.0).unwrap_or(i64::MAX));
    let mut mounts = match facts.keeper {
        KeeperSetup::Mounted { program, run_dir } => vec![
            program.map_or_else(|| Ok(own_volume(OURS)), |program| own_mount(program, KEEPER, true))?,
            own_mount(run_dir, &format!("{OURS}/run"), false)?,
        ],
        // An anonymous volume, which is removed with the container. It is writable even if the root filesystem is
        // read-only.
        KeeperSetup::Copied => vec![own_volume(OURS)],
        KeeperSetup::Plain => Vec::new(),
    };
    mounts.extend(facts.mounts);
    mounts.extend(facts.volumes.iter().map(Volume::mount));
    if spec.read_only {
        // Most programs need these.
        let wanted = ["/tmp", "/run"].into_iter().chain(spec.workspace.is_none().then_some(WORKSPACE));
        let free = |target: &&str| !mounts.iter().any(|mount| mount.target.as_deref() == Some(*target));
        let more: Vec<Mount> = wanted.filter(free).map(scratch).collect();
        mounts.extend(more);
    }
    let log_options = [("max-size", "10m"), ("max-file", "2")];
    Ok(HostConfig {
        mounts: Some(mounts),
        network_mode: Some(facts.network.to_string()),
        port_bindings: bindings(&spec.ports),
        ipc_mode: Some("private".into()),
        readonly_rootfs: Some(spec.read_only),
        runtime: spec.runtime.clone(),
        // With all usual ids, including `nobody`.
        userns_mode: spec.userns.clone().map(|mode| if mode == "auto" { "auto:size=65536".into() } else { mode }),
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".into()]),
        cap_add: Some(capabilities(&facts.keeper, facts.filter)),
        sysctls: sysctls(facts.kind, facts.network),
        security_opt: Some(std::iter::once("no-new-privileges".into()).chain(facts.seccomp).collect()),
        init: Some(false),
        auto_remove: Some(spec.tied || spec.auto_remove),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".into()),
            config: Some(log_options.into_iter().map(|(key, value)| (key.into(), value.into())).collect()),
        }),
        memory,
        // The same as memory: no swap in addition to it.
        memory_swap: memory,
        nano_cpus: limits.millicpus.map(|millis| i64::from(millis) * 1_000_000),
        // A fork bomb is limited by default. An engine without cgroups limits nothing.
        pids_limit: limits.pids.or(facts.limits.then_some(DEFAULT_PIDS)).map(i64::from),
        ..HostConfig::default()
    })
}

/// The capabilities of a container. Without a keeper, commands do not get what only the keeper needs.
fn capabilities(keeper: &KeeperSetup<'_>, firewall: bool) -> Vec<String> {
    let without = matches!(keeper, KeeperSetup::Plain).then_some("SYS_PTRACE");
    let always = CAPABILITIES.into_iter().filter(|name| Some(*name) != without);
    always.chain(firewall.then_some(FIREWALL_CAPABILITY)).map(Into::into).collect()
}

/// The kernel settings of the container's own network. Every process in it may listen at ports below 1024, as on Docker,
/// where this is the default: the capability for these ports is dropped.
fn sysctls(engine: EngineKind, network: NetworkMode) -> Option<HashMap<String, String>> {
    let is_needed = engine == EngineKind::Podman && network != NetworkMode::Host;
    is_needed.then(|| HashMap::from([("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned())]))
}

/// A port in the engine's notation.
pub(super) fn port_key(port: Port) -> String {
    format!("{}/{}", port.inside, port.protocol)
}

/// Where ports are published: on 127.0.0.1 only.
fn bindings(ports: &[Port]) -> Option<PortMap> {
    let mut map = PortMap::new();
    for port in ports {
        let host_port = Some(port.host.map_or_else(String::new, |host| host.to_string()));
        let binding = PortBinding { host_ip: Some("127.0.0.1".into()), host_port };
        map.entry(port_key(*port)).or_default().get_or_insert_default().push(binding);
    }
    (!map.is_empty()).then_some(map)
}
