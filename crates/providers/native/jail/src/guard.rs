//! Blocks the host's own networks for the sandbox of an ordinary user, with firewall rules in the sandbox's network
//! namespace.
//!
//! The process inside opens the socket while it still has all capabilities in its namespaces. The process outside sends
//! on it, which the kernel allows because it created the user namespace. The host's networks can change. So the process
//! outside listens for changes and loads the rules again, as long as the sandbox lives.

use kennel_keeper::StartError;
use kennel_netlink::{Changes, Firewall, FirewallSocket, Prefix, Ranges, host_networks};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::net::IpAddr;

/// The delay before rules that could not be loaded are tried again.
const AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The firewall rules of one sandbox.
pub(crate) struct Guard {
    socket: FirewallSocket,
    changes: Changes,
    /// The rules in effect.
    rules: Firewall,
}

impl Guard {
    /// Loads the rules. DNS queries to these addresses are allowed, whatever they are.
    pub(crate) fn put_up(socket: FirewallSocket, resolvers: &[String]) -> Result<Self, StartError> {
        let failed = |what: &'static str| move |error: Errno| format!("network bridge: {what}: {error}");
        // Listen before reading the networks, so that no later change is missed.
        let changes = Changes::listen().map_err(failed("listen for changes of the host's networks"))?;
        let blocked = host_networks().map_err(failed("read the host's networks"))?;
        let mut names = Ranges::metadata();
        names.extend(resolvers.iter().filter_map(|server| server.parse().ok()).map(|it: IpAddr| Prefix::host(it)));
        // Connections to published ports come from the sandbox's own loopback.
        let rules = Firewall { blocked, names, answers: false };
        socket.load(&rules).map_err(|error| {
            format!(
                "network bridge: load firewall rules in the sandbox's network: {error} (this needs nf_tables in the \
                 kernel; network none does not)"
            )
        })?;
        Ok(Self { socket, changes, rules })
    }

    /// The descriptors that must stay open.
    pub(crate) fn descriptors(&self) -> [i32; 2] {
        [self.socket.as_fd(), self.changes.as_fd()].map(|fd: BorrowedFd<'_>| fd.as_raw_fd())
    }

    /// Follows changes of the host's networks until the process has ended.
    pub(crate) fn until_ended(&mut self, process: &OwnedFd) {
        let mut stale = false;
        loop {
            let mut polled = [PollFd::new(process, PollFlags::IN), PollFd::new(&self.changes, PollFlags::IN)];
            match poll(&mut polled, stale.then_some(&AGAIN)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            if !polled[0].revents().is_empty() {
                return;
            }
            if stale || !polled[1].revents().is_empty() {
                self.changes.forget();
                stale = self.follow().is_err();
            }
        }
    }

    fn follow(&mut self) -> Result<(), Errno> {
        let blocked = host_networks()?;
        if blocked != self.rules.blocked {
            let rules = Firewall { blocked, ..self.rules.clone() };
            self.socket.load(&rules)?;
            self.rules = rules;
        }
        Ok(())
    }
}
