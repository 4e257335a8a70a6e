//! System calls for which rustix has no wrapper. All `unsafe` code of the jail is here.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        // SAFETY: returns the address of this thread's errno, which is always valid to read.
        Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
    } else {
        Ok(result)
    }
}

/// Forks into new namespaces. The child shares the descriptor table with its parent. Returns the child's process id, or
/// `None` in the child. Only for single-threaded programs.
pub(crate) fn fork_into(namespaces: libc::c_int) -> Result<Option<i32>, Errno> {
    let flags = libc::c_long::from(namespaces | libc::CLONE_FILES | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and a stack this is a fork; the program has one thread, so the child is a whole copy.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    Ok((pid != 0).then_some(pid as i32))
}

/// Changes the user to whom the kernel charges resources, while this value lives. New namespaces, and what is counted
/// in them, are charged to that user and not to the host's root. Only for the host's root.
pub(crate) struct ChargedTo;

impl ChargedTo {
    /// Switches to this user. The capabilities are kept, because some systems let only privileged users create user
    /// namespaces.
    pub(crate) fn user(id: u32) -> Result<Self, Errno> {
        use rustix::thread::{capabilities, set_capabilities};
        effective_user(id)?;
        let charged = Self;
        let mut sets = capabilities(None)?;
        sets.effective = sets.permitted;
        set_capabilities(None, sets).map(|()| charged)
    }
}

impl Drop for ChargedTo {
    fn drop(&mut self) {
        // The real user is still root, who may switch back.
        let _ = effective_user(0);
    }
}

fn effective_user(id: u32) -> Result<(), Errno> {
    const SAME: libc::c_long = -1;
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_setresuid, SAME, libc::c_long::from(id), SAME) }).map(drop)
}

/// A process in new namespaces that ends at once. Until it is reaped, its entries in `/proc` refer to these namespaces.
/// Dropping this value reaps it.
pub(crate) struct NamespaceHolder {
    pub(crate) pid: i32,
    /// In use until the process is reaped.
    _stack: Vec<u128>,
}

impl NamespaceHolder {
    /// Starts the process. It shares this process's memory, so nothing is copied. It runs at the same time as this
    /// process, without `CLONE_VFORK`: waiting for its end takes longer than creating the namespaces.
    pub(crate) fn start(namespaces: libc::c_int) -> Result<Self, Errno> {
        extern "C" fn end(_: *mut libc::c_void) -> libc::c_int {
            0
        }
        let mut stack = vec![0_u128; 512];
        let flags = namespaces | libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: the stack is the child's alone, grows down from its end, and is kept until the child is reaped. The child
        // only returns, which touches no other memory of this process.
        let pid = unsafe { libc::clone(end, stack.as_mut_ptr_range().end.cast(), flags, std::ptr::null_mut()) };
        check(libc::c_long::from(pid)).map(|pid| Self { pid: pid as i32, _stack: stack })
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.pid);
        let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()));
    }
}

/// Moves this process into new namespaces. Only for single-threaded programs.
pub(crate) fn move_into(namespaces: libc::c_int) -> Result<(), Errno> {
    // SAFETY: plain numbers; the memory of this process stays its own.
    check(unsafe { libc::syscall(libc::SYS_unshare, namespaces) }).map(drop)
}

/// Maps the ids of the files below a detached mount through `user_namespace`.
pub(crate) fn shift_ids(mount: &OwnedFd, user_namespace: &OwnedFd, recursive: bool) -> Result<(), Errno> {
    let attributes = MountAttributes {
        set: libc::MOUNT_ATTR_IDMAP,
        clear: 0,
        propagation: 0,
        user_namespace: user_namespace.as_raw_fd() as u64,
    };
    set_attributes(mount, &attributes, recursive)
}

/// Sets attributes (`MOUNT_ATTR_*`) of a mount.
pub(crate) fn set_mount_flags(mount: impl AsFd, flags: u64, recursive: bool) -> Result<(), Errno> {
    set_attributes(mount, &MountAttributes { set: flags, clear: 0, propagation: 0, user_namespace: 0 }, recursive)
}

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn set_attributes(mount: impl AsFd, attributes: &MountAttributes, recursive: bool) -> Result<(), Errno> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, the attributes are valid for their size.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<MountAttributes>(),
        )
    })
    .map(drop)
}

/// Passes the descriptor of a layer to an overlay, for the option `key`.
pub(crate) fn overlay_fd(filesystem: &OwnedFd, key: &std::ffi::CStr, fd: &OwnedFd) -> Result<(), Errno> {
    const FSCONFIG_SET_FD: libc::c_uint = 5;
    // SAFETY: the key is a C string, the value must be null for this command.
    check(unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            filesystem.as_raw_fd(),
            FSCONFIG_SET_FD,
            key.as_ptr(),
            std::ptr::null::<u8>(),
            fd.as_raw_fd(),
        )
    })
    .map(drop)
}

/// Gives this process its own descriptor table, and closes all descriptors but these.
pub(crate) fn own_descriptors(keep: &[i32]) -> Result<(), Errno> {
    // SAFETY: gives this process its own copy of the table; nothing is closed by it.
    check(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_FILES) })?;
    kennel_keeper::sys::close_all_but(keep);
    Ok(())
}

/// Loads the system call filter for this process and all its descendants. Requires no-new-privileges.
pub(crate) fn load_filter(nesting: bool) -> Result<(), Errno> {
    static FILTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/filter.bpf"));
    static NESTING: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nesting.bpf"));
    const SIZE: usize = size_of::<libc::sock_filter>();
    let steps: Vec<libc::sock_filter> = if nesting { NESTING } else { FILTER }
        .as_chunks::<SIZE>()
        .0
        .iter()
        .map(|step| libc::sock_filter {
            code: u16::from_ne_bytes([step[0], step[1]]),
            jt: step[2],
            jf: step[3],
            k: u32::from_ne_bytes([step[4], step[5], step[6], step[7]]),
        })
        .collect();
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_ptr().cast_mut() };
    // SAFETY: `program` points at `steps`, which outlive the call; the kernel copies and checks them.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, std::ptr::from_ref(&program)) })
        .map(drop)
}

/// Returns the number of a free loop device.
pub(crate) fn free_loop_device(control: &OwnedFd) -> Result<libc::c_long, Errno> {
    const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
    // SAFETY: this request has no argument.
    check(libc::c_long::from(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) }))
}

/// The kernel's `struct loop_config`, without the unused parts of `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    before_flags: [u8; 52],
    flags: u32,
    after_flags: [u8; 176],
    reserved: [u64; 8],
}

/// Attaches the file to the loop device, until no process has the device open.
pub(crate) fn configure_loop_device(device: &OwnedFd, file: i32) -> Result<(), Errno> {
    const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
    const AUTOCLEAR: u32 = 4;
    let config = LoopConfig {
        file: file as u32,
        block_size: 0,
        before_flags: [0; 52],
        flags: AUTOCLEAR,
        after_flags: [0; 176],
        reserved: [0; 8],
    };
    // SAFETY: `config` has the size and shape that the kernel reads (checked below), and outlives the call.
    check(libc::c_long::from(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, std::ptr::from_ref(&config)) }))
        .map(drop)
}

const _: () = assert!(size_of::<LoopConfig>() == 304 && std::mem::offset_of!(LoopConfig, flags) == 60);

/// Changes the owner of new files while this value lives. That owner must have permission to create them.
pub(crate) struct FilesOf;

impl FilesOf {
    pub(crate) fn become_owner(user: u32, group: u32) -> Self {
        set_file_ids(user, group);
        Self
    }

    /// Switches to a user without any rights and without groups. The groups are dropped permanently.
    pub(crate) fn become_nobody() -> Result<Self, Errno> {
        const NOBODY: u32 = 65534;
        // SAFETY: no groups, so nothing is read; the program has one thread.
        check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) })?;
        Ok(Self::become_owner(NOBODY, NOBODY))
    }
}

impl Drop for FilesOf {
    fn drop(&mut self) {
        set_file_ids(0, 0);
    }
}

fn set_file_ids(user: u32, group: u32) {
    // SAFETY: plain numbers; they count for this thread's work on files only.
    unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
    }
}

/// Makes the kernel kill this process when its parent ends.
pub(crate) fn die_with_parent() {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Turns on the loopback interface of this network namespace.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: plain data, zeroed, then filled with the name and flags of the request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `request` is a valid request of this kind.
    check(libc::c_long::from(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }))
        .map(drop)
}

/// Forks. Returns the child's process id, or `None` in the child. Only for single-threaded programs.
pub(crate) fn fork() -> Result<Option<i32>, Errno> {
    // SAFETY: the program has one thread, so the child is a whole copy.
    let pid = check(libc::c_long::from(unsafe { libc::fork() }))?;
    Ok((pid != 0).then_some(pid as i32))
}

/// Sets the name of this process, as lists of processes show it.
pub(crate) fn set_name(name: &std::ffi::CStr) {
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// The arguments and the environment of this process, where the kernel has put them: the number of arguments, pointers
/// to them, a null pointer, pointers to the variables, and a null pointer.
pub(crate) struct StartData {
    arguments: *mut *mut libc::c_char,
    variables: *mut *mut libc::c_char,
}

impl StartData {
    /// Finds them. Only for the first thing that a program does: nothing may have changed the environment.
    pub(crate) fn find() -> Option<Self> {
        const MANY: usize = 1 << 20;
        unsafe extern "C" {
            static environ: *mut *mut libc::c_char;
        }
        // SAFETY: the C library sets this before `main`, and nothing else has changed it.
        let variables = unsafe { environ };
        if variables.is_null() {
            return None;
        }
        // SAFETY: this goes back from the variables to the number of arguments, which precedes them. A pointer is never
        // as small as that number, so the search does not go further.
        unsafe {
            let end = variables.sub(1);
            if !(*end).is_null() {
                return None;
            }
            let count = (0..MANY).find(|count| *end.sub(count + 1).cast::<usize>() == *count)?;
            Some(Self { arguments: end.sub(count), variables })
        }
    }

    /// The arguments, which start with the name of the program.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &std::ffi::CStr> {
        let mut next = self.arguments;
        std::iter::from_fn(move || {
            // SAFETY: the list ends with a null pointer, the others point to C strings, which live as long as the
            // process.
            unsafe {
                let word = *next;
                if word.is_null() {
                    return None;
                }
                next = next.add(1);
                Some(std::ffi::CStr::from_ptr(word))
            }
        })
    }

    /// Overwrites all of it. Nothing may read the arguments and the environment of this process afterwards.
    pub(crate) fn wipe(self) {
        for mut next in [self.arguments, self.variables] {
            // SAFETY: as above. The strings are on the stack of this process, and nothing else refers to them.
            unsafe {
                while !(*next).is_null() {
                    std::ptr::write_bytes(*next, 0, libc::strlen(*next));
                    next = next.add(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kennel_syscalls::{ALLOWED, Operation, Rule, allowed_if, calls};
    use std::collections::HashSet;

    const ALLOW: u32 = 0x7fff_0000;
    const UNKNOWN: u32 = 0x0005_0000 | libc::ENOSYS as u32;

    /// Returns the filter's result for a system call. It emulates the instructions that the filter uses.
    fn answer(architecture: u32, number: u32, arguments: [u32; 6]) -> u32 {
        let filter: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/filter.bpf"));
        let mut value = 0;
        let mut at = 0;
        loop {
            let step = &filter[at * 8..at * 8 + 8];
            let operand = u32::from_ne_bytes(step[4..].try_into().unwrap());
            at += 1;
            match u16::from_ne_bytes([step[0], step[1]]) {
                0x20 => {
                    value = match operand {
                        0 => number,
                        4 => architecture,
                        offset => arguments[(offset as usize - 16) / 8],
                    }
                }
                0x54 => value &= operand,
                0x15 => at += usize::from(if value == operand { step[2] } else { step[3] }),
                0x35 => at += usize::from(if value >= operand { step[2] } else { step[3] }),
                0x05 => at += operand as usize,
                0x06 => return operand,
                other => panic!("a step that is not there: {other:#x}"),
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    const HERE: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const HERE: u32 = 0xc000_00b7;

    #[test]
    fn the_filter_allows_what_the_list_allows() {
        let allowed: HashSet<i64> = calls(ALLOWED).map(|call| call.number).collect();
        let conditional: HashSet<i64> = allowed_if().iter().map(|rule| rule.call.number).collect();
        for number in 0..2000 {
            if !conditional.contains(&number) {
                let expected = if allowed.contains(&number) { ALLOW } else { UNKNOWN };
                assert_eq!(answer(HERE, number as u32, [0; 6]), expected, "{number}");
            }
            assert_eq!(answer(HERE, number as u32 | 0x4000_0000, [0; 6]), UNKNOWN, "x32 {number}");
            assert_eq!(answer(0x4000_0003, number as u32, [0; 6]), 0x8000_0000, "32-bit {number}");
        }
        for Rule { call, conditions, .. } in allowed_if() {
            let mut arguments = [0; 6];
            for (argument, operation, value) in &conditions {
                if let Operation::Is = operation {
                    arguments[usize::from(*argument)] = *value as u32;
                }
            }
            assert_eq!(answer(HERE, call.number as u32, arguments), ALLOW, "{}", call.name());
        }
    }

    #[test]
    fn calls_are_filtered_by_their_arguments() {
        let ask = |number: i64, argument: usize, value: u64| {
            let mut arguments = [0; 6];
            arguments[argument] = value as u32;
            answer(HERE, number as u32, arguments)
        };
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
            assert_eq!(ask(libc::SYS_clone, 0, flag as u64 | libc::CLONE_VM as u64), UNKNOWN);
            assert_eq!(ask(libc::SYS_unshare, 0, flag as u64), UNKNOWN);
        }
        assert_eq!(ask(libc::SYS_clone, 0, (libc::CLONE_VM | libc::CLONE_THREAD) as u64), ALLOW);
        assert_eq!(ask(libc::SYS_ioctl, 1, libc::TIOCSTI), UNKNOWN);
        assert_eq!(ask(libc::SYS_ioctl, 1, libc::TIOCGWINSZ), ALLOW);
        assert_eq!(ask(libc::SYS_socket, 0, libc::AF_VSOCK as u64), UNKNOWN);
        assert_eq!(ask(libc::SYS_socket, 0, libc::AF_INET as u64), ALLOW);
        assert_eq!(ask(libc::SYS_personality, 0, 0x0002_0000), ALLOW);
        assert_eq!(ask(libc::SYS_personality, 0, 0x0040_0000), UNKNOWN);
        for never in [libc::SYS_mount, libc::SYS_bpf, libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_keyctl] {
            assert_eq!(ask(never, 0, 0), UNKNOWN);
        }
    }
}
