//! The definitions of pools: one file each, which is replaced atomically. One lock orders all changes.

use super::wire::{self, PoolReply, PoolRequest};
use crate::{Engine, lock_file};
use kennel_core::{Error, Result, check_name, printable};
use kennel_types::{ErrorCode, NextStep, ProviderKind, SandboxSpec};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The largest number of members of a pool.
pub const MAX_MEMBERS: u32 = 1000;

/// A pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// The name.
    pub name: String,
    /// The number of members that always wait.
    pub min: u32,
    /// The largest number of members that wait. As many wait as were claimed in the last minute, within these bounds.
    pub max: u32,
    /// The provider of its sandboxes.
    pub provider: ProviderKind,
    /// The profile that it is for, by its name. `spec` is what the profile said when the pool was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Its members are for sessions, and only for these. `None` on native, where any sandbox can use a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionMembers>,
    /// The sandboxes that it is for. If the specification belongs to a profile, only sandboxes of that profile use the pool.
    pub spec: SandboxSpec,
}

impl Pool {
    /// Whether the members of another pool can be the members of this one.
    pub(crate) fn has_same_members(&self, other: &Self) -> bool {
        *self == Self { min: self.min, max: self.max, profile: self.profile.clone(), ..other.clone() }
    }
}

/// Members that are for sessions. Each has the id and the secret of its future session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionMembers {
    /// The directory in which each member has a workspace of its own, named by the id of its session. `None` if all members
    /// have the workspace of the specification, or none.
    pub workspaces: Option<PathBuf>,
}

/// A pool, and what the resident process has for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// The name.
    pub name: String,
    /// The provider of its sandboxes.
    pub provider: ProviderKind,
    /// The profile that it is for, by its name.
    pub profile: Option<String>,
    /// Whether its members are only for sessions.
    #[serde(default)]
    pub sessions: bool,
    /// The number of members that always wait.
    pub min: u32,
    /// The largest number of members that wait.
    pub max: u32,
    /// The number of members that wait now. `None` if there is no resident process.
    pub ready: Option<u32>,
    /// Why a member could not be made, if the last attempt failed.
    pub problem: Option<String>,
}

impl PoolStatus {
    pub(crate) fn of(pool: &Pool) -> Self {
        let Pool { name, min, max, provider, profile, sessions, .. } = pool.clone();
        Self { name, provider, profile, sessions: sessions.is_some(), min, max, ready: None, problem: None }
    }
}

/// The pools of a state directory.
pub struct Pools {
    dir: PathBuf,
    socket: PathBuf,
}

impl Engine {
    /// Returns the pools.
    pub fn pools(&self) -> Result<Pools> {
        let directories = self.directories()?;
        Ok(Pools { dir: directories.pools(), socket: directories.pool_socket() })
    }
}

impl Pools {
    /// Returns all pools, by name, and how many members wait.
    pub async fn list(&self) -> Result<Vec<PoolStatus>> {
        let mut all: Vec<PoolStatus> = read_all(&self.dir)?.iter().map(PoolStatus::of).collect();
        if let Ok((PoolReply::Listed { pools }, ..)) = wire::ask(&self.socket, &PoolRequest::List).await {
            for status in &mut all {
                let known = pools.iter().find(|known| known.name == status.name);
                status.ready = Some(known.and_then(|known| known.ready).unwrap_or(0));
                status.problem = known.and_then(|known| known.problem.clone());
            }
        }
        Ok(all)
    }

    /// Creates a pool, or replaces the one with this name. The resident process makes its members.
    pub async fn set(&self, pool: &Pool) -> Result<()> {
        check(pool)?;
        {
            let _lock = self.lock()?;
            write(&self.dir, pool).map_err(|error| Error::io(format!("write pool {}", pool.name), error))?;
        }
        self.reload().await;
        Ok(())
    }

    /// Removes a pool. The members that wait end.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let none = || {
            Error::new(ErrorCode::NotFound, format!("there is no pool {}", printable(name)))
                .suggest(NextStep::ListPools)
        };
        check_name(name).map_err(|_| none())?;
        {
            let _lock = self.lock()?;
            match std::fs::remove_file(path(&self.dir, name)) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(none()),
                removed => removed.map_err(|error| Error::io(format!("remove pool {name}"), error))?,
            }
        }
        self.reload().await;
        Ok(())
    }

    /// Tells the resident process that something has changed. If there is none, nobody has to know.
    async fn reload(&self) {
        if let Err(error) = wire::ask(&self.socket, &PoolRequest::Reload).await {
            tracing::debug!(%error, "no resident process was told of the change");
        }
    }

    fn lock(&self) -> Result<File> {
        let path = self.dir.join(".lock");
        let locked = lock_file::create_dir(&self.dir).and_then(|()| {
            let file = lock_file::open(&path)?;
            lock_file::lock(&file)?;
            Ok(file)
        });
        locked.map_err(|error| Error::io(format!("lock {}", path.display()), error))
    }
}

/// Refuses a pool that could have no members.
fn check(pool: &Pool) -> Result<()> {
    let invalid = |message: String| Error::new(ErrorCode::InvalidConfig, message);
    check_name(&pool.name).map_err(|error| error.context("pool"))?;
    if pool.max == 0 || pool.max > MAX_MEMBERS {
        return Err(invalid(format!("pool {}: at most {} members: expected 1 to {MAX_MEMBERS}", pool.name, pool.max)));
    }
    if pool.min > pool.max {
        let message = format!("pool {}: at least {} members, but at most {}", pool.name, pool.min, pool.max);
        return Err(invalid(message));
    }
    let spec = &pool.spec;
    if spec.command.is_some() || spec.image_main || spec.tied {
        return Err(invalid(format!(
            "pool {}: a member has no main process, and stays until it is claimed",
            pool.name
        )));
    }
    match pool.provider {
        ProviderKind::Native if pool.sessions.is_some() => {
            let message =
                format!("pool {}: the members of a native pool fit every sandbox, also of sessions", pool.name);
            Err(invalid(message))
        }
        ProviderKind::Native => Ok(()),
        ProviderKind::Local => {
            let message = format!("pool {}: {} has no pools", pool.name, pool.provider.name());
            let others = [ProviderKind::Native, ProviderKind::Podman, ProviderKind::Docker];
            Err(Error::new(ErrorCode::Unsupported, message).suggest(NextStep::use_provider(others)))
        }
        ProviderKind::Docker | ProviderKind::Podman | ProviderKind::Mock => check_whole(pool),
    }
}

/// Refuses what a sandbox cannot have before it is claimed.
fn check_whole(pool: &Pool) -> Result<()> {
    let Pool { name, spec, sessions, .. } = pool;
    let has_own = sessions.as_ref().is_some_and(|sessions| sessions.workspaces.is_some());
    let impossible = [
        (has_own && spec.workspace.is_some(), "both a workspace of its own and another one"),
        (spec.session.is_some() || spec.store.is_some(), "the id of a session before it is made"),
        (spec.auto_remove, "removal at its end"),
        (spec.data, "a data volume, which belongs to a name"),
        (!spec.ports.is_empty(), "published ports, which only one sandbox can have"),
        (spec.idle_seconds.is_some() || spec.idle_pause_ms.is_some(), "an idle time"),
    ];
    match impossible.iter().find(|(asked, _)| *asked) {
        Some((_, what)) => {
            Err(Error::new(ErrorCode::InvalidConfig, format!("pool {name}: a member cannot have {what}")))
        }
        None => Ok(()),
    }
}

fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.json"))
}

/// Writes the file of a pool. It is readable only for its user, because it may contain secrets.
fn write(dir: &Path, pool: &Pool) -> std::io::Result<()> {
    let partial = dir.join(".partial");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    file.write_all(format!("{:#}\n", serde_json::to_value(pool)?).as_bytes())?;
    file.sync_all()?;
    std::fs::rename(partial, path(dir, &pool.name))
}

/// Returns the definitions of all pools, by name.
pub(crate) fn read_all(dir: &Path) -> Result<Vec<Pool>> {
    let failed = |error: std::io::Error| Error::io(format!("read the pools in {}", dir.display()), error);
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut pools = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".json"));
        if name.is_none_or(|name| check_name(name).is_err()) {
            continue;
        }
        let bytes = match std::fs::read(&path) {
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            bytes => bytes.map_err(failed)?,
        };
        let pool: Pool = serde_json::from_slice(&bytes).map_err(|error| {
            let message = format!("the pool {} cannot be read: {error}", path.display());
            Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::advice("set the pool again, or remove it"))
        })?;
        pools.push(pool);
    }
    pools.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(pools)
}
