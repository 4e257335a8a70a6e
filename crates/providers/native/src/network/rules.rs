//! The firewall rules, in Kennel's own table. They are created once for all sandboxes of the machine, whoever owns
//! them.
//!
//! The table's comment contains its version and the address range of sandboxes, so that later processes agree. If the
//! table is missing or has another version, it is replaced in one step.

use super::nfnetlink::{INET, Nftables};
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NextStep};
use rustix::io::Errno;
use std::net::Ipv4Addr;

/// Must change when the rules change.
const VERSION: &str = "kennel rules 1";
/// Candidates for the address range. The first that has no route is used.
const RANGES: [Ipv4Addr; 4] = [
    Ipv4Addr::new(10, 207, 0, 0),
    Ipv4Addr::new(10, 231, 0, 0),
    Ipv4Addr::new(172, 30, 0, 0),
    Ipv4Addr::new(10, 83, 0, 0),
];
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// Existing rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// The first of 65536 addresses.
    pub(super) range: Ipv4Addr,
}

impl Rules {
    pub(super) fn range_text(self) -> String {
        format!("{}/16", self.range)
    }
}

/// Returns the rules, if they exist and are complete.
pub(super) fn present() -> Result<Option<Rules>, Errno> {
    /// Attributes of a table: its number of chains and other objects, and its comment.
    const USE: u16 = 3;
    const USERDATA: u16 = 6;
    let Some(table) = Nftables::open()?.table(INET, "kennel")? else { return Ok(None) };
    let chains = table.attribute(USE).and_then(|count| count.try_into().ok()).map_or(0, u32::from_be_bytes);
    let comment = table.attribute(USERDATA).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    // Someone may have flushed the table.
    Ok(comment.filter(|_| chains as usize >= chains_of(TEXT)).and_then(|comment| read(&comment)))
}

/// Returns the rules, if nothing is left to do.
pub(super) fn in_force() -> Result<Option<Rules>> {
    let failed = |error: Errno| {
        Error::new(ErrorCode::NotAvailable, format!("network bridge: cannot read the kernel's firewall rules: {error}"))
            .advise("boot a kernel with CONFIG_NF_TABLES; in a container, start it with CAP_NET_ADMIN")
    };
    Ok(present().map_err(failed)?.filter(|_| is_forwarding()))
}

const TEXT: &str = include_str!("rules.nft");

fn chains_of(text: &str) -> usize {
    text.lines().filter(|line| line.trim_start().starts_with("chain ")).count()
}

fn read(comment: &str) -> Option<Rules> {
    let (_, after) = comment.split_once(VERSION)?;
    let range = after.strip_prefix(' ')?.split('/').next()?.parse().ok()?;
    RANGES.contains(&range).then_some(Rules { range })
}

/// Whether this machine forwards packets.
pub(super) fn is_forwarding() -> bool {
    std::fs::read_to_string(FORWARDING).is_ok_and(|text| text.trim() != "0")
}

/// Creates the rules, and returns the address range.
pub(super) fn install() -> Result<Ipv4Addr> {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let range = RANGES.into_iter().find(|range| !is_taken(*range, &routes)).unwrap_or(RANGES[0]);
    let forwarding = is_forwarding();
    super::run("create firewall rules for network bridge", "nft", &["-f", "-"], &text(range, !forwarding))?;
    if !forwarding {
        let what = || format!("enable forwarding: write 1 to {FORWARDING}");
        std::fs::write(FORWARDING, "1").map_err(|error| {
            Error::io(what(), error).suggest(NextStep::run_on_host("sysctl -w net.ipv4.ip_forward=1"))
        })?;
    }
    Ok(range)
}

/// Returns the rules as input for `nft`. `guarded`: forwarding was off before, so all other forwarded traffic is
/// dropped.
fn text(range: Ipv4Addr, guarded: bool) -> String {
    let guard = if guarded { "iifname != \"kennel*\" oifname != \"kennel*\" drop" } else { "" };
    TEXT.replace("MARK", &format!("{VERSION} {range}/16")).replace("GUARD", guard)
}

/// Whether there is already a route to addresses of a range, other than Kennel's own.
fn is_taken(range: Ipv4Addr, routes: &str) -> bool {
    routes.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| u32::from_str_radix(field, 16).ok()).map(u32::from_be);
        let (Some(to), Some(mask)) = (number(1), number(7)) else { return false };
        let both = mask & 0xffff_0000;
        let ours = fields[0].starts_with(kennel_jail::PREFIX);
        !ours && mask != 0 && to & both == u32::from(range) & both
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routed_range_is_not_used() {
        let table = |lines: &str| format!("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n{lines}");
        let range = Ipv4Addr::new(10, 207, 0, 0);
        let line = |dev: &str, to: &str, mask: &str| {
            table(&format!("{dev}\t{to}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n"))
        };
        assert!(!is_taken(range, &line("eth0", "00000000", "00000000")), "a default route is no conflict");
        assert!(!is_taken(range, &line("docker0", "000011AC", "0000FFFF")));
        assert!(is_taken(range, &line("tun0", "0000CF0A", "0000FFFF")));
        assert!(is_taken(range, &line("tun0", "0000000A", "000000FF")), "10.0.0.0/8");
        assert!(is_taken(range, &line("tun0", "0005CF0A", "00FFFFFF")), "10.207.5.0/24");
        assert!(!is_taken(range, &line("kennel7", "0705CF0A", "FFFFFFFF")), "our own");
    }

    #[test]
    fn the_comment_identifies_the_rules() {
        let text = text(RANGES[1], true);
        let comment = text.lines().find_map(|line| line.trim().strip_prefix("comment ")).unwrap();
        assert_eq!(read(comment), Some(Rules { range: RANGES[1] }));
        assert!(text.contains("oifname != \"kennel*\" drop") && !text.contains("GUARD") && !text.contains("MARK"));
        assert_eq!(read("kennel rules 0 10.207.0.0/16"), None);
        assert_eq!(read("kennel rules 1 1.2.3.4/16"), None);
        assert_eq!(chains_of(TEXT), 5);
    }
}
