//! The jail: the process that stays outside a native sandbox and waits for its end, and, after a fork, the process
//! inside.
//!
//! ```text
//! kennel ──────────> jail (outside, root)                     jail (inside, process 1)
//!                     fork into namespaces ─────────────────>  creates what belongs to them
//!        ── plan ──>  lock, listen, cgroup
//!                     map ids, create mounts ─ descriptors ─>  attach, pivot, drop rights, filter
//!        <── "ok" ──  <───────────────────────── "ok" ───────  keeper
//!     or <────────────────────────────────────── "welcome" ──  keeper, if kennel keeps using the same socket
//!                     waits ................................  ends
//!                     exit code, cgroup, directory
//! ```
//!
//! The process outside holds only the lock. If it is killed, the process inside dies with it.

#![cfg_attr(not(test), no_main)]

mod attempt;
mod cgroup;
mod clear;
mod disk;
mod fence;
mod forward;
mod guard;
mod handover;
mod ids;
mod netlink;
mod network;
mod overlay;
mod parts;
mod pasta;
mod rootfs;
mod sys;
mod walls;

use guard::Guard;
use handover::{Handover, Root};
use kennel_jail::{CLEAR, FORWARD, Ids, Network, Plan, Rights, TRY};
use kennel_keeper::place::{self, Place};
use kennel_netlink::FirewallSocket;
use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitOptions};

/// Called directly by the C library. What Rust does before its own `main` (a guard page, a signal stack, reading
/// `/proc/self/maps`) would delay every start, and none of it is needed.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn main() -> libc::c_int {
    match std::env::args().nth(1).as_deref() {
        Some(TRY) => {
            let trial = minicbor::to_vec(attempt::the_kernel()).unwrap_or_default();
            place::write_all(rustix::stdio::stdout(), &trial);
            return 0;
        }
        Some(CLEAR) => {
            place::answer(clear::as_told().as_ref().map(drop).map_err(|error| &**error), false);
            return 0;
        }
        Some(FORWARD) => forward::serve(),
        _ => {}
    }
    let mut heard = Heard::default();
    match start(&mut heard) {
        Ok(watch) => {
            place::answer(Ok(()), heard.goes_on);
            watch.until_the_end();
            0
        }
        Err(message) => {
            heard.clear_away();
            place::answer(Err(&message), heard.goes_on);
            125
        }
    }
}

/// The parts of the plan that are needed even if it cannot be carried out.
#[derive(Default)]
struct Heard {
    /// Whether the parent waits for the keeper's reply and not for the jail's.
    goes_on: bool,
    /// The directory, if it is removed with the sandbox, with the rights and ids for removing it.
    dir: Option<(String, Rights, Ids)>,
}

impl Heard {
    /// Removes the directory if the sandbox was given up. The process that gave it up could not remove it, because the
    /// jail was still creating files in it.
    fn clear_away(&self) {
        if let Some((dir, rights, ids)) = &self.dir
            && !std::path::Path::new(dir).join("sandbox.json").exists()
        {
            overlay::let_go(dir);
            let _ = clear::remove(dir, *rights, ids);
        }
    }
}

/// A running sandbox, seen from outside.
struct Watch {
    inside: Inside,
    place: Place,
    group: Option<cgroup::Group>,
    plan: Plan,
    /// What connects its network to the host's.
    network: network::Joined,
    /// The user namespaces that map the ids of its mounts.
    namespaces: ids::Namespaces,
}

/// The process inside. It is killed when this is dropped.
struct Inside(i32);

/// Creates the namespaces, reads the plan and carries it out.
fn start(heard: &mut Heard) -> Result<Watch, String> {
    // Inherit nothing from the parent but the standard streams.
    kennel_keeper::sys::close_all_but(&[]);
    kennel_keeper::sys::ignore_signal(libc::SIGPIPE);
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::empty());
    let argument = std::env::args().nth(1);
    let first_id: Option<u32> = std::env::args().nth(2).and_then(|id| id.parse().ok());
    let network = Network::ALL.into_iter().find(|network| argument.as_deref() == Some(network.argument()));
    let network = network.ok_or(
        "usage: kennel-jail none|joined|host [FIRST-ID], with a plan on standard input; kennel-jail forward|clear, with instructions on standard input; or kennel-jail try",
    )?;

    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| format!("create a pipe: {error}"));
    let ((hand_out, hand_in), (up_out, up_in)) = (pipe()?, pipe()?);
    // Without the network namespace, unless it is needed first; see `walls::Own`.
    let mut namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if network == Network::Joined {
        namespaces |= libc::CLONE_NEWNET;
    }
    // The sandbox of an ordinary user has its own firewall. For root, the host's firewall is used.
    let firewall = network == Network::Joined && !rustix::process::geteuid().is_root();
    // The kernel charges what is created in a user namespace to its creator, which should not be the host's root.
    let charged = first_id.map(sys::ChargedTo::user).transpose();
    let charged = charged.map_err(|error| format!("switch to the user that namespaces are charged to: {error}"))?;
    let inside = match sys::fork_into(namespaces) {
        Ok(Some(pid)) => Inside(pid),
        Ok(None) => walls::raise(network, firewall, &hand_out, &up_in),
        Err(error) => return Err(format!("create namespaces: {error}")),
    };
    drop(charged);
    // Let the child run first. A forked process often waits for its parent's CPU even if another is idle; a process
    // that is woken does not.
    let mut up = [0; 4];
    rustix::io::retry_on_intr(|| rustix::io::read(&up_out, &mut up))
        .map_err(|error| format!("wait for the process inside: {error}"))?;
    // The number is valid in the descriptor table that both processes share.
    let firewall = kennel_keeper::sys::inherited(i32::from_ne_bytes(up)).map(FirewallSocket::from);

    let namespaces = ids::Namespaces::charged_to(first_id);
    if first_id.is_some() {
        namespaces.prepare();
    }
    let mut plan: Plan = minicbor::decode(&place::hear()?).map_err(|error| format!("read the plan: {error}"))?;
    let dir = plan.remove_dir.then(|| (plan.dir.clone(), plan.rights, plan.ids.clone()));
    *heard = Heard { goes_on: plan.keeper.host_fd.is_some(), dir };
    place::keep_host(&mut plan.keeper)?;
    let place = Place::take(&plan.dir, &mut plan.keeper)?;
    let group = plan.cgroup.as_ref().map(cgroup::Group::make).transpose()?;
    plan.keeper.oom_fd = group.as_ref().and_then(cgroup::Group::oom_events).map(IntoRawFd::into_raw_fd);
    match plan.rights {
        Rights::Root => ids::map(inside.0, &plan.ids)?,
        Rights::User => ids::map_as_user(inside.0, &plan.ids)?,
    }
    let network = match &plan.link {
        Some(link) => network::join(link, inside.0, &plan.ids, firewall)?,
        None => network::Joined::default(),
    };
    let watch = Watch { inside, place, group, plan, network, namespaces };
    watch.help_up(&hand_in, up_in, &up_out)?;
    Ok(watch)
}

impl Inside {
    /// Returns a descriptor that is readable when the process has ended.
    fn descriptor(&self) -> Option<OwnedFd> {
        rustix::process::pidfd_open(Pid::from_raw(self.0)?, PidfdFlags::empty()).ok()
    }

    fn wait(&self) -> i32 {
        match rustix::process::waitpid(Pid::from_raw(self.0), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
            }
            _ => 125,
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        kennel_keeper::sys::kill(self.0, libc::SIGKILL);
        self.wait();
    }
}

impl Watch {
    /// Does for the process inside what it cannot do itself, and waits until the sandbox is ready.
    fn help_up(&self, hand: &OwnedFd, up_in: OwnedFd, up: &OwnedFd) -> Result<(), String> {
        if let Some(group) = &self.group {
            group.add(self.inside.0)?;
        }
        let (root, _made) = self.root()?;
        Handover {
            dir: self.plan.dir.clone(),
            hostname: self.plan.hostname.clone(),
            capabilities: self.plan.capabilities,
            keeper: self.plan.keeper.clone(),
            listener: self.place.listener.as_raw_fd(),
            root,
            read_only: self.plan.read_only,
            landlock: self.plan.landlock,
            nesting: self.plan.nesting,
        }
        .send(hand);
        // The descriptor table is shared until the sandbox is ready. Nothing may be closed before that.
        let mut answer = [0; 1024];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(up, &mut answer))
            .map_err(|error| format!("wait until the sandbox is isolated: {error}"))?;
        drop(up_in);
        match &answer[..count] {
            b"ok" => {}
            [] => return Err("the process inside ended before the sandbox was isolated".into()),
            message => return Err(String::from_utf8_lossy(message).into_owned()),
        }
        Ok(())
    }

    /// Creates the mounts of the sandbox that must be created outside.
    fn root(&self) -> Result<(Root, Option<rootfs::Mounts>), String> {
        let (plan, inside) = (&self.plan, self.inside.0);
        match plan.rights {
            Rights::Root => {
                let made = rootfs::build(plan, &ids::namespace_of(inside)?, &self.namespaces)?;
                Ok((Root::Made(made.numbers()), Some(made)))
            }
            Rights::User => {
                let (base, binds, etc) = (plan.base.clone(), plan.binds.clone(), plan.etc.clone());
                Ok((Root::ToBeMade { base, binds, etc }, None))
            }
        }
    }

    /// Waits for the sandbox to end, and cleans up.
    #[expect(clippy::disallowed_methods, reason = "the process leaves the directory before it removes it")]
    fn until_the_end(mut self) {
        drop(self.namespaces);
        // Only what the lock, the exit code and the firewall need stays open. The jail holds no mount.
        let exit = self.place.exit.as_ref();
        let mut keep: Vec<i32> = [Some(&self.place.lock), exit].into_iter().flatten().map(AsRawFd::as_raw_fd).collect();
        keep.extend(self.network.guard.iter().flat_map(Guard::descriptors));
        kennel_keeper::sys::close_all_but(&keep);
        if let Some(guard) = &mut self.network.guard
            && let Some(process) = self.inside.descriptor()
        {
            guard.until_ended(&process);
        }
        let code = self.inside.wait();
        if let Some(exit) = exit {
            let _ = rustix::io::write(exit, code.to_string().as_bytes());
        }
        // The helpers may be in the cgroup.
        drop(self.network.helpers);
        drop(self.group);
        overlay::let_go(&self.plan.dir);
        if self.plan.remove_dir {
            let _ = rustix::process::chdir("/");
            if !self.plan.keeper.tied {
                kennel_keeper::wait_for_starter(self.plan.dir.as_ref());
            }
            let _ = clear::remove(&self.plan.dir, self.plan.rights, &self.plan.ids);
        }
        // Descriptors that were closed by number must not be closed again by their owners.
        kennel_keeper::sys::exit_now(0)
    }
}
