//! Creates the mounts that need the host's root: overlays, devices and shifted mounts. They are not attached; the
//! process inside does that.

use crate::ids::Namespaces;
use crate::{Ahead, Bind, EtcFile, IdMap, Ids, Owners, Plan};
use crate::{overlay, sys};
use kennel_keeper::StartError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags};

/// Mounts, by descriptor.
pub(crate) struct Mounts {
    pub(crate) root: OwnedFd,
    pub(crate) dev: OwnedFd,
    /// Each mount with the mount point in the root where it is attached.
    pub(crate) binds: Vec<(OwnedFd, OwnedFd)>,
}

/// Name, major and minor number.
pub(crate) const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// The mounts that need no plan.
pub(crate) struct MountsAhead {
    layers: overlay::HostLayers,
    dev: OwnedFd,
}

impl MountsAhead {
    /// Creates them. `namespace` is the sandbox's user namespace.
    pub(crate) fn build(ahead: &Ahead, namespace: &OwnedFd) -> Result<Self, StartError> {
        Ok(Self { layers: overlay::HostLayers::ahead(ahead, namespace)?, dev: devices(&ahead.ids)? })
    }
}

/// Creates all mounts. The working directory must be the sandbox's; `namespace` is its user namespace. `ahead` are the
/// mounts that were created before there was a plan.
pub(crate) fn build(
    plan: &Plan,
    namespace: &OwnedFd,
    namespaces: &Namespaces,
    ahead: Option<MountsAhead>,
) -> Result<Mounts, StartError> {
    let (layers, dev) = ahead.map(|MountsAhead { layers, dev }| (layers, dev)).unzip();
    let overlay::Filesystems { root, others } = overlay::build(plan, namespace, layers)?;
    let dev = dev.map_or_else(|| devices(&plan.ids), Ok)?;
    for place in ["dev", "proc", "sys", "tmp"] {
        make_place(&root, place.as_bytes(), true, Some(&plan.ids))?;
    }
    write_etc(&root, &plan.etc, Some(&plan.ids))?;
    let mut binds = show_all(root.as_fd(), others, &plan.binds, Some(&plan.ids), |bind, host, mount| {
        let shift = |by: &OwnedFd| sys::shift_ids(mount, by, true).map_err(|error| error.to_string().into());
        match &bind.owners {
            Owners::Top { user, group } => {
                let top = rustix::fs::fstat(host).map_err(|error| error.to_string())?;
                let one = |disk, shown| vec![IdMap { inside: disk, outside: shown, count: 1 }];
                shift(&*namespaces.with(&Ids { users: one(top.st_uid, *user), groups: one(top.st_gid, *group) })?)
            }
            Owners::As(owners) => shift(&*namespaces.with(owners)?),
            Owners::Shifted => shift(namespace),
            Owners::Kept => Ok(()),
        }
    })?;
    if plan.read_only {
        binds.push((scratch(plan.disk, Some(&plan.ids))?, make_place(&root, b"tmp", true, Some(&plan.ids))?));
    }
    Ok(Mounts { root, dev, binds })
}

/// Prepares host paths for mounting inside, with owners changed by `shift`. Returns detached mounts and their mount
/// points, in the order in which they must be attached. `others` are the root's other filesystems, which are attached
/// first. A missing mount point in `root` is created for `owner`. `shift` also gets the host path, whose owner applies
/// to everything that is mounted from it.
pub(crate) fn show_all(
    root: BorrowedFd<'_>,
    others: Vec<(String, OwnedFd)>,
    binds: &[Bind],
    owner: Option<&Ids>,
    shift: impl Fn(&Bind, &OwnedFd, &OwnedFd) -> Result<(), StartError>,
) -> Result<Vec<(OwnedFd, OwnedFd)>, StartError> {
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        names.map(<[u8]>::to_vec).collect()
    };
    let mut sorted: Vec<(Vec<Vec<u8>>, &Bind)> = binds.iter().map(|bind| (names(&bind.target), bind)).collect();
    // A mount comes before the mounts within it.
    sorted.sort_by_key(|(names, _)| names.len());
    let mut all: Vec<(OwnedFd, OwnedFd)> = Vec::new();
    let mut dirs: Vec<(Vec<Vec<u8>>, usize, &Owners)> = Vec::new();
    for (path, mount) in others {
        let names = names(path.as_bytes());
        let place = match dirs.iter().rev().find(|(dir, ..)| names.starts_with(dir)) {
            Some((dir, index, _)) => make_place(&all[*index].0, &names[dir.len()..].join(&b'/'), true, owner)?,
            None => make_place(root, path.as_bytes(), true, owner)?,
        };
        dirs.push((names, all.len(), &Owners::Shifted));
        all.push((mount, place));
    }
    for (names, bind) in sorted {
        let shown = show(bind, |host, mount| shift(bind, host, mount))?;
        let place = match dirs.iter().rev().find(|(dir, ..)| names.starts_with(dir)) {
            Some((dir, index, owners)) if dir.len() < names.len() => {
                // Created with the rights of a user inside, and no others, because it is the host's own directory.
                let user = owner.map(|ids| match owners {
                    Owners::Top { user, group } => (*user, *group),
                    _ => ids.root(),
                });
                let _owner = user.map(|(user, group)| sys::FilesOf::become_owner(user, group));
                make_place(&all[*index].0, &names[dir.len()..].join(&b'/'), shown.is_dir, None)?
            }
            _ => make_place(root, &bind.target, shown.is_dir, owner)?,
        };
        if shown.is_dir {
            dirs.push((names.clone(), all.len(), &bind.owners));
        }
        all.push((shown.mount, place));
        for pinned in shown.pinned {
            if pinned.is_dir {
                let below = pinned.path.split(|byte| *byte == b'/').map(<[u8]>::to_vec);
                dirs.push((names.iter().cloned().chain(below).collect(), all.len(), &bind.owners));
            }
            all.push((pinned.mount, pinned.place));
        }
        all.extend(shown.hidden);
    }
    Ok(all)
}

/// A host path that is prepared for mounting inside, but not attached yet.
struct Shown {
    mount: OwnedFd,
    is_dir: bool,
    /// Paths in it that are mounted over themselves.
    pinned: Vec<Pinned>,
    /// Masks for paths in it.
    hidden: Vec<(OwnedFd, OwnedFd)>,
}

/// A path of a bind, prepared to be mounted over itself.
struct Pinned {
    path: Vec<u8>,
    mount: OwnedFd,
    place: OwnedFd,
    is_dir: bool,
}

/// Prepares a host path for mounting inside, with its owners changed by `shift`.
fn show(bind: &Bind, shift: impl Fn(&OwnedFd, &OwnedFd) -> Result<(), StartError>) -> Result<Shown, StartError> {
    let shown = String::from_utf8_lossy(&bind.host);
    let step = |what: &str, error: Errno| StartError::from(format!("mount {shown}: {what}: {error}"));
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    // The provider has resolved the path, so it contained no symlink then.
    let (path, by) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS);
    let place = rustix::fs::openat2(CWD, &bind.host[..], path, Mode::empty(), by);
    let place = place.map_err(|error| step("open", error))?;
    let flags = flags | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = rustix::mount::open_tree(&place, "", flags).map_err(|error| step("open", error))?;
    shift(&place, &mount).map_err(|error| format!("mount {shown}: map the owners of its files: {error}"))?;
    let mut attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if bind.read_only {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    sys::set_mount_flags(&mount, attributes, true).map_err(|error| step("set its flags", error))?;
    let stat = rustix::fs::fstat(&mount).map_err(|error| step("read its type", error))?;
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let pinned = pin_all(bind, &place, &mount, attributes, &shift)?;
    // Looked up before the mount is attached, so that no process inside can interfere.
    let mut hidden = Vec::new();
    for path in &bind.hide {
        let (dir, path) = within(&pinned, &mount, path);
        match beneath(dir, path) {
            Ok(place) => hidden.push((nothing(&place).map_err(|error| step("mask a path in it", error))?, place)),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(step("mask a path in it", error)),
        }
    }
    Ok(Shown { mount, is_dir, pinned, hidden })
}

/// Prepares the pins of a bind. `host` is its path outside, and `mount` is the clone that goes inside, with
/// `attributes`.
fn pin_all(
    bind: &Bind,
    host: &OwnedFd,
    mount: &OwnedFd,
    attributes: u64,
    shift: impl Fn(&OwnedFd, &OwnedFd) -> Result<(), StartError>,
) -> Result<Vec<Pinned>, StartError> {
    let mut pinned: Vec<Pinned> = Vec::new();
    for pin in &bind.pins {
        let (dir, name) = (String::from_utf8_lossy(&bind.host), String::from_utf8_lossy(&pin.path));
        let failed = |why: &dyn std::fmt::Display| StartError::from(format!("protect {dir}/{name}: {why}"));
        let step = |error: Errno| failed(&error);
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        // Cloned from the host's own mount, because kernels before 6.15 cannot clone from a detached one.
        let source = beneath(host, &pin.path).map_err(step)?;
        let copy = rustix::mount::open_tree(&source, "", flags).map_err(step)?;
        shift(host, &copy).map_err(|error| failed(&error))?;
        let read_only = if pin.read_only { libc::MOUNT_ATTR_RDONLY } else { 0 };
        sys::set_mount_flags(&copy, attributes | read_only, true).map_err(step)?;
        let (dir, path) = within(&pinned, mount, &pin.path);
        let place = beneath(dir, path).map_err(step)?;
        // These were two lookups, and another sandbox may see the same directory.
        let (copied, covered) = (rustix::fs::fstat(&copy).map_err(step)?, rustix::fs::fstat(&place).map_err(step)?);
        if (copied.st_dev, copied.st_ino) != (covered.st_dev, covered.st_ino) {
            return Err(failed(&"it was replaced while it was being mounted"));
        }
        let is_dir = FileType::from_raw_mode(copied.st_mode) == FileType::Directory;
        pinned.push(Pinned { path: pin.path.to_vec(), mount: copy, place, is_dir });
    }
    Ok(pinned)
}

/// Returns the mount that contains a path of a bind: the innermost pin around it, or the bind's own mount. Also returns
/// the rest of the path.
fn within<'a>(pinned: &'a [Pinned], mount: &'a OwnedFd, path: &'a [u8]) -> (&'a OwnedFd, &'a [u8]) {
    let inner = pinned.iter().rev().find_map(|pin| {
        let rest = path.strip_prefix(&pin.path[..])?.strip_prefix(b"/")?;
        Some((&pin.mount, rest))
    });
    inner.unwrap_or((mount, path))
}

/// Opens a path beneath a directory, without following symlinks.
fn beneath(dir: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(dir, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Creates a `/dev` with a few harmless devices. It is created outside, because devices cannot be created inside.
fn devices(ids: &Ids) -> Result<OwnedFd, StartError> {
    let failed = |what: &str, error: Errno| format!("create /dev: {what}: {error}");
    let (user, group) = ids.root();
    let (uid, gid) = (user.to_string(), group.to_string());
    let options = [("mode", "0755"), ("size", "65536"), ("nr_inodes", "64"), ("uid", &*uid), ("gid", &*gid)];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let dev = filesystem("tmpfs", &options, attributes).map_err(|error| failed("mount", error))?;
    for (name, major, minor) in DEVICES {
        let number = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(&dev, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), number)
            .map_err(|error| failed(name, error))?;
    }
    furnish(&dev).map_err(|(name, error)| failed(name, error))?;
    Ok(dev)
}

/// Adds the other entries of a `/dev`.
pub(crate) fn furnish(dev: &OwnedFd) -> Result<(), (&'static str, Errno)> {
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, dev, name).map_err(|error| (name, error))?;
    }
    for name in ["pts", "shm"] {
        rustix::fs::mkdirat(dev, name, Mode::from_raw_mode(0o755)).map_err(|error| (name, error))?;
    }
    Ok(())
}

/// Creates `/tmp` for a read-only root filesystem: a directory on disk, in the sandbox's directory.
pub(crate) fn scratch(disk: bool, owner: Option<&Ids>) -> Result<OwnedFd, StartError> {
    let dir = if disk { "disk/scratch" } else { "scratch" };
    let failed = |error: Errno| format!("create /tmp: {error}");
    match rustix::fs::mkdir(dir, Mode::from_raw_mode(0o700)) {
        Err(Errno::EXIST) => {}
        done => done.map_err(failed)?,
    }
    if let Some((user, group)) = owner.map(Ids::root) {
        rustix::fs::chown(dir, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(failed)?;
    }
    rustix::fs::chmod(dir, Mode::from_raw_mode(0o1777)).map_err(failed)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(CWD, dir, flags).map_err(failed)?;
    sys::set_mount_flags(&mount, libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV, false).map_err(failed)?;
    Ok(mount)
}

/// Creates an empty, read-only directory.
pub(crate) fn empty() -> Result<OwnedFd, Errno> {
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID;
    filesystem("tmpfs", &[("mode", "0555"), ("size", "4096"), ("nr_inodes", "2")], attributes)
}

/// An empty file in the sandbox's directory that masks others.
const NOTHING: &str = "nothing";

/// Creates the mask for a path: an empty directory, or an empty file.
fn nothing(place: &OwnedFd) -> Result<OwnedFd, Errno> {
    let stat = rustix::fs::fstat(place)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return empty();
    }
    // In the sandbox's directory, because kernels before 6.15 cannot clone a detached mount.
    match rustix::fs::open(NOTHING, OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, Mode::from_raw_mode(0o444)) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let file = rustix::mount::open_tree(CWD, NOTHING, flags)?;
    sys::set_mount_flags(&file, libc::MOUNT_ATTR_RDONLY, false)?;
    Ok(file)
}

/// Creates a new filesystem, without attaching it.
pub(crate) fn filesystem(kind: &str, options: &[(&str, &str)], flags: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let filesystem = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&filesystem, *key, *value)?;
    }
    rustix::mount::fsconfig_create(&filesystem)?;
    rustix::mount::fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// Returns a mount point in the sandbox's root, a directory or file, and creates it if necessary. The root may contain
/// files that a sandbox left behind: symlinks are resolved inside only. A new mount point belongs to root inside; if
/// the caller is that user, `owner` is not needed.
pub(crate) fn make_place(
    root: impl AsFd,
    target: &[u8],
    is_dir: bool,
    owner: Option<&Ids>,
) -> Result<OwnedFd, StartError> {
    let root = root.as_fd();
    let shown = String::from_utf8_lossy(target);
    let failed = |error: Errno| format!("create the mount point {shown}: {error}");
    let open = |path: &[u8]| rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), INSIDE);
    let mut parent = open(b".").map_err(failed)?;
    let names: Vec<&[u8]> =
        target.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    if names.is_empty() || names.contains(&&b".."[..]) {
        return Err(format!("invalid mount point {shown}: expected a path below the root without ..").into());
    }
    let mut path = Vec::new();
    for (index, name) in names.iter().enumerate() {
        path.push(b'/');
        path.extend_from_slice(name);
        let found = match open(&path) {
            Err(Errno::NOENT) => {
                if is_dir || index + 1 < names.len() {
                    rustix::fs::mkdirat(&parent, *name, Mode::from_raw_mode(0o755)).map_err(failed)?;
                } else {
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                    rustix::fs::openat(&parent, *name, flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
                }
                if let Some((user, group)) = owner.map(Ids::root) {
                    let owner = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
                    rustix::fs::chownat(&parent, *name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                }
                open(&path)
            }
            found => found,
        };
        parent = found.map_err(failed)?;
    }
    Ok(parent)
}

/// Writes files in `/etc`. An existing file is often a symlink into a directory that does not exist inside; it is
/// replaced.
pub(crate) fn write_etc(root: impl AsFd, files: &[EtcFile], owner: Option<&Ids>) -> Result<(), StartError> {
    if files.is_empty() {
        return Ok(());
    }
    let etc = make_place(&root, b"etc", true, owner)?;
    for EtcFile { name, text, if_empty } in files {
        let failed = |error: Errno| StartError::from(format!("write /etc/{name}: {error}"));
        match rustix::fs::statat(&etc, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if *if_empty && found.st_size > 0 => continue,
            Ok(_) => rustix::fs::unlinkat(&etc, name, AtFlags::empty()).map_err(failed)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&etc, name, flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
        rustix::io::write(&file, text).map_err(failed)?;
        if let Some((user, group)) = owner.map(Ids::root) {
            rustix::fs::fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(failed)?;
        }
    }
    Ok(())
}

impl Mounts {
    /// The numbers of the descriptors, for the process that shares the descriptor table.
    pub(crate) fn numbers(&self) -> Vec<i32> {
        let binds = self.binds.iter().flat_map(|(mount, place)| [mount, place]);
        [&self.root, &self.dev].into_iter().chain(binds).map(AsRawFd::as_raw_fd).collect()
    }
}
