//! The jail of `kennel run`, which starts to work before the command line is parsed.
//!
//! Parsing takes longer than a jail needs to create its namespaces. So the jail is told at once what nearly every sandbox
//! has: a network of its own, and host ids that no other sandbox uses. If the sandbox turns out to need something else,
//! or another provider, this jail ends and gives its ids back.

use crate::range::{self, CLAIMS, Claim, Claims};
use crate::rights::Maker;
use kennel_jail::{AHEAD, ForkedJail, Ids, Network};
use std::os::fd::OwnedFd;

/// A forked jail that creates its namespaces. It ends when this is dropped.
#[derive(Debug)]
pub struct EarlyJail {
    pub(crate) pid: u32,
    pub(crate) line: OwnedFd,
    /// The claim on its host ids, if the host's root has started it.
    pub(crate) claim: Option<Claim>,
}

impl EarlyJail {
    /// The network that the jail creates.
    pub(crate) const NETWORK: Network = Network::Own;

    /// Lets a forked jail begin. Returns `None` if that is not possible. Errors are reported when a sandbox is started.
    pub fn begin(forked: ForkedJail) -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        let claim = if root && range::are_mapped() { Some(Claims::new(CLAIMS).take().ok()?) } else { None };
        let arguments = if root {
            arguments_of_root(Self::NETWORK, Some(charged_to(claim.as_ref().map(Claim::first))), true)
        } else {
            arguments_of_user(Self::NETWORK, &Maker::ids_of_caller())
        };
        let (pid, line) = forked.instruct(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).ok()?;
        Some(Self { pid, line, claim })
    }
}

/// The user that the namespaces of root's sandbox with this range are charged to: its own root.
pub(crate) fn charged_to(first_id: Option<u32>) -> u32 {
    first_id.unwrap_or(range::SHARED)
}

/// The arguments of a jail of the host's root. With `ahead`, it waits for what it can prepare before there is a plan.
pub(crate) fn arguments_of_root(network: Network, first_id: Option<u32>, ahead: bool) -> Vec<String> {
    let ahead = ahead.then(|| AHEAD.to_owned());
    let first = std::iter::once(network.argument().to_owned());
    first.chain(first_id.map(|id| id.to_string())).chain(ahead).collect()
}

/// The arguments of a jail of an ordinary user, who has these ids.
pub(crate) fn arguments_of_user(network: Network, ids: &Ids) -> Vec<String> {
    std::iter::once(network.argument().to_owned()).chain(ids.arguments()).collect()
}
