//! Converts a spec to a request for the engine. It does no I/O: everything it needs is passed in.
//!
//! Commands run as the first of these that is known: the spec's user; the owner of the workspace's files, unless that
//! is root; the image's USER; root. So files in a workspace belong to the right user, and an image's USER applies if
//! nothing else does. On a rootless engine, root inside is the user who runs the engine.

mod host_config;
mod keeper_config;
#[cfg(test)]
mod tests;

use crate::engine::EngineKind;
use crate::labels;
use crate::mounts::WORKSPACE;
use crate::names::NamePrefix;
use crate::plain;
use crate::volumes::Volume;
use bollard::models::{ContainerCreateBody, HealthConfig, ImageConfig, Mount};
use host_config::{host_config, port_key};
use keeper_config::{DEFAULT_HOME, User, home, keeper_command, keeper_config, main_process, own_command, user};
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NetworkMode, Owner, SandboxId, SandboxSpec};
use std::collections::HashMap;
use std::path::Path;

pub(crate) use host_config::{CAPABILITIES, FIREWALL_CAPABILITY};
pub(crate) use keeper_config::{FIREWALL_FILE, SOCKET};

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
            if facts.ids == Ids::Kept && !spec.read_only && home(spec, &facts).as_deref() == Some(DEFAULT_HOME) =>
        {
            Some(Workdir { path: DEFAULT_HOME.into(), owner, if_missing: true })
        }
        _ => None,
    };
    let give_volumes = match user {
        // In all other cases the keeper does it, also with a read-only root filesystem.
        User::Owner(owner) if matches!(facts.keeper, KeeperSetup::Plain) && !facts.volumes.is_empty() => {
            let given = facts.volumes.iter().filter(|volume| !volume.read_only);
            Some((owner, given.map(|volume| volume.target.clone()).collect()))
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

/// Returns the labels of a container: those of the spec and Kennel's own.
fn all_labels(spec: &SandboxSpec, name: &str, workdir: &str, facts: &Facts<'_>) -> Result<HashMap<String, String>> {
    let mut all: HashMap<String, String> = spec.labels.clone().into_iter().collect();
    all.extend(labels::empty_optional().chain(labels::own_labels(spec, facts.owner)));
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
