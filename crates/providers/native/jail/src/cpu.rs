//! Placement of the processes of a start on CPUs.
//!
//! The kernel often leaves a forked process on the CPU of its parent, where it waits until the parent blocks, although
//! another CPU is idle. The same happens to a process that is woken through a socket or pipe. So each process of a start
//! is sent away from the CPU of the one that forked it, until its part is done.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The CPUs that a process may use.
#[derive(Clone, Copy)]
pub(crate) struct AllowedCpus(Option<CpuSet>);

impl AllowedCpus {
    /// Those of this process.
    pub(crate) fn of_this_process() -> Self {
        Self(sched_getaffinity(None).ok())
    }

    /// Sends a process that was just forked to another CPU than this process's own, if another one is allowed. It stays
    /// away until it calls [`Self::restore`].
    pub(crate) fn send_away(self, pid: i32) {
        let (Some(mut cpus), here) = (self.0, sched_getcpu()) else { return };
        if here < CpuSet::MAX_CPU && cpus.is_set(here) && cpus.count() > 1 {
            cpus.unset(here);
            let _ = sched_setaffinity(Pid::from_raw(pid), &cpus);
        }
    }

    /// Lets this process use these CPUs.
    pub(crate) fn restore(self) {
        if let Some(cpus) = self.0 {
            let _ = sched_setaffinity(None, &cpus);
        }
    }
}
