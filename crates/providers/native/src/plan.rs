//! From what was asked for to what the jail will do. No I/O but looking at what is there.

use kennel_core::{Error, Record, Result};
use kennel_jail::{Bind, Cgroup, Cover, IdMap, Network, Plan};
use kennel_proto::{KeeperConfig, LogSink, Spawn};
use kennel_types::{ErrorCode, Mount, NetworkMode, Owner, SandboxSpec};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where the workspace is inside.
pub(crate) const WORKSPACE: &str = "/workspace";
/// The first of the ids outside that users inside have. High, so that they are nobody's.
pub(crate) const FIRST_ID: u32 = 100_000;
/// How many.
const IDS: u32 = 65_536;

/// What root inside may do to what is inside: what packages need to be installed, and servers to be run.
const CAPABILITIES: u64 = 1 << 0 // CHOWN
    | 1 << 1 // DAC_OVERRIDE
    | 1 << 3 // FOWNER
    | 1 << 4 // FSETID
    | 1 << 5 // KILL
    | 1 << 6 // SETGID
    | 1 << 7 // SETUID
    | 1 << 8 // SETPCAP
    | 1 << 10 // NET_BIND_SERVICE
    | 1 << 18 // SYS_CHROOT
    | 1 << 29 // AUDIT_WRITE
    | 1 << 31; // SETFCAP

/// Places that mounts must not cover: the walls are made of them.
const TAKEN: [&str; 4] = ["/", "/dev", "/proc", "/sys"];

/// Refuses what cannot be carried out, before anything is made.
pub(crate) fn check(spec: &SandboxSpec, ours: &[&Path]) -> Result<()> {
    if let Some(workspace) = &spec.workspace
        && !workspace.is_dir()
    {
        return Err(Error::new(
            ErrorCode::InvalidConfig,
            format!("the workspace {} is not a directory", workspace.display()),
        ));
    }
    for host in spec.workspace.iter().chain(spec.mounts.iter().map(|mount| &mount.host)) {
        // What is mounted is what was named: a link can be changed by whoever may write where it is, a sandbox too.
        if host.exists() && real(host) != *host {
            let message = format!("mount {}: there is a link in it, which may lead elsewhere by then", host.display());
            return Err(Error::new(ErrorCode::InvalidConfig, message).hint(format!("name {}", real(host).display())));
        }
        if ours.iter().any(|dir| real(host).starts_with(real(dir))) {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("mount {}: Kennel keeps its sandboxes there, and shows them to none", host.display()),
            ));
        }
    }
    for mount in &spec.mounts {
        if !mount.host.exists() {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("mount {}: there is no such file or directory", mount.host.display()),
            ));
        }
        let below = |taken: &&str| **taken != *"/" && mount.target.starts_with(&format!("{taken}/"));
        let target = mount.target.trim_end_matches('/');
        if TAKEN.contains(&target) || target.is_empty() || TAKEN.iter().any(below) {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("mount {}: nothing can be mounted at {}", mount.host.display(), mount.target),
            ));
        }
    }
    inside_user(spec).map(drop)
}

/// The plan for a sandbox in `dir`, with `cover` over the host's root and `hidden` not to be seen in any mount.
pub(crate) fn of(record: &Record, dir: &Path, hidden: &[&Path], cover: Vec<Cover>) -> Result<Plan> {
    let spec = &record.spec;
    let dir = dir
        .to_str()
        .map(ToOwned::to_owned)
        .ok_or_else(|| Error::new(ErrorCode::InvalidConfig, format!("{} is not valid UTF-8", dir.display())))?;
    let owner = spec
        .owner
        .unwrap_or(Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() });
    let user = inside_user(spec)?;
    let workspace = spec.workspace.as_ref().map(|host| Mount {
        host: host.clone(),
        target: WORKSPACE.to_owned(),
        read_only: false,
    });
    let binds = workspace.iter().chain(&spec.mounts).map(|mount| bind(mount, owner, user, hidden)).collect();
    let limits = spec.limits;
    Ok(Plan {
        dir,
        lower: vec!["/".into()],
        cover,
        ids: IdMap { inside: 0, outside: FIRST_ID, count: IDS },
        binds,
        cgroup: (!limits.is_empty()).then(|| Cgroup {
            name: record.id.to_string(),
            memory: limits.memory.map(|size| size.0),
            millicpus: limits.millicpus,
            pids: limits.pids,
        }),
        hostname: record.name.clone(),
        capabilities: CAPABILITIES,
        keeper: keeper_config(record),
        remove_dir: spec.tied,
        resolv_conf: match network(record.network) {
            Network::Host => std::fs::read("/etc/resolv.conf").ok().map(Into::into),
            Network::None => None,
        },
        link: None,
    })
}

/// The network namespace of a sandbox: a way out of its own is added later.
pub(crate) fn network(mode: NetworkMode) -> Network {
    match mode {
        NetworkMode::Host => Network::Host,
        NetworkMode::None | NetworkMode::Bridge => Network::None,
    }
}

fn keeper_config(record: &Record) -> KeeperConfig {
    let bytes = |text: &str| text.as_bytes().to_vec().into();
    let spec = &record.spec;
    KeeperConfig {
        tied: spec.tied,
        owner_within_ms: Some(10_000),
        idle_ms: spec.idle_seconds.map(|seconds| seconds.saturating_mul(1000)),
        env: spec.env.iter().map(|(key, value)| (bytes(key), bytes(value))).collect(),
        cwd: Some(bytes(&record.workdir)),
        user: Some(spec.user.clone().unwrap_or_else(|| "0".into())),
        main: spec.command.as_ref().map(|argv| Spawn::main(argv)),
        log: LogSink::Nowhere,
        memory_limit: spec.limits.memory.map(|size| size.0),
        ..KeeperConfig::default()
    }
}

/// Shows the owner's files as those of the user inside. Root's own go through the sandbox's map: all of them keep their
/// owners, and what root inside makes is root's outside.
fn bind(mount: &Mount, owner: Owner, user: u32, hidden: &[&Path]) -> Bind {
    let one = |disk, inside: u32| IdMap { inside: disk, outside: FIRST_ID + inside, count: 1 };
    let plain = owner.uid == 0 && owner.gid == 0 && user == 0;
    // A sandbox that sees another's socket could talk to its keeper.
    let host = real(&mount.host);
    let hide = hidden.iter().filter_map(|dir| {
        let below = real(dir).strip_prefix(&host).ok()?.as_os_str().as_bytes().to_vec();
        (!below.is_empty()).then(|| below.into())
    });
    Bind {
        hide: hide.collect(),
        host: mount.host.as_os_str().as_bytes().to_vec().into(),
        target: mount.target.as_bytes().to_vec().into(),
        read_only: mount.read_only,
        owners: (!plain).then(|| (one(owner.uid, user), one(owner.gid, user))),
    }
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The number of the user that commands run as. Names are the host's: its `/etc/passwd` is what is inside.
fn inside_user(spec: &SandboxSpec) -> Result<u32> {
    let Some(user) = &spec.user else { return Ok(0) };
    let name = user.split(':').next().unwrap_or_default();
    let uid = name.parse().ok().or_else(|| {
        let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
        let entry = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        entry.split(':').nth(2)?.parse().ok()
    });
    match uid {
        Some(uid) if uid < IDS => Ok(uid),
        _ => Err(Error::new(ErrorCode::InvalidConfig, format!("there is no user {user:?}"))),
    }
}
