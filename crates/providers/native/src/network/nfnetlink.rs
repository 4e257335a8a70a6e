//! Reads firewall rules from the kernel over netlink, without running a program.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Message types of nftables.
const SUBSYSTEM: u16 = 10 << 8;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const GET_RULE: u16 = SUBSYSTEM | 7;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
/// Message types of replies.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Address families of tables.
pub(super) const INET: u8 = 1;
pub(super) const IPV4: u8 = 2;

/// A netlink socket.
pub(super) struct Nftables(OwnedFd);

/// The attributes of one reply.
pub(super) struct Attributes(Vec<u8>);

impl Nftables {
    pub(super) fn open() -> Result<Self, Errno> {
        let protocol = Some(netlink::NETFILTER);
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol).map(Self)
    }

    /// Returns a table, if it exists.
    pub(super) fn table(&self, family: u8, name: &str) -> Result<Option<Attributes>, Errno> {
        const NAME: u16 = 1;
        self.one(GET_TABLE, family, &[(NAME, name)])
    }

    /// Returns a chain, if it exists.
    pub(super) fn chain(&self, family: u8, table: &str, name: &str) -> Result<Option<Attributes>, Errno> {
        const TABLE: u16 = 1;
        const NAME: u16 = 3;
        self.one(GET_CHAIN, family, &[(TABLE, table), (NAME, name)])
    }

    /// Returns the rules of a chain.
    pub(super) fn rules(&self, family: u8, table: &str, chain: &str) -> Result<Vec<Attributes>, Errno> {
        const TABLE: u16 = 1;
        const CHAIN: u16 = 2;
        self.ask(GET_RULE, DUMP, family, &[(TABLE, table), (CHAIN, chain)])
    }

    fn one(&self, kind: u16, family: u8, attributes: &[(u16, &str)]) -> Result<Option<Attributes>, Errno> {
        match self.ask(kind, 0, family, attributes) {
            Ok(mut found) => Ok(found.pop()),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request and collects the replies.
    fn ask(&self, kind: u16, flags: u16, family: u8, attributes: &[(u16, &str)]) -> Result<Vec<Attributes>, Errno> {
        let question = question(kind, flags, family, attributes);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.0, &question, SendFlags::empty()))?;
        let mut found = Vec::new();
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let (_, count) =
                rustix::io::retry_on_intr(|| rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty()))?;
            let mut rest = &bytes[..count];
            while let Some((kind, message, after)) = split(rest) {
                rest = after;
                match kind {
                    DONE => return Ok(found),
                    ERROR => {
                        let code = message.get(..4).and_then(|code| code.try_into().ok()).map_or(0, i32::from_ne_bytes);
                        return Err(Errno::from_raw_os_error(code.saturating_neg()));
                    }
                    // The attributes follow `struct nfgenmsg`.
                    _ => found.push(Attributes(message.get(4..).unwrap_or_default().to_vec())),
                }
                if flags & DUMP == 0 {
                    return Ok(found);
                }
            }
            if count == 0 {
                return Err(Errno::BADMSG);
            }
        }
    }
}

/// Splits off the first message: its type, its content, and the rest.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let message = bytes.get(16..length)?;
    Some((kind, message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn question(kind: u16, flags: u16, family: u8, attributes: &[(u16, &str)]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0, 0, 0]);
    for (kind, text) in attributes {
        bytes.extend(((text.len() + 5) as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(text.as_bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes
}

impl Attributes {
    /// Returns one of the attributes.
    pub(super) fn attribute(&self, wanted: u16) -> Option<&[u8]> {
        const KIND: u16 = 0x3fff;
        let mut rest = &self.0[..];
        loop {
            let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
            let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
            let value = rest.get(4..length)?;
            if kind & KIND == wanted {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
    }

    /// Whether the reply contains these bytes.
    pub(super) fn mentions(&self, bytes: &[u8]) -> bool {
        self.0.windows(bytes.len()).any(|window| window == bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_attributes_and_messages_are_ignored() {
        for bytes in [&[][..], &[1], &[4, 0, 1, 0], &[0, 0, 0, 0], &[255, 255, 1, 0, 7], &[3, 0, 1, 0, 0, 0, 0, 0]] {
            let found = Attributes(bytes.to_vec());
            assert!(found.attribute(9).is_none());
            assert!(split(bytes).is_none());
        }
        let found = Attributes([&[6, 0, 1, 0, b'a', 0, 0, 0][..], &[5, 0, 9, 0x80, b'x', 0, 0, 0]].concat());
        assert_eq!(found.attribute(9), Some(&b"x"[..]));
        assert!(found.mentions(b"x") && !found.mentions(b"xy"));
    }
}
