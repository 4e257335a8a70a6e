//! Seccomp filters, and calls that a filter forwards to another process (`seccomp_unotify(2)`).

use super::{check, last_errno};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

/// One instruction of a filter.
pub use libc::sock_filter as Step;

/// A call that waits for another process to carry it out: the kernel's `struct seccomp_notif`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Notice {
    /// The id of the call, for the reply.
    pub id: u64,
    /// The thread that makes the call.
    pub pid: u32,
    flags: u32,
    /// The system call number.
    pub number: u32,
    /// The architecture that the number belongs to.
    pub architecture: u32,
    instruction: u64,
    /// The arguments.
    pub arguments: [u64; 6],
}

/// The kernel's `struct seccomp_notif_resp`.
#[repr(C)]
struct Answer {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// The kernel's `struct seccomp_notif_addfd`.
#[repr(C)]
struct AddDescriptor {
    id: u64,
    flags: u32,
    source: u32,
    number: u32,
    number_flags: u32,
}

const RECEIVE: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;
const IS_VALID: libc::Ioctl = 0x4008_2102;
const ADD_DESCRIPTOR: libc::Ioctl = 0x4018_2103;
const CONTINUE: u32 = 1;
/// The call returns the descriptor at once.
const AND_SEND: u32 = 1 << 1;

const NEW_LISTENER: libc::c_ulong = 1 << 3;
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;

/// Loads a filter for this process, which must have no-new-privileges, and all its descendants.
pub fn load(filter: &[Step]) -> Result<(), Errno> {
    load_with(filter, 0).map(drop)
}

/// Loads a filter for this process, and returns the descriptor on which its notices arrive. If the kernel supports it,
/// only a fatal signal interrupts a received call, so that it is not carried out twice.
pub fn load_with_listener(filter: &[Step]) -> Result<OwnedFd, Errno> {
    let fd = match load_with(filter, NEW_LISTENER | WAIT_KILLABLE) {
        Err(Errno::INVAL) => load_with(filter, NEW_LISTENER)?,
        done => done?,
    };
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn load_with(filter: &[Step], flags: libc::c_ulong) -> Result<i32, Errno> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: `program` points to `filter`, which outlives the call; the kernel copies and checks it.
    let result = unsafe {
        let operation = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, operation, flags, std::ptr::from_ref(&program))
    };
    check(result as i32)
}

/// Receives the next waiting call. Does not block if the descriptor is readable.
pub fn receive(listener: &OwnedFd) -> Result<Notice, Errno> {
    let mut notice = Notice::default();
    // SAFETY: the kernel requires zeros, and fills a structure of this size.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut notice) })?;
    Ok(notice)
}

/// Whether the call still waits, so that its thread id cannot have been reused.
pub fn is_valid(listener: &OwnedFd, id: u64) -> bool {
    // SAFETY: the kernel reads a number.
    unsafe { libc::ioctl(listener.as_raw_fd(), IS_VALID, &raw const id) == 0 }
}

/// Makes the call return 0 or an error. It is no error if nobody waits for it any more.
pub fn answer(listener: &OwnedFd, id: u64, result: Result<(), Errno>) {
    let error = result.err().map_or(0, |error| -error.raw_os_error());
    send(listener, &Answer { id, value: 0, error, flags: 0 });
}

/// Lets the kernel carry out the call as if there were no filter.
pub fn let_pass(listener: &OwnedFd, id: u64) {
    send(listener, &Answer { id, value: 0, error: 0, flags: CONTINUE });
}

fn send(listener: &OwnedFd, answer: &Answer) {
    // SAFETY: the kernel reads a structure of this size.
    unsafe { libc::ioctl(listener.as_raw_fd(), SEND, std::ptr::from_ref(answer)) };
}

/// Makes the call return a copy of the descriptor in its process.
pub fn answer_with(listener: &OwnedFd, id: u64, fd: &OwnedFd, close_on_exec: bool) -> Result<(), Errno> {
    let number_flags = if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 };
    let add = AddDescriptor { id, flags: AND_SEND, source: fd.as_raw_fd() as u32, number: 0, number_flags };
    // SAFETY: the kernel reads a structure of this size.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), ADD_DESCRIPTOR, &raw const add) }).map(drop)
}

/// Makes the kernel check this process's file access as that of another user, including groups. For a process of root.
pub fn act_as(user: u32, group: u32, groups: &[u32]) -> Result<(), Errno> {
    if rustix::process::getgroups()?.iter().map(|group| group.as_raw()).ne(groups.iter().copied()) {
        // SAFETY: `groups` is a valid array of its length.
        check(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })?;
    }
    // SAFETY: plain system calls. They return the previous id, so an invalid id is passed to read the current one.
    let (is_user, is_group) = unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
        (libc::setfsuid(u32::MAX) as u32, libc::setfsgid(u32::MAX) as u32)
    };
    if (is_user, is_group) == (user, group) { Ok(()) } else { Err(Errno::PERM) }
}

/// Makes a directory this process's root.
#[expect(clippy::disallowed_methods, reason = "in a forked child, which changes its root and working directory")]
pub fn make_root(dir: &OwnedFd) -> Result<(), Errno> {
    rustix::process::fchdir(dir)?;
    // SAFETY: the path is a string that ends in zero.
    if unsafe { libc::chroot(c".".as_ptr()) } < 0 {
        return Err(Errno::from_raw_os_error(last_errno()));
    }
    Ok(())
}
