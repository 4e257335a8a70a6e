//! System calls for which rustix has no safe wrapper. All `unsafe` code of the keeper is here and in the modules below.
//!
//! The keeper is single-threaded by design: a forked child may run any code.

pub mod inet;
pub mod seccomp;

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::CString;

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 { Err(Errno::from_raw_os_error(last_errno())) } else { Ok(result) }
}

fn last_errno() -> i32 {
    // SAFETY: returns the address of this thread's errno, which is always valid to read.
    unsafe { *libc::__errno_location() }
}

/// The two results of a fork.
pub enum Fork {
    /// The calling process, with the child's process id.
    Parent(i32),
    /// The new process.
    Child,
}

/// Forks. Only for single-threaded programs.
pub fn fork() -> Result<Fork, Errno> {
    // SAFETY: the program has one thread, so the child is a complete copy and may continue in Rust.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Runs `child` in a new process that shares the memory of this one, and waits until it executes a program or ends.
/// Nothing is copied. Returns its process id. Only for single-threaded programs.
pub fn fork_until_exec(mut child: impl FnMut()) -> Result<i32, Errno> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    const STACK: usize = 256 * 1024;
    extern "C" fn enter(child: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it points to the closure below, whose owner waits for this process.
        let child = unsafe { &mut *child.cast::<&mut dyn FnMut()>() };
        child();
        127
    }
    let mut child: &mut dyn FnMut() = &mut child;
    // SAFETY: this creates a new mapping at an address that the kernel chooses.
    let stack =
        unsafe { mmap_anonymous(std::ptr::null_mut(), STACK, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)? };
    // SAFETY: nothing else uses the stack, and it grows down from its end. With CLONE_VFORK this process does nothing
    // until the child has left its memory, so the child's changes to it are like those of a function call.
    let pid = check(unsafe {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(enter, stack.byte_add(STACK), flags, (&raw mut child).cast())
    });
    // SAFETY: nothing uses this stack any more.
    let _ = unsafe { munmap(stack, STACK) };
    // Switching the user in the child made this memory accessible to that user, on some machines.
    let _ = not_dumpable();
    pid
}

/// Exits without running destructors of the copied parent.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Blocks these signals and creates a descriptor to read them from.
pub fn signal_fd(signals: &[i32]) -> Result<OwnedFd, Errno> {
    let set = signal_set(signals);
    // SAFETY: `set` is an initialised signal set.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) })?;
    // SAFETY: `set` is initialised; -1 requests a new descriptor.
    let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, and sigemptyset initialises it; the signals are valid numbers.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

/// Returns the pending signals of a descriptor from [`signal_fd`].
pub fn read_signals(fd: &OwnedFd) -> Vec<i32> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut signals = Vec::new();
    let mut buffer = [0u8; SIZE];
    while let Ok(SIZE) = rustix::io::read(fd, &mut buffer) {
        // The signal number is the first field.
        signals.push(i32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]));
    }
    signals
}

/// Ignores a signal in this process.
pub fn ignore_signal(signal: i32) {
    // SAFETY: SIG_IGN runs no code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Resets every signal to its default action and unblocks all, as a new program expects.
pub fn reset_signals() {
    (1..=64).for_each(default_signal);
    unblock_signals();
}

/// Resets a signal to its default action.
pub fn default_signal(signal: i32) {
    // SAFETY: SIG_DFL runs no code; numbers that cannot be changed are refused, which is fine.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Unblocks all signals.
pub fn unblock_signals() {
    let set = signal_set(&[]);
    // SAFETY: `set` is an initialised, empty set.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
}

/// Sends a signal to a process, or with a negative number to a process group. It is no error if the process is gone.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: plain system call; 0 and -1 would mean many processes and are never passed.
    unsafe { libc::kill(pid, signal) };
}

/// Switches to another user permanently.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: `groups` is a valid array of its length; the others are plain system calls.
    unsafe {
        check(libc::setgroups(groups.len(), groups.as_ptr()))?;
        check(libc::setresgid(gid, gid, gid))?;
        check(libc::setresuid(uid, uid, uid))?;
    }
    Ok(())
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> Result<(), Errno> {
    // SAFETY: the options used here take plain numbers.
    check(unsafe { libc::prctl(option, value, 0 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong) }).map(drop)
}

/// Makes orphans below this process its children.
pub fn become_subreaper() -> Result<(), Errno> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// No program executed from here on gains privileges.
pub fn no_new_privileges() -> Result<(), Errno> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Prevents processes of the same user from tracing this process or inspecting its descriptors.
pub fn not_dumpable() -> Result<(), Errno> {
    prctl(libc::PR_SET_DUMPABLE, 0)
}

/// Lets processes of the same user inspect this process again.
pub fn dumpable() -> Result<(), Errno> {
    prctl(libc::PR_SET_DUMPABLE, 1)
}

/// Removes all capabilities that are not in `keep` from the bounding set.
pub fn limit_bounding_set(keep: u64) -> Result<(), Errno> {
    for capability in 0..64u64 {
        // Most were dropped before. Dropping one again would replace all credentials of the process again.
        if keep & (1 << capability) == 0 && is_in_bounding_set(capability) != Some(false) {
            match prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong) {
                Ok(()) => {}
                Err(Errno::INVAL) => break, // Beyond the last capability that the kernel knows.
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Whether a capability is in the bounding set. `None` if the kernel does not know it.
fn is_in_bounding_set(capability: u64) -> Option<bool> {
    // SAFETY: this option takes a plain number.
    match unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability as libc::c_ulong, 0, 0, 0) } {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Marks every descriptor from `first` on to be closed on exec.
pub fn close_on_exec_from(first: u32) {
    // SAFETY: changes flags of descriptors only. All descriptors of this program have the flag anyway; this is a second
    // safeguard.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Duplicates `fd` to the number `target`, without close-on-exec.
pub fn put_at(fd: &OwnedFd, target: i32) -> Result<(), Errno> {
    if fd.as_raw_fd() == target {
        // SAFETY: plain flag change; dup2 onto itself would keep close-on-exec.
        return check(unsafe { libc::fcntl(target, libc::F_SETFD, 0) }).map(drop);
    }
    // SAFETY: the caller owns the standard descriptors of a freshly forked child.
    check(unsafe { libc::dup2(fd.as_raw_fd(), target) }).map(drop)
}

/// Replaces the standard streams by `/dev/null`.
pub fn forget_standard_streams() {
    use rustix::fs::{Mode, OFlags};
    let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    for fd in 0..3 {
        let _ = put_at(&null, fd);
    }
    if null.as_raw_fd() <= 2 {
        std::mem::forget(null);
    }
}

/// Executes a program in place of this one. Returns only if that fails.
pub fn execve(program: &CString, argv: &[CString], env: &[CString]) -> Errno {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end in null and their strings outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    Errno::from_raw_os_error(last_errno())
}

/// Takes ownership of an inherited descriptor.
pub fn inherited(fd: i32) -> Option<OwnedFd> {
    // SAFETY: only reads flags.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return None;
    }
    // SAFETY: it is open (just checked), was passed by number for this process to own, and each number is taken once.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Closes all descriptors except the standard streams and these. For a new fork, whose copies of the keeper's
/// descriptors would keep connections and pipes open. The copied owners must never be dropped: exit with [`exit_now`].
pub fn close_all_but(keep: &[i32]) {
    let mut keep: Vec<u32> = keep.iter().map(|fd| *fd as u32).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if first < fd {
            // SAFETY: the owners of these descriptors are copies that this process never uses or drops.
            unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) };
        }
        first = fd.saturating_add(1);
    }
}

/// Returns the process id of a socket's peer, as seen from this process's pid namespace: 0 for a peer outside of it.
pub fn peer_pid(socket: &OwnedFd) -> Option<i32> {
    peer(socket).map(|cred| cred.pid)
}

/// Returns the process, user and group that connected, as they were at that time.
pub fn peer(socket: &OwnedFd) -> Option<libc::ucred> {
    // SAFETY: plain data; the kernel fills at most the size given.
    let mut cred: libc::ucred = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `cred` and `size` are valid for the call and match each other.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &raw mut size)
    };
    check(result).ok().map(|_| cred)
}

/// Returns a descriptor by its number. It must stay open as long as it is used.
pub fn borrow(fd: i32) -> rustix::fd::BorrowedFd<'static> {
    // SAFETY: the caller passes numbers of descriptors that it keeps open for as long as it uses them.
    unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) }
}

/// Closes a descriptor whose owner is a copy from before a fork, and is never dropped.
pub fn close(fd: &OwnedFd) {
    // SAFETY: the owner is not used again.
    unsafe { libc::close(fd.as_raw_fd()) };
}

/// Returns the bytes that this process, and those that it has reaped, have read from and written to disks.
pub fn disk_use() -> (u64, u64) {
    const BLOCK: u64 = 512;
    let mut total = (0, 0);
    for who in [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN] {
        // SAFETY: all zeros is a valid value of this plain structure.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes to the structure, which outlives the call.
        if unsafe { libc::getrusage(who, &raw mut usage) } == 0 {
            total.0 += usage.ru_inblock.unsigned_abs() * BLOCK;
            total.1 += usage.ru_oublock.unsigned_abs() * BLOCK;
        }
    }
    total
}

/// Creates a mount namespace for this process.
pub fn unshare_mounts() -> Result<(), Errno> {
    // SAFETY: the program has one thread; only its view of mounts changes.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map(drop)
}
