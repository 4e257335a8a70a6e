//! Configures network interfaces, addresses and routes of a sandbox, with five kinds of netlink messages, sent one at a
//! time.

use kennel_netlink::{Message, text};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice};
use std::net::Ipv4Addr;

/// A netlink socket for the network namespace in which it was opened.
pub(crate) struct Netlink(OwnedFd);

/// A MAC address.
pub(crate) type Mac = [u8; 6];

const CHANGE: u16 = libc::NLM_F_ACK as u16;
const CREATE: u16 = CHANGE | (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const INET: u8 = libc::AF_INET as u8;
const INET6: u8 = libc::AF_INET6 as u8;

impl Netlink {
    /// Opens a socket for the current network namespace of this process.
    pub(crate) fn open() -> Result<Self, Errno> {
        // Interfaces and routes are protocol number 0, which is the default.
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None).map(Self)
    }

    /// Creates a pair of interfaces: `name` here, and `peer` in another namespace. Fails with `EXIST` if the name is in
    /// use.
    pub(crate) fn add_pair(
        &self,
        (name, mac): (&str, Mac),
        (peer, peer_mac): (&str, Mac),
        namespace: impl AsFd,
    ) -> Result<(), Errno> {
        const VETH_INFO_PEER: u16 = 1;
        let namespace = namespace.as_fd().as_raw_fd();
        let message = Message::new(libc::RTM_NEWLINK, CREATE, &interface(0, 0))
            .put(libc::IFLA_IFNAME, &text(name))
            .put(libc::IFLA_ADDRESS, &mac)
            .nest(libc::IFLA_LINKINFO, |info| {
                info.put(libc::IFLA_INFO_KIND, b"veth").nest(libc::IFLA_INFO_DATA, |data| {
                    data.nest(VETH_INFO_PEER, |other| {
                        other
                            .raw(&interface(0, 0))
                            .put(libc::IFLA_IFNAME, &text(peer))
                            .put(libc::IFLA_ADDRESS, &peer_mac)
                            .put(libc::IFLA_NET_NS_FD, &namespace.to_ne_bytes())
                    })
                })
            });
        self.ask(message)
    }

    /// Returns the index of an interface.
    pub(crate) fn index(&self, name: &str) -> Result<u32, Errno> {
        // Any socket of the namespace works for this.
        netdevice::name_to_index(&self.0, name)
    }

    /// Turns an interface on, without an automatic IPv6 address.
    pub(crate) fn turn_on(&self, index: u32) -> Result<(), Errno> {
        const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
        const NONE: u8 = 1;
        let plain = Message::new(libc::RTM_NEWLINK, CHANGE, &interface(index, 0))
            .nest(libc::IFLA_AF_SPEC, |families| {
                families.nest(INET6.into(), |inet6| inet6.put(IFLA_INET6_ADDR_GEN_MODE, &[NONE]))
            });
        match self.ask(plain) {
            // This kernel has no IPv6.
            Ok(()) | Err(Errno::AFNOSUPPORT | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
        self.ask(Message::new(libc::RTM_NEWLINK, CHANGE, &interface(index, libc::IFF_UP as u32)))
    }

    /// Adds an address to an interface, without a network around it.
    pub(crate) fn add_address(&self, index: u32, address: Ipv4Addr) -> Result<(), Errno> {
        let mut body = vec![INET, 32, 0, libc::RT_SCOPE_UNIVERSE];
        body.extend(index.to_ne_bytes());
        let message = Message::new(libc::RTM_NEWADDR, CREATE, &body)
            .put(libc::IFA_LOCAL, &address.octets())
            .put(libc::IFA_ADDRESS, &address.octets());
        self.ask(message)
    }

    /// Adds a route for one address through an interface.
    pub(crate) fn add_route(&self, index: u32, to: Ipv4Addr) -> Result<(), Errno> {
        let message = Message::new(libc::RTM_NEWROUTE, CREATE, &route(32, libc::RT_SCOPE_LINK, 0))
            .put(libc::RTA_DST, &to.octets())
            .put(libc::RTA_OIF, &index.to_ne_bytes());
        self.ask(message)
    }

    /// Adds a default route through an address at the other end of the interface.
    pub(crate) fn add_way_out(&self, index: u32, by: Ipv4Addr) -> Result<(), Errno> {
        const RTNH_F_ONLINK: u32 = 4;
        let message = Message::new(libc::RTM_NEWROUTE, CREATE, &route(0, libc::RT_SCOPE_UNIVERSE, RTNH_F_ONLINK))
            .put(libc::RTA_GATEWAY, &by.octets())
            .put(libc::RTA_OIF, &index.to_ne_bytes());
        self.ask(message)
    }

    /// Adds a permanent neighbour entry, so that no ARP is needed and no reply can be forged.
    pub(crate) fn add_neighbour(&self, index: u32, address: Ipv4Addr, mac: Mac) -> Result<(), Errno> {
        let mut body = vec![INET, 0, 0, 0];
        body.extend(index.to_ne_bytes());
        body.extend(libc::NUD_PERMANENT.to_ne_bytes());
        body.extend([0, 0]);
        let message = Message::new(libc::RTM_NEWNEIGH, CREATE, &body)
            .put(libc::NDA_DST, &address.octets())
            .put(libc::NDA_LLADDR, &mac);
        self.ask(message)
    }

    /// Sends a request and waits for the result.
    fn ask(&self, message: Message) -> Result<(), Errno> {
        // No sequence number is needed, because each reply is awaited.
        let bytes = message.finished(0);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.0, &bytes, SendFlags::empty()))?;
        let mut answer = [0; 4096];
        let (_, count) = rustix::io::retry_on_intr(|| rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty()))?;
        // A header of 16 bytes, then the error: 0, or a negative number.
        match answer[..count].get(16..20).and_then(|error| error.try_into().ok()).map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(error) => Err(Errno::from_raw_os_error(error.saturating_neg())),
            None => Err(Errno::BADMSG),
        }
    }
}

/// `struct ifinfomsg`. Only the given flags are changed.
fn interface(index: u32, flags: u32) -> Vec<u8> {
    [0, index, flags, flags].into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// `struct rtmsg`, in the main table.
fn route(length: u8, scope: u8, flags: u32) -> Vec<u8> {
    let mut body = vec![INET, length, 0, 0, libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, scope, libc::RTN_UNICAST];
    body.extend(flags.to_ne_bytes());
    body
}
