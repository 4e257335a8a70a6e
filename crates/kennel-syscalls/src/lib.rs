//! The system calls that sandboxes may make, in groups, with one reason for each group.
//!
//! Every provider with a filter generates it from this list: native compiles it, and engines get it as a profile. A
//! call that is not on the list returns `ENOSYS`, as an older kernel would, so that libraries fall back to a call that
//! can be filtered: for example from `clone3` to `clone`, whose flags are checked below.
//!
//! These are left out on purpose: mounts, modules, setting clocks, keyrings, BPF, performance counters, userfaultfd,
//! io_uring, opening files by handle, kexec, reboot, swap, quotas, accounting, I/O ports, and changing namespaces.

/// A system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The number on the architecture that this is compiled for.
    pub number: i64,
    /// The constant of the C library that contains the number.
    symbol: &'static str,
}

impl Call {
    /// The name, as in the kernel's manual.
    pub fn name(&self) -> &'static str {
        self.symbol.trim_start_matches("SYS_")
    }
}

/// System calls that are allowed for the same reason.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Why they are allowed: what programs use them for.
    pub why: &'static str,
    /// The calls.
    pub calls: &'static [Call],
}

/// Returns all calls of some groups.
pub fn calls(groups: &'static [Group]) -> impl Iterator<Item = &'static Call> {
    groups.iter().flat_map(|group| group.calls)
}

macro_rules! call {
    ($symbol:ident) => {
        Call { number: libc::$symbol, symbol: stringify!($symbol) }
    };
}

macro_rules! groups {
    ($($(#[$attribute:meta])* $why:literal: [$($symbol:ident),* $(,)?],)*) => {
        &[$($(#[$attribute])* Group { why: $why, calls: &[$(call!($symbol)),*] },)*]
    };
}

/// System calls that are allowed with any arguments.
pub const ALLOWED: &[Group] = groups![
    "open, read and write files, and read their metadata": [
        SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
        SYS_preadv2, SYS_pwritev2, SYS_openat, SYS_openat2, SYS_close, SYS_close_range, SYS_lseek, SYS_fstat,
        SYS_newfstatat, SYS_statx, SYS_fstatfs, SYS_statfs, SYS_getdents64, SYS_readlinkat, SYS_faccessat,
        SYS_faccessat2, SYS_fcntl, SYS_flock, SYS_fsync, SYS_fdatasync, SYS_sync_file_range, SYS_syncfs,
        SYS_sync, SYS_fallocate, SYS_ftruncate, SYS_truncate, SYS_fadvise64, SYS_readahead,
    ],
    "copy data between descriptors inside the kernel, as cp and web servers do": [
        SYS_copy_file_range, SYS_sendfile, SYS_splice, SYS_tee, SYS_vmsplice,
    ],
    "get the handle of a file; opening a file by its handle is not allowed": [
        SYS_name_to_handle_at,
    ],
    "create, rename and remove files, and change their permissions, owners and times": [
        SYS_mkdirat, SYS_mknodat, SYS_unlinkat, SYS_renameat, SYS_renameat2, SYS_linkat, SYS_symlinkat,
        SYS_fchmod, SYS_fchmodat, SYS_fchmodat2, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_umask,
    ],
    "change the working directory and the root directory": [
        SYS_chdir, SYS_fchdir, SYS_getcwd, SYS_chroot,
    ],
    "read and change extended attributes; the kernel checks the rights for each kind": [
        SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr,
        SYS_llistxattr, SYS_flistxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
    ],
    #[cfg(target_arch = "x86_64")]
    "older forms of the calls on files, which programs still use": [
        SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_access, SYS_mkdir, SYS_rmdir, SYS_mknod, SYS_unlink,
        SYS_rename, SYS_link, SYS_symlink, SYS_readlink, SYS_chmod, SYS_chown, SYS_lchown, SYS_utime,
        SYS_utimes, SYS_futimesat, SYS_getdents, SYS_ustat,
    ],
    "pipes, duplicated descriptors, and waiting for events": [
        SYS_dup, SYS_dup3, SYS_pipe2, SYS_eventfd2, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait,
        SYS_epoll_pwait2, SYS_ppoll, SYS_pselect6, SYS_inotify_init1, SYS_inotify_add_watch,
        SYS_inotify_rm_watch, SYS_signalfd4, SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime,
    ],
    "files in memory, without a path": [
        SYS_memfd_create, SYS_memfd_secret,
    ],
    #[cfg(target_arch = "x86_64")]
    "older forms of the calls on pipes and events, which programs still use": [
        SYS_dup2, SYS_pipe, SYS_poll, SYS_select, SYS_epoll_create, SYS_epoll_wait, SYS_epoll_ctl_old,
        SYS_epoll_wait_old, SYS_eventfd, SYS_signalfd, SYS_inotify_init,
    ],
    "manage memory": [
        SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_mincore, SYS_msync, SYS_mlock,
        SYS_mlock2, SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect,
        SYS_membarrier, SYS_mseal, SYS_process_madvise, SYS_process_mrelease,
    ],
    "place memory on NUMA nodes, which databases and language runtimes do": [
        SYS_get_mempolicy, SYS_set_mempolicy, SYS_mbind, SYS_migrate_pages, SYS_set_mempolicy_home_node,
    ],
    "start programs, wait for them, and end": [
        SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_set_tid_address,
        SYS_set_robust_list, SYS_get_robust_list, SYS_rseq,
    ],
    "send signals to processes of the sandbox; no others are visible": [
        SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_pidfd_open,
        SYS_pidfd_send_signal,
    ],
    #[cfg(target_arch = "x86_64")]
    "older forms of the calls on processes and time, which programs still use": [
        SYS_fork, SYS_vfork, SYS_pause, SYS_alarm, SYS_getpgrp, SYS_time,
    ],
    "debug processes of the sandbox, as gdb and strace do; no others are visible": [
        SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_pidfd_getfd,
    ],
    "read the ids of the process, and change its session and process group": [
        SYS_getpid, SYS_getppid, SYS_gettid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid,
        SYS_getresgid, SYS_getgroups, SYS_getpgid, SYS_getsid, SYS_setpgid, SYS_setsid,
    ],
    "switch to another user, as services do; the kernel checks the capabilities": [
        SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid,
        SYS_setfsgid, SYS_setgroups,
    ],
    "read and reduce capabilities, and change other attributes of the process": [
        SYS_capget, SYS_capset, SYS_prctl,
    ],
    "synchronise threads": [
        SYS_futex, SYS_futex_waitv, SYS_sched_yield, SYS_getcpu,
    ],
    "read and change scheduling; another filter protects process 1": [
        SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getparam, SYS_sched_setparam,
        SYS_sched_getscheduler, SYS_sched_setscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
        SYS_sched_rr_get_interval, SYS_sched_getattr, SYS_sched_setattr, SYS_getpriority, SYS_setpriority,
        SYS_ioprio_get, SYS_ioprio_set,
    ],
    #[cfg(target_arch = "x86_64")]
    "thread-local storage and segments of this architecture": [
        SYS_arch_prctl, SYS_get_thread_area, SYS_set_thread_area, SYS_modify_ldt,
    ],
    "handle signals": [
        SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigpending, SYS_rt_sigtimedwait, SYS_rt_sigsuspend,
        SYS_rt_sigreturn, SYS_sigaltstack, SYS_restart_syscall,
    ],
    "read the time, and wait": [
        SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday,
        SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
        SYS_getitimer, SYS_setitimer, SYS_times,
    ],
    "read the state of the clock; setting it needs a capability that no sandbox has": [
        SYS_adjtimex, SYS_clock_adjtime,
    ],
    "resource limits and usage; another filter protects the limits of other processes": [
        SYS_getrlimit, SYS_setrlimit, SYS_prlimit64, SYS_getrusage,
    ],
    "read the name and the load of the system": [
        SYS_sysinfo, SYS_uname,
    ],
    "use sockets; creating one is restricted by its address family": [
        SYS_socketpair, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect, SYS_getsockname,
        SYS_getpeername, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg,
        SYS_shutdown, SYS_setsockopt, SYS_getsockopt,
    ],
    "System V and POSIX IPC, in the sandbox's own namespace": [
        SYS_shmget, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop,
        SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend,
        SYS_mq_timedreceive, SYS_mq_notify, SYS_mq_getsetattr,
    ],
    "asynchronous I/O on open descriptors, unlike io_uring, which can also open files": [
        SYS_io_setup, SYS_io_destroy, SYS_io_submit, SYS_io_cancel, SYS_io_getevents,
    ],
    "get random numbers": [
        SYS_getrandom,
    ],
    "a program may restrict itself further with Landlock": [
        SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self,
    ],
    "a program may restrict itself further with its own filter": [
        SYS_seccomp,
    ],
];

/// System calls that are also allowed, with any arguments, if sandboxes may be created inside (`--nesting`). They
/// affect only namespaces that the sandbox has created itself, because it has no rights to any others.
pub const NESTING: &[Group] = groups![
    "create and enter namespaces": [
        SYS_clone, SYS_unshare, SYS_setns,
    ],
    "mount in these namespaces": [
        SYS_mount, SYS_umount2, SYS_pivot_root, SYS_open_tree, SYS_move_mount, SYS_mount_setattr, SYS_fsopen,
        SYS_fsconfig, SYS_fsmount, SYS_fspick,
    ],
    "set the host name in these namespaces": [
        SYS_sethostname, SYS_setdomainname,
    ],
];

/// How an argument is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Equal.
    Is,
    /// Not equal.
    IsNot,
    /// Equal after masking.
    Masked(u64),
}

/// The index of an argument, how it is compared, and the value it is compared with.
pub type Condition = (u8, Operation, u64);

/// A system call that is allowed only with certain arguments.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The call.
    pub call: Call,
    /// What is allowed and what is not, and why.
    pub why: &'static str,
    /// The conditions, all of which must hold.
    pub conditions: Vec<Condition>,
}

/// System calls that are allowed only with certain arguments. A call that has several rules is allowed if one of them
/// matches.
pub fn allowed_if() -> Vec<Rule> {
    use Operation::{Is, IsNot, Masked};
    const NAMESPACES: u64 = (libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET) as u64;
    const TIOCLINUX: u64 = 0x541c;
    let mut rules = vec![
        Rule {
            call: call!(SYS_clone),
            why: "create processes and threads, but no namespaces",
            conditions: vec![(0, Masked(NAMESPACES), 0)],
        },
        Rule {
            call: call!(SYS_unshare),
            why: "give a thread its own descriptors and working directory, but create no namespaces",
            conditions: vec![(0, Masked(NAMESPACES), 0)],
        },
        Rule {
            call: call!(SYS_ioctl),
            why: "control devices and terminals, but do not inject input into a terminal (TIOCSTI, TIOCLINUX)",
            conditions: vec![(1, IsNot, libc::TIOCSTI), (1, IsNot, TIOCLINUX)],
        },
        Rule {
            call: call!(SYS_socket),
            why: "create sockets, but neither to the hypervisor (vsock) nor to the kernel's cryptography (alg)",
            conditions: vec![(0, IsNot, libc::AF_VSOCK as u64), (0, IsNot, libc::AF_ALG as u64)],
        },
    ];
    // Plain Linux, with and without address randomisation, which debuggers and old programs select; and reading it.
    for persona in [0, 0x0008, 0x0002_0000, 0x0002_0008, 0x0004_0000, 0xffff_ffff] {
        rules.push(Rule {
            call: call!(SYS_personality),
            why: "read the execution domain, and select plain Linux",
            conditions: vec![(0, Is, persona)],
        });
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A change to the filter must be made on purpose: change the list in the file as well.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_allowed_calls_are_those_of_the_file() {
        let section = |title: &str, names: BTreeSet<&str>| {
            let names: Vec<&str> = names.into_iter().collect();
            format!("{title}\n{}\n", names.join("\n"))
        };
        let rules = allowed_if();
        let found = [
            section("# allowed", calls(ALLOWED).map(Call::name).collect()),
            section("# allowed with certain arguments", rules.iter().map(|rule| rule.call.name()).collect()),
            section("# also allowed with nesting", calls(NESTING).map(Call::name).collect()),
        ];
        assert_eq!(found.concat(), include_str!("../allowed.x86_64.txt"));
    }

    #[test]
    fn no_call_is_listed_twice() {
        let rules = allowed_if();
        let conditional: BTreeSet<i64> = rules.iter().map(|rule| rule.call.number).collect();
        let mut seen = conditional;
        for call in calls(ALLOWED) {
            assert!(seen.insert(call.number), "{}", call.name());
        }
        let mut seen: BTreeSet<i64> = calls(ALLOWED).map(|call| call.number).collect();
        for call in calls(NESTING) {
            assert!(seen.insert(call.number), "{}", call.name());
        }
    }

    #[test]
    fn each_group_has_a_reason_of_its_own() {
        let mut seen = BTreeSet::new();
        for group in ALLOWED.iter().chain(NESTING) {
            assert!(!group.calls.is_empty() && !group.why.is_empty(), "{group:?}");
            assert!(seen.insert(group.why), "{}", group.why);
        }
    }
}
