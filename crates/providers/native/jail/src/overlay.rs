//! Builds the overlays of a sandbox on the host's root, without attaching them.
//!
//! The host's files appear as an unprivileged user sees them. A first, read-only overlay is mounted with the
//! credentials of such a user. Overlayfs checks every access to the files below with the credentials of the process
//! that mounted it, so the kernel refuses what other users may not read, even to root inside. The sandbox's own overlay
//! is mounted on top of it, with a layer between the two that masks further paths (the mask layer).
//!
//! ```text
//! upper        what the sandbox writes
//! mask layer   empty directories and whiteouts, in memory
//! first overlay, read-only, mounted as nobody
//!   host       one filesystem of the host, its ids shifted
//!   mask layer because an overlay without an upper layer needs two lower ones; it adds nothing
//! ```
//!
//! The kernel stacks at most two overlays. The provider refuses a host whose root is already an overlay.

use crate::{Ahead, Base, MaskEntry, MaskEntryKind, Plan};
use crate::{disk, sys};
use kennel_keeper::StartError;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags};

/// The sandbox's root, and other filesystems in it by path, parents first.
pub(crate) struct Filesystems {
    pub(crate) root: OwnedFd,
    pub(crate) others: Vec<(String, OwnedFd)>,
}

/// The layers below the upper one that show the host's root.
pub(crate) struct HostLayers {
    /// The mount points of other host filesystems that are shown.
    filesystems: Vec<String>,
    mask_layer: OwnedFd,
    /// The first overlay of the root. Kernels before 6.15 need the sandbox's directory for it, so it is created later.
    first: Option<OwnedFd>,
}

impl HostLayers {
    /// Creates the mask layer.
    fn create(filesystems: &[String], masks: &[MaskEntry], owner: (u32, u32)) -> Result<Self, StartError> {
        let mask_layer = mask_layer(owner)?;
        put_all(&mask_layer, masks, owner)?;
        Ok(Self { filesystems: filesystems.to_vec(), mask_layer, first: None })
    }

    /// Creates all that needs no plan.
    pub(crate) fn ahead(ahead: &Ahead, namespace: &OwnedFd) -> Result<Self, StartError> {
        let Base::Host { filesystems, masks } = &ahead.base else {
            return Err("only the host's root can be prepared ahead".into());
        };
        let mut layers = Self::create(filesystems, masks, ahead.ids.root())?;
        // An empty directory that everyone may read as the lowest layer, and not the mask layer: it may still get
        // entries, and the layers of an overlay must not change.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let empty =
            masks.iter().rev().find(|entry| matches!(entry.kind, MaskEntryKind::Empty(mode) if mode & 0o5 == 0o5));
        let empty = empty.and_then(|dir| rustix::fs::openat(&layers.mask_layer, &dir.path, flags, Mode::empty()).ok());
        if let Some(empty) = empty {
            let host = shifted("/", namespace)?;
            layers.first = create_from(&[&host, &empty], None).ok();
            keep_open([host, empty]);
        }
        Ok(layers)
    }
}

/// Creates the overlays. The working directory must be the sandbox's; `namespace` is its user namespace. `ahead` are the
/// layers that were created before there was a plan.
pub(crate) fn build(plan: &Plan, namespace: &OwnedFd, ahead: Option<HostLayers>) -> Result<Filesystems, StartError> {
    let owner = plan.ids.root();
    let own = if plan.disk { disk::open()? } else { String::new() };
    // The upper layer's own directory becomes `/` inside.
    let upper = Upper::root(&own, owner, plan.remove_dir)?;
    let mut layers = Layers::default();
    match &plan.base {
        Base::HostDirs(_) => Err("the host's root does not build a root filesystem from parts".into()),
        Base::Image(dirs) => {
            let dirs: Vec<OwnedFd> =
                dirs.iter().map(|dir| shifted(dir, namespace)).collect::<Result<Vec<_>, StartError>>()?;
            let root = layers.overlay(&dirs.iter().collect::<Vec<_>>(), Some(&upper)).map_err(named("/"))?;
            keep_open(dirs);
            Ok(Filesystems { root, others: Vec::new() })
        }
        Base::Host { .. } | Base::Ahead(_) => {
            let HostLayers { filesystems, mask_layer, first } = match (&plan.base, ahead) {
                (Base::Host { filesystems, masks }, _) => HostLayers::create(filesystems, masks, owner)?,
                (Base::Ahead(masks), Some(ahead)) => {
                    put_all(&ahead.mask_layer, masks, owner)?;
                    ahead
                }
                _ => return Err("nothing was prepared ahead".into()),
            };
            let root = layers.host("/", first, &mask_layer, namespace, &upper)?;
            let mut others = Vec::new();
            for path in &filesystems {
                match shifted(&format!("/{path}"), namespace) {
                    // The ids of this filesystem cannot be shifted. A directory within a system directory is left out,
                    // but without the whole of `/usr` there is no usable system.
                    Err(_) if path.contains('/') => continue,
                    shiftable => drop(shiftable?),
                }
                let upper = Upper::filesystem(&own, path, owner, plan.remove_dir)?;
                let masks = clone(&mask_layer, path)
                    .map_err(|error| format!("overlay of /{path}: clone the cover: {error}"))?;
                others.push((path.clone(), layers.host(&format!("/{path}"), None, &masks, namespace, &upper)?));
                keep_open([masks]);
            }
            keep_open([mask_layer]);
            Ok(Filesystems { root, others })
        }
    }
}

/// The sandbox's upper layer of a filesystem, in its directory.
struct Upper {
    dir: String,
    work: String,
    /// Whether nothing has to reach the disk, because the layer is removed when the sandbox ends. Otherwise the kernel
    /// writes the whole filesystem that holds the layer to disk at the end of each sandbox.
    volatile: bool,
}

impl Upper {
    fn root(own: &str, owner: (u32, u32), volatile: bool) -> Result<Self, StartError> {
        let dirs = Self { dir: format!("{own}upper"), work: format!("{own}work"), volatile };
        dirs.give(owner, 0o755)?;
        Ok(dirs)
    }

    /// The upper layer of another filesystem. It has the mode of the host's directory.
    fn filesystem(own: &str, path: &str, owner: (u32, u32), volatile: bool) -> Result<Self, StartError> {
        let dir = format!("{own}parts/{}", path.replace('/', "+"));
        let dirs = Self { dir: format!("{dir}/upper"), work: format!("{dir}/work"), volatile };
        for dir in [&dirs.dir, &dirs.work] {
            std::fs::create_dir_all(dir).map_err(|error| format!("create {dir}: {error}"))?;
        }
        let host =
            rustix::fs::stat(format!("/{path}")).map_err(|error| format!("read the mode of /{path}: {error}"))?;
        dirs.give(owner, host.st_mode & 0o7777)?;
        Ok(dirs)
    }

    fn give(&self, (user, group): (u32, u32), mode: u32) -> Result<(), StartError> {
        let failed = |error: Errno| format!("give {} the owner and mode of its mount point: {error}", self.dir);
        rustix::fs::chown(&*self.dir, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(failed)?;
        Ok(rustix::fs::chmod(&*self.dir, Mode::from_raw_mode(mode)).map_err(failed)?)
    }
}

/// How layers are passed to the kernel.
#[derive(Default)]
struct Layers {
    /// The layers that are attached in the sandbox's directory. Kernels before 6.15 accept no others.
    attached: Option<Vec<i32>>,
}

/// The step that failed, and the error.
type Failure = (&'static str, Errno);

fn named(path: &str) -> impl Fn(Failure) -> String {
    move |(what, error)| format!("overlay of {path}: {what}: {error}")
}

impl Layers {
    /// Creates the writable overlay of one filesystem of the host, on the first overlay, if it exists already.
    fn host(
        &mut self,
        path: &str,
        first: Option<OwnedFd>,
        mask_layer: &OwnedFd,
        namespace: &OwnedFd,
        upper: &Upper,
    ) -> Result<OwnedFd, StartError> {
        let first = if let Some(first) = first {
            first
        } else {
            let host = shifted(path, namespace)?;
            let first = self.overlay(&[&host, mask_layer], None).map_err(named(path))?;
            keep_open([host]);
            first
        };
        let made = self.overlay(&[mask_layer, &first], Some(upper)).map_err(named(path))?;
        keep_open([first]);
        Ok(made)
    }

    /// Creates an overlay of these layers, topmost first. Without an upper layer it is read-only, and is mounted as
    /// nobody.
    fn overlay(&mut self, layers: &[&OwnedFd], upper: Option<&Upper>) -> Result<OwnedFd, Failure> {
        if self.attached.is_none() {
            match create_from(layers, upper) {
                Err(("add the lower layers", _) | (_, Errno::INVAL)) => {}
                done => return done,
            }
        }
        let failed = |error| ("attach the lower layers", error);
        for layer in layers {
            self.attach(layer).map_err(failed)?;
        }
        // By descriptor: an unprivileged user cannot follow the path to the sandbox's directory.
        let paths: Vec<String> = layers.iter().map(|layer| format!("/proc/self/fd/{}", layer.as_raw_fd())).collect();
        create(upper, |overlay| rustix::mount::fsconfig_set_string(overlay, "lowerdir", paths.join(":")))
    }

    /// Attaches a layer in this process's own mount namespace, if it is not attached yet.
    fn attach(&mut self, layer: &OwnedFd) -> Result<(), Errno> {
        use rustix::mount::{MountPropagationFlags, MoveMountFlags};
        if self.attached.is_none() {
            // Changing the mount namespace requires a single-threaded process, which this one is.
            kennel_keeper::sys::unshare_mounts()?;
            rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        }
        let attached = self.attached.get_or_insert_default();
        if attached.contains(&layer.as_raw_fd()) {
            return Ok(());
        }
        let dir = layer_name(attached.len());
        match rustix::fs::mkdir(&*dir, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        rustix::mount::move_mount(layer, "", CWD, &*dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        attached.push(layer.as_raw_fd());
        Ok(())
    }
}

/// Leaves descriptors open. Closing the last reference to a mount makes the kernel wait for all CPUs. They are closed
/// later with all others, when nobody waits for the jail.
fn keep_open(layers: impl IntoIterator<Item = OwnedFd>) {
    layers.into_iter().for_each(std::mem::forget);
}

/// Creates an overlay of these layers, topmost first, which do not have to be attached anywhere. This needs Linux 6.15.
fn create_from(layers: &[&OwnedFd], upper: Option<&Upper>) -> Result<OwnedFd, Failure> {
    create(upper, |overlay| layers.iter().try_for_each(|layer| sys::overlay_fd(overlay, c"lowerdir+", layer)))
}

/// Creates an overlay, whose lower layers `set_lower` sets. Without an upper layer, it is created as nobody.
fn create(upper: Option<&Upper>, set_lower: impl FnOnce(&OwnedFd) -> Result<(), Errno>) -> Result<OwnedFd, Failure> {
    let step = |what: &'static str| move |error: Errno| (what, error);
    // Nobody, without groups. Only the capabilities that mounting needs remain.
    let nobody = upper.is_none().then(sys::FilesOf::become_nobody).transpose();
    let _nobody = nobody.map_err(step("drop the rights to files of other users"))?;
    let overlay = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(step("open the filesystem"))?;
    set_lower(&overlay).map_err(step("add the lower layers"))?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    if let Some(Upper { dir, work, volatile }) = upper {
        let set = |key: &str, value: &str| rustix::mount::fsconfig_set_string(&overlay, key, value);
        set("upperdir", dir).map_err(step("set the upper directory"))?;
        set("workdir", work).map_err(step("set the work directory"))?;
        if *volatile {
            rustix::mount::fsconfig_set_flag(&overlay, "volatile").map_err(step("make it volatile"))?;
        }
    } else {
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    rustix::mount::fsconfig_create(&overlay).map_err(step("create"))?;
    rustix::mount::fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(step("mount"))
}

/// Clones a directory of the host without the mounts below it, and shifts its ids.
fn shifted(path: &str, namespace: &OwnedFd) -> Result<OwnedFd, StartError> {
    let step = |what: &str, error: Errno| format!("layer {path}: {what}: {error}");
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let layer = rustix::mount::open_tree(CWD, path, flags).map_err(|error| step("open", error))?;
    sys::shift_ids(&layer, namespace, false).map_err(|error| step("shift its ids", error))?;
    Ok(layer)
}

/// Clones a directory in `mount`.
fn clone(mount: impl AsFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(mount, path, flags)
}

/// Creates the layer that masks host paths. It is in memory, because it is small and must not be within a layer below
/// it.
fn mask_layer((user, group): (u32, u32)) -> Result<OwnedFd, StartError> {
    let (uid, gid) = (user.to_string(), group.to_string());
    let options = [("mode", "0755"), ("size", "4194304"), ("uid", &*uid), ("gid", &*gid)];
    crate::rootfs::filesystem("tmpfs", &options, MountAttrFlags::empty())
        .map_err(|error| format!("create the cover: {error}").into())
}

/// Adds entries to the mask layer.
#[expect(clippy::disallowed_methods, reason = "it saves system calls, and this program has one thread")]
fn put_all(layer: &OwnedFd, entries: &[MaskEntry], (user, group): (u32, u32)) -> Result<(), StartError> {
    if entries.is_empty() {
        return Ok(());
    }
    // Working inside it takes the fewest system calls. This is done for every sandbox.
    let here =
        rustix::fs::open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|error| error.to_string())?;
    rustix::process::fchdir(layer).map_err(|error| error.to_string())?;
    // The new files belong to root inside.
    let owner = sys::FilesOf::become_owner(user, group);
    let whiteout = entries.iter().find(|entry| matches!(entry.kind, MaskEntryKind::Nothing));
    let put = entries.iter().try_for_each(|entry| put(entry, whiteout));
    drop(owner);
    rustix::process::fchdir(&here).map_err(|error| error.to_string())?;
    put
}

/// Creates one entry of the mask layer, in the working directory. `whiteout` is the first whiteout; the others are hard
/// links to it, which take half of the time.
fn put(MaskEntry { path, kind }: &MaskEntry, whiteout: Option<&MaskEntry>) -> Result<(), StartError> {
    let mode = |mode: &u32| Mode::from_raw_mode(*mode);
    let done = match kind {
        MaskEntryKind::Through(bits) => rustix::fs::mkdir(path, mode(bits)),
        MaskEntryKind::Empty(bits) => rustix::fs::mkdir(path, mode(bits))
            .and_then(|()| rustix::fs::setxattr(path, c"trusted.overlay.opaque", b"y", XattrFlags::CREATE)),
        MaskEntryKind::Nothing if whiteout.is_some_and(|first| first.path != *path) => {
            rustix::fs::link(whiteout.map_or("", |first| &*first.path), path)
        }
        MaskEntryKind::Nothing => {
            rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), rustix::fs::makedev(0, 0))
        }
        MaskEntryKind::File(bits, content) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, mode(bits)).and_then(|file| rustix::io::write(&file, content)).map(drop)
        }
    };
    done.map_err(|error| format!("mask /{path}: {error}").into())
}

/// Unmounts what this process has attached in the sandbox's directory, where only it sees it: a mount point cannot be
/// removed. The sandbox itself has its own references to what it uses.
pub(crate) fn let_go(dir: &str) {
    use rustix::mount::{UnmountFlags, unmount};
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    for index in 0.. {
        if unmount(format!("{dir}/{}", layer_name(index)), flags).is_err() {
            break;
        }
    }
    let _ = unmount(format!("{dir}/{}", disk::PLACE), flags);
}

fn layer_name(index: usize) -> String {
    format!("layer{index}")
}
