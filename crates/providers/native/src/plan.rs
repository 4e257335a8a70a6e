//! Computes the plan for the jail from the spec. It only reads from the system.

use crate::groups::MOUNT;
use crate::rights::Maker;
use crate::volumes::Volumes;
use crate::{image, mask_layer, toolchains};
use kennel_core::{Error, Result};
use kennel_jail::{Base, Bind, Cgroup, EtcFile, IdMap, Ids, Network, Owners, Pin, Plan, Rights};
use kennel_proto::{KeeperConfig, LogSink, Spawn};
use kennel_provider::{Guard, Record, Screen, TakenImage};
use kennel_types::{
    ErrorCode, Feature, Field, IsolationLayer, Mount, NetworkMode, NextStep, ProviderKind, SandboxSpec, Support,
};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The path of the workspace inside.
pub(crate) const WORKSPACE: &str = "/workspace";

/// The capabilities of root inside: what installing packages and running servers needs. `FSETID` and `SETFCAP` are left
/// out, because they could create a program in a mount that has privileges on the host.
const CAPABILITIES: u64 = 1 << 0 // CHOWN
    | 1 << 1 // DAC_OVERRIDE
    | 1 << 3 // FOWNER
    | 1 << 5 // KILL
    | 1 << 6 // SETGID
    | 1 << 7 // SETUID
    | 1 << 8 // SETPCAP
    | 1 << 10 // NET_BIND_SERVICE
    | 1 << 18 // SYS_CHROOT
    | 1 << 29; // AUDIT_WRITE

/// `SETFCAP`: without it, the kernel does not allow mapping root into a new user namespace.
const NESTING: u64 = 1 << 31;

/// `SYS_PTRACE`: the keeper reads the arguments of calls that it carries out. Commands do not have it.
const KEEPER: u64 = 1 << 19;

/// Paths that mounts must not cover, because the isolation depends on them.
const TAKEN: [&str; 4] = ["/", "/dev", "/proc", "/sys"];

/// Refuses a spec that cannot be carried out, before anything is created.
pub(crate) async fn check(spec: &SandboxSpec, image: Option<&TakenImage>, maker: &Maker, guard: &Guard) -> Result<()> {
    if let Some(workspace) = &spec.workspace
        && !workspace.is_dir()
    {
        return Err(Error::new(
            ErrorCode::InvalidConfig,
            format!("the workspace {} is not a directory", workspace.display()),
        ));
    }
    if image.is_none() && maker.rights == Rights::Root && is_overlay(Path::new("/")) {
        let message = "show the host's files: its root is an overlay, as in a container, and the kernel cannot stack \
                       the two overlays on it that keep files of root unreadable";
        return Err(Error::new(ErrorCode::Unsupported, message).suggest(NextStep::set(Field::Image)));
    }
    if let Some(dir) = guard.refused().find(|dir| mask_layer::below_root(dir).is_none()) {
        let message = format!("{} cannot be kept from sandboxes: its name is not valid UTF-8", dir.display());
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    }
    let workspace = spec.workspace.iter().map(|host| (host, false));
    for (host, read_only) in workspace.chain(spec.mounts.iter().map(|mount| (&mount.host, mount.read_only))) {
        // Mount exactly the named path: a sandbox or another user could change a symlink in it.
        let real = real(host);
        if real != *host && host.exists() {
            let message = format!(
                "mount {}: the path contains a symlink, which could change before it is mounted",
                host.display()
            );
            return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::UsePath { path: real }));
        }
        guard.check(host, &real, read_only)?;
        guard.check_socket(host, &real).await?;
    }
    guard.check_bridges(spec).await?;
    for mount in &spec.mounts {
        if !mount.host.exists() {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("mount {}: there is no such file or directory", mount.host.display()),
            ));
        }
        check_target(&mount.target, &format!("mount {}", mount.host.display()))?;
    }
    check_owners(spec, maker)?;
    for cache in &spec.caches {
        check_target(&cache.target, &format!("cache {}", cache.name))?;
    }
    if spec.image_main && spec.command.is_none() && image.is_none_or(|image| image.command.is_empty()) {
        let message = "the image defines no command";
        return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::set(Field::Command)));
    }
    if spec.runtime.is_some() {
        return Err(Error::unsupported("native", "a choice of runtime")
            .suggest(NextStep::ExplainFeature { feature: Feature::Images }));
    }
    if spec.userns.is_some() {
        return Err(Error::unsupported("native", "a choice of user namespace: each sandbox has its own").suggest(
            NextStep::either([
                NextStep::LeaveOut { field: Field::Userns },
                NextStep::use_provider([ProviderKind::Podman]),
            ]),
        ));
    }
    inside_user(user_of(spec, image), image, maker).map(drop)
}

fn is_overlay(path: &Path) -> bool {
    const OVERLAYFS_SUPER_MAGIC: u64 = 0x794c_7630;
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == OVERLAYFS_SUPER_MAGIC)
}

/// Refuses writable mounts of root's own directories in a sandbox in which files can get capabilities, because these
/// would be effective outside too. On files of other users they are not.
fn check_owners(spec: &SandboxSpec, maker: &Maker) -> Result<()> {
    if !spec.nesting || maker.rights == Rights::User {
        return Ok(());
    }
    let writable = spec.mounts.iter().filter(|mount| !mount.read_only).map(|mount| &mount.host);
    for host in spec.workspace.iter().chain(writable) {
        if host.metadata().is_ok_and(|metadata| metadata.uid() == 0) {
            let message = format!(
                "mount {}: it belongs to root, and with nesting a sandbox could make programs there that have root's \
                 rights outside",
                host.display()
            );
            let steps = [
                NextStep::advice("use a directory of another user"),
                NextStep::MountReadOnly,
                NextStep::LeaveOut { field: Field::Workspace },
            ];
            return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::either(steps)));
        }
    }
    Ok(())
}

/// Refuses mount points on which the isolation depends.
fn check_target(target: &str, what: &str) -> Result<()> {
    let below = |taken: &&str| **taken != *"/" && target.starts_with(&format!("{taken}/"));
    let end = target.trim_end_matches('/');
    if TAKEN.contains(&end) || end.is_empty() || TAKEN.iter().any(below) {
        let message = format!("{what}: nothing can be mounted at {target}");
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    }
    Ok(())
}

/// What no sandbox may see.
pub(crate) struct Masks {
    /// Directories that toolchains must not show.
    pub(crate) hidden: Vec<PathBuf>,
    /// What the guard masks in the workspace and in each other mount.
    pub(crate) screens: Vec<Screen>,
}

/// Computes the plan for a sandbox in `dir`, on `base`, with its `volumes`.
pub(crate) fn for_sandbox(
    record: &Record,
    maker: &Maker,
    dir: &Path,
    masks: &Masks,
    mut base: Base,
    volumes: &Volumes,
) -> Result<Plan> {
    let spec = &record.spec;
    // The owner may have changed since the sandbox was created.
    check_owners(spec, maker)?;
    let dir = text(dir)?;
    let image = record.image.as_ref();
    let (user, group) = inside_user(user_of(spec, image), image, maker)?;
    let workspace = spec.workspace.as_ref().map(|host| Mount {
        host: host.clone(),
        target: WORKSPACE.to_owned(),
        read_only: false,
    });
    let ids = maker.ids_of(record);
    let owners = match (maker.rights, ids.outside(user, group)) {
        (Rights::Root, Some((user, group))) => Owners::Top { user, group },
        (Rights::Root, None) => {
            let message = format!("user {user} with group {group} cannot exist inside");
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
        // Only root can change how the owners of the host's files appear.
        (Rights::User, _) => Owners::Kept,
    };
    let asked = spec.toolchains.as_ref().filter(|_| image.is_none());
    let writable = workspace.iter().chain(&spec.mounts).filter(|mount| !mount.read_only);
    let writable: Vec<&Path> = writable.map(|mount| mount.host.as_path()).collect();
    let shown = asked.map(|asked| toolchains::find(asked, &masks.hidden, &writable)).transpose()?.unwrap_or_default();
    if let Base::Host { masks, .. } = &mut base {
        let targets = shown.binds.iter().filter_map(|bind| std::str::from_utf8(&bind.target).ok());
        mask_layer::add_places(masks, targets);
    }
    let mut binds = shown.binds;
    binds.extend(volumes.binds_for(record, maker, user)?);
    for (mount, screen) in workspace.iter().chain(&spec.mounts).zip(&masks.screens) {
        let pins = if mount.read_only { Vec::new() } else { pins(spec, mount, &masks.hidden)? };
        binds.extend(screened(mount, &owners, screen, &pins));
    }
    let limits = spec.limits;
    Ok(Plan {
        dir,
        base,
        ids,
        rights: maker.rights,
        binds,
        cgroup: limits.on_processes().then(|| Cgroup {
            parent: maker.groups.dir().unwrap_or(Path::new(MOUNT)).to_string_lossy().into_owned(),
            name: record.id.to_string(),
            memory: limits.memory.map(|size| size.0),
            millicpus: limits.millicpus,
            pids: limits.pids,
        }),
        hostname: record.name.clone(),
        capabilities: capabilities(spec) | KEEPER,
        keeper: keeper_config(record, maker, &shown.env),
        read_only: spec.read_only,
        disk: limits.disk.is_some(),
        landlock: record.enforcement.layers.contains(&IsolationLayer::Landlock),
        nesting: spec.nesting,
        remove_dir: spec.tied || spec.auto_remove,
        etc: etc(record),
        link: None,
    })
}

/// The capabilities that commands can have.
fn capabilities(spec: &SandboxSpec) -> u64 {
    if spec.nesting { CAPABILITIES | NESTING } else { CAPABILITIES }
}

/// Returns the layers of an image, topmost first.
pub(crate) fn layers(image: &TakenImage) -> Result<Vec<String>> {
    image.layers.iter().map(|layer| text(layer)).collect()
}

/// Returns a path as text, which is how the plan has it.
pub(crate) fn text(path: &Path) -> Result<String> {
    path.to_str()
        .map(ToOwned::to_owned)
        .ok_or_else(|| Error::new(ErrorCode::InvalidConfig, format!("{} is not valid UTF-8", path.display())))
}

/// Returns the files in `/etc` that describe the sandbox's host name and network.
fn etc(record: &Record) -> Vec<EtcFile> {
    let mut files = Vec::new();
    if let Network::Host = network(record.network)
        && let Ok(text) = std::fs::read("/etc/resolv.conf")
    {
        files.push(EtcFile { name: "resolv.conf".into(), text: text.into(), if_empty: false });
    }
    if record.image.is_some() {
        let hosts = format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\t{}\n", record.name);
        files.push(EtcFile { name: "hosts".into(), text: hosts.into_bytes().into(), if_empty: true });
        let name = format!("{}\n", record.name);
        files.push(EtcFile { name: "hostname".into(), text: name.into_bytes().into(), if_empty: true });
    }
    files
}

/// The network namespace of a sandbox. Its connection to the outside is added later.
pub(crate) fn network(mode: NetworkMode) -> Network {
    match mode {
        NetworkMode::Host => Network::Host,
        NetworkMode::None | NetworkMode::Bridge => Network::Own,
    }
}

fn keeper_config(record: &Record, maker: &Maker, below: &BTreeMap<String, String>) -> KeeperConfig {
    let bytes = |text: &str| text.as_bytes().to_vec().into();
    let spec = &record.spec;
    let image = record.image.as_ref();
    let by_image = image.into_iter().flat_map(|image| &image.env).filter_map(|pair| pair.split_once('='));
    let below = by_image
        .map(|(key, value)| (bytes(key), bytes(value)))
        .chain(below.iter().map(|(key, value)| (bytes(key), bytes(value))));
    let by_itself = image.map(|image| &image.command).filter(|_| spec.image_main);
    KeeperConfig {
        tied: spec.tied,
        owner_within_ms: Some(10_000),
        idle_ms: spec.idle_seconds.map(|seconds| seconds.saturating_mul(1000)),
        env: below.chain(spec.env.iter().map(|(key, value)| (bytes(key), bytes(value)))).collect(),
        cwd: Some(bytes(&record.workdir)),
        user: Some(user_of(spec, image).to_owned()),
        main: spec.command.as_ref().or(by_itself).map(|argv| Spawn::main(argv)),
        log: LogSink::Nowhere,
        one_user: maker.mode(image.is_some()).users == Support::Refused,
        memory_limit: spec.limits.memory.map(|size| size.0),
        bounding: Some(capabilities(spec)),
        filter_commands: true,
        shares_network: record.network == NetworkMode::Host,
        ..KeeperConfig::default()
    }
}

/// Returns a mount with its masks. A pinned directory is a separate mount.
fn screened(mount: &Mount, owners: &Owners, screen: &Screen, pins: &[Pin]) -> Vec<Bind> {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec().into();
    let top = Path::new("");
    let dirs = || std::iter::once(top).chain(screen.pins.iter().map(PathBuf::as_path));
    // Each mask belongs to the innermost mount that contains it.
    let home = |masked: &Path| dirs().rfind(|dir| masked.starts_with(dir)).unwrap_or(top);
    let bind = |dir: &Path| Bind {
        hide: screen
            .dirs
            .iter()
            .chain(&screen.sockets)
            .filter(|masked| home(masked) == dir)
            .filter_map(|masked| masked.strip_prefix(dir).ok().map(bytes))
            .collect(),
        host: if dir == top { bytes(&mount.host) } else { bytes(&mount.host.join(dir)) },
        target: if dir == top {
            mount.target.as_bytes().to_vec().into()
        } else {
            bytes(&Path::new(&mount.target).join(dir))
        },
        read_only: mount.read_only,
        owners: if dir == top { owners.clone() } else { owners_below(&mount.host, owners) },
        pins: if dir == top { pins.to_vec() } else { Vec::new() },
    };
    dirs().map(bind).collect()
}

/// The owners of a directory below the top of a mount: those of the mount, whoever owns that directory.
fn owners_below(top: &Path, owners: &Owners) -> Owners {
    match (owners, top.metadata()) {
        (Owners::Top { user, group }, Ok(top)) => {
            let one = |disk, shown| vec![IdMap { inside: disk, outside: shown, count: 1 }];
            Owners::As(Ids { users: one(top.uid(), *user), groups: one(top.gid(), *group) })
        }
        _ => owners.clone(),
    }
}

/// Returns what is read-only in a git repository in a mount. Hidden paths stay hidden.
fn pins(spec: &SandboxSpec, mount: &Mount, hidden: &[PathBuf]) -> Result<Vec<Pin>> {
    let mut pins = kennel_provider::pins(spec, &mount.host, &mount.target)?;
    let below = |dir: &Path| dir.strip_prefix(&mount.host).is_ok_and(|below| below != Path::new(""));
    let hidden: Vec<_> = hidden.iter().filter(|dir| below(dir)).collect();
    pins.retain(|pin| !hidden.iter().any(|dir| mount.host.join(&pin.path).starts_with(dir)));
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec().into();
    Ok(pins.iter().map(|pin| Pin { path: bytes(&pin.path), read_only: pin.read_only }).collect())
}

/// Returns the path without symlinks, as far as it exists.
pub(crate) fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) => real(above).join(name),
        _ => path.to_owned(),
    })
}

/// The user of commands.
fn user_of<'a>(spec: &'a SandboxSpec, image: Option<&'a TakenImage>) -> &'a str {
    let image = image.and_then(|image| image.user.as_deref());
    spec.user.as_deref().or(image).unwrap_or("0")
}

/// Returns the ids of a user inside and of its group, as the keeper finds them: `name`, `uid`, `name:group` or
/// `uid:gid`. Names are looked up in the image, or on the host.
fn inside_user(user: &str, image: Option<&TakenImage>, maker: &Maker) -> Result<(u32, u32)> {
    let (name, group) = user.split_once(':').map_or((user, None), |(name, group)| (name, Some(group)));
    if let ("0", None) = (name, group) {
        return Ok((0, 0));
    }
    let lines = |file: &str| match image {
        Some(image) => image::etc_file(&image.layers, file),
        None => std::fs::read_to_string(Path::new("/etc").join(file)).unwrap_or_default(),
    };
    let find = |file: &str, field: usize, text: &str, wanted: usize| -> Option<u32> {
        let text_of = lines(file);
        let entry = text_of.lines().find(|line| line.split(':').nth(field) == Some(text))?;
        entry.split(':').nth(wanted)?.parse().ok()
    };
    let number: Option<u32> = name.parse().ok();
    let uid = number.or_else(|| find("passwd", 0, name, 2));
    let gid = match group {
        Some(group) => group.parse().ok().or_else(|| find("group", 0, group, 2)),
        // A user without an account gets root's group.
        None => find("passwd", if number.is_some() { 2 } else { 0 }, name, 3).or(number.map(|_| 0)),
    };
    match uid {
        Some(uid) if maker.has(uid) => match gid {
            Some(gid) => Ok((uid, gid)),
            None => Err(Error::new(ErrorCode::InvalidConfig, format!("there is no group of user {user:?}"))),
        },
        Some(uid) if maker.rights == Rights::User => {
            let message = format!("user {uid} cannot exist inside: you have too few subordinate ids");
            Err(Error::new(ErrorCode::Unsupported, message).suggest(NextStep::check_machine()))
        }
        _ => Err(Error::new(ErrorCode::InvalidConfig, format!("there is no user {user:?}"))),
    }
}
