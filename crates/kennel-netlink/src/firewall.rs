//! The firewall rules in a sandbox's own network namespace: one table with one chain for outgoing packets.
//!
//! ```text
//! table inet kennel {
//!     chain output {
//!         type filter hook output priority filter; policy accept;
//!         oif "lo" accept
//!         ct state established,related accept           # where others may connect to it
//!         ip daddr @names4 meta l4proto { tcp, udp } th dport 53 accept
//!         icmpv6 type >= 130 accept                     # neighbours and multicast listeners
//!         ip daddr @blocked4 reject with icmpx admin-prohibited
//!     }                                                 # and the same for IPv6
//! }
//! ```
//!
//! Processes inside cannot change the rules: that requires `CAP_NET_ADMIN` in the user namespace that owns the network
//! namespace.

use crate::Ranges;
use crate::message::{ERROR, Message, messages, receive, send, socket, text};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, netlink};

const INET: u8 = 1;
const NFTABLES: u16 = 10;
const SUBSYSTEM: u16 = NFTABLES << 8;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const NEW_SET: u16 = SUBSYSTEM | 9;
const NEW_ELEMENT: u16 = SUBSYSTEM | 0xc;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

const TABLE: &str = "kennel";
const CHAIN: &str = "output";
/// The number of elements in one message: an attribute has at most 64 KB.
const ELEMENTS: usize = 500;

/// What a sandbox may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// The addresses that it must not connect to.
    pub blocked: Ranges,
    /// The addresses that it may query for DNS at port 53 even if they are blocked.
    pub names: Ranges,
    /// Whether it may reply to connections from a blocked address.
    pub answers: bool,
}

/// A socket for the firewall of the network namespace in which it was opened. The process that opens it and the process
/// that sends on it must have `CAP_NET_ADMIN` there.
pub struct FirewallSocket(OwnedFd);

impl FirewallSocket {
    /// Opens a socket for the network namespace of this thread.
    pub fn open() -> Result<Self, Errno> {
        socket(Some(netlink::NETFILTER), SocketFlags::empty()).map(Self)
    }

    /// Replaces the existing rules by these, in one step.
    pub fn load(&self, firewall: &Firewall) -> Result<(), Errno> {
        let mut batch = Batch::default();
        // Deleting a table that does not exist is an error, so create it first.
        batch.add(NEW_TABLE, CREATE, |table| table.put(1, &text(TABLE)));
        batch.add(DELETE_TABLE, 0, |table| table.put(1, &text(TABLE)));
        batch.add(NEW_TABLE, CREATE, |table| table.put(1, &text(TABLE)));
        batch.set("blocked4", 1, 4, firewall.blocked.v4());
        batch.set("blocked6", 2, 16, firewall.blocked.v6());
        batch.set("names4", 3, 4, firewall.names.v4());
        batch.set("names6", 4, 16, firewall.names.v6());
        batch.chain();
        for rule in rules(firewall.answers) {
            batch.rule(rule);
        }
        let (bytes, last) = batch.finished();
        send(&self.0, &bytes)?;
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let count = receive(&self.0, &mut buffer)?;
            for message in messages(&buffer[..count]) {
                if message.kind == ERROR {
                    message.error()?;
                    if message.sequence == last {
                        return Ok(());
                    }
                }
            }
            if count == 0 {
                return Err(Errno::BADMSG);
            }
        }
    }
}

impl From<OwnedFd> for FirewallSocket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<FirewallSocket> for OwnedFd {
    fn from(socket: FirewallSocket) -> Self {
        socket.0
    }
}

impl AsFd for FirewallSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A part of a rule: it loads a value into the register, compares the register, or decides.
enum Part {
    Meta(u32),
    /// Loads bytes of a header: which header, offset, length.
    Header(u32, u32, u32),
    Is(Vec<u8>),
    AtLeast(u8),
    In(&'static str, u32),
    /// The connection is known.
    Known,
    Accept,
    Reject,
}

const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const OUTPUT_INTERFACE: u32 = 5;
const FAMILY: u32 = 15;
const PROTOCOL: u32 = 16;
const LOOPBACK: u32 = 1;

fn rules(answers: bool) -> Vec<Vec<Part>> {
    use Part::{Accept, AtLeast, Header, In, Is, Known, Meta, Reject};
    let to4 = || [Meta(FAMILY), Is(vec![2]), Header(NETWORK, 16, 4)];
    let to6 = || [Meta(FAMILY), Is(vec![10]), Header(NETWORK, 24, 16)];
    let mut rules = vec![vec![Meta(OUTPUT_INTERFACE), Is(LOOPBACK.to_ne_bytes().into()), Accept]];
    if answers {
        rules.push(vec![Known, Accept]);
    }
    for protocol in [6, 17] {
        let names =
            || [Meta(PROTOCOL), Is(vec![protocol]), Header(TRANSPORT, 2, 2), Is(53u16.to_be_bytes().into()), Accept];
        rules.push(to4().into_iter().chain([In("names4", 3)]).chain(names()).collect());
        rules.push(to6().into_iter().chain([In("names6", 4)]).chain(names()).collect());
    }
    rules.push(vec![
        Meta(FAMILY),
        Is(vec![10]),
        Meta(PROTOCOL),
        Is(vec![58]),
        Header(TRANSPORT, 0, 1),
        AtLeast(130),
        Accept,
    ]);
    rules.push(to4().into_iter().chain([In("blocked4", 1), Reject]).collect());
    rules.push(to6().into_iter().chain([In("blocked6", 2), Reject]).collect());
    rules
}

impl Part {
    fn put(self, list: Message) -> Message {
        /// The only register that is used.
        const REGISTER: [u8; 4] = 1u32.to_be_bytes();
        const VALUE: u16 = 1;
        let part = |list: Message, name: &str, data: &dyn Fn(Message) -> Message| {
            list.nest(1, |element| element.put(1, &text(name)).nest(2, data))
        };
        let compare = |list: Message, how: u32, value: &[u8]| {
            part(list, "cmp", &|data| {
                data.put(1, &REGISTER).put(2, &how.to_be_bytes()).nest(3, |operand| operand.put(VALUE, value))
            })
        };
        match self {
            Self::Meta(key) => part(list, "meta", &|data| data.put(1, &REGISTER).put(2, &key.to_be_bytes())),
            Self::Header(base, offset, length) => part(list, "payload", &|data| {
                data.put(1, &REGISTER)
                    .put(2, &base.to_be_bytes())
                    .put(3, &offset.to_be_bytes())
                    .put(4, &length.to_be_bytes())
            }),
            Self::Is(value) => compare(list, 0, &value),
            Self::AtLeast(value) => compare(list, 5, &[value]),
            Self::In(set, id) => {
                part(list, "lookup", &|data| data.put(1, &text(set)).put(2, &REGISTER).put(4, &id.to_be_bytes()))
            }
            Self::Known => {
                const STATE: u32 = 0;
                const ESTABLISHED_OR_RELATED: [u8; 4] = 6u32.to_ne_bytes();
                let state = part(list, "ct", &|data| data.put(1, &REGISTER).put(2, &STATE.to_be_bytes()));
                let masked = part(state, "bitwise", &|data| {
                    data.put(1, &REGISTER)
                        .put(2, &REGISTER)
                        .put(3, &4u32.to_be_bytes())
                        .nest(4, |mask| mask.put(VALUE, &ESTABLISHED_OR_RELATED))
                        .nest(5, |xor| xor.put(VALUE, &[0; 4]))
                });
                compare(masked, 1, &[0; 4])
            }
            Self::Accept => part(list, "immediate", &|data| {
                // The verdict register.
                data.put(1, &[0; 4]).nest(2, |value| value.nest(2, |verdict| verdict.put(1, &1u32.to_be_bytes())))
            }),
            // "Administratively prohibited", for either address family.
            Self::Reject => part(list, "reject", &|data| data.put(1, &2u32.to_be_bytes()).put(2, &[3])),
        }
    }
}

/// Messages that take effect together or not at all.
#[derive(Default)]
struct Batch(Vec<Message>);

impl Batch {
    fn add(&mut self, kind: u16, flags: u16, fill: impl FnOnce(Message) -> Message) {
        self.0.push(fill(Message::new(kind, flags, &[INET, 0, 0, 0])));
    }

    fn chain(&mut self) {
        const LOCAL_OUT: u32 = 3;
        const ACCEPT: u32 = 1;
        self.add(NEW_CHAIN, CREATE, |chain| {
            chain
                .put(1, &text(TABLE))
                .put(3, &text(CHAIN))
                .nest(4, |hook| hook.put(1, &LOCAL_OUT.to_be_bytes()).put(2, &[0; 4]))
                .put(5, &ACCEPT.to_be_bytes())
                .put(7, &text("filter"))
        });
    }

    /// Adds a set of ranges. `size` is that of an address.
    fn set(&mut self, name: &str, id: u32, size: u32, ranges: &[(u128, u128)]) {
        const INTERVAL: u32 = 4;
        // The type that `nft` uses to display the elements.
        let shown = if size == 4 { 7u32 } else { 8 };
        self.add(NEW_SET, CREATE, |set| {
            set.put(1, &text(TABLE))
                .put(2, &text(name))
                .put(3, &INTERVAL.to_be_bytes())
                .put(4, &shown.to_be_bytes())
                .put(5, &size.to_be_bytes())
                .put(10, &id.to_be_bytes())
        });
        let last = if size == 4 { u128::from(u32::MAX) } else { u128::MAX };
        for part in ranges.chunks(ELEMENTS) {
            self.add(NEW_ELEMENT, CREATE, |elements| {
                elements.put(1, &text(TABLE)).put(2, &text(name)).put(4, &id.to_be_bytes()).nest(3, |list| {
                    part.iter().fold(list, |list, (from, to)| {
                        let list = element(list, *from, size, false);
                        // A range that includes the last address has no end element.
                        if *to == last { list } else { element(list, to + 1, size, true) }
                    })
                })
            });
        }
    }

    fn rule(&mut self, parts: Vec<Part>) {
        self.add(NEW_RULE, CREATE | APPEND, |rule| {
            rule.put(1, &text(TABLE))
                .put(2, &text(CHAIN))
                .nest(4, |list| parts.into_iter().fold(list, |list, part| part.put(list)))
        });
    }

    /// Returns the batch as bytes, and the sequence number of the message that the kernel confirms.
    fn finished(self) -> (Vec<u8>, u32) {
        let [high, low] = NFTABLES.to_be_bytes();
        let edge = |kind| Message::new(kind, 0, &[0, 0, high, low]);
        let last = self.0.len() as u32;
        let mut bytes = edge(BATCH_BEGIN).finished(0);
        for (message, number) in self.0.into_iter().zip(1..) {
            let mut message = message.finished(number);
            if number == last {
                let flags = u16::from_ne_bytes([message[6], message[7]]) | ACK;
                message[6..8].copy_from_slice(&flags.to_ne_bytes());
            }
            bytes.extend(message);
        }
        bytes.extend(edge(BATCH_END).finished(last + 1));
        (bytes, last)
    }
}

fn element(list: Message, address: u128, size: u32, end: bool) -> Message {
    const INTERVAL_END: u32 = 1;
    let bytes = address.to_be_bytes();
    list.nest(1, |element| {
        let element = element.nest(1, |key| key.put(1, &bytes[16 - size as usize..]));
        if end { element.put(3, &INTERVAL_END.to_be_bytes()) } else { element }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs `work` on another thread, in a new network namespace.
    fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                #[allow(deprecated)] // its successor is `unsafe`, because it can unshare descriptors
                rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).expect("a network namespace needs root");
                work()
            });
            thread.join().unwrap()
        })
    }

    fn shown() -> String {
        let output = Command::new("nft").args(["--stateless", "list", "ruleset"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn the_kernel_accepts_the_rules_and_replaces_them_atomically() {
        let firewall = Firewall {
            blocked: "10.0.0.0 10.0.1.7\n224.0.0.0 255.255.255.255\nfe80:: fe80::ff\n".parse().unwrap(),
            names: "10.0.0.53 10.0.0.53\n".parse().unwrap(),
            answers: true,
        };
        let (first, second) = apart(|| {
            let socket = FirewallSocket::open().unwrap();
            socket.load(&firewall).unwrap();
            let first = shown();
            socket.load(&Firewall { answers: false, ..Firewall::default() }).unwrap();
            (first, shown())
        });
        for line in [
            "elements = { 10.0.0.0-10.0.1.7, 224.0.0.0/3 }",
            "elements = { fe80::/120 }",
            "type filter hook output priority filter; policy accept;",
            "oif \"lo\" accept",
            "ct state established,related accept",
            "ip daddr @names4 tcp dport 53 accept",
            "ip6 daddr @names6 udp dport 53 accept",
            "icmpv6 type >= mld-listener-query accept",
            "ip daddr @blocked4 reject with icmpx admin-prohibited",
            "ip6 daddr @blocked6 reject with icmpx admin-prohibited",
        ] {
            assert!(first.contains(line), "{line} is not in {first}");
        }
        assert_eq!(second.matches("chain output").count(), 1, "{second}");
        assert!(!second.contains("elements") && !second.contains("ct state"), "{second}");
    }

    #[test]
    fn four_thousand_ranges_can_be_loaded() {
        let ranges: Vec<String> =
            (0..4000u32).map(|at| format!("10.{0}.{1}.0 10.{0}.{1}.9", at / 256, at % 256)).collect();
        let ranges = ranges.join("\n");
        let firewall = Firewall { blocked: ranges.parse().unwrap(), ..Firewall::default() };
        let shown = apart(|| {
            FirewallSocket::open().unwrap().load(&firewall).unwrap();
            shown()
        });
        assert!(shown.contains("10.15.159.0-10.15.159.9"), "{shown}");
    }
}
