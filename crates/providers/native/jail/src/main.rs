//! The jail: the one that stays outside and watches over a native sandbox, and, after a fork, the one inside.
//!
//! ```text
//! kennel ──────────> jail (outside, root)                     jail (inside, process 1)
//!                     fork into namespaces ─────────────────>  makes what belongs to them
//!        ── plan ──>  lock, listen, control group
//!                     map ids, make mounts ── descriptors ──>  attach, pivot, drop rights, filter
//!        <── "ok" ──  <───────────────────────── "ok" ───────  keeper
//!     or <────────────────────────────────────── "welcome" ──  keeper, if kennel goes on talking to it on the same line
//!                     waits ................................  ends
//!                     exit code, control group, directory
//! ```
//!
//! The one outside holds nothing but the lock. If it is killed, the one inside dies with it.

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

/// Called by the C library itself: what Rust does before its own `main` (a guard page, a signal stack, a look through
/// `/proc/self/maps`) is time on the way to every sandbox, and nothing of it is used.
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

/// What the plan says that counts also if it cannot be carried out.
#[derive(Default)]
struct Heard {
    /// The one who started us waits for the keeper, not for us.
    goes_on: bool,
    /// The directory, if it goes with the sandbox, and whose it is.
    dir: Option<(String, Rights, Ids)>,
    /// The claim on its host ids.
    claim: Option<String>,
}

impl Heard {
    /// Removes the directory if nobody wants it any more. Whoever gave the sandbox up while we were putting things there
    /// could not.
    fn clear_away(&self) {
        if let Some((dir, rights, ids)) = &self.dir
            && !std::path::Path::new(dir).join("sandbox.json").exists()
        {
            overlay::let_go(dir);
            let _ = clear::remove(dir, *rights, ids);
            self.claim.iter().for_each(|claim| ids::give_back(claim, dir));
        }
    }
}

/// A sandbox that runs, seen from outside.
struct Watch {
    inside: Inside,
    place: Place,
    group: Option<cgroup::Group>,
    plan: Plan,
    /// What connects its network to the host's.
    network: network::Joined,
    /// What the ids of its mounts are shown by.
    namespaces: ids::Namespaces,
}

/// The process inside. It ends with this.
struct Inside(i32);

/// Makes the namespaces, reads the plan and carries it out.
fn start(heard: &mut Heard) -> Result<Watch, String> {
    // Nothing of the one who started us is ours but the standard streams.
    kennel_keeper::sys::close_all_but(&[]);
    kennel_keeper::sys::ignore_signal(libc::SIGPIPE);
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::empty());
    let argument = std::env::args().nth(1);
    let first_id: Option<u32> = std::env::args().nth(2).and_then(|id| id.parse().ok());
    let network = Network::ALL.into_iter().find(|network| argument.as_deref() == Some(network.argument()));
    let network = network.ok_or(
        "usage: kennel-jail none|joined|host [FIRST-ID], or kennel-jail forward|clear, told what to do on standard input; or kennel-jail try",
    )?;

    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| format!("make a pipe: {error}"));
    let ((hand_out, hand_in), (up_out, up_in)) = (pipe()?, pipe()?);
    // But for the network's where nobody waits for it: see `walls::Own`.
    let mut namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if network == Network::Joined {
        namespaces |= libc::CLONE_NEWNET;
    }
    // An ordinary user's has a firewall of its own; root's is the host's.
    let firewall = network == Network::Joined && !rustix::process::geteuid().is_root();
    // The kernel counts what is made in a user namespace for whoever made that: not for the host's root.
    let charged = first_id.map(sys::ChargedTo::user).transpose();
    let charged = charged.map_err(|error| format!("become the user whom namespaces are charged to: {error}"))?;
    let inside = match sys::fork_into(namespaces) {
        Ok(Some(pid)) => Inside(pid),
        Ok(None) => walls::raise(network, firewall, &hand_out, &up_in),
        Err(error) => return Err(format!("make namespaces: {error}")),
    };
    drop(charged);
    // It goes first. A process that is forked often waits behind its parent, though another processor has nothing to do;
    // one that is woken does not.
    let mut up = [0; 4];
    rustix::io::retry_on_intr(|| rustix::io::read(&up_out, &mut up))
        .map_err(|error| format!("wait for the one inside: {error}"))?;
    // In the table of descriptors that both share.
    let firewall = kennel_keeper::sys::inherited(i32::from_ne_bytes(up)).map(FirewallSocket::from);

    let namespaces = ids::Namespaces::charged_to(first_id);
    if first_id.is_some() {
        namespaces.prepare();
    }
    let mut plan: Plan = minicbor::decode(&place::hear()?).map_err(|error| format!("read the plan: {error}"))?;
    let dir = plan.remove_dir.then(|| (plan.dir.clone(), plan.rights, plan.ids.clone()));
    *heard = Heard { goes_on: plan.keeper.host_fd.is_some(), dir, claim: plan.claim.clone() };
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
    /// Readable when it has ended.
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
    /// Does for the one inside what it cannot do itself, and waits until its walls stand.
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

    /// Makes of its root what must be made outside.
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

    /// Waits for the sandbox to end and clears away what only we can.
    fn until_the_end(mut self) {
        drop(self.namespaces);
        // Only what the lock, the exit code and the firewall need stays open: no mount is held by us.
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
        // They may be in the group.
        drop(self.network.helpers);
        drop(self.group);
        overlay::let_go(&self.plan.dir);
        if self.plan.remove_dir {
            let _ = rustix::process::chdir("/");
            if !self.plan.keeper.tied {
                kennel_keeper::wait_for_starter(self.plan.dir.as_ref());
            }
            let _ = clear::remove(&self.plan.dir, self.plan.rights, &self.plan.ids);
            self.plan.claim.iter().for_each(|claim| ids::give_back(claim, &self.plan.dir));
        }
        // The descriptors that were closed by number must not be closed again by their owners.
        kennel_keeper::sys::exit_now(0)
    }
}
