//! The process inside: isolates itself, and then becomes the keeper.
//!
//! It starts in new namespaces, with all capabilities in them and none outside. It shares the descriptor table with its
//! parent, which passes on the mounts that need the host's root. In the end it has only the capabilities of the plan, a
//! system call filter, and no descriptors but the keeper's.

use crate::handover::{Handover, Root};
use crate::rootfs::{self, filesystem};
use crate::{fence, parts, sys};
use kennel_jail::Network;
use kennel_netlink::FirewallSocket;
use kennel_proto::{KeeperConfig, LogSink};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_change, move_mount,
    open_tree, unmount,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

const NO_EFFECTS: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV).union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Files of the kernel that are masked inside.
const MASKED: [&str; 4] = ["proc/kcore", "proc/keys", "proc/sysrq-trigger", "proc/timer_list"];
/// Directories of the kernel that are read-only inside.
const READ_ONLY: [&str; 4] = ["proc/sys", "proc/irq", "proc/bus", "proc/fs"];

/// The main function of the process inside. Never returns. With `firewall`, the parent gets a socket for the firewall
/// of this network namespace, opened here while all capabilities are still available.
pub(crate) fn raise(network: Network, firewall: bool, hand: &OwnedFd, up: &OwnedFd) -> ! {
    sys::die_with_parent();
    // It is closed with the parent's other descriptors, because it is in the parent's table.
    let socket =
        firewall.then(FirewallSocket::open).and_then(Result::ok).map(|socket| OwnedFd::from(socket).into_raw_fd());
    tell(up, &socket.unwrap_or(-1).to_ne_bytes());
    // Done while the parent waits for the plan.
    let own = Own::make(network);
    let Some(told) = Handover::receive(hand) else { kennel_keeper::sys::exit_now(125) };
    let Handover { hostname, capabilities, keeper, listener, landlock, nesting, .. } = told;
    let result = own
        .and_then(|own| mount_all(&told.dir, &told.root, told.read_only, nesting, &own))
        .and_then(|()| name(&hostname))
        .and_then(|()| keep_only(listener, &keeper, up))
        .and_then(|listener| give_up_rights(capabilities, landlock, nesting).map(|()| listener));
    match result {
        Ok(listener) => {
            tell(up, b"ok");
            // Its owner is a copy from before the fork, and is never dropped.
            kennel_keeper::sys::close(up);
            let code = kennel_keeper::keep(listener, keeper);
            kennel_keeper::sys::exit_now(code)
        }
        Err(message) => {
            tell(up, message.as_bytes());
            kennel_keeper::sys::exit_now(125)
        }
    }
}

fn tell(pipe: &OwnedFd, message: &[u8]) {
    let _ = rustix::io::write(pipe, message);
}

/// Filesystems that belong to the sandbox's own namespaces. They are not attached yet.
struct Own {
    proc: OwnedFd,
    sysfs: Option<OwnedFd>,
    pts: OwnedFd,
    shm: OwnedFd,
}

impl Own {
    /// Creates them while the host's own ones are still visible, because the kernel requires that.
    fn make(network: Network) -> Result<Self, String> {
        let step = |what: &'static str| move |error: Errno| format!("{what}: {error}");
        let sysfs = match network {
            Network::None | Network::Joined => {
                // This namespace takes longest to create, so it is done while the process outside creates the mounts.
                if network == Network::None {
                    sys::move_into(libc::CLONE_NEWNET).map_err(step("create a network namespace"))?;
                }
                sys::loopback_up().map_err(step("bring up loopback"))?;
                let flags = NO_EFFECTS | MountAttrFlags::MOUNT_ATTR_RDONLY;
                Some(filesystem("sysfs", &[], flags).map_err(step("mount /sys"))?)
            }
            // It would show the network that it belongs to, which is not the sandbox's.
            Network::Host => None,
        };
        let terminals = [("ptmxmode", "0666"), ("mode", "0620")];
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let pts = filesystem("devpts", &terminals, flags).map_err(step("mount /dev/pts"))?;
        let shared = [("mode", "1777"), ("size", "67108864")];
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let shm = filesystem("tmpfs", &shared, flags).map_err(step("mount /dev/shm"))?;
        let proc = filesystem("proc", &[], NO_EFFECTS).map_err(step("mount /proc"))?;
        Ok(Self { proc, sysfs, pts, shm })
    }

    /// Attaches them, and masks parts of the kernel's interface. With `nesting` nothing is masked, because the kernel
    /// allows a new `/proc` only where the existing one is fully visible. The unmasked files belong to the host's root,
    /// who is not mapped inside.
    fn attach(&self, root: BorrowedFd<'_>, nesting: bool) -> Result<(), String> {
        attach(self.pts.as_fd(), root, "dev/pts")?;
        attach(self.shm.as_fd(), root, "dev/shm")?;
        attach(self.proc.as_fd(), root, "proc")?;
        if let Some(sysfs) = &self.sysfs {
            attach(sysfs.as_fd(), root, "sys")?;
        }
        if nesting {
            return Ok(());
        }
        self.refuse_user_namespaces()?;
        for file in MASKED {
            if rustix::fs::statat(root, file, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                attach(copy(root, "dev/null")?.as_fd(), root, file)?;
            }
        }
        for dir in READ_ONLY {
            match open_tree(root, dir, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC) {
                Ok(copy) => {
                    let flags = libc::MOUNT_ATTR_RDONLY
                        | libc::MOUNT_ATTR_NOSUID
                        | libc::MOUNT_ATTR_NODEV
                        | libc::MOUNT_ATTR_NOEXEC;
                    sys::set_mount_flags(&copy, flags, false)
                        .map_err(|error| format!("make /{dir} read-only: {error}"))?;
                    attach(copy.as_fd(), root, dir)?;
                }
                Err(Errno::NOENT) => {}
                Err(error) => return Err(format!("make /{dir} read-only: {error}")),
            }
        }
        Ok(())
    }
}

impl Own {
    /// Prevents new user namespaces in this one. The system call filter prevents them, too.
    fn refuse_user_namespaces(&self) -> Result<(), String> {
        const SETTING: &str = "sys/user/max_user_namespaces";
        let write = |file: OwnedFd| rustix::io::write(&file, b"0");
        rustix::fs::openat(&self.proc, SETTING, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(write)
            .map(drop)
            .map_err(|error| format!("set {SETTING}: {error}"))
    }
}

#[expect(clippy::disallowed_methods, reason = "the process moves into its new root")]
fn mount_all(dir: &str, root: &Root, read_only: bool, nesting: bool, own: &Own) -> Result<(), String> {
    let step = |what: &'static str| move |error: Errno| format!("{what}: {error}");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(step("make mounts private"))?;
    let made;
    let root = match root {
        Root::Made(numbers) => {
            let [root, dev, binds @ ..] = &numbers[..] else {
                return Err("attach mounts: the root or /dev is missing".into());
            };
            let (root, dev) = (kennel_keeper::sys::borrow(*root), kennel_keeper::sys::borrow(*dev));
            // Any directory would do that this user, who has no rights to the host's files, can access.
            attach(root, CWD, "/proc")?;
            attach(dev, root, "dev")?;
            own.attach(root, nesting)?;
            for pair in binds.as_chunks::<2>().0 {
                let [mount, place] = pair.map(kennel_keeper::sys::borrow);
                attach_at(mount, place)?;
            }
            if read_only {
                sys::set_mount_flags(root, libc::MOUNT_ATTR_RDONLY, false).map_err(step("make the root read-only"))?;
            }
            root
        }
        Root::ToBeMade { base, binds, etc } => {
            rustix::process::chdir(dir).map_err(step("enter the sandbox's directory"))?;
            made = parts::root(base)?;
            attach(made.as_fd(), CWD, dir)?;
            parts::fill(made.as_fd(), base, etc)?;
            // The user is the same inside and outside.
            let mut binds = rootfs::show_all(made.as_fd(), Vec::new(), binds, None, |_, _, _| Ok(()))?;
            if read_only {
                binds.push((rootfs::scratch(false, None)?, rootfs::make_place(&made, b"tmp", true, None)?));
                sys::set_mount_flags(&made, libc::MOUNT_ATTR_RDONLY, true).map_err(step("make the root read-only"))?;
            }
            own.attach(made.as_fd(), nesting)?;
            for (mount, place) in &binds {
                attach_at(mount.as_fd(), place.as_fd())?;
            }
            made.as_fd()
        }
    };
    rustix::process::fchdir(root).map_err(step("enter the root"))?;
    // The new root is mounted on top of the old one, which is then unmounted. This needs no directory inside.
    rustix::process::pivot_root(".", ".").map_err(step("switch to the new root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("unmount the host's root"))?;
    rustix::process::chdir("/").map_err(step("enter the root"))
}

/// Attaches a mount at a path.
pub(crate) fn attach(mount: BorrowedFd<'_>, dir: BorrowedFd<'_>, at: &str) -> Result<(), String> {
    move_mount(mount, "", dir, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| format!("mount /{at}: {error}"))
}

/// Attaches a mount at a mount point that is already open.
pub(crate) fn attach_at(mount: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), String> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", place, "", flags).map_err(|error| format!("attach a mount: {error}"))
}

fn copy(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, String> {
    open_tree(root, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .map_err(|error| format!("clone /{path}: {error}"))
}

fn name(hostname: &str) -> Result<(), String> {
    rustix::system::sethostname(hostname.as_bytes()).map_err(|error| format!("set the host name: {error}"))
}

/// Gives this process its own descriptor table, with only the keeper's descriptors.
fn keep_only(listener: i32, keeper: &KeeperConfig, up: &OwnedFd) -> Result<OwnedFd, String> {
    let mut keep = vec![listener, up.as_raw_fd()];
    if let LogSink::Files { first, second, .. } = keeper.log {
        keep.extend([first, second]);
    }
    keep.extend(keeper.oom_fd.into_iter().chain(keeper.host_fd));
    sys::own_descriptors(&keep).map_err(|error| format!("close descriptors: {error}"))?;
    kennel_keeper::sys::forget_standard_streams();
    kennel_keeper::sys::inherited(listener).ok_or_else(|| "take over the keeper's socket: it is not open".to_owned())
}

/// Becomes root inside with the capabilities of the plan, and loads the system call filter. This is permanent.
fn give_up_rights(capabilities: u64, landlock: bool, nesting: bool) -> Result<(), String> {
    let step = |what: &'static str| move |error: Errno| format!("{what}: {error}");
    match kennel_keeper::sys::become_user(0, 0, &[]) {
        // The only user of this namespace is already root, and cannot change its groups: they are those of the calling
        // user.
        Err(Errno::PERM) if rustix::process::geteuid().is_root() && rustix::process::getegid().is_root() => {}
        done => done.map_err(step("become root inside"))?,
    }
    kennel_keeper::sys::limit_bounding_set(capabilities).map_err(step("limit capabilities"))?;
    let set = CapabilitySet::from_bits_retain(capabilities);
    let sets = CapabilitySets { effective: set, permitted: set, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(step("drop capabilities"))?;
    kennel_keeper::sys::no_new_privileges().map_err(step("set no-new-privileges"))?;
    // Switching the user has reset this.
    sys::die_with_parent();
    if landlock {
        fence::put_up()?;
    }
    sys::load_filter(nesting).map_err(step("load the system call filter"))
}
