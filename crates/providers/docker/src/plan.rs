//! Converts a spec to a request for the engine. It does no I/O: everything it needs is passed in.
//!
//! Commands run as the first of these that is known: the spec's user; the owner of the workspace's files, unless that
//! is root; the image's USER; root. So files in a workspace belong to the right user, and an image's USER applies if
//! nothing else does. On a rootless engine, root inside is the user who runs the engine.

use crate::engine::EngineKind;
use crate::labels;
use crate::mounts::{KEEPER, OURS, WORKSPACE, own_mount, own_volume, scratch};
use crate::names::NamePrefix;
use crate::plain;
use crate::volumes::Volume;
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, ImageConfig, Mount, PortBinding, PortMap,
    RestartPolicy, RestartPolicyNameEnum,
};
use kennel_core::{Error, Result};
use kennel_proto::{KeeperConfig, LogSink, Spawn};
use kennel_types::{ErrorCode, Field, NetworkMode, NextStep, Owner, Port, SandboxId, SandboxSpec};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

/// The capabilities that the keeper needs to switch users, signal their processes, write files for them, and read the
/// arguments of calls that it carries out. All others are dropped.
pub(crate) const CAPABILITIES: [&str; 8] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID", "SYS_PTRACE"];

/// The capabilities that commands can have: all but `SYS_PTRACE`.
const COMMANDS: u64 = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8;

/// The capabilities of a container. Without a keeper, commands do not get what only the keeper needs.
fn capabilities(keeper: &KeeperSetup<'_>, firewall: bool) -> Vec<String> {
    let without = matches!(keeper, KeeperSetup::Plain).then_some("SYS_PTRACE");
    let always = CAPABILITIES.into_iter().filter(|name| Some(*name) != without);
    always.chain(firewall.then_some(FILTERS)).map(Into::into).collect()
}

/// The capability that the keeper needs to load firewall rules. It drops it before anything else runs.
pub(crate) const FILTERS: &str = "NET_ADMIN";

/// The file in the run directory with the addresses that the sandbox must not connect to. The keeper removes it.
pub(crate) const FILTER: &str = "filter";

/// The name of the keeper's socket in the run directory.
pub(crate) const SOCKET: &str = "sock";

/// The home directory of a user to whom Podman gives none.
const HOME: &str = "/home/kennel";

/// The default limit on processes and threads.
pub(crate) const PIDS: u32 = 4096;

/// How long the owner of a tied sandbox may take to connect.
const OWNER_WITHIN_MS: u64 = 10_000;

/// What must be known in addition to the spec.
pub(crate) struct Facts<'a> {
    pub(crate) id: &'a SandboxId,
    pub(crate) installation: &'a str,
    pub(crate) prefix: &'a NamePrefix,
    pub(crate) network: NetworkMode,
    pub(crate) image: &'a ImageConfig,
    /// The owner of workspace files.
    pub(crate) owner: Owner,
    pub(crate) created_ms: u64,
    /// The name of the mode.
    pub(crate) mode: &'a str,
    pub(crate) kind: EngineKind,
    /// How the keeper gets into the container.
    pub(crate) keeper: KeeperSetup<'a>,
    /// Whether the engine enforces limits.
    pub(crate) limits: bool,
    /// Whether the keeper loads firewall rules in the container's network.
    pub(crate) filter: bool,
    /// How users outside are mapped inside.
    pub(crate) ids: Ids,
    /// The option with the system call filter, if the engine accepts Kennel's.
    pub(crate) seccomp: Option<String>,
    /// The workspace and the other requested mounts.
    pub(crate) mounts: Vec<Mount>,
    pub(crate) volumes: Vec<Volume>,
}

/// How users outside are mapped inside.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Ids {
    /// Unchanged.
    Same,
    /// Unchanged, and Podman has given the user a name inside, but no home directory.
    Kept,
    /// The user who runs the engine is root inside.
    Root,
    /// They are not mapped.
    Apart,
}

/// How a keeper gets into a container, and how it is reached.
#[derive(Clone, Copy)]
pub(crate) enum KeeperSetup<'a> {
    /// A directory for its socket is mounted. Its program is mounted too, or copied if `program` is `None`.
    Mounted { program: Option<&'a Path>, run_dir: &'a Path },
    /// Its program is copied, and it is reached through the engine.
    Copied,
    /// There is no keeper: the engine itself runs commands.
    Plain,
}

/// A container to create.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) container: String,
    pub(crate) body: ContainerCreateBody,
    /// The working directory, if Kennel must create it.
    pub(crate) make_workdir: Option<Workdir>,
    /// A home directory for its user, if nobody else creates one.
    pub(crate) make_home: Option<Workdir>,
    /// The new owner of its volumes; not needed for root.
    pub(crate) give_volumes: Option<(Owner, Vec<String>)>,
}

/// A directory to create.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Workdir {
    pub(crate) path: String,
    pub(crate) owner: Owner,
    /// Whether an existing directory is left as it is.
    pub(crate) if_missing: bool,
}

/// Creates the request for the engine.
pub(crate) fn plan(spec: &SandboxSpec, facts: Facts<'_>) -> Result<Plan> {
    let name = spec.name.as_deref().unwrap_or(facts.id.as_str());
    let workdir = workdir(spec)?;
    let user = user(spec, &facts);
    let main = main_process(spec, facts.image)?;
    let config = keeper_config(spec, &facts, &user, &workdir, main.as_deref());
    let below_a_mount = facts.mounts.iter().any(|mount| is_below(&workdir, mount.target.as_deref()));
    let is_a_mount = facts.mounts.iter().any(|mount| mount.target.as_deref() == Some(&workdir));
    let make_workdir = match user {
        // The engine would create it as root.
        User::Owner(owner) if spec.workdir.is_none() && spec.workspace.is_none() && !spec.read_only => {
            Some(Workdir { path: workdir.clone(), owner, if_missing: false })
        }
        // Podman does not create it.
        _ if facts.kind == EngineKind::Podman && !below_a_mount && !is_a_mount && !spec.read_only => {
            Some(Workdir { path: workdir.clone(), owner: Owner { uid: 0, gid: 0 }, if_missing: true })
        }
        _ => None,
    };
    let make_home = match user {
        User::Owner(owner)
            if facts.ids == Ids::Kept && !spec.read_only && home(spec, &facts).as_deref() == Some(HOME) =>
        {
            Some(Workdir { path: HOME.into(), owner, if_missing: true })
        }
        _ => None,
    };
    let give_volumes = match user {
        // In all other cases the keeper does it, also with a read-only root filesystem.
        User::Owner(owner) if matches!(facts.keeper, KeeperSetup::Plain) && !facts.volumes.is_empty() => {
            Some((owner, facts.volumes.iter().map(|volume| volume.target.clone()).collect()))
        }
        _ => None,
    };
    // A mount point that already exists would determine the permissions of a tmpfs mounted on it.
    let in_memory = spec.read_only && spec.workspace.is_none() && workdir == WORKSPACE;
    let by_engine = !below_a_mount && !in_memory && facts.kind == EngineKind::Docker;
    let container = facts.prefix.container(name);
    let (engines_user, entrypoint, stop_signal) = match facts.keeper {
        KeeperSetup::Mounted { .. } | KeeperSetup::Copied => {
            ("0:0".to_owned(), keeper_command(&config)?, "SIGTERM".to_owned())
        }
        // A process that only waits need not be asked to end.
        KeeperSetup::Plain => {
            let stop = if main.is_some() { facts.image.stop_signal.clone() } else { Some("SIGKILL".into()) };
            let main = main.unwrap_or_else(|| plain::WAIT.map(ToOwned::to_owned).into());
            (config.user.unwrap_or_default(), main, stop.unwrap_or_else(|| "SIGTERM".into()))
        }
    };
    let body = ContainerCreateBody {
        image: spec.image.clone(),
        hostname: Some(name.to_owned()),
        user: Some(engines_user),
        entrypoint: Some(entrypoint),
        cmd: Some(Vec::new()),
        env: Some(environment(spec)?),
        // The engine creates a missing directory as root, which must not happen in the user's own files.
        working_dir: Some(if by_engine { workdir.clone() } else { "/".into() }),
        labels: Some(all_labels(spec, name, &workdir, &facts)?),
        // The image's stop signal is for its own main process, and its health check would bypass the keeper.
        stop_signal: Some(stop_signal),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
        exposed_ports: Some(spec.ports.iter().copied().map(port_key).collect())
            .filter(|ports: &Vec<String>| !ports.is_empty()),
        host_config: Some(host_config(spec, facts)?),
        ..ContainerCreateBody::default()
    };
    Ok(Plan { container, body, make_workdir, make_home, give_volumes })
}

fn host_config(spec: &SandboxSpec, facts: Facts<'_>) -> Result<HostConfig> {
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
        pids_limit: limits.pids.or(facts.limits.then_some(PIDS)).map(i64::from),
        ..HostConfig::default()
    })
}

/// A port in the engine's notation.
fn port_key(port: Port) -> String {
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

/// The user of commands.
#[derive(Debug, PartialEq)]
enum User {
    Named(String),
    /// The user outside, who may be unknown in the image.
    Owner(Owner),
}

fn user(spec: &SandboxSpec, facts: &Facts<'_>) -> User {
    let image_user = facts.image.user.as_ref().filter(|user| !user.is_empty());
    match (&spec.user, image_user) {
        (None, _) if facts.ids == Ids::Root => User::Named("0:0".into()),
        (None, _) if matches!(facts.ids, Ids::Same | Ids::Kept) && facts.owner.uid != 0 => User::Owner(facts.owner),
        (Some(user), _) | (None, Some(user)) => User::Named(user.clone()),
        (None, None) => User::Named("0:0".into()),
    }
}

/// The main process: the given command, or the image's own if requested.
fn main_process(spec: &SandboxSpec, image: &ImageConfig) -> Result<Option<Vec<String>>> {
    if spec.command.is_some() || !spec.image_main {
        return Ok(spec.command.clone());
    }
    let own = own_command(image);
    if own.is_empty() {
        return Err(
            Error::new(ErrorCode::InvalidConfig, "the image defines no command").suggest(NextStep::set(Field::Command))
        );
    }
    Ok(Some(own))
}

/// The image's own command.
fn own_command(image: &ImageConfig) -> Vec<String> {
    image.entrypoint.iter().flatten().chain(image.cmd.iter().flatten()).cloned().collect()
}

/// Parses a signal as images write it: `SIGQUIT`, `QUIT` or `3`.
fn signal(text: &str) -> Option<i32> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    if let Ok(number) = text.parse() {
        return Some(number).filter(|number| (1..=64).contains(number));
    }
    let text = text.to_ascii_uppercase();
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    if let Some(number) = name.strip_prefix("RTMIN+").and_then(|more| more.parse::<i32>().ok()) {
        return Some(34 + number).filter(|number| (34..=64).contains(number));
    }
    NAMES.iter().position(|known| *known == name).map(|at| at as i32 + 1)
}

fn keeper_config(
    spec: &SandboxSpec,
    facts: &Facts<'_>,
    user: &User,
    workdir: &str,
    main: Option<&[String]>,
) -> KeeperConfig {
    let mounted = matches!(facts.keeper, KeeperSetup::Mounted { .. });
    let (user, ensure_user) = match user {
        User::Named(name) => (name.clone(), None),
        User::Owner(Owner { uid, gid }) => (format!("{uid}:{gid}"), Some((*uid, *gid))),
    };
    KeeperConfig {
        tied: spec.tied,
        owner_within_ms: spec.tied.then_some(OWNER_WITHIN_MS),
        owner_holds: (spec.tied && mounted).then(|| format!("{OURS}/run").into_bytes().into()),
        by_engine: !mounted,
        idle_ms: spec.idle_seconds.map(|seconds| seconds.saturating_mul(1000)),
        inherit_env: true,
        // The engine sets `HOME` for the keeper's own user, so the keeper passes on only an explicit one.
        env: home(spec, facts).map(|home| (b"HOME".to_vec().into(), home.into_bytes().into())).into_iter().collect(),
        cwd: Some(workdir.as_bytes().to_vec().into()),
        user: Some(user),
        give: ensure_user
            .map(|_| facts.volumes.iter().map(|volume| volume.target.as_bytes().to_vec().into()).collect())
            .unwrap_or_default(),
        ensure_user,
        main: main.map(|argv| Spawn {
            // It applies only to the image's own program; other commands end as usual.
            stop_signal: facts.image.stop_signal.as_deref().filter(|_| spec.command.is_none()).and_then(signal),
            ..Spawn::main(argv)
        }),
        // The engine stores the log, so that `docker logs` works too.
        log: LogSink::Passthrough,
        bounding: Some(COMMANDS),
        filter_commands: true,
        firewall: facts.filter.then(|| format!("{OURS}/run/{FILTER}").into_bytes().into()),
        shares_network: facts.network == NetworkMode::Host,
        ..KeeperConfig::default()
    }
}

/// The home directory from the spec or the image, or Kennel's default for a user without one.
fn home(spec: &SandboxSpec, facts: &Facts<'_>) -> Option<String> {
    let by_image = || facts.image.env.iter().flatten().find_map(|pair| pair.strip_prefix("HOME="));
    let ours = || (facts.ids == Ids::Kept && spec.user.is_none() && facts.owner.uid != 0).then_some(HOME);
    spec.env.get("HOME").map(String::as_str).or_else(by_image).or_else(ours).map(ToOwned::to_owned)
}

/// Everyone can see the keeper's arguments, so they must not contain a secret.
fn keeper_command(config: &KeeperConfig) -> Result<Vec<String>> {
    let bytes = minicbor::to_vec(config)
        .map_err(|error| Error::new(ErrorCode::Internal, format!("write the keeper's settings: {error}")))?;
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // Writing to a String cannot fail.
        hex
    });
    let socket = format!("{OURS}/run/{SOCKET}");
    let command = [KEEPER, "serve", "--socket", &socket, "--config", &hex];
    Ok(command.map(ToOwned::to_owned).into())
}

fn environment(spec: &SandboxSpec) -> Result<Vec<String>> {
    let pairs = spec.env.iter().map(|(key, value)| {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            let message = format!("environment variable {key:?}: not a name and a value that a process can have");
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
        Ok(format!("{key}={value}"))
    });
    pairs.collect()
}

fn workdir(spec: &SandboxSpec) -> Result<String> {
    match &spec.workdir {
        None => Ok(WORKSPACE.into()),
        Some(dir) if dir.starts_with('/') => Ok(dir.clone()),
        Some(dir) => {
            let message = format!("working directory {dir:?}: the path must be absolute");
            Err(Error::new(ErrorCode::InvalidConfig, message))
        }
    }
}

fn is_below(path: &str, target: Option<&str>) -> bool {
    target.is_some_and(|target| Path::new(path).strip_prefix(target).is_ok_and(|rest| rest != Path::new("")))
}

fn all_labels(spec: &SandboxSpec, name: &str, workdir: &str, facts: &Facts<'_>) -> Result<HashMap<String, String>> {
    let mut all: HashMap<String, String> = spec.labels.clone().into_iter().collect();
    all.extend(labels::empty().chain(labels::own_labels(spec, facts.owner)));
    // All labels are always written, because the image's labels would be merged in for missing ones.
    let mut set = |key: &str, value: String| all.insert(key.into(), value);
    set(labels::ID, facts.id.to_string());
    set(labels::NAME, name.into());
    set(labels::PREFIX, facts.prefix.as_str().into());
    set(labels::INSTALLATION, facts.installation.into());
    set(labels::CREATED, facts.created_ms.to_string());
    set(labels::MODE, facts.mode.into());
    set(labels::IMAGE, spec.image.clone().unwrap_or_default());
    if spec.data {
        set(labels::DATA, facts.volumes.first().map(|volume| volume.name.clone()).unwrap_or_default());
    } else {
        set(labels::DATA, String::new());
    }
    set(labels::WORKDIR, workdir.into());
    set(labels::MAIN, (spec.command.is_some() || spec.image_main).to_string());
    set(labels::AUTO_REMOVE, (spec.auto_remove && !spec.tied).to_string());
    set(labels::STARTUP, spec.startup().as_millis().to_string());
    let json = serde_json::to_string(&own_command(facts.image))
        .map_err(|error| Error::new(ErrorCode::Internal, format!("write the image's command: {error}")))?;
    set(labels::IMAGE_COMMAND, json);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_types::{ByteSize, Limits};
    use std::sync::LazyLock;

    static PREFIX: LazyLock<NamePrefix> = LazyLock::new(NamePrefix::default);

    fn facts<'a>(id: &'a SandboxId, image: &'a ImageConfig, uid: u32) -> Facts<'a> {
        Facts {
            id,
            installation: "here",
            prefix: &PREFIX,
            network: NetworkMode::None,
            image,
            owner: Owner { uid, gid: uid },
            created_ms: 7,
            mode: "docker, root",
            kind: EngineKind::Docker,
            keeper: KeeperSetup::Mounted {
                program: Some(Path::new("/programs/keeper")),
                run_dir: Path::new("/state/abc"),
            },
            limits: true,
            filter: false,
            seccomp: Some("seccomp={}".into()),
            ids: Ids::Same,
            mounts: Vec::new(),
            volumes: Vec::new(),
        }
    }

    fn planned(spec: &SandboxSpec, image: &ImageConfig, uid: u32) -> Plan {
        let id = SandboxId::new("abc").unwrap();
        plan(spec, facts(&id, image, uid)).unwrap()
    }

    /// What the keeper will read.
    fn config(plan: &Plan) -> KeeperConfig {
        let command = plan.body.entrypoint.as_ref().unwrap();
        assert_eq!(command[..5], ["/.kennel/keeper", "serve", "--socket", "/.kennel/run/sock", "--config"]);
        let bytes: Vec<u8> = (0..command[5].len() / 2)
            .map(|at| u8::from_str_radix(&command[5][at * 2..at * 2 + 2], 16).unwrap())
            .collect();
        minicbor::decode(&bytes).unwrap()
    }

    fn user_of(spec: &SandboxSpec, image: &ImageConfig, uid: u32) -> (Option<String>, Option<(u32, u32)>) {
        let config = config(&planned(spec, image, uid));
        (config.user, config.ensure_user)
    }

    #[test]
    fn the_walls_are_up_whatever_is_asked() {
        let spec = SandboxSpec { image: Some("i".into()), tied: true, ..SandboxSpec::default() };
        let plan = planned(&spec, &ImageConfig::default(), 0);
        let host = plan.body.host_config.unwrap();
        assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
        assert_eq!(host.cap_add.unwrap(), CAPABILITIES);
        assert_eq!(host.security_opt.unwrap(), ["no-new-privileges", "seccomp={}"]);
        assert_eq!((host.privileged, host.init, host.auto_remove), (Some(false), Some(false), Some(true)));
        assert_eq!((host.network_mode.as_deref(), host.ipc_mode.as_deref()), (Some("none"), Some("private")));
        let mounts = host.mounts.unwrap();
        let shape: Vec<_> = mounts.iter().map(|mount| (mount.target.as_deref().unwrap(), mount.read_only)).collect();
        assert_eq!(shape, [("/.kennel/keeper", Some(true)), ("/.kennel/run", Some(false))]);
        assert_eq!(plan.container, "kennel-abc");
    }

    #[test]
    fn the_keeper_filters_the_network_where_it_can() {
        let (id, image) = (SandboxId::new("abc").unwrap(), ImageConfig::default());
        let with = |filter| {
            let plan = plan(&SandboxSpec::default(), Facts { filter, ..facts(&id, &image, 0) }).unwrap();
            let added = plan.body.host_config.as_ref().unwrap().cap_add.clone().unwrap();
            (added.contains(&FILTERS.to_owned()), config(&plan).firewall.map(|path| path.to_vec()))
        };
        assert_eq!(with(true), (true, Some(b"/.kennel/run/filter".to_vec())));
        assert_eq!(with(false), (false, None));
    }

    #[test]
    fn ports_are_published_on_this_machine_alone() {
        let ports = ["80", "3000:80", "53/udp"].map(|port| port.parse().unwrap()).to_vec();
        let plan = planned(&SandboxSpec { ports, ..SandboxSpec::default() }, &ImageConfig::default(), 0);
        assert_eq!(plan.body.exposed_ports.unwrap(), ["80/tcp", "80/tcp", "53/udp"]);
        let bindings = plan.body.host_config.unwrap().port_bindings.unwrap();
        let at = |key: &str| -> Vec<(String, String)> {
            let bound = bindings[key].clone().unwrap().into_iter();
            bound.map(|binding| (binding.host_ip.unwrap(), binding.host_port.unwrap())).collect()
        };
        let here = |port: &str| ("127.0.0.1".to_owned(), port.to_owned());
        assert_eq!((at("80/tcp"), at("53/udp")), (vec![here(""), here("3000")], vec![here("")]));
    }

    #[test]
    fn limits_reach_the_engine() {
        let limits = Limits { memory: Some(ByteSize(64 << 20)), millicpus: Some(1500), pids: Some(9), disk: None };
        let spec = SandboxSpec { limits, ..SandboxSpec::default() };
        let host = planned(&spec, &ImageConfig::default(), 0).body.host_config.unwrap();
        assert_eq!((host.memory, host.memory_swap), (Some(64 << 20), Some(64 << 20)));
        assert_eq!((host.nano_cpus, host.pids_limit), (Some(1_500_000_000), Some(9)));
        let host = planned(&SandboxSpec::default(), &ImageConfig::default(), 0).body.host_config.unwrap();
        assert_eq!((host.memory, host.pids_limit), (None, Some(4096)), "processes are held in any case");
    }

    #[test]
    fn commands_run_as_the_first_who_is_known() {
        let plain = ImageConfig::default();
        let node = ImageConfig { user: Some("node".into()), ..ImageConfig::default() };
        let nobody = SandboxSpec::default();
        let root = SandboxSpec { user: Some("root".into()), ..SandboxSpec::default() };
        assert_eq!(user_of(&root, &node, 1000), (Some("root".into()), None));
        assert_eq!(user_of(&nobody, &node, 1000), (Some("1000:1000".into()), Some((1000, 1000))));
        assert_eq!(user_of(&nobody, &node, 0), (Some("node".into()), None));
        assert_eq!(user_of(&nobody, &plain, 0), (Some("0:0".into()), None));
        let id = SandboxId::new("abc").unwrap();
        let of = |ids| config(&plan(&nobody, Facts { ids, ..facts(&id, &node, 1000) }).unwrap()).user;
        assert_eq!(of(Ids::Root).as_deref(), Some("0:0"), "who is the one who runs the engine");
        assert_eq!(of(Ids::Apart).as_deref(), Some("node"), "who runs the engine is nobody there");
    }

    #[test]
    fn a_user_without_a_home_has_ours() {
        let (id, image) = (SandboxId::new("abc").unwrap(), ImageConfig::default());
        let with = |spec: &SandboxSpec, ids| {
            let plan = plan(spec, Facts { ids, ..facts(&id, &image, 1000) }).unwrap();
            (config(&plan).env.pop().map(|(_, home)| home.to_vec()), plan.make_home.map(|home| home.owner.uid))
        };
        assert_eq!(with(&SandboxSpec::default(), Ids::Kept), (Some(HOME.into()), Some(1000)));
        assert_eq!(with(&SandboxSpec::default(), Ids::Same), (None, None), "the keeper makes one");
        let root = SandboxSpec { user: Some("0".into()), ..SandboxSpec::default() };
        assert_eq!(with(&root, Ids::Kept), (None, None));
        let named = SandboxSpec { env: [("HOME".into(), "/named".into())].into(), ..SandboxSpec::default() };
        assert_eq!(with(&named, Ids::Kept), (Some(b"/named".to_vec()), None));
    }

    #[test]
    fn the_images_own_command_ends_by_its_own_signal() {
        let image = ImageConfig {
            entrypoint: Some(vec!["/agent".into()]),
            cmd: Some(vec!["--serve".into()]),
            stop_signal: Some("SIGQUIT".into()),
            ..ImageConfig::default()
        };
        let main = |spec: &SandboxSpec| config(&planned(spec, &image, 0)).main;
        let own = main(&SandboxSpec { image_main: true, ..SandboxSpec::default() }).unwrap();
        assert!(matches!(own.command, kennel_proto::SpawnCommand::Argv(argv) if argv.len() == 2));
        assert_eq!(own.stop_signal, Some(3));
        let given = SandboxSpec { image_main: true, command: Some(vec!["sh".into()]), ..SandboxSpec::default() };
        assert_eq!(main(&given).unwrap().stop_signal, None, "another's program ends as usual");
        assert_eq!(main(&SandboxSpec::default()), None);
        for (text, number) in
            [("3", Some(3)), ("SIGRTMIN+3", Some(37)), ("usr1", Some(10)), ("SIGNO", None), ("0", None)]
        {
            assert_eq!(signal(text), number, "{text}");
        }
    }

    #[test]
    fn a_read_only_root_has_room_for_what_is_passing() {
        let spec = SandboxSpec { read_only: true, ..SandboxSpec::default() };
        let plan = planned(&spec, &ImageConfig::default(), 1000);
        assert_eq!(plan.make_workdir, None);
        let host = plan.body.host_config.unwrap();
        assert_eq!(host.readonly_rootfs, Some(true));
        let mounts = host.mounts.unwrap();
        let targets: Vec<_> = mounts.iter().filter_map(|mount| mount.target.as_deref()).collect();
        assert_eq!(targets[2..], ["/tmp", "/run", "/workspace"]);
    }

    #[test]
    fn a_home_that_is_named_counts() {
        let image = ImageConfig { env: Some(vec!["A=b".into(), "HOME=/image".into()]), ..ImageConfig::default() };
        let spec = SandboxSpec { env: [("HOME".to_owned(), "/spec".to_owned())].into(), ..SandboxSpec::default() };
        let home = |spec: &SandboxSpec, image: &ImageConfig| config(&planned(spec, image, 1000)).env.pop();
        let named = |value: &str| Some((b"HOME".to_vec().into(), value.as_bytes().to_vec().into()));
        assert_eq!(home(&spec, &image), named("/spec"));
        assert_eq!(home(&SandboxSpec::default(), &image), named("/image"));
        assert_eq!(home(&SandboxSpec::default(), &ImageConfig::default()), None);
    }

    #[test]
    fn the_engine_makes_no_directory_in_the_users_files() {
        let image = ImageConfig { working_dir: Some("/app".into()), ..ImageConfig::default() };
        let id = SandboxId::new("abc").unwrap();
        let workspace = own_mount(Path::new("/home/ann/project"), WORKSPACE, false).unwrap();
        let with = |workdir: Option<&str>| {
            let spec = SandboxSpec {
                workspace: Some("/home/ann/project".into()),
                workdir: workdir.map(Into::into),
                ..SandboxSpec::default()
            };
            plan(&spec, Facts { mounts: vec![workspace.clone()], ..facts(&id, &image, 1000) }).unwrap()
        };
        assert_eq!(with(None).body.working_dir.as_deref(), Some("/workspace"));
        assert_eq!(with(None).make_workdir, None);
        assert_eq!(with(Some("/workspace/new")).body.working_dir.as_deref(), Some("/"));
        assert_eq!(config(&with(Some("/workspace/new"))).cwd.unwrap().as_slice(), b"/workspace/new");
        assert_eq!(with(Some("/workspaces")).body.working_dir.as_deref(), Some("/workspaces"));
    }

    #[test]
    fn a_directory_of_the_sandboxs_own_is_given_to_its_user() {
        let image = ImageConfig::default();
        let plan = planned(&SandboxSpec::default(), &image, 1000);
        assert_eq!(plan.body.working_dir.as_deref(), Some("/workspace"));
        let owner = Owner { uid: 1000, gid: 1000 };
        assert_eq!(plan.make_workdir, Some(Workdir { path: "/workspace".into(), owner, if_missing: false }));
        assert_eq!(planned(&SandboxSpec::default(), &image, 0).make_workdir, None);
    }

    #[test]
    fn podman_is_told_to_make_no_directory_and_one_is_made_where_it_is_missing() {
        let (id, image) = (SandboxId::new("abc").unwrap(), ImageConfig::default());
        let spec = SandboxSpec { workdir: Some("/srv".into()), ..SandboxSpec::default() };
        let plan = plan(&spec, Facts { kind: EngineKind::Podman, ..facts(&id, &image, 1000) }).unwrap();
        assert_eq!(plan.body.working_dir.as_deref(), Some("/"));
        let owner = Owner { uid: 0, gid: 0 };
        assert_eq!(plan.make_workdir, Some(Workdir { path: "/srv".into(), owner, if_missing: true }));
    }

    #[test]
    fn a_keeper_that_is_copied_needs_nothing_of_this_machine() {
        let (id, image) = (SandboxId::new("abc").unwrap(), ImageConfig::default());
        let spec = SandboxSpec { tied: true, ..SandboxSpec::default() };
        let plan = plan(&spec, Facts { keeper: KeeperSetup::Copied, ..facts(&id, &image, 1000) }).unwrap();
        let config = config(&plan);
        assert_eq!((config.by_engine, config.owner_holds), (true, None));
        let mounts = plan.body.host_config.unwrap().mounts.unwrap();
        let shape: Vec<_> = mounts.iter().map(|mount| (mount.source.as_deref(), mount.target.as_deref())).collect();
        assert_eq!(shape, [(None, Some("/.kennel"))]);
    }

    #[test]
    fn labels_say_everything_the_engine_does_not() {
        let image = ImageConfig {
            entrypoint: Some(vec!["/agent".into()]),
            cmd: Some(vec!["--serve".into()]),
            ..ImageConfig::default()
        };
        let spec = SandboxSpec {
            name: Some("box".into()),
            command: Some(vec!["sh".into()]),
            labels: [("team".to_owned(), "a".to_owned())].into(),
            project: Some("/home/ann/project".into()),
            ..SandboxSpec::default()
        };
        let plan = planned(&spec, &image, 1000);
        assert_eq!(plan.container, "kennel-box");
        let mut found: Vec<String> =
            plan.body.labels.as_ref().unwrap().iter().map(|(key, value)| format!("{key}={value}")).collect();
        found.sort();
        assert_eq!(
            found,
            [
                "kennel.auto-remove=false",
                "kennel.created-ms=7",
                "kennel.data=",
                "kennel.id=abc",
                "kennel.image-command=[\"/agent\",\"--serve\"]",
                "kennel.image=",
                "kennel.installation=here",
                "kennel.main=true",
                "kennel.mode=docker, root",
                "kennel.name-prefix=kennel-",
                "kennel.name=box",
                "kennel.owner=1000:1000",
                "kennel.profile=",
                "kennel.project=/home/ann/project",
                "kennel.session=",
                "kennel.startup-ms=10000",
                "kennel.store=",
                "kennel.workdir=/workspace",
                "kennel=true",
                "team=a",
            ]
        );
        let config = config(&plan);
        assert!(matches!(config.main.unwrap().command, kennel_proto::SpawnCommand::Argv(argv) if argv.len() == 1));
        assert_eq!((config.inherit_env, config.log, config.tied), (true, LogSink::Passthrough, false));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let id = SandboxId::new("abc").unwrap();
        let image = ImageConfig::default();
        let refused = |spec: SandboxSpec| plan(&spec, facts(&id, &image, 0)).unwrap_err().code();
        let env = [("A=B".to_owned(), String::new())].into();
        assert_eq!(refused(SandboxSpec { env, ..SandboxSpec::default() }), ErrorCode::InvalidConfig);
        let workdir = Some("relative".into());
        assert_eq!(refused(SandboxSpec { workdir, ..SandboxSpec::default() }), ErrorCode::InvalidConfig);
    }
}
