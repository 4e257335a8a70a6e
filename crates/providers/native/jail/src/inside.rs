//! The process inside: isolates itself, and then becomes the keeper.
//!
//! It starts in new namespaces, with all capabilities in them and none outside. It shares the descriptor table with its
//! parent, which passes on the mounts that need the host's root. In the end it has only the capabilities of the plan, a
//! system call filter, and no descriptors but the keeper's.

use crate::Network;
use crate::cpu::AllowedCpus;
use crate::handover::{self, Handover, Root};
use crate::rootfs::{self, filesystem};
use crate::{landlock_rules, rootless_root, sys};
use kennel_keeper::StartError;
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
/// Afterwards it may use these CPUs.
pub(crate) fn run(network: Network, firewall: bool, cpus: AllowedCpus, hand: &OwnedFd, up: &OwnedFd) -> ! {
    sys::die_with_parent();
    // All this is done while the parent waits for the plan. The network namespace takes longest to create, so it is not
    // created with the others: the parent would wait for it.
    let own_network = make_network(network);
    let report = match &own_network {
        Ok(()) => NetworkReport::Ready(firewall.then(FirewallSocket::open).and_then(Result::ok)),
        Err(_) => NetworkReport::Failed,
    };
    tell(up, &report.into_bytes());
    let own = own_network.and_then(|()| Own::make(network));
    let Some(told) = Handover::receive(hand) else { kennel_keeper::sys::exit_now(125) };
    let Handover { hostname, capabilities, keeper, listener, landlock, nesting, joined, .. } = told;
    let result = own
        .and_then(|own| mount_all(&told.dir, &told.root, told.read_only, nesting, &own, hand))
        .and_then(|()| name(&hostname))
        .and_then(|()| keep_only(listener, &keeper, &[up, hand]))
        .and_then(|listener| {
            cpus.restore();
            give_up_rights(capabilities, landlock, nesting).map(|()| listener)
        })
        .and_then(|listener| if joined { handover::wait(hand).map(|()| listener) } else { Ok(listener) });
    match result {
        Ok(listener) => {
            tell(up, b"ok");
            // Their owners are copies from before the fork, and are never dropped.
            [up, hand].into_iter().for_each(kennel_keeper::sys::close);
            let code = kennel_keeper::keep(listener, keeper);
            kennel_keeper::sys::exit_now(code)
        }
        Err(error) => {
            tell(up, error.message().as_bytes());
            kennel_keeper::sys::exit_now(125)
        }
    }
}

fn tell(pipe: &OwnedFd, message: &[u8]) {
    let _ = rustix::io::write(pipe, message);
}

/// Moves into a new network namespace, unless the sandbox uses the host's network.
fn make_network(network: Network) -> Result<(), StartError> {
    match network {
        Network::Own => {
            sys::move_into(libc::CLONE_NEWNET).map_err(|error| format!("create a network namespace: {error}").into())
        }
        Network::Host => Ok(()),
    }
}

/// What the process inside reports about its network namespace.
pub(crate) enum NetworkReport {
    /// The namespace exists. An ordinary user gets a socket for its firewall.
    Ready(Option<FirewallSocket>),
    /// The namespace could not be created. The result of the process inside states the reason.
    Failed,
}

impl NetworkReport {
    const NO_FIREWALL: i32 = -1;
    const FAILED: i32 = -2;

    /// Encodes the report. The socket is closed with the parent's other descriptors, because both processes share one
    /// descriptor table.
    fn into_bytes(self) -> [u8; 4] {
        let number = match self {
            Self::Ready(Some(socket)) => OwnedFd::from(socket).into_raw_fd(),
            Self::Ready(None) => Self::NO_FIREWALL,
            Self::Failed => Self::FAILED,
        };
        number.to_ne_bytes()
    }

    /// Waits for the report.
    pub(crate) fn receive(up: &OwnedFd) -> Result<Self, StartError> {
        let mut bytes = [0; 4];
        rustix::io::retry_on_intr(|| rustix::io::read(up, &mut bytes))
            .map_err(|error| format!("wait for the sandbox's network namespace: {error}"))?;
        Ok(match i32::from_ne_bytes(bytes) {
            Self::FAILED => Self::Failed,
            number => Self::Ready(kennel_keeper::sys::inherited(number).map(FirewallSocket::from)),
        })
    }
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
    fn make(network: Network) -> Result<Self, StartError> {
        let step = |what: &'static str| move |error: Errno| StartError::from(format!("{what}: {error}"));
        let sysfs = match network {
            Network::Own => {
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
    fn attach(&self, root: BorrowedFd<'_>, nesting: bool) -> Result<(), StartError> {
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
                Err(error) => return Err(format!("make /{dir} read-only: {error}").into()),
            }
        }
        Ok(())
    }
}

impl Own {
    /// Prevents new user namespaces in this one. The system call filter prevents them, too.
    fn refuse_user_namespaces(&self) -> Result<(), StartError> {
        const SETTING: &str = "sys/user/max_user_namespaces";
        let write = |file: OwnedFd| rustix::io::write(&file, b"0");
        rustix::fs::openat(&self.proc, SETTING, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(write)
            .map(drop)
            .map_err(|error| format!("set {SETTING}: {error}").into())
    }
}

#[expect(clippy::disallowed_methods, reason = "the process moves into its new root")]
fn mount_all(
    dir: &str,
    root: &Root,
    read_only: bool,
    nesting: bool,
    own: &Own,
    hand: &OwnedFd,
) -> Result<(), StartError> {
    let step = |what: &'static str| move |error: Errno| StartError::from(format!("{what}: {error}"));
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
        Root::ToBeMade { base, binds, etc, volatile } => {
            // Until its ids are mapped, this process has no rights to its own files.
            handover::wait(hand)?;
            rustix::process::chdir(dir).map_err(step("enter the sandbox's directory"))?;
            made = rootless_root::root(base, *volatile)?;
            attach(made.as_fd(), CWD, dir)?;
            rootless_root::fill(made.as_fd(), base, etc, *volatile)?;
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
pub(crate) fn attach(mount: BorrowedFd<'_>, dir: BorrowedFd<'_>, at: &str) -> Result<(), StartError> {
    move_mount(mount, "", dir, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| format!("mount /{at}: {error}").into())
}

/// Attaches a mount at a mount point that is already open.
pub(crate) fn attach_at(mount: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), StartError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", place, "", flags).map_err(|error| format!("attach a mount: {error}").into())
}

fn copy(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, StartError> {
    open_tree(root, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .map_err(|error| format!("clone /{path}: {error}").into())
}

fn name(hostname: &str) -> Result<(), StartError> {
    rustix::system::sethostname(hostname.as_bytes()).map_err(|error| format!("set the host name: {error}").into())
}

/// Gives this process its own descriptor table, with only the keeper's descriptors and these pipes.
fn keep_only(listener: i32, keeper: &KeeperConfig, pipes: &[&OwnedFd]) -> Result<OwnedFd, StartError> {
    let mut keep = vec![listener];
    keep.extend(pipes.iter().map(|pipe| pipe.as_raw_fd()));
    if let LogSink::Files { first, second, .. } = keeper.log {
        keep.extend([first, second]);
    }
    keep.extend(keeper.oom_fd.into_iter().chain(keeper.host_fd));
    sys::own_descriptors(&keep).map_err(|error| format!("close descriptors: {error}"))?;
    kennel_keeper::sys::forget_standard_streams();
    kennel_keeper::sys::inherited(listener).ok_or_else(|| "take over the keeper's socket: it is not open".into())
}

/// Becomes root inside with the capabilities of the plan, and loads the system call filter. This is permanent.
fn give_up_rights(capabilities: u64, landlock: bool, nesting: bool) -> Result<(), StartError> {
    let step = |what: &'static str| move |error: Errno| StartError::from(format!("{what}: {error}"));
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
        landlock_rules::enforce()?;
    }
    sys::load_filter(nesting).map_err(step("load the system call filter"))
}
