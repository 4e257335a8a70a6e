//! A sandbox's upper layer with a size limit: a filesystem in a file.

use crate::sys;
use kennel_keeper::StartError;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags};

/// The name of the file in the sandbox's directory.
pub(crate) use crate::DISK as FILE;
/// The mount point in the sandbox's directory, which only the jail sees.
pub(crate) const PLACE: &str = "disk";

/// Mounts the filesystem where only this process sees it, and returns the directory for layers. The working directory
/// must be the sandbox's. The filesystem is unmounted with the last mount that uses it.
pub(crate) fn open() -> Result<String, StartError> {
    let failed = |what: &'static str| move |error: Errno| format!("mount the sandbox's disk: {what}: {error}");
    // Changing the mount namespace requires a single-threaded process, which this one is.
    kennel_keeper::sys::unshare_mounts().map_err(failed("create a mount namespace"))?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(failed("make mounts private"))?;
    let (_held, device) = attach().map_err(|(what, error)| failed(what)(error))?;
    let disk = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("open the filesystem"))?;
    rustix::mount::fsconfig_set_string(&disk, "source", &device).map_err(failed("set the device"))?;
    rustix::mount::fsconfig_create(&disk).map_err(failed("open the filesystem"))?;
    let flags = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    let mount =
        rustix::mount::fsmount(&disk, FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(failed("create the mount"))?;
    make(PLACE).map_err(failed("create the mount point"))?;
    rustix::mount::move_mount(&mount, "", CWD, PLACE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(failed("attach the mount"))?;
    for layer in ["upper", "work"] {
        make(&format!("{PLACE}/{layer}")).map_err(failed("create a layer directory"))?;
    }
    Ok(format!("{PLACE}/"))
}

fn make(dir: &str) -> Result<(), Errno> {
    match rustix::fs::mkdir(dir, Mode::from_raw_mode(0o700)) {
        Err(Errno::EXIST) => Ok(()),
        done => done,
    }
}

/// Attaches the file to a loop device, which is removed when it is no longer used.
fn attach() -> Result<(OwnedFd, String), (&'static str, Errno)> {
    let open = |path: &str, what: &'static str| {
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| (what, error))
    };
    let file = open(FILE, "open the disk file")?;
    let control = open("/dev/loop-control", "open /dev/loop-control, because a disk limit needs loop devices")?;
    loop {
        let number = sys::free_loop_device(&control).map_err(|error| ("find a free loop device", error))?;
        let path = format!("/dev/loop{number}");
        let device = open(&path, "open a loop device")?;
        match sys::configure_loop_device(&device, file.as_raw_fd()) {
            Ok(()) => return Ok((device, path)),
            // Another process was faster.
            Err(Errno::BUSY) => {}
            Err(error) => return Err(("attach the disk file to a loop device", error)),
        }
    }
}
