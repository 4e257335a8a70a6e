//! Builds the specification of a sandbox from the settings and from what overrides them: a profile, or the options of a
//! call.

use crate::{Caller, Settings};
use kennel_config::{SandboxOverrides, Socket, Volume};
use kennel_core::{Error, Result};
use kennel_types::{
    Cache, ErrorCode, Field, GitProtection, Limits, Mode, Mount, NextStep, Port, ProviderKind, SandboxSpec,
    SocketBridge, Support, Toolchains,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a sandbox that is not kept alive runs without a command. It is not zero, so that a client can send its next
/// command on the same connection.
const NOT_KEPT_ALIVE: Duration = Duration::from_secs(1);

/// Puts `stronger` over `weaker`. Maps are merged by key, mounts by target, and ports by the port inside.
pub fn merge(weaker: SandboxOverrides, stronger: SandboxOverrides) -> SandboxOverrides {
    let merged = |mut weaker: BTreeMap<String, String>, stronger| {
        weaker.extend(stronger);
        weaker
    };
    let volumes = |weaker: Vec<Volume>, stronger: Vec<Volume>| {
        let kept = weaker.into_iter().filter(|volume| stronger.iter().all(|by| by.container != volume.container));
        kept.chain(stronger.iter().cloned()).collect()
    };
    let ports = |weaker: Vec<kennel_config::Port>, stronger: Vec<kennel_config::Port>| {
        let inside = |port: &kennel_config::Port| (port.container, port.protocol);
        let kept = weaker.into_iter().filter(|port| stronger.iter().all(|by| inside(by) != inside(port)));
        kept.chain(stronger.iter().copied()).collect()
    };
    let sockets = |weaker: Vec<Socket>, stronger: Vec<Socket>| {
        let kept = weaker.into_iter().filter(|socket| stronger.iter().all(|by| by.container != socket.container));
        kept.chain(stronger.iter().cloned()).collect()
    };
    SandboxOverrides {
        name: stronger.name.or(weaker.name),
        provider: stronger.provider.or(weaker.provider),
        image: stronger.image.or(weaker.image),
        pull: stronger.pull.or(weaker.pull),
        command: stronger.command.or(weaker.command),
        image_command: stronger.image_command.or(weaker.image_command),
        read_only: stronger.read_only.or(weaker.read_only),
        runtime: stronger.runtime.or(weaker.runtime),
        userns: stronger.userns.or(weaker.userns),
        workdir: stronger.workdir.or(weaker.workdir),
        env: merged(weaker.env, stronger.env),
        labels: merged(weaker.labels, stronger.labels),
        user: stronger.user.or(weaker.user),
        // A workspace and its absence exclude each other.
        no_workspace: if stronger.workspace.is_some() { None } else { stronger.no_workspace.or(weaker.no_workspace) },
        workspace: if stronger.no_workspace == Some(true) { None } else { stronger.workspace.or(weaker.workspace) },
        volumes: volumes(weaker.volumes, stronger.volumes),
        data: stronger.data.or(weaker.data),
        caches: merged(weaker.caches, stronger.caches),
        network: stronger.network.or(weaker.network),
        ports: ports(weaker.ports, stronger.ports),
        sockets: sockets(weaker.sockets, stronger.sockets),
        memory: stronger.memory.or(weaker.memory),
        cpus: stronger.cpus.or(weaker.cpus),
        pids: stronger.pids.or(weaker.pids),
        disk: stronger.disk.or(weaker.disk),
        toolchains: stronger.toolchains.or(weaker.toolchains),
        extra_toolchains: if stronger.extra_toolchains.is_empty() {
            weaker.extra_toolchains
        } else {
            stronger.extra_toolchains
        },
        nesting: stronger.nesting.or(weaker.nesting),
        protect_git: stronger.protect_git.or(weaker.protect_git),
        command_timeout: stronger.command_timeout.or(weaker.command_timeout),
        startup_timeout: stronger.startup_timeout.or(weaker.startup_timeout),
        keep_alive: stronger.keep_alive.or(weaker.keep_alive),
        idle_timeout: stronger.idle_timeout.or(weaker.idle_timeout),
        idle_pause: stronger.idle_pause.or(weaker.idle_pause),
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

/// Returns the workspace of a sandbox: that of the overrides or of the settings, else the caller's current directory.
/// Paths in the overrides must be absolute, exist, and contain no symlinks.
pub fn workspace(settings: &Settings, overrides: &SandboxOverrides, caller: &Caller) -> Result<Option<PathBuf>> {
    if overrides.no_workspace == Some(true) {
        return Ok(None);
    }
    let set = |settings: &Settings| {
        let dir = settings.sandbox.workspace.as_ref()?;
        Some(settings.real_path(dir).map_err(|error| missing_path(dir, "sandbox.workspace:", error)))
    };
    let given = overrides.workspace.clone().map(Ok).or_else(|| set(settings)).transpose()?;
    if let Some(dir) = given {
        if dir.is_dir() {
            return Ok(Some(dir));
        }
        let message = format!("the workspace {} is not a directory", dir.display());
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    }
    if caller.current_dir == Path::new("/") {
        // This is probably a mistake: it would give the sandbox all files of the host.
        let message = "the current directory is /, which would be the workspace";
        return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::ChooseWorkspace));
    }
    Ok(Some(caller.current_dir.clone()))
}

/// Converts settings and overrides to a specification for a provider with this mode. Overrides are stronger. `workspace`
/// is the one that [`workspace`] returned.
pub fn spec(
    settings: &Settings,
    overrides: &SandboxOverrides,
    workspace: Option<PathBuf>,
    caller: &Caller,
    mode: &Mode,
) -> Result<SandboxSpec> {
    let set = &settings.sandbox;
    let mut env = set.env.clone();
    env.extend(overrides.env.clone());
    let mut labels = set.labels.clone();
    labels.extend(overrides.labels.clone());
    let image = overrides.image.clone().or_else(|| set.image.clone());
    let shows_home = mode.key.provider == ProviderKind::Native && image.is_none();
    let idle = overrides.idle_timeout.or(set.idle_timeout).map(|time| time.0);
    let idle = if overrides.keep_alive == Some(false) { Some(NOT_KEPT_ALIVE) } else { idle };
    let startup = overrides.startup_timeout.unwrap_or(set.startup_timeout);
    Ok(SandboxSpec {
        name: overrides.name.clone(),
        image_main: overrides.image_command.unwrap_or(false),
        read_only: overrides.read_only.unwrap_or(set.read_only),
        // Without a name, the volume could never be found again.
        data: overrides.data.unwrap_or(set.data && overrides.name.is_some()),
        caches: caches(settings, overrides, workspace.as_deref())?,
        runtime: overrides.runtime.clone().or_else(|| set.runtime.clone()),
        userns: overrides.userns.clone().or_else(|| set.userns.clone()),
        command: overrides.command.clone().or_else(|| set.command.clone()),
        workdir: overrides.workdir.clone().or_else(|| settings.said("sandbox.workdir", set.workdir.clone())),
        env,
        labels,
        session: None,
        store: None,
        project: workspace.as_deref().map(project_of),
        profile: None,
        pool: None,
        user: overrides.user.clone().or_else(|| set.user.clone()),
        mounts: mounts(settings, overrides)?,
        network: overrides.network.or(set.network).map(|network| network.0),
        ports: ports(settings, overrides),
        sockets: sockets(settings, overrides)?,
        toolchains: toolchains(settings, overrides, caller, shows_home)?,
        image,
        workspace,
        nesting: overrides.nesting.unwrap_or(set.nesting),
        protect_git: match overrides.protect_git.or(set.protect_git) {
            None => GitProtection::Hooks,
            Some(true) => GitProtection::Config,
            Some(false) => GitProtection::None,
        },
        limits: Limits {
            memory: overrides.memory.or(set.memory),
            millicpus: overrides.cpus.or(set.cpus).map(|cpus| cpus.0),
            pids: overrides.pids.or(set.pids),
            disk: overrides.disk.or(set.disk),
        },
        // Without mounts, no file needs a particular owner.
        owner: caller.sudo_owner().filter(|_| mode.mounts == Support::Given),
        tied: false,
        auto_remove: false,
        idle_seconds: idle.map(|time| time.as_secs().max(1)),
        idle_pause_ms: overrides.idle_pause.or(set.idle_pause).map(|time| millis(time.0)),
        startup_ms: Some(millis(startup.0)),
    })
}

/// Returns the ports of the settings and the overrides. An override replaces a setting for the same port inside.
fn ports(settings: &Settings, overrides: &SandboxOverrides) -> Vec<Port> {
    let inside = |port: &kennel_config::Port| (port.container, port.protocol);
    let replaced = |port: &kennel_config::Port| overrides.ports.iter().any(|by| inside(by) == inside(port));
    let set = settings.sandbox.ports.iter().filter(|port| !replaced(port));
    let port = |port: &kennel_config::Port| Port { host: port.host, inside: port.container, protocol: port.protocol };
    set.chain(&overrides.ports).map(port).collect()
}

/// Returns the mounts of the settings and the overrides. An override replaces a setting for the same target.
fn mounts(settings: &Settings, overrides: &SandboxOverrides) -> Result<Vec<Mount>> {
    let mount =
        |host: PathBuf, volume: &Volume| Mount { host, target: volume.container.clone(), read_only: volume.readonly };
    let mut mounts = Vec::new();
    for volume in &settings.sandbox.volumes {
        if overrides.volumes.iter().all(|by| by.container != volume.container) {
            let host = settings.real_path(&volume.host);
            let host = host.map_err(|error| missing_path(&volume.host, "sandbox.volumes:", error))?;
            mounts.push(mount(host, volume));
        }
    }
    mounts.extend(overrides.volumes.iter().map(|volume| mount(volume.host.clone(), volume)));
    Ok(mounts)
}

/// Returns the sockets of the settings and the overrides. An override replaces a setting for the same path inside.
fn sockets(settings: &Settings, overrides: &SandboxOverrides) -> Result<Vec<SocketBridge>> {
    let mut sockets = Vec::new();
    for Socket { host, container } in &settings.sandbox.sockets {
        if overrides.sockets.iter().all(|by| by.container != *container) {
            let real = settings.real_path(host).map_err(|error| missing_socket(host, "sandbox.sockets:", error))?;
            sockets.push(SocketBridge { host: real, target: container.clone() });
        }
    }
    let given = |socket: &Socket| SocketBridge { host: socket.host.clone(), target: socket.container.clone() };
    sockets.extend(overrides.sockets.iter().map(given));
    Ok(sockets)
}

/// Returns the caches of the settings and the overrides. An override replaces a setting with the same name. Only
/// sandboxes with a workspace in the same project share a cache.
fn caches(settings: &Settings, overrides: &SandboxOverrides, workspace: Option<&Path>) -> Result<Vec<Cache>> {
    let project = workspace.map(|dir| format!("{}-", project_hash(dir))).unwrap_or_default();
    let mut all = settings.sandbox.caches.clone();
    all.extend(overrides.caches.clone());
    let cache = |(name, target): (String, String)| {
        let invalid = |why: &str| {
            let message = format!("cache {name:?} at {target:?}: {why}");
            Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::set(Field::Caches))
        };
        kennel_core::check_name(&name).map_err(|error| invalid(&error.to_string()))?;
        if !target.starts_with('/') {
            return Err(invalid("the path inside must be absolute"));
        }
        Ok(Cache::new(format!("{project}{name}"), target))
    };
    all.into_iter().map(cache).collect()
}

/// Returns a short hash of a workspace, which is part of the names of its volumes.
pub fn project_hash(workspace: &Path) -> String {
    let hash = Sha256::digest(workspace.as_os_str().as_encoded_bytes());
    hash[..4].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Returns the project of a workspace: the git repository that contains it, or the workspace itself.
pub fn project_of(workspace: &Path) -> String {
    let repository = workspace.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok());
    repository.unwrap_or(workspace).display().to_string()
}

/// Returns the toolchains in the home directory of the calling user, if sandboxes can use them.
fn toolchains(
    settings: &Settings,
    overrides: &SandboxOverrides,
    caller: &Caller,
    shows_home: bool,
) -> Result<Option<Toolchains>> {
    let set = &settings.sandbox;
    let wanted = overrides.toolchains.unwrap_or(set.toolchains);
    let home = caller.home_of_user().filter(|home| wanted && shows_home && home.is_absolute());
    let Some(home) = home else { return Ok(None) };
    let more = if overrides.extra_toolchains.is_empty() { &set.extra_toolchains } else { &overrides.extra_toolchains };
    for dir in more.iter().map(|dir| home.join(dir)) {
        let real = dir.canonicalize().map_err(|error| missing_path(&dir, "extraToolchains", error))?;
        if !real.is_dir() {
            let message = format!("extraToolchains {}: it is not a directory", dir.display());
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
    }
    Ok(Some(Toolchains { home, more: more.clone(), search: caller.program_dirs() }))
}

/// Returns the error for a socket of the host that cannot be found. `at` says which option or setting names it.
pub fn missing_socket(path: &Path, at: &str, error: std::io::Error) -> Error {
    Error::new(ErrorCode::InvalidConfig, format!("{at} {}: {error}", path.display()))
        .caused_by(error)
        .suggest(NextStep::advice("check the path, and that the program that listens there is running"))
}

/// Returns the error for a host path that cannot be resolved. `at` says which option or setting names it.
pub fn missing_path(path: &Path, at: &str, error: std::io::Error) -> Error {
    // The next step suggests creating a directory only if a user would create it.
    let made_by_programs =
        ["/run", "/var/run", "/proc", "/sys", "/dev", "/etc"].iter().any(|dir| path.starts_with(dir));
    let step = if path.extension().is_some() || made_by_programs {
        NextStep::advice("check the path: only an existing path can be mounted")
    } else {
        NextStep::run_on_host(format!("mkdir -p {}", path.display()))
    };
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    let error = Error::new(ErrorCode::InvalidConfig, format!("{at} {}: {error}", path.display())).caused_by(error);
    if missing { error.suggest(step) } else { error }
}
