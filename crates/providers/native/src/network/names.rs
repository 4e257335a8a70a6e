//! The DNS configuration of a sandbox: the host's resolvers, if they can be reached from inside.
//!
//! Resolvers on the host's own loopback (systemd-resolved, dnsmasq) cannot be reached. For systemd-resolved, its
//! upstream resolvers are used. Otherwise a program that belongs to the sandbox forwards the queries.

use kennel_jail::{NAMES, NAMES_BY_PASTA};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// The content of `/etc/resolv.conf` inside, and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// The content of the file.
    pub(crate) text: String,
    /// Resolvers that only the host can reach: the first appears inside at [`NAMES`], the others at the following
    /// addresses.
    pub(crate) forwarded: Vec<SocketAddr>,
}

/// The number of resolvers that programs use at most.
const SERVERS: usize = 3;
/// The addresses of systemd-resolved.
const STUBS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 54))];

impl Names {
    /// Creates the configuration from the current state of this machine.
    pub(crate) fn of_this_machine() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let own = |address: Ipv4Addr| UdpSocket::bind((address, 0)).is_ok();
        Self::from_resolv_conf(&read("/etc/resolv.conf"), || read("/run/systemd/resolve/resolv.conf"), own)
    }

    /// Changes the configuration for `pasta`, which forwards queries to the host's first resolver.
    pub(crate) fn by_pasta(mut self) -> Self {
        if !self.forwarded.is_empty() {
            let rest = self.text.lines().filter(|line| !line.starts_with("nameserver "));
            let first = format!("nameserver {}", Ipv4Addr::from(NAMES_BY_PASTA));
            let lines: Vec<&str> = std::iter::once(&*first).chain(rest).collect();
            self.text = lines.join("\n") + "\n";
        }
        self
    }

    /// The addresses of the resolvers inside.
    pub(crate) fn servers(&self) -> Vec<String> {
        servers(&self.text).iter().map(ToString::to_string).collect()
    }

    /// Creates the configuration from the host's file, the file with the upstream resolvers of systemd-resolved, and a
    /// function that tells whether an address is the host's own.
    fn from_resolv_conf(text: &str, upstream: impl FnOnce() -> String, own: impl Fn(Ipv4Addr) -> bool) -> Self {
        let mut servers = servers(text);
        if servers.is_empty() {
            // The C library's default if there is no resolver.
            servers.push(Ipv4Addr::LOCALHOST.into());
        }
        let direct = |servers: &[IpAddr]| -> Vec<Ipv4Addr> {
            let usable = servers.iter().filter_map(|server| match server {
                IpAddr::V4(address) => {
                    (!address.is_loopback() && !address.is_unspecified() && !own(*address)).then_some(*address)
                }
                IpAddr::V6(_) => None,
            });
            usable.collect()
        };
        let mut asked = direct(&servers);
        if asked.is_empty() && servers.iter().all(|server| STUBS.contains(server)) {
            asked = direct(&self::servers(&upstream()));
        }
        let mut forwarded = Vec::new();
        if asked.is_empty() {
            forwarded = servers.into_iter().take(SERVERS).map(|server| SocketAddr::new(server, 53)).collect();
            let [a, b, c, d] = NAMES;
            asked = (0..forwarded.len() as u8).map(|at| Ipv4Addr::new(a, b, c, d + at)).collect();
        }
        let mut inside = String::new();
        for server in asked.iter().take(SERVERS) {
            let _ = writeln!(inside, "nameserver {server}"); // Writing to a String cannot fail.
        }
        for line in text.lines().filter(|line| is_kept(line)) {
            inside.extend([line, "\n"]);
        }
        Self { text: inside, forwarded }
    }
}

fn is_kept(line: &str) -> bool {
    matches!(line.split_whitespace().next(), Some("search" | "domain" | "options" | "sortlist"))
}

fn servers(text: &str) -> Vec<IpAddr> {
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()?.parse().ok())?
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_and_forwarded(text: &str, upstream: &str) -> (Vec<String>, Vec<String>) {
        let own = |address: Ipv4Addr| address == Ipv4Addr::new(192, 168, 1, 5);
        let names = Names::from_resolv_conf(text, || upstream.to_owned(), own);
        let lines = names.text.lines().map(ToOwned::to_owned).collect();
        (lines, names.forwarded.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn reachable_nameservers_are_used_directly() {
        let text = "# made by hand\nnameserver 10.0.0.1\nnameserver fd00::1\nnameserver 127.0.0.1\nsearch example.net\noptions edns0\n";
        let (lines, forwarded) = lines_and_forwarded(text, "");
        assert_eq!(lines, ["nameserver 10.0.0.1", "search example.net", "options edns0"]);
        assert!(forwarded.is_empty());
    }

    #[test]
    fn upstreams_of_systemd_resolved_are_used() {
        let (lines, forwarded) = lines_and_forwarded(
            "nameserver 127.0.0.53\noptions edns0\nsearch lan\n",
            "nameserver 10.0.0.1\nnameserver 10.0.0.2\n",
        );
        assert_eq!(lines, ["nameserver 10.0.0.1", "nameserver 10.0.0.2", "options edns0", "search lan"]);
        assert!(forwarded.is_empty());
    }

    #[test]
    fn queries_for_the_hosts_nameservers_are_forwarded() {
        for (text, servers) in [
            ("nameserver 127.0.0.1\n", &["127.0.0.1:53"][..]),
            ("", &["127.0.0.1:53"]),
            ("nameserver 192.168.1.5\nnameserver fd00::1\n", &["192.168.1.5:53", "[fd00::1]:53"]),
            ("nameserver 127.0.0.53\n", &["127.0.0.53:53"]),
        ] {
            let (lines, forwarded) = lines_and_forwarded(text, "nameserver 127.0.0.1\n");
            assert_eq!(forwarded, servers, "{text}");
            assert_eq!(lines.len(), servers.len());
            assert_eq!(lines[0], "nameserver 127.0.0.11");
        }
    }

    #[test]
    fn at_most_three_nameservers_are_used() {
        let text: String = ["nameserver 127.0.1.1"; 9].join("\n");
        assert_eq!(lines_and_forwarded(&text, "").1.len(), 3);
    }
}
