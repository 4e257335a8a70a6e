//! Coexistence with Docker, which drops all forwarded traffic but its own. Docker reserves one chain for others, in
//! which Kennel allows the traffic of sandboxes.

use super::nfnetlink::{INET, IPV4, Nftables};
use kennel_core::{Error, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The state of Docker's firewall rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DockerFirewall {
    /// Docker has no rules here.
    NotHere,
    /// Docker's rules do not allow sandboxes yet.
    Shut,
    /// Docker's rules allow sandboxes.
    Open,
}

const TABLE: &str = "filter";
const USERS: &str = "DOCKER-USER";
const OURS: &str = "KENNEL";

/// These rules are applied completely or not at all. For Docker's own containers, its rules decide.
const RULES: &str = "*filter
:KENNEL - [0:0]
-A KENNEL -i kennel+ -o docker0 -j RETURN
-A KENNEL -i kennel+ -o br-+ -j RETURN
-A KENNEL -i kennel+ -j ACCEPT
-A KENNEL -o kennel+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-I DOCKER-USER 1 -j KENNEL
COMMIT
";

impl DockerFirewall {
    /// Returns the current state. Rules that cannot be read count as absent.
    pub(super) fn look() -> Self {
        look().unwrap_or(Self::NotHere)
    }
}

fn look() -> Result<DockerFirewall, Errno> {
    let kernel = Nftables::open()?;
    if kernel.chain(IPV4, TABLE, USERS)?.is_none() {
        return Ok(DockerFirewall::NotHere);
    }
    // A rule contains the name of the chain that it jumps to.
    let leads_to_us = kernel.rules(IPV4, TABLE, USERS)?.iter().any(|rule| rule.mentions(OURS.as_bytes()));
    Ok(if leads_to_us { DockerFirewall::Open } else { DockerFirewall::Shut })
}

/// Whether the chain `FORWARD` drops by default.
pub(super) fn drops() -> Result<bool, Errno> {
    const POLICY: u16 = 5;
    let chain = Nftables::open()?.chain(IPV4, TABLE, "FORWARD")?;
    let policy = chain.as_ref().and_then(|chain| chain.attribute(POLICY)).and_then(|policy| policy.try_into().ok());
    Ok(policy.map(u32::from_be_bytes) == Some(0))
}

/// Whether firewalld has rules here.
pub(super) fn has_firewalld() -> Result<bool, Errno> {
    Nftables::open()?.table(INET, "firewalld").map(|table| table.is_some())
}

/// Whether there are rules of `iptables-legacy`.
pub(super) fn has_old_rules() -> bool {
    std::fs::read_to_string("/proc/net/ip_tables_names").is_ok_and(|names| names.lines().any(|name| name == TABLE))
}

/// Allows the traffic of sandboxes.
pub(super) fn pass() -> Result<()> {
    let what = "allow sandboxes in Docker's firewall";
    let name = "iptables-restore";
    // Another process that does the same waits, and finds it done. The lock is on the program, so that no lock file is
    // left.
    let lock = super::program(name).and_then(|path| std::fs::File::open(path).ok());
    if let Some(lock) = &lock {
        rustix::io::retry_on_intr(|| rustix::fs::flock(lock, FlockOperation::LockExclusive))
            .map_err(|error| Error::io(what, error))?;
    }
    if DockerFirewall::look() != DockerFirewall::Shut {
        return Ok(());
    }
    super::run(what, name, &["--wait", "10", "--noflush"], RULES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_name_only_our_interfaces_and_chains() {
        assert!(RULES.contains(&format!("-I {USERS} 1 -j {OURS}\n")) && RULES.contains(&format!(":{OURS} ")));
        assert_eq!(RULES.matches(&format!("{}+", kennel_jail::PREFIX)).count(), 4);
    }
}
