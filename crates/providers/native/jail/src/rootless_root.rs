//! Builds the root of a sandbox of an ordinary user. The process inside does this, because that user is root there.
//!
//! The kernel does not allow it to use the host's root as an overlay layer. So the root is assembled from the host's
//! directories, each with its own overlay. A directory that cannot be an overlay layer is mounted read-only.
//!
//! Directories on disk take most of the time, to create and to remove. So a mount point is also the upper layer of the
//! overlay that covers it:
//!
//! ```text
//! upper        the root; a private directory of the sandbox is a directory here
//! upper/usr    the upper layer of the overlay at /usr
//! work/usr     its work directory
//! own/var+tmp  a private directory within a directory of the host: /var/tmp
//! ```
//!
//! Sandboxes of earlier versions have these directories below `parts`; see [`Places`].

use crate::inside::{attach, attach_at};
use crate::rootfs::{self, DEVICES};
use crate::sys;
use crate::{Base, EtcFile, HostDir, HostDirKind, PARTS};
use kennel_keeper::StartError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, open_tree};

const NO_EFFECTS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV.union(MountAttrFlags::MOUNT_ATTR_NOSUID);
const NO_EFFECTS_BITS: u64 = libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOSUID;

/// Creates the root, without attaching it. The working directory must be the sandbox's. With `volatile`, what the sandbox
/// writes does not have to reach the disk.
pub(crate) fn root(base: &Base, volatile: bool) -> Result<OwnedFd, StartError> {
    rustix::fs::chmod("upper", Mode::from_raw_mode(0o755))
        .map_err(|error| format!("set the mode of upper: {error}"))?;
    match base {
        Base::Image(layers) => {
            let layers: Vec<&str> = layers.iter().map(String::as_str).collect();
            overlay(&layers, "upper", "work", volatile).map_err(|error| format!("overlay of /: {error}").into())
        }
        Base::Host { .. } | Base::Ahead(_) => {
            Err("only root can use the whole root of the host as an overlay layer".into())
        }
        Base::HostDirs(_) => {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let root = open_tree(CWD, "upper", flags).map_err(|error| format!("clone upper: {error}"))?;
            sys::set_mount_flags(&root, NO_EFFECTS_BITS, false)
                .map_err(|error| format!("set the mount flags of upper: {error}"))?;
            Ok(root)
        }
    }
}

/// Adds the host's directories to the root, the devices, files in `/etc`, and mount points for the kernel's filesystems.
pub(crate) fn fill(root: BorrowedFd<'_>, base: &Base, etc: &[EtcFile], volatile: bool) -> Result<(), StartError> {
    if let Base::HostDirs(dirs) = base {
        let places = Places::find();
        for dir in dirs {
            put(root, dir, places, volatile).map_err(|error| format!("mount /{}: {error}", dir.path))?;
        }
    }
    for place in ["dev", "proc", "sys", "tmp"] {
        rootfs::make_place(root, place.as_bytes(), true, None)?;
    }
    devices(root)?;
    for file in etc {
        match rootfs::write_etc(root, std::slice::from_ref(file), None) {
            // The directory could not be an overlay, because it contains other mounts, as in a container.
            Err(_) if is_read_only(root) => cover_file(root, file)?,
            done => done?,
        }
    }
    Ok(())
}

fn is_read_only(root: BorrowedFd<'_>) -> bool {
    let etc = rustix::fs::openat2(root, "etc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::BENEATH);
    let flags = etc.and_then(|etc| rustix::fs::fstatvfs(&etc)).map(|stat| stat.f_flag);
    flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Mounts a file over one of `/etc` that cannot be written, or over the target of the symlink there.
fn cover_file(root: BorrowedFd<'_>, file: &EtcFile) -> Result<(), StartError> {
    let failed = |error: &dyn std::fmt::Display| format!("write /etc/{}: {error}", file.name);
    let dir = Places::find().files();
    std::fs::create_dir_all(dir).map_err(|error| failed(&error))?;
    let source = format!("{dir}/{}", file.name);
    std::fs::write(&source, &file.text[..]).map_err(|error| failed(&error))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(CWD, &*source, flags).map_err(|error| failed(&error))?;
    sys::set_mount_flags(&mount, NO_EFFECTS_BITS, false).map_err(|error| failed(&error))?;
    let at = format!("etc/{}", file.name);
    let link = rustix::fs::readlinkat(root, &*at, Vec::new());
    let at = match link.as_ref().map(|link| link.to_str()) {
        // Relative targets start at `/etc`, which is directly below the root.
        Ok(Ok(link)) => link.trim_start_matches("../").to_owned(),
        _ => at,
    };
    let place = rootfs::make_place(root, at.as_bytes(), false, None)?;
    attach_at(mount.as_fd(), place.as_fd())
}

fn put(
    root: BorrowedFd<'_>,
    HostDir { path, kind }: &HostDir,
    places: Places,
    volatile: bool,
) -> Result<(), StartError> {
    let text = |error: Errno| StartError::from(error.to_string());
    match kind {
        HostDirKind::Link(target) => match rustix::fs::symlinkat(target, root, path) {
            Err(Errno::EXIST) => Ok(()),
            done => done.map_err(text),
        },
        HostDirKind::Host(mode) => {
            // The upper layer has the mode of the host's directory. A new directory gets all of it but set-id bits.
            let made = make_dir(root, path, *mode).map_err(text)?;
            if matches!(made, Made::Before) || mode & 0o6000 != 0 {
                rustix::fs::chmodat(root, path, Mode::from_raw_mode(*mode), AtFlags::empty()).map_err(text)?;
            }
            attach_at(host(path, *mode, places, volatile)?.as_fd(), place(root, path).map_err(text)?.as_fd())
        }
        HostDirKind::Own(mode) if !path.contains('/') => make_dir(root, path, *mode).map(drop).map_err(text),
        // Within a directory of the host: mount over what is there.
        HostDirKind::Own(mode) => {
            let Ok(place) = place(root, path) else { return Ok(()) };
            let dir = places.own(path)?;
            make_dir(CWD, &dir, *mode).map_err(text)?;
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let own = open_tree(CWD, &*dir, flags).map_err(text)?;
            sys::set_mount_flags(&own, NO_EFFECTS_BITS, false).map_err(text)?;
            attach_at(own.as_fd(), place.as_fd())
        }
    }
}

/// When a directory was created.
enum Made {
    Now,
    /// By an earlier run, or as part of something else.
    Before,
}

/// Creates a directory, unless it exists.
fn make_dir(parent: BorrowedFd<'_>, path: &str, mode: u32) -> Result<Made, Errno> {
    match rustix::fs::mkdirat(parent, path, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) => Ok(Made::Before),
        done => done.map(|()| Made::Now),
    }
}

/// Where the layers of the host's directories are, in the sandbox's directory.
#[derive(Clone, Copy)]
enum Places {
    /// As the module's description shows.
    Flat,
    /// `parts/usr/upper`, `parts/usr/work` and `parts/var+tmp/own`, in sandboxes of earlier versions.
    Nested,
}

impl Places {
    fn find() -> Self {
        let nested = rustix::fs::access(PARTS, Access::EXISTS).is_ok();
        if nested { Self::Nested } else { Self::Flat }
    }

    /// The upper layer and the work directory of an overlay. The upper layer must have this mode.
    fn overlay(self, path: &str, mode: u32) -> Result<(String, String), StartError> {
        let failed = |dir: &str, error: Errno| format!("create {dir}: {error}");
        match self {
            // The mount point, which exists.
            Self::Flat => {
                let work = format!("work/{path}");
                make_dir(CWD, &work, 0o700).map_err(|error| failed(&work, error))?;
                Ok((format!("upper/{path}"), work))
            }
            Self::Nested => {
                let dirs = ["upper", "work"].map(|name| format!("{PARTS}/{path}/{name}"));
                for (dir, mode) in dirs.iter().zip([mode, 0o700]) {
                    std::fs::create_dir_all(dir).map_err(|error| format!("create {dir}: {error}"))?;
                    rustix::fs::chmod(&**dir, Mode::from_raw_mode(mode)).map_err(|error| failed(dir, error))?;
                }
                let [upper, work] = dirs;
                Ok((upper, work))
            }
        }
    }

    /// A private directory within a directory of the host. Its parent exists.
    fn own(self, path: &str) -> Result<String, StartError> {
        let name = path.replace('/', "+");
        let (parent, dir) = match self {
            Self::Flat => ("own".to_owned(), format!("own/{name}")),
            Self::Nested => (format!("{PARTS}/{name}"), format!("{PARTS}/{name}/own")),
        };
        make_dir(CWD, &parent, 0o700).map_err(|error| format!("create {parent}: {error}"))?;
        Ok(dir)
    }

    /// The directory of files that cover those of a read-only `/etc`.
    fn files(self) -> &'static str {
        match self {
            Self::Flat => "files",
            Self::Nested => "parts/etc/files",
        }
    }
}

/// Opens a directory in the root, without following symlinks.
fn place(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Mounts the host's directory under an overlay, or read-only.
fn host(path: &str, mode: u32, places: Places, volatile: bool) -> Result<OwnedFd, StartError> {
    let lower = format!("/{path}");
    let (upper, work) = places.overlay(path, mode)?;
    if let Ok(made) = overlay(&[&lower], &upper, &work, volatile) {
        return Ok(made);
    }
    // It contains other mounts, or its filesystem cannot be an overlay layer.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let copy = open_tree(CWD, &*lower, flags).map_err(|error| format!("clone the mount: {error}"))?;
    let flags = NO_EFFECTS_BITS | libc::MOUNT_ATTR_RDONLY;
    sys::set_mount_flags(&copy, flags, true).map_err(|error| format!("make it read-only: {error}"))?;
    Ok(copy)
}

/// Creates an overlay whose attributes an ordinary user may set.
fn overlay(lower: &[&str], upper: &str, work: &str, volatile: bool) -> Result<OwnedFd, Errno> {
    let each = |layers: &OwnedFd| {
        lower.iter().try_for_each(|layer| rustix::mount::fsconfig_set_string(layers, "lowerdir+", *layer))
    };
    // Kernels before 6.7 take all layers in one string, and report that only at the end.
    let all = |layers: &OwnedFd| rustix::mount::fsconfig_set_string(layers, "lowerdir", lower.join(":"));
    match overlay_with(each, upper, work, volatile) {
        Err(_) if !lower.iter().any(|layer| layer.contains([':', '\\'])) => overlay_with(all, upper, work, volatile),
        done => done,
    }
}

fn overlay_with(
    set_lower: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
    upper: &str,
    work: &str,
    volatile: bool,
) -> Result<OwnedFd, Errno> {
    let layers = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    set_lower(&layers)?;
    rustix::mount::fsconfig_set_string(&layers, "upperdir", upper)?;
    rustix::mount::fsconfig_set_string(&layers, "workdir", work)?;
    rustix::mount::fsconfig_set_flag(&layers, "userxattr")?;
    if volatile {
        rustix::mount::fsconfig_set_flag(&layers, "volatile")?;
    }
    rustix::mount::fsconfig_create(&layers)?;
    rustix::mount::fsmount(&layers, FsMountFlags::FSMOUNT_CLOEXEC, NO_EFFECTS)
}

/// Creates a `/dev` with bind mounts of the host's devices, because an ordinary user cannot create devices.
fn devices(root: BorrowedFd<'_>) -> Result<(), StartError> {
    let failed = |what: &str, error: Errno| format!("create /dev: {what}: {error}");
    let options = [("mode", "0755"), ("size", "65536"), ("nr_inodes", "64")];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let dev = rootfs::filesystem("tmpfs", &options, attributes).map_err(|error| failed("mount", error))?;
    rootfs::furnish(&dev).map_err(|(name, error)| failed(name, error))?;
    attach(dev.as_fd(), root, "dev")?;
    for (name, ..) in DEVICES {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&dev, name, flags, Mode::from_raw_mode(0o666)).map_err(|error| failed(name, error))?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let device = open_tree(CWD, &*format!("/dev/{name}"), flags).map_err(|error| failed(name, error))?;
        let flags = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
        sys::set_mount_flags(&device, flags, false).map_err(|error| failed(name, error))?;
        attach(device.as_fd(), dev.as_fd(), name)?;
    }
    Ok(())
}
