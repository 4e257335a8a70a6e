//! The system calls that are let through, with the reason for each group. Every provider that has a filter makes it of this
//! list: native compiles it, engines get it as a profile. What is not here returns `ENOSYS`, as an older kernel would, and
//! libraries fall back to what can be filtered: `clone3` to `clone`, whose flags are checked below.
//!
//! Not here, on purpose: everything about mounts, modules, clocks, keys, BPF, performance counters, userfaultfd, io_uring,
//! handles by number, kexec, reboot, swap, quotas, accounting, I/O ports, and changing namespaces.

/// A system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number on the machine that this is compiled for.
    pub number: i64,
    /// The constant of the C library that holds the number.
    symbol: &'static str,
    /// Why it is let through.
    pub why: &'static str,
}

impl Call {
    /// Its name, as the kernel's manual has it.
    pub fn name(&self) -> &'static str {
        self.symbol.trim_start_matches("SYS_")
    }
}

macro_rules! call {
    ($symbol:ident, $why:literal) => {
        Call { number: libc::$symbol, symbol: stringify!($symbol), why: $why }
    };
}

macro_rules! calls {
    ($($(#[$attribute:meta])* (libc::$symbol:ident, $why:literal),)*) => {
        &[$($(#[$attribute])* call!($symbol, $why),)*]
    };
}

/// System calls that are let through whatever their arguments.
pub const ALLOWED: &[Call] = calls![
    (libc::SYS_read, "files: open, read, write and look at them"),
    (libc::SYS_write, "files: open, read, write and look at them"),
    (libc::SYS_readv, "files: open, read, write and look at them"),
    (libc::SYS_writev, "files: open, read, write and look at them"),
    (libc::SYS_pread64, "files: open, read, write and look at them"),
    (libc::SYS_pwrite64, "files: open, read, write and look at them"),
    (libc::SYS_preadv, "files: open, read, write and look at them"),
    (libc::SYS_pwritev, "files: open, read, write and look at them"),
    (libc::SYS_preadv2, "files: open, read, write and look at them"),
    (libc::SYS_pwritev2, "files: open, read, write and look at them"),
    (libc::SYS_openat, "files: open, read, write and look at them"),
    (libc::SYS_openat2, "files: open, read, write and look at them"),
    (libc::SYS_close, "files: open, read, write and look at them"),
    (libc::SYS_close_range, "files: open, read, write and look at them"),
    (libc::SYS_lseek, "files: open, read, write and look at them"),
    (libc::SYS_fstat, "files: open, read, write and look at them"),
    (libc::SYS_newfstatat, "files: open, read, write and look at them"),
    (libc::SYS_statx, "files: open, read, write and look at them"),
    (libc::SYS_fstatfs, "files: open, read, write and look at them"),
    (libc::SYS_statfs, "files: open, read, write and look at them"),
    (libc::SYS_getdents64, "files: open, read, write and look at them"),
    (libc::SYS_readlinkat, "files: open, read, write and look at them"),
    (libc::SYS_faccessat, "files: open, read, write and look at them"),
    (libc::SYS_faccessat2, "files: open, read, write and look at them"),
    (libc::SYS_fcntl, "files: open, read, write and look at them"),
    (libc::SYS_flock, "files: open, read, write and look at them"),
    (libc::SYS_fsync, "files: open, read, write and look at them"),
    (libc::SYS_fdatasync, "files: open, read, write and look at them"),
    (libc::SYS_sync_file_range, "files: open, read, write and look at them"),
    (libc::SYS_syncfs, "files: open, read, write and look at them"),
    (libc::SYS_sync, "files: open, read, write and look at them"),
    (libc::SYS_fallocate, "files: open, read, write and look at them"),
    (libc::SYS_ftruncate, "files: open, read, write and look at them"),
    (libc::SYS_truncate, "files: open, read, write and look at them"),
    (libc::SYS_fadvise64, "files: open, read, write and look at them"),
    (libc::SYS_readahead, "files: open, read, write and look at them"),
    (libc::SYS_copy_file_range, "files: open, read, write and look at them"),
    (libc::SYS_sendfile, "files: open, read, write and look at them"),
    (libc::SYS_splice, "files: open, read, write and look at them"),
    (libc::SYS_tee, "files: open, read, write and look at them"),
    (libc::SYS_vmsplice, "files: open, read, write and look at them"),
    (libc::SYS_name_to_handle_at, "files: open, read, write and look at them"),
    (libc::SYS_mkdirat, "files: change names and attributes"),
    (libc::SYS_mknodat, "files: change names and attributes"),
    (libc::SYS_unlinkat, "files: change names and attributes"),
    (libc::SYS_renameat, "files: change names and attributes"),
    (libc::SYS_renameat2, "files: change names and attributes"),
    (libc::SYS_linkat, "files: change names and attributes"),
    (libc::SYS_symlinkat, "files: change names and attributes"),
    (libc::SYS_fchmod, "files: change names and attributes"),
    (libc::SYS_fchmodat, "files: change names and attributes"),
    (libc::SYS_fchmodat2, "files: change names and attributes"),
    (libc::SYS_fchown, "files: change names and attributes"),
    (libc::SYS_fchownat, "files: change names and attributes"),
    (libc::SYS_utimensat, "files: change names and attributes"),
    (libc::SYS_umask, "files: change names and attributes"),
    (libc::SYS_chdir, "files: change names and attributes"),
    (libc::SYS_fchdir, "files: change names and attributes"),
    (libc::SYS_getcwd, "files: change names and attributes"),
    (libc::SYS_chroot, "files: change names and attributes"),
    (libc::SYS_setxattr, "files: change names and attributes"),
    (libc::SYS_lsetxattr, "files: change names and attributes"),
    (libc::SYS_fsetxattr, "files: change names and attributes"),
    (libc::SYS_getxattr, "files: change names and attributes"),
    (libc::SYS_lgetxattr, "files: change names and attributes"),
    (libc::SYS_fgetxattr, "files: change names and attributes"),
    (libc::SYS_listxattr, "files: change names and attributes"),
    (libc::SYS_llistxattr, "files: change names and attributes"),
    (libc::SYS_flistxattr, "files: change names and attributes"),
    (libc::SYS_removexattr, "files: change names and attributes"),
    (libc::SYS_lremovexattr, "files: change names and attributes"),
    (libc::SYS_fremovexattr, "files: change names and attributes"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_access, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rmdir, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_link, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_symlink, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chown, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lchown, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_utime, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_utimes, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_futimesat, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_getdents, "files: the older forms that programs still call"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_ustat, "files: the older forms that programs still call"),
    (libc::SYS_dup, "descriptors, pipes and events"),
    (libc::SYS_dup3, "descriptors, pipes and events"),
    (libc::SYS_pipe2, "descriptors, pipes and events"),
    (libc::SYS_eventfd2, "descriptors, pipes and events"),
    (libc::SYS_epoll_create1, "descriptors, pipes and events"),
    (libc::SYS_epoll_ctl, "descriptors, pipes and events"),
    (libc::SYS_epoll_pwait, "descriptors, pipes and events"),
    (libc::SYS_epoll_pwait2, "descriptors, pipes and events"),
    (libc::SYS_ppoll, "descriptors, pipes and events"),
    (libc::SYS_pselect6, "descriptors, pipes and events"),
    (libc::SYS_inotify_init1, "descriptors, pipes and events"),
    (libc::SYS_inotify_add_watch, "descriptors, pipes and events"),
    (libc::SYS_inotify_rm_watch, "descriptors, pipes and events"),
    (libc::SYS_signalfd4, "descriptors, pipes and events"),
    (libc::SYS_timerfd_create, "descriptors, pipes and events"),
    (libc::SYS_timerfd_settime, "descriptors, pipes and events"),
    (libc::SYS_timerfd_gettime, "descriptors, pipes and events"),
    (libc::SYS_memfd_create, "descriptors, pipes and events"),
    (libc::SYS_memfd_secret, "descriptors, pipes and events"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_dup2, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_pipe, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_select, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_create, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_ctl_old, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait_old, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_eventfd, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_signalfd, "descriptors, pipes and events: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_inotify_init, "descriptors, pipes and events: the older forms"),
    (libc::SYS_brk, "memory of the process itself"),
    (libc::SYS_mmap, "memory of the process itself"),
    (libc::SYS_munmap, "memory of the process itself"),
    (libc::SYS_mremap, "memory of the process itself"),
    (libc::SYS_mprotect, "memory of the process itself"),
    (libc::SYS_madvise, "memory of the process itself"),
    (libc::SYS_mincore, "memory of the process itself"),
    (libc::SYS_msync, "memory of the process itself"),
    (libc::SYS_mlock, "memory of the process itself"),
    (libc::SYS_mlock2, "memory of the process itself"),
    (libc::SYS_munlock, "memory of the process itself"),
    (libc::SYS_mlockall, "memory of the process itself"),
    (libc::SYS_munlockall, "memory of the process itself"),
    (libc::SYS_pkey_alloc, "memory of the process itself"),
    (libc::SYS_pkey_free, "memory of the process itself"),
    (libc::SYS_pkey_mprotect, "memory of the process itself"),
    (libc::SYS_membarrier, "memory of the process itself"),
    (libc::SYS_mseal, "memory of the process itself"),
    (libc::SYS_process_madvise, "memory of the process itself"),
    (libc::SYS_process_mrelease, "memory of the process itself"),
    (libc::SYS_get_mempolicy, "NUMA placement of the process's own memory: databases and runtimes ask"),
    (libc::SYS_set_mempolicy, "NUMA placement of the process's own memory: databases and runtimes ask"),
    (libc::SYS_mbind, "NUMA placement of the process's own memory: databases and runtimes ask"),
    (libc::SYS_migrate_pages, "NUMA placement of the process's own memory: databases and runtimes ask"),
    (libc::SYS_set_mempolicy_home_node, "NUMA placement of the process's own memory: databases and runtimes ask"),
    (libc::SYS_execve, "processes: start, wait, end"),
    (libc::SYS_execveat, "processes: start, wait, end"),
    (libc::SYS_exit, "processes: start, wait, end"),
    (libc::SYS_exit_group, "processes: start, wait, end"),
    (libc::SYS_wait4, "processes: start, wait, end"),
    (libc::SYS_waitid, "processes: start, wait, end"),
    (libc::SYS_kill, "processes: start, wait, end"),
    (libc::SYS_tkill, "processes: start, wait, end"),
    (libc::SYS_tgkill, "processes: start, wait, end"),
    (libc::SYS_rt_sigqueueinfo, "processes: start, wait, end"),
    (libc::SYS_rt_tgsigqueueinfo, "processes: start, wait, end"),
    (libc::SYS_pidfd_open, "processes: start, wait, end"),
    (libc::SYS_pidfd_send_signal, "processes: start, wait, end"),
    (libc::SYS_pidfd_getfd, "processes: start, wait, end"),
    (libc::SYS_set_tid_address, "processes: start, wait, end"),
    (libc::SYS_set_robust_list, "processes: start, wait, end"),
    (libc::SYS_get_robust_list, "processes: start, wait, end"),
    (libc::SYS_rseq, "processes: start, wait, end"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_fork, "processes: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_vfork, "processes: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_pause, "processes: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_alarm, "processes: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_getpgrp, "processes: the older forms"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_time, "processes: the older forms"),
    (libc::SYS_ptrace, "processes: debuggers, within the sandbox's own processes"),
    (libc::SYS_process_vm_readv, "processes: debuggers, within the sandbox's own processes"),
    (libc::SYS_process_vm_writev, "processes: debuggers, within the sandbox's own processes"),
    (libc::SYS_kcmp, "processes: debuggers, within the sandbox's own processes"),
    (libc::SYS_getpid, "who the process is"),
    (libc::SYS_getppid, "who the process is"),
    (libc::SYS_gettid, "who the process is"),
    (libc::SYS_getuid, "who the process is"),
    (libc::SYS_geteuid, "who the process is"),
    (libc::SYS_getgid, "who the process is"),
    (libc::SYS_getegid, "who the process is"),
    (libc::SYS_getresuid, "who the process is"),
    (libc::SYS_getresgid, "who the process is"),
    (libc::SYS_getgroups, "who the process is"),
    (libc::SYS_getpgid, "who the process is"),
    (libc::SYS_getsid, "who the process is"),
    (libc::SYS_setpgid, "who the process is"),
    (libc::SYS_setsid, "who the process is"),
    (libc::SYS_setuid, "who the process is"),
    (libc::SYS_setgid, "who the process is"),
    (libc::SYS_setreuid, "who the process is"),
    (libc::SYS_setregid, "who the process is"),
    (libc::SYS_setresuid, "who the process is"),
    (libc::SYS_setresgid, "who the process is"),
    (libc::SYS_setfsuid, "who the process is"),
    (libc::SYS_setfsgid, "who the process is"),
    (libc::SYS_setgroups, "who the process is"),
    (libc::SYS_capget, "who the process is"),
    (libc::SYS_capset, "who the process is"),
    (libc::SYS_prctl, "who the process is"),
    (libc::SYS_futex, "threads and scheduling"),
    (libc::SYS_futex_waitv, "threads and scheduling"),
    (libc::SYS_sched_yield, "threads and scheduling"),
    (libc::SYS_sched_getaffinity, "threads and scheduling"),
    (libc::SYS_sched_setaffinity, "threads and scheduling"),
    (libc::SYS_sched_getparam, "threads and scheduling"),
    (libc::SYS_sched_setparam, "threads and scheduling"),
    (libc::SYS_sched_getscheduler, "threads and scheduling"),
    (libc::SYS_sched_setscheduler, "threads and scheduling"),
    (libc::SYS_sched_get_priority_max, "threads and scheduling"),
    (libc::SYS_sched_get_priority_min, "threads and scheduling"),
    (libc::SYS_sched_rr_get_interval, "threads and scheduling"),
    (libc::SYS_sched_getattr, "threads and scheduling"),
    (libc::SYS_sched_setattr, "threads and scheduling"),
    (libc::SYS_getpriority, "threads and scheduling"),
    (libc::SYS_setpriority, "threads and scheduling"),
    (libc::SYS_ioprio_get, "threads and scheduling"),
    (libc::SYS_ioprio_set, "threads and scheduling"),
    (libc::SYS_getcpu, "threads and scheduling"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_arch_prctl, "threads: their local storage on this architecture"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_get_thread_area, "threads: their local storage on this architecture"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_set_thread_area, "threads: their local storage on this architecture"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_modify_ldt, "threads: their local storage on this architecture"),
    (libc::SYS_rt_sigaction, "signals"),
    (libc::SYS_rt_sigprocmask, "signals"),
    (libc::SYS_rt_sigpending, "signals"),
    (libc::SYS_rt_sigtimedwait, "signals"),
    (libc::SYS_rt_sigsuspend, "signals"),
    (libc::SYS_rt_sigreturn, "signals"),
    (libc::SYS_sigaltstack, "signals"),
    (libc::SYS_restart_syscall, "signals"),
    (libc::SYS_clock_gettime, "time: read it and wait"),
    (libc::SYS_clock_getres, "time: read it and wait"),
    (libc::SYS_clock_nanosleep, "time: read it and wait"),
    (libc::SYS_nanosleep, "time: read it and wait"),
    (libc::SYS_gettimeofday, "time: read it and wait"),
    (libc::SYS_timer_create, "time: read it and wait"),
    (libc::SYS_timer_settime, "time: read it and wait"),
    (libc::SYS_timer_gettime, "time: read it and wait"),
    (libc::SYS_timer_getoverrun, "time: read it and wait"),
    (libc::SYS_timer_delete, "time: read it and wait"),
    (libc::SYS_getitimer, "time: read it and wait"),
    (libc::SYS_setitimer, "time: read it and wait"),
    (libc::SYS_times, "time: read it and wait"),
    (libc::SYS_adjtimex, "time: read it and wait"),
    (libc::SYS_clock_adjtime, "time: read it and wait"),
    (libc::SYS_getrlimit, "limits and use of the process itself"),
    (libc::SYS_setrlimit, "limits and use of the process itself"),
    (libc::SYS_prlimit64, "limits and use of the process itself"),
    (libc::SYS_getrusage, "limits and use of the process itself"),
    (libc::SYS_sysinfo, "limits and use of the process itself"),
    (libc::SYS_uname, "limits and use of the process itself"),
    (libc::SYS_socketpair, "sockets"),
    (libc::SYS_bind, "sockets"),
    (libc::SYS_listen, "sockets"),
    (libc::SYS_accept, "sockets"),
    (libc::SYS_accept4, "sockets"),
    (libc::SYS_connect, "sockets"),
    (libc::SYS_getsockname, "sockets"),
    (libc::SYS_getpeername, "sockets"),
    (libc::SYS_sendto, "sockets"),
    (libc::SYS_recvfrom, "sockets"),
    (libc::SYS_sendmsg, "sockets"),
    (libc::SYS_recvmsg, "sockets"),
    (libc::SYS_sendmmsg, "sockets"),
    (libc::SYS_recvmmsg, "sockets"),
    (libc::SYS_shutdown, "sockets"),
    (libc::SYS_setsockopt, "sockets"),
    (libc::SYS_getsockopt, "sockets"),
    (libc::SYS_shmget, "IPC, in the sandbox's own namespace"),
    (libc::SYS_shmat, "IPC, in the sandbox's own namespace"),
    (libc::SYS_shmctl, "IPC, in the sandbox's own namespace"),
    (libc::SYS_shmdt, "IPC, in the sandbox's own namespace"),
    (libc::SYS_semget, "IPC, in the sandbox's own namespace"),
    (libc::SYS_semop, "IPC, in the sandbox's own namespace"),
    (libc::SYS_semctl, "IPC, in the sandbox's own namespace"),
    (libc::SYS_semtimedop, "IPC, in the sandbox's own namespace"),
    (libc::SYS_msgget, "IPC, in the sandbox's own namespace"),
    (libc::SYS_msgsnd, "IPC, in the sandbox's own namespace"),
    (libc::SYS_msgrcv, "IPC, in the sandbox's own namespace"),
    (libc::SYS_msgctl, "IPC, in the sandbox's own namespace"),
    (libc::SYS_mq_open, "IPC, in the sandbox's own namespace"),
    (libc::SYS_mq_unlink, "IPC, in the sandbox's own namespace"),
    (libc::SYS_mq_timedsend, "IPC, in the sandbox's own namespace"),
    (libc::SYS_mq_timedreceive, "IPC, in the sandbox's own namespace"),
    (libc::SYS_mq_notify, "IPC, in the sandbox's own namespace"),
    (libc::SYS_mq_getsetattr, "IPC, in the sandbox's own namespace"),
    (libc::SYS_io_setup, "asynchronous I/O, the kind that works on descriptors alone"),
    (libc::SYS_io_destroy, "asynchronous I/O, the kind that works on descriptors alone"),
    (libc::SYS_io_submit, "asynchronous I/O, the kind that works on descriptors alone"),
    (libc::SYS_io_cancel, "asynchronous I/O, the kind that works on descriptors alone"),
    (libc::SYS_io_getevents, "asynchronous I/O, the kind that works on descriptors alone"),
    (libc::SYS_getrandom, "random numbers"),
    (libc::SYS_landlock_create_ruleset, "Landlock: a program may fence itself in further"),
    (libc::SYS_landlock_add_rule, "Landlock: a program may fence itself in further"),
    (libc::SYS_landlock_restrict_self, "Landlock: a program may fence itself in further"),
    (libc::SYS_seccomp, "seccomp: a program may filter itself further"),
];

/// System calls that are let through too where sandboxes are made inside, whatever their arguments. They work only in
/// what the sandbox has made itself: it has no rights to anything else.
pub const NESTING: &[Call] = calls![
    (libc::SYS_clone, "namespaces of its own"),
    (libc::SYS_unshare, "namespaces of its own"),
    (libc::SYS_setns, "namespaces of its own"),
    (libc::SYS_mount, "mounts in them"),
    (libc::SYS_umount2, "mounts in them"),
    (libc::SYS_pivot_root, "mounts in them"),
    (libc::SYS_open_tree, "mounts in them"),
    (libc::SYS_move_mount, "mounts in them"),
    (libc::SYS_mount_setattr, "mounts in them"),
    (libc::SYS_fsopen, "mounts in them"),
    (libc::SYS_fsconfig, "mounts in them"),
    (libc::SYS_fsmount, "mounts in them"),
    (libc::SYS_fspick, "mounts in them"),
    (libc::SYS_sethostname, "their host name"),
    (libc::SYS_setdomainname, "their host name"),
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

/// The number of an argument, how it is compared, and with what.
pub type Condition = (u8, Operation, u64);

/// System calls that are let through only with certain arguments: all conditions of an entry must hold, one entry is
/// enough.
pub fn allowed_if() -> Vec<(Call, Vec<Condition>)> {
    use Operation::{Is, IsNot, Masked};
    const NAMESPACES: u64 = (libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET) as u64;
    let mut rules = vec![
        (call!(SYS_clone, "processes and threads, but no namespaces"), vec![(0, Masked(NAMESPACES), 0)]),
        (
            call!(SYS_unshare, "own descriptors and working directory per thread, but no namespaces"),
            vec![(0, Masked(NAMESPACES), 0)],
        ),
        (
            call!(SYS_ioctl, "devices and terminals, but no typing into them from outside (TIOCSTI, TIOCLINUX)"),
            vec![(1, IsNot, libc::TIOCSTI), (1, IsNot, 0x541c)],
        ),
        (
            call!(SYS_socket, "networks, but neither the hypervisor's (vsock) nor the kernel's own cryptography (alg)"),
            vec![(0, IsNot, libc::AF_VSOCK as u64), (0, IsNot, libc::AF_ALG as u64)],
        ),
    ];
    // Plain Linux, with and without address randomisation: what debuggers and old programs ask for.
    for persona in [0, 0x0008, 0x0002_0000, 0x0002_0008, 0x0004_0000, 0xffff_ffff] {
        rules.push((call!(SYS_personality, "asking for, and being, plain Linux"), vec![(0, Is, persona)]));
    }
    rules
}
