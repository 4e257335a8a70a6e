//! Keeps an ordinary user's sandbox away from the host's own networks, by firewall rules in the sandbox's network namespace.
//!
//! The process inside opens the socket while it still has every capability in its namespaces; the one outside sends on
//! it, which the kernel allows because it made the user namespace. The host's networks change, so the one outside listens
//! for that and loads the rules again, for as long as the sandbox lives.

use kennel_netlink::{Changes, Firewall, FirewallSocket, Prefix, Ranges, host_networks};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::net::IpAddr;

/// When to try again to load rules that could not be loaded.
const AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The rules of one sandbox.
pub(crate) struct Guard {
    socket: FirewallSocket,
    changes: Changes,
    /// Those that are in force.
    rules: Firewall,
}

impl Guard {
    /// Loads the rules. Names can be asked for at these addresses, whatever they are.
    pub(crate) fn put_up(socket: FirewallSocket, resolvers: &[String]) -> Result<Self, String> {
        let failed = |what: &'static str| move |error: Errno| format!("network bridge: {what}: {error}");
        // Listens first: what changes after the look is heard of.
        let changes = Changes::listen().map_err(failed("listen for changes of the host's networks"))?;
        let blocked = host_networks().map_err(failed("look at the host's networks"))?;
        let mut names = Ranges::metadata();
        names.extend(resolvers.iter().filter_map(|server| server.parse().ok()).map(|it: IpAddr| Prefix::host(it)));
        // Published ports are connected to from the sandbox's own loopback.
        let rules = Firewall { blocked, names, answers: false };
        socket.load(&rules).map_err(|error| {
            format!(
                "network bridge: load firewall rules in the sandbox's network: {error} (they need the kernel's nf_tables; \
                 --network none needs nothing)"
            )
        })?;
        Ok(Self { socket, changes, rules })
    }

    /// The descriptors that it needs.
    pub(crate) fn descriptors(&self) -> [i32; 2] {
        [self.socket.as_fd(), self.changes.as_fd()].map(|fd: BorrowedFd<'_>| fd.as_raw_fd())
    }

    /// Follows the host's networks until that process has ended.
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
