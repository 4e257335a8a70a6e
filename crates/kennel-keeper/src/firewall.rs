//! Firewall rules in a container's network namespace, for sandboxes on engines. The keeper loads them as process 1,
//! before anything else runs, with a capability that it drops at once.

use crate::{StartError, paths, sys};
use kennel_netlink::{Firewall, FirewallSocket, Prefix, Ranges, connected_networks};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::io::Read;
use std::net::IpAddr;

/// The largest size of the file with addresses, in bytes.
const CAP: u64 = 4 << 20;
const RESOLVERS: &str = "/etc/resolv.conf";

/// Blocks connections from this network namespace to the addresses in a file, which the provider wrote, and to the
/// networks that the namespace is connected to itself: the engine's end of the bridge, and other containers. DNS
/// queries to port 53 of the servers in `/etc/resolv.conf` are allowed, and so are replies to incoming connections.
pub fn put_up(path: &[u8]) -> Result<(), StartError> {
    let failed = |what: &'static str| move |error: Errno| format!("network bridge: {what}: {error}");
    let shown = String::from_utf8_lossy(path).into_owned();
    let text = read(path).map_err(|error| {
        format!("network bridge: read {shown}: {error} (start this sandbox with Kennel, which writes this file)")
    })?;
    // The next start must provide a new file.
    let _ = rustix::fs::unlink(path);
    let mut blocked: Ranges = text.parse().map_err(|error| format!("network bridge: read {shown}: {error}"))?;
    blocked.merge(&connected_networks().map_err(failed("read the sandbox's networks"))?);
    let mut names = Ranges::metadata();
    names.extend(servers(&read(RESOLVERS.as_bytes()).unwrap_or_default()));
    let firewall = Firewall { blocked, names, answers: true };
    let loaded = FirewallSocket::open().and_then(|socket| socket.load(&firewall));
    loaded.map_err(|error| {
        format!(
            "network bridge: load firewall rules in the sandbox's network: {error} (this needs nf_tables in the \
             kernel, which a runtime with its own kernel may not have; network none does not)"
        )
    })?;
    Ok(give_up().map_err(failed("drop CAP_NET_ADMIN"))?)
}

fn give_up() -> Result<(), Errno> {
    let taken = CapabilitySet::NET_ADMIN;
    sys::limit_bounding_set(!taken.bits())?;
    let mut sets = rustix::thread::capabilities(None)?;
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(taken);
    }
    rustix::thread::set_capabilities(None, sets)
}

fn read(path: &[u8]) -> Result<String, StartError> {
    let file = paths::open_file(path, OFlags::RDONLY).map_err(|failure| failure.message)?;
    let mut text = String::new();
    let read = std::fs::File::from(file).take(CAP).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

/// Returns the name servers in a `resolv.conf`.
fn servers(text: &str) -> Vec<Prefix> {
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let server = (words.next() == Some("nameserver")).then(|| words.next()?.parse::<IpAddr>().ok())?;
        server.map(Prefix::host)
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameservers_are_read_from_resolv_conf() {
        let text =
            "# nameserver 9.9.9.9\nsearch lan\nnameserver 10.0.0.1\nnameserver fd00::1\nnameserver x\nnameserver\n";
        let found: Vec<String> = servers(text).iter().map(|server| server.address.to_string()).collect();
        assert_eq!(found, ["10.0.0.1", "fd00::1"]);
    }

    #[test]
    fn a_missing_firewall_file_is_an_error() {
        let refused = put_up(b"/no/such/file").unwrap_err();
        assert!(refused.message().contains("/no/such/file"), "{refused}");
    }
}
