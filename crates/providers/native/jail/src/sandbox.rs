//! The process outside: starts the process inside, carries out the plan, and waits for the end.

use crate::cpu::AllowedCpus;
use crate::guard::Guard;
use crate::handover::{self, Handover, Root};
use crate::inside::{self, NetworkReport};
use crate::{AHEAD, Ahead, CLEAR, FORWARD, Ids, MEASURE, Network, PROBE_KERNEL, Plan, Rights};
use crate::{cgroup, clear, forward, ids, measure, network, overlay, probe_kernel, rootfs, sys};
use kennel_keeper::StartError;
use kennel_keeper::sandbox_dir::{self, SandboxDir};
use kennel_proto::ending::OOM;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitOptions};

/// The exit code of a main process that was killed, as the kernel does when memory runs out.
const KILLED: i32 = 128 + libc::SIGKILL;

/// The jail's main function, with the arguments of the program. Returns its exit code.
pub fn run(arguments: &[String]) -> i32 {
    run_on(arguments, AllowedCpus::of_this_process())
}

/// Like [`run`], with the CPUs that this process may use once the sandbox is built.
pub(crate) fn run_on(arguments: &[String], cpus: AllowedCpus) -> i32 {
    match arguments.first().map(String::as_str) {
        Some(PROBE_KERNEL) => {
            let support = minicbor::to_vec(probe_kernel::probe()).unwrap_or_default();
            sandbox_dir::write_all(rustix::stdio::stdout(), &support);
            return 0;
        }
        Some(CLEAR) => {
            sandbox_dir::answer(clear::run().as_ref().copied(), false);
            return 0;
        }
        Some(MEASURE) => {
            match measure::run() {
                Ok(size) => sandbox_dir::write_all(rustix::stdio::stdin(), size.to_string().as_bytes()),
                Err(error) => sandbox_dir::answer(Err(&error), false),
            }
            return 0;
        }
        Some(FORWARD) => forward::serve(),
        _ => {}
    }
    let mut heard = Heard::default();
    match start(arguments, cpus, &mut heard) {
        Ok(sandbox) => {
            sandbox_dir::answer(Ok(()), heard.goes_on);
            sandbox.until_the_end();
            0
        }
        Err(error) => {
            heard.clear_away();
            sandbox_dir::answer(Err(&error), heard.goes_on);
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

const USAGE: &str = "usage: kennel-jail own|host [FIRST-ID [ahead] | USERS GROUPS], with a plan on standard input; \
                     kennel-jail forward|clear|measure, with instructions on standard input; or kennel-jail try";

/// A running sandbox, seen from outside.
struct RunningSandbox {
    inside: Inside,
    sandbox_dir: SandboxDir,
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
fn start(arguments: &[String], cpus: AllowedCpus, heard: &mut Heard) -> Result<RunningSandbox, StartError> {
    // Inherit nothing from the parent but the standard streams.
    kennel_keeper::sys::close_all_but(&[]);
    kennel_keeper::sys::ignore_signal(libc::SIGPIPE);
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::empty());
    let (network, ids) = arguments.split_first().ok_or(USAGE)?;
    let network = Network::ALL.into_iter().find(|known| network == known.argument()).ok_or(USAGE)?;
    let root = rustix::process::geteuid().is_root();
    let first_id: Option<u32> = ids.first().filter(|_| root).and_then(|id| id.parse().ok());

    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| format!("create a pipe: {error}"));
    let ((hand_out, hand_in), (up_out, up_in)) = (pipe()?, pipe()?);
    // Without the network namespace; see `inside::Own`.
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    // The kernel charges what is created in a user namespace to its creator, which should not be the host's root.
    let charged = first_id.map(sys::ChargedTo::user).transpose();
    let charged = charged.map_err(|error| format!("switch to the user that namespaces are charged to: {error}"))?;
    let inside = match sys::fork_into(namespaces) {
        Ok(Some(pid)) => Inside(pid),
        Ok(None) => inside::run(network, !root, cpus, &hand_out, &up_in),
        Err(error) => return Err(format!("create namespaces: {error}").into()),
    };
    drop(charged);
    // The id maps of an ordinary user are known already. Errors are reported once it is known how.
    let ids = ids.first().zip(ids.get(1)).filter(|_| !root);
    let mapping = ids.map(|(users, groups)| {
        let ids = Ids::from_arguments(users, groups).ok_or(USAGE)?;
        ids::Mapping::begin(inside.0, &ids)
    });
    let namespaces = ids::Namespaces::charged_to(first_id);
    if first_id.is_some() {
        namespaces.prepare();
    }
    // Errors are reported once there is a plan, because it says how.
    let ahead = (root && arguments.last().is_some_and(|last| last == AHEAD)).then(|| prepare(inside.0));
    let mut plan: Plan =
        minicbor::decode(&sandbox_dir::read_instructions()?).map_err(|error| format!("read the plan: {error}"))?;
    // The provider has done its part, so its CPU is free now.
    cpus.send_away(inside.0);
    let dir = plan.remove_dir.then(|| (plan.dir.clone(), plan.rights, plan.ids.clone()));
    *heard = Heard { goes_on: plan.keeper.host_fd.is_some(), dir };
    sandbox_dir::keep_host(&mut plan.keeper)?;
    let sandbox_dir = SandboxDir::take(&plan.dir, &mut plan.keeper)?;
    let group = plan.cgroup.as_ref().map(cgroup::Group::make).transpose()?;
    plan.keeper.oom_fd = group.as_ref().and_then(cgroup::Group::oom_events).map(IntoRawFd::into_raw_fd);
    let ahead = ahead.transpose()?;
    if ahead.as_ref().is_some_and(|ahead| ahead.ids != plan.ids) {
        return Err("the plan has other ids than what was sent ahead".into());
    }
    let mapping = match plan.rights {
        Rights::Root if ahead.is_some() => None,
        Rights::Root => ids::map(inside.0, &plan.ids).map(|()| None)?,
        Rights::User => Some(mapping.ok_or(USAGE)??),
    };
    let mut sandbox =
        RunningSandbox { inside, sandbox_dir, group, plan, network: network::Joined::default(), namespaces };
    sandbox.help_up(mapping, ahead, cpus, &hand_in, up_in, &up_out)?;
    Ok(sandbox)
}

/// What was prepared before there was a plan.
struct Prepared {
    ids: Ids,
    namespace: OwnedFd,
    mounts: rootfs::MountsAhead,
}

/// Reads what can be prepared before there is a plan, and does it.
fn prepare(inside: i32) -> Result<Prepared, StartError> {
    let ahead: Ahead = minicbor::decode(&sandbox_dir::read_instructions()?)
        .map_err(|error| format!("read what precedes the plan: {error}"))?;
    ids::map(inside, &ahead.ids)?;
    let namespace = ids::namespace_of(inside)?;
    let mounts = rootfs::MountsAhead::build(&ahead, &namespace)?;
    Ok(Prepared { ids: ahead.ids, namespace, mounts })
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

impl RunningSandbox {
    /// Does for the process inside what it cannot do itself, and waits until the sandbox is ready.
    fn help_up(
        &mut self,
        mapping: Option<ids::Mapping>,
        ahead: Option<Prepared>,
        cpus: AllowedCpus,
        hand: &OwnedFd,
        up_in: OwnedFd,
        up: &OwnedFd,
    ) -> Result<(), StartError> {
        if let Some(group) = &self.group {
            group.add(self.inside.0)?;
        }
        let (root, _made) = self.root(ahead)?;
        // Before other processes are started, which may use all CPUs.
        cpus.restore();
        Handover {
            dir: self.plan.dir.clone(),
            hostname: self.plan.hostname.clone(),
            capabilities: self.plan.capabilities,
            keeper: self.plan.keeper.clone(),
            listener: self.sandbox_dir.listener.as_raw_fd(),
            root,
            read_only: self.plan.read_only,
            landlock: self.plan.landlock,
            nesting: self.plan.nesting,
            joined: self.plan.link.is_some(),
        }
        .send(hand);
        let report = NetworkReport::receive(up)?;
        let joined = self.plan.link.as_ref().filter(|_| matches!(report, NetworkReport::Ready(_)));
        let started = joined.map(|link| network::start(link, self.inside.0)).transpose()?.flatten();
        // The process inside waits for each of these when it needs it, and does other work meanwhile.
        if let Some(mapping) = mapping {
            mapping.finish()?;
            handover::go_on(hand);
        }
        if let (Some(link), NetworkReport::Ready(firewall)) = (&self.plan.link, report) {
            match network::join(link, started, self.inside.0, &self.plan.ids, firewall) {
                Ok(joined) => self.network = joined,
                // If the process inside has failed, its error is the cause.
                Err(error) if has_ended(up) => drop(error),
                Err(error) => return Err(error),
            }
            handover::go_on(hand);
        }
        // The descriptor table is shared until the sandbox is ready. Nothing may be closed before that.
        let mut answer = [0; 1024];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(up, &mut answer))
            .map_err(|error| format!("wait until the sandbox is isolated: {error}"))?;
        drop(up_in);
        match &answer[..count] {
            b"ok" => {}
            [] => return Err("the process inside ended before the sandbox was isolated".into()),
            message => return Err(String::from_utf8_lossy(message).as_ref().into()),
        }
        Ok(())
    }

    /// Creates the mounts of the sandbox that must be created outside.
    fn root(&self, ahead: Option<Prepared>) -> Result<(Root, Option<rootfs::Mounts>), StartError> {
        let (plan, inside) = (&self.plan, self.inside.0);
        match plan.rights {
            Rights::Root => {
                let (namespace, mounts) = match ahead {
                    Some(Prepared { namespace, mounts, .. }) => (namespace, Some(mounts)),
                    None => (ids::namespace_of(inside)?, None),
                };
                let made = rootfs::build(plan, &namespace, &self.namespaces, mounts)?;
                Ok((Root::Made(made.numbers()), Some(made)))
            }
            Rights::User => {
                let (base, binds, etc) = (plan.base.clone(), plan.binds.clone(), plan.etc.clone());
                Ok((Root::ToBeMade { base, binds, etc, volatile: plan.remove_dir }, None))
            }
        }
    }

    /// Waits for the sandbox to end, and cleans up.
    #[expect(clippy::disallowed_methods, reason = "the process leaves the directory before it removes it")]
    fn until_the_end(mut self) {
        drop(self.namespaces);
        // Only what the lock, the exit code and the firewall need stays open. The jail holds no mount.
        let kept = [Some(&self.sandbox_dir.lock), self.sandbox_dir.exit.as_ref()];
        let mut keep: Vec<i32> = kept.into_iter().flatten().map(AsRawFd::as_raw_fd).collect();
        keep.extend(self.network.guard.iter().flat_map(Guard::descriptors));
        kennel_keeper::sys::close_all_but(&keep);
        if let Some(guard) = &mut self.network.guard
            && let Some(process) = self.inside.descriptor()
        {
            guard.until_ended(&process);
        }
        let code = self.inside.wait();
        if let Some(exit) = self.sandbox_dir.exit.take() {
            let oom = self.group.as_ref().is_some_and(cgroup::Group::ran_out_of_memory);
            let text = if oom && code == KILLED { format!("{code} {OOM}") } else { code.to_string() };
            let _ = rustix::io::write(&exit, text.as_bytes());
            // Whoever watches the directory is told when it is closed.
            drop(exit);
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

/// Whether the process inside has sent its result.
fn has_ended(up: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(up, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}
