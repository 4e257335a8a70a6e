//! Finds the host's own networks: its addresses, and the networks that it is connected to, except that of its uplink.

use crate::message::{DONE, DUMP, ERROR, Message, attributes, messages, number, receive, send, socket};
use crate::{Prefix, Ranges};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::netlink::SocketAddrNetlink;
use std::net::IpAddr;

const INET: u8 = 2;
const INET6: u8 = 10;
const GET_ROUTE: u16 = 26;
const NEW_ROUTE: u16 = 24;
const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;
/// The routing table changed during the dump.
const INTERRUPTED: u16 = 0x10;
const TRIES: u32 = 100;

/// The metadata services of clouds, which hand out a machine's identity and keys.
const METADATA: [Prefix; 3] =
    [Prefix::v4([169, 254, 0, 0], 16), Prefix::v4([168, 63, 129, 16], 32), Prefix::v4([100, 100, 100, 200], 32)];
/// Multicast, which reaches listeners on the host too.
const MULTICAST: [Prefix; 3] = [
    Prefix::v4([224, 0, 0, 0], 4),
    Prefix::v4([255, 255, 255, 255], 32),
    Prefix { address: IpAddr::V6(std::net::Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), length: 8 },
];

impl Ranges {
    /// The addresses of the metadata services of clouds.
    pub fn metadata() -> Self {
        let mut ranges = Self::default();
        ranges.extend(METADATA);
        ranges
    }
}

/// Returns what a sandbox that is connected through this network namespace must not reach: every address of this
/// machine; the networks it is connected to, except that of the uplink (containers, other sandboxes, virtual machines,
/// a VPN), if they are not behind a gateway; metadata services; and multicast.
///
/// The uplink is the interface of the default route with the lowest metric.
pub fn host_networks() -> Result<Ranges, Errno> {
    let socket = socket(None, SocketFlags::empty())?;
    let mut routes = Vec::new();
    for family in [INET, INET6] {
        routes.extend(dump(&socket, family)?);
    }
    Ok(blocked(&routes))
}

/// Returns the networks that this network namespace is connected to itself: everything that is not behind a gateway.
pub fn connected_networks() -> Result<Ranges, Errno> {
    let socket = socket(None, SocketFlags::empty())?;
    let mut ranges = Ranges::default();
    for family in [INET, INET6] {
        let routes = dump(&socket, family)?;
        ranges.extend(routes.iter().filter(|route| !route.local && !route.gateway).filter_map(|route| route.to));
    }
    Ok(ranges)
}

/// A route of the main table, or an address.
#[derive(Clone, Debug, Default)]
struct Route {
    v4: bool,
    to: Option<Prefix>,
    /// Whether it is this machine's own address.
    local: bool,
    /// The outgoing interfaces; several for load balancing.
    interfaces: Vec<u32>,
    gateway: bool,
    metric: u32,
}

fn blocked(routes: &[Route]) -> Ranges {
    let mut ranges = Ranges::default();
    for v4 in [true, false] {
        let own = || routes.iter().filter(move |route| route.v4 == v4);
        let default = own().filter(|route| route.to.is_none()).min_by_key(|route| route.metric);
        let uplinks = default.map(|route| &route.interfaces[..]).unwrap_or_default();
        // The most specific route applies. So add routes from the widest to the most specific, each overriding the
        // earlier ones.
        let mut networks: Vec<(Prefix, &Route)> = own().filter_map(|route| Some((route.to?, route))).collect();
        networks.sort_by_key(|(to, _)| to.length);
        for (to, route) in networks.iter().filter(|(_, route)| !route.local) {
            // Such a wide route is one half of a default route, not a network that this machine is connected to.
            let wide = to.length < if v4 { 8 } else { 16 };
            let by_uplink = route.interfaces.iter().all(|interface| uplinks.contains(interface));
            if route.gateway || by_uplink || wide {
                ranges.remove(*to);
            } else {
                ranges.add(*to);
            }
        }
        ranges.extend(networks.iter().filter(|(_, route)| route.local).map(|(to, _)| *to));
    }
    ranges.extend(METADATA);
    ranges.extend(MULTICAST);
    ranges
}

fn dump(socket: &OwnedFd, family: u8) -> Result<Vec<Route>, Errno> {
    let mut buffer = vec![0; 64 * 1024];
    'again: for _ in 0..TRIES {
        let mut body = [0; 12];
        body[0] = family;
        send(socket, &Message::new(GET_ROUTE, DUMP, &body).finished(0))?;
        let (mut routes, mut whole) = (Vec::new(), true);
        loop {
            let count = receive(socket, &mut buffer)?;
            for message in messages(&buffer[..count]) {
                whole &= message.flags & INTERRUPTED == 0;
                match message.kind {
                    DONE if whole => return Ok(routes),
                    DONE => continue 'again,
                    ERROR => {
                        message.error()?;
                        return Err(Errno::BADMSG);
                    }
                    // A kernel without IPv6 reports all families instead.
                    NEW_ROUTE if message.body.first() == Some(&family) => routes.extend(route(message.body)),
                    _ => {}
                }
            }
            if count == 0 {
                return Err(Errno::BADMSG);
            }
        }
    }
    Err(Errno::BUSY)
}

/// Parses a `struct rtmsg` with its attributes. Returns `None` if it is neither an address nor a route of the main
/// table.
fn route(body: &[u8]) -> Option<Route> {
    const UNICAST: u8 = 1;
    const OWN: [u8; 3] = [2, 3, 4]; // local, broadcast, anycast
    const DST: u16 = 1;
    const OIF: u16 = 4;
    const GATEWAY: u16 = 5;
    const PRIORITY: u16 = 6;
    const MULTIPATH: u16 = 9;
    const TABLE: u16 = 15;
    const VIA: u16 = 18;
    let &[family, length, _, _, table, _, _, kind, ..] = body else { return None };
    let mut route = Route { v4: family == INET, ..Route::default() };
    let (mut table, mut to) = (u32::from(table), None);
    for (attribute, value) in attributes(body.get(12..)?) {
        match attribute {
            DST => to = Some(address(value)?),
            OIF => route.interfaces = vec![number(value, 0)?],
            GATEWAY | VIA => route.gateway = true,
            PRIORITY => route.metric = number(value, 0)?,
            TABLE => table = number(value, 0)?,
            MULTIPATH => (route.interfaces, route.gateway) = hops(value),
            _ => {}
        }
    }
    route.local = match (table, kind) {
        (TABLE_LOCAL, kind) if OWN.contains(&kind) => true,
        (TABLE_MAIN, UNICAST) => false,
        _ => return None,
    };
    // A default route has no destination.
    route.to = to.map(|address| Prefix { address, length }).filter(|_| length > 0);
    Some(route).filter(|route| route.to.is_some() || !route.local)
}

/// Returns the interfaces of a route with several next hops, and whether it uses gateways.
fn hops(mut bytes: &[u8]) -> (Vec<u32>, bool) {
    const GATEWAY: u16 = 5;
    let (mut interfaces, mut gateway) = (Vec::new(), false);
    // `struct rtnexthop`: length, flags, weight, interface; then attributes.
    while let (Some(length), Some(interface)) = (bytes.first_chunk::<2>(), number(bytes, 4)) {
        let length = usize::from(u16::from_ne_bytes(*length));
        interfaces.push(interface);
        gateway |= attributes(bytes.get(8..length).unwrap_or_default()).any(|(kind, _)| kind == GATEWAY);
        bytes = bytes.get(length.next_multiple_of(4).max(8)..).unwrap_or_default();
    }
    (interfaces, gateway)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

/// Notifies when addresses or routes of this network namespace change.
pub struct Changes(OwnedFd);

impl Changes {
    /// Starts to listen.
    pub fn listen() -> Result<Self, Errno> {
        /// Changes of addresses and routes, for IPv4 and IPv6.
        const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;
        let socket = socket(None, SocketFlags::NONBLOCK)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self(socket))
    }

    /// Discards the notifications so far. Reading the networks after this call includes these changes.
    pub fn forget(&self) {
        let mut buffer = vec![0; 64 * 1024];
        // Notifications that did not fit are reported by one error.
        while matches!(receive(&self.0, &mut buffer), Ok(1..) | Err(Errno::NOBUFS)) {}
    }
}

/// Readable when there is a new notification.
impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETH0: u32 = 2;
    const DOCKER0: u32 = 3;
    const TUN0: u32 = 4;

    fn to(text: &str, interface: u32, gateway: bool) -> Route {
        let (address, length) = text.split_once('/').unwrap();
        let prefix = Prefix { address: address.parse().unwrap(), length: length.parse().unwrap() };
        let to = Some(prefix).filter(|prefix| prefix.length > 0);
        Route { v4: prefix.address.is_ipv4(), to, interfaces: vec![interface], gateway, ..Route::default() }
    }

    fn own(text: &str) -> Route {
        Route { local: true, ..to(text, ETH0, false) }
    }

    #[track_caller]
    fn check(routes: &[Route], blocked_ones: &[&str], open: &[&str]) {
        let ranges = blocked(routes);
        for address in blocked_ones {
            assert!(ranges.contains(address.parse().unwrap()), "{address} is in {ranges}");
        }
        for address in open {
            assert!(!ranges.contains(address.parse().unwrap()), "{address} is not in {ranges}");
        }
    }

    #[test]
    fn addresses_and_networks_are_blocked_except_that_of_the_uplink() {
        let routes = [
            to("0.0.0.0/0", ETH0, true),
            to("192.168.1.0/24", ETH0, false),
            to("172.17.0.0/16", DOCKER0, false),
            own("192.168.1.5/32"),
            own("172.17.0.1/32"),
            own("127.0.0.0/8"),
            to("::/0", ETH0, true),
            to("2001:db8::/64", ETH0, false),
            to("2001:db8:1::/64", DOCKER0, false),
            own("2001:db8::5/128"),
        ];
        check(
            &routes,
            &["192.168.1.5", "172.17.0.1", "172.17.0.2", "127.0.0.1", "2001:db8::5", "2001:db8:1::2", "ff02::1"],
            &["192.168.1.1", "8.8.8.8", "2001:db8::1", "2001:4860::1"],
        );
        check(&routes, &["169.254.169.254", "224.0.0.251", "255.255.255.255"], &["169.253.1.1"]);
    }

    #[test]
    fn the_most_specific_route_applies() {
        let routes = [
            to("0.0.0.0/0", ETH0, true),
            to("10.0.0.0/8", TUN0, false),
            to("10.1.0.0/16", ETH0, false),
            to("10.1.7.0/24", DOCKER0, false),
            to("10.9.0.0/16", ETH0, true),
            own("10.1.0.5/32"),
        ];
        check(&routes, &["10.2.0.1", "10.1.7.1", "10.1.0.5"], &["10.1.0.6", "10.9.0.1"]);
    }

    #[test]
    fn the_default_route_with_the_lowest_metric_is_the_uplink() {
        let mut wireless = to("0.0.0.0/0", TUN0, true);
        wireless.metric = 600;
        let routes =
            [wireless, to("0.0.0.0/0", ETH0, true), to("10.1.0.0/16", ETH0, false), to("10.2.0.0/16", TUN0, false)];
        check(&routes, &["10.2.0.1"], &["10.1.0.1"]);
        // A default route in two halves is not blocked either.
        let routes = [to("0.0.0.0/0", ETH0, true), to("0.0.0.0/1", TUN0, false), to("128.0.0.0/1", TUN0, false)];
        check(&routes, &[], &["8.8.8.8", "200.0.0.1"]);
    }

    #[test]
    fn malformed_routes_are_ignored() {
        for bytes in [&[][..], &[2; 8], &[2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0, 200, 0, 1, 0, 1][..11]] {
            assert!(route(bytes).is_none(), "{bytes:?}");
        }
        assert_eq!(hops(&[0, 0, 0, 0, 7, 0, 0, 0]), (vec![7], false));
    }

    /// Reads the networks of this machine from the kernel.
    #[test]
    fn loopback_addresses_belong_to_this_machine() {
        let ranges = host_networks().unwrap();
        assert!(ranges.contains("127.0.0.1".parse().unwrap()), "{ranges}");
    }
}
