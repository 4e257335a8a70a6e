//! The jail: the one that stays outside and watches over a native sandbox, and, after a fork, the one inside.
//!
//! ```text
//! kennel ── plan ──> jail (outside, root)                     jail (inside, process 1)
//!                     lock, listen, control group
//!                     fork into namespaces ─────────────────>  waits
//!                     map ids, make mounts ── descriptors ──>  attach, pivot, drop rights, filter
//!        <── "ok" ──  <───────────────────────── "ok" ───────  keeper
//!                     waits ................................  ends
//!                     exit code, control group, directory
//! ```
//!
//! The one outside holds nothing but the lock. If it is killed, the one inside dies with it.

#![cfg_attr(not(test), no_main)]

mod cgroup;
mod ids;
mod rootfs;
mod sys;
#[cfg(test)]
#[allow(dead_code)] // the build script makes the filter of it
mod syscalls;
mod walls;

use kennel_jail::{Network, Plan};
use kennel_keeper::place::{self, Place};
use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions};
use std::io::Read;

/// Called by the C library itself: what Rust does before its own `main` (a guard page, a signal stack, a look through
/// `/proc/self/maps`) is time on the way to every sandbox, and nothing of it is used.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn main() -> libc::c_int {
    match start() {
        Ok(watch) => {
            place::answer(Ok(()));
            watch.until_the_end();
            0
        }
        Err(message) => {
            place::answer(Err(&message));
            125
        }
    }
}

/// A sandbox that runs, seen from outside.
struct Watch {
    inside: i32,
    place: Place,
    group: Option<cgroup::Group>,
    plan: Plan,
}

fn start() -> Result<Watch, String> {
    // Nothing of the one who started us is ours but the standard streams.
    kennel_keeper::sys::close_all_but(&[]);
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(|error| format!("read the plan: {error}"))?;
    let mut plan: Plan = minicbor::decode(&bytes).map_err(|error| format!("read the plan: {error}"))?;
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::empty());
    let place = Place::take(&plan.dir, &mut plan.keeper)?;
    let group = plan.cgroup.as_ref().map(cgroup::Group::make).transpose()?;
    plan.keeper.oom_fd = group.as_ref().and_then(cgroup::Group::oom_events).map(IntoRawFd::into_raw_fd);

    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| format!("make a pipe: {error}"));
    let ((mounts_out, mounts_in), (up_out, up_in)) = (pipe()?, pipe()?);
    let mut namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if plan.network == Network::None {
        namespaces |= libc::CLONE_NEWNET;
    }
    let inside = match sys::fork_into(namespaces) {
        Ok(Some(pid)) => pid,
        Ok(None) => walls::raise(plan, place, &mounts_out, &up_in),
        Err(error) => return Err(format!("make namespaces: {error}")),
    };
    let watch = Watch { inside, place, group, plan };
    match watch.help_up(&mounts_in, up_in, &up_out) {
        Ok(()) => Ok(watch),
        Err(message) => {
            kennel_keeper::sys::kill(inside, libc::SIGKILL);
            watch.wait();
            Err(message)
        }
    }
}

impl Watch {
    /// Does for the one inside what only the host's root can, and waits until its walls stand.
    fn help_up(&self, mounts: &OwnedFd, up_in: OwnedFd, up: &OwnedFd) -> Result<(), String> {
        if let Some(group) = &self.group {
            group.add(self.inside)?;
        }
        ids::map(self.inside, &self.plan.ids, &self.plan.ids)?;
        let namespace = ids::namespace_of(self.inside)?;
        let made = rootfs::build(&self.plan, &namespace)?;
        let numbers: Vec<u8> = made.numbers().into_iter().flat_map(i32::to_le_bytes).collect();
        rustix::io::write(mounts, &numbers).map_err(|error| format!("hand over the mounts: {error}"))?;
        // The table is shared until the walls stand: nothing may be closed before that.
        let mut answer = [0; 1024];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(up, &mut answer))
            .map_err(|error| format!("wait for the walls: {error}"))?;
        drop(up_in);
        match &answer[..count] {
            b"ok" => {}
            [] => return Err("the process inside ended before its walls stood".into()),
            message => return Err(String::from_utf8_lossy(message).into_owned()),
        }
        Ok(())
    }

    fn wait(&self) -> i32 {
        match rustix::process::waitpid(Pid::from_raw(self.inside), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
            }
            _ => 125,
        }
    }

    /// Waits for the sandbox to end and clears away what only we can.
    fn until_the_end(self) {
        // Only what the lock and the exit code need stays open: no mount is held by us.
        let exit = self.place.exit.as_ref();
        let keep: Vec<i32> = [Some(&self.place.lock), exit].into_iter().flatten().map(AsRawFd::as_raw_fd).collect();
        kennel_keeper::sys::close_all_but(&keep);
        let code = self.wait();
        if let Some(exit) = exit {
            let _ = rustix::io::write(exit, code.to_string().as_bytes());
        }
        drop(self.group);
        if self.plan.remove_dir {
            let _ = rustix::process::chdir("/");
            let _ = std::fs::remove_dir_all(&self.plan.dir);
        }
        // The descriptors that were closed by number must not be closed again by their owners.
        kennel_keeper::sys::exit_now(0)
    }
}
