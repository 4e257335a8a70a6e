//! Checks whether native sandboxes can use the network `bridge` on this machine.

use super::fix::Problem;
use super::host::{Host, Program};
use super::machine::{Check, missing, not_needed, ok};
use crate::next_step::hint;
use kennel_core::Result;
use kennel_native::{Bridge, DockerFirewall};

const NAME: &str = "bridge network";

/// Checks whether sandboxes get a bridge network, and what prevents it.
pub(super) fn check(host: &Host) -> Check {
    if !host.root {
        return not_needed(NAME, "only for sandboxes of root");
    }
    let made = Bridge::make();
    judge(&Bridge::look(), made)
}

fn judge(bridge: &Bridge, made: Result<()>) -> Check {
    if bridge.nft.is_none() && bridge.range.is_none() {
        let detail = "nft is not installed: sandboxes get network none";
        return missing(NAME, detail, Some(Problem::Program(Program::Nft)));
    }
    if let Err(error) = made {
        return missing(NAME, error.to_string(), hint(&error).map(Problem::Other));
    }
    let range = bridge.range.as_deref().unwrap_or_default();
    if bridge.closed {
        // Kennel does not change firewall rules that others have set.
        let open = "iptables -I FORWARD -i kennel+ -j ACCEPT && \
                    iptables -I FORWARD -o kennel+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
        return missing(
            NAME,
            "the firewall drops forwarded packets (chain FORWARD)",
            Some(Problem::Other(open.into())),
        );
    }
    if bridge.firewalld {
        let open = "firewall-cmd --permanent --zone=trusted --add-interface=kennel+ && firewall-cmd --reload";
        return missing(NAME, "firewalld drops its packets unless it is configured", Some(Problem::Other(open.into())));
    }
    let forwarding = if bridge.forwarding { "" } else { "; the next sandbox will enable net.ipv4.ip_forward" };
    let docker = match bridge.docker {
        DockerFirewall::NotHere => "",
        DockerFirewall::Open => "; Docker's firewall accepts it",
        DockerFirewall::Shut => "; the next sandbox will add a rule to Docker's firewall",
    };
    let legacy = if bridge.legacy { "; iptables-legacy has rules too, which Kennel cannot read" } else { "" };
    ok(NAME, format!("firewall rules are in place, addresses {range}{forwarding}{docker}{legacy}"))
}

#[cfg(test)]
mod tests {
    use super::super::machine::CheckResult;
    use super::*;
    use crate::next_step::Hint;

    #[test]
    fn obstacles_for_the_bridge_are_reported() {
        let nothing = Bridge {
            nft: None,
            range: None,
            forwarding: false,
            docker: DockerFirewall::NotHere,
            closed: false,
            firewalld: false,
            legacy: false,
        };
        let seen = |bridge: &Bridge| {
            let check = judge(bridge, Ok(()));
            (check.state, check.detail, check.problems)
        };
        assert_eq!(seen(&nothing).2, [Problem::Program(Program::Nft)]);
        let able = Bridge { nft: Some("/usr/sbin/nft".into()), ..nothing };
        let refused =
            judge(&able, Err(kennel_core::Error::new(kennel_types::ErrorCode::NotAvailable, "no").hint("yes")));
        assert_eq!((refused.state, refused.problems), (CheckResult::Missing, vec![Problem::Other("yes".into())]));
        let there = Bridge { range: Some("10.207.0.0/16".into()), docker: DockerFirewall::Open, ..able };
        let (state, detail, _) = seen(&there);
        assert_eq!(state, CheckResult::Ok);
        assert!(
            detail.contains("10.207.0.0/16") && detail.contains("Docker") && detail.contains("ip_forward"),
            "{detail}"
        );
        assert_eq!(seen(&Bridge { closed: true, ..there.clone() }).0, CheckResult::Missing);
        assert_eq!(seen(&Bridge { firewalld: true, ..there }).0, CheckResult::Missing);
    }
}
