//! Netlink messages: a header, a body of fixed size, and attributes. Each part starts at a multiple of four bytes.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

pub(crate) const REQUEST: u16 = 1;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const ERROR: u16 = 2;
pub(crate) const DONE: u16 = 3;
const NESTED: u16 = 0x8000;

/// A request to the kernel.
pub struct Message(Vec<u8>);

impl Message {
    /// Creates a request of this kind, with flags (`NLM_F_*`) in addition to `NLM_F_REQUEST`.
    pub fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((REQUEST | flags).to_ne_bytes());
        bytes.extend([0; 8]); // Sequence number and port id.
        Self(bytes).raw(body)
    }

    /// Appends bytes, with padding.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an attribute.
    #[must_use]
    pub fn put(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.raw(value)
    }

    /// Appends an attribute that contains the attributes that `fill` adds.
    #[must_use]
    pub fn nest(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let at = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NESTED).to_ne_bytes());
        let mut filled = fill(self);
        let length = (filled.0.len() - at) as u16;
        filled.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        filled
    }

    /// Returns the bytes to send, with the length and a sequence number in the header.
    pub fn finished(mut self, sequence: u32) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

/// The value of a string attribute, which ends with a zero byte.
pub fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

/// Opens a netlink socket in the network namespace of this thread.
pub(crate) fn socket(protocol: Option<Protocol>, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC | flags, protocol)
}

pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::net::send(&socket, bytes, SendFlags::empty())).map(drop)
}

/// Reads the next messages from the kernel into a buffer, and returns their length.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    rustix::io::retry_on_intr(|| rustix::net::recv(&socket, &mut *buffer, RecvFlags::empty())).map(|(count, _)| count)
}

/// A message from the kernel.
pub(crate) struct Received<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    /// The bytes after the header.
    pub(crate) body: &'a [u8],
}

impl Received<'_> {
    /// Returns the result in an error message, where 0 means success.
    pub(crate) fn error(&self) -> Result<(), Errno> {
        match number(self.body, 0).map(u32::cast_signed) {
            Some(0) => Ok(()),
            Some(error) => Err(Errno::from_raw_os_error(error.saturating_neg())),
            None => Err(Errno::BADMSG),
        }
    }
}

/// Returns the messages in a buffer.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = number(bytes, 0)? as usize;
        let message = Received {
            kind: half(bytes, 4)?,
            flags: half(bytes, 6)?,
            sequence: number(bytes, 8)?,
            body: bytes.get(16..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Returns the attributes in a part of a message, each with kind and value.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?);
        let found = (half(bytes, 2)? & 0x3fff, bytes.get(4..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(found)
    })
}

pub(crate) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_alignment_are_correct() {
        let message = Message::new(16, 0, &[0; 16]).nest(18, |info| info.put(1, b"veth").put(2, b"abcde")).finished(7);
        assert_eq!(message[..4], (message.len() as u32).to_ne_bytes());
        assert_eq!(message.len() % 4, 0);
        assert_eq!(message[8..12], 7u32.to_ne_bytes());
        let nest = &message[32..];
        assert_eq!(nest[..2], 24u16.to_ne_bytes());
        assert_eq!(nest[2..4], (0x12u16 | 0x8000).to_ne_bytes());
        let inner: Vec<_> = attributes(&nest[4..]).collect();
        assert_eq!(inner, [(1, &b"veth"[..]), (2, &b"abcde"[..])]);
        let all: Vec<_> = messages(&message).map(|message| (message.kind, message.sequence)).collect();
        assert_eq!(all, [(16, 7)]);
    }

    #[test]
    fn malformed_attributes_and_messages_are_ignored() {
        for bytes in [&[][..], &[1], &[4, 0, 1], &[0, 0, 0, 0], &[255, 255, 1, 0, 7], &[3, 0, 1, 0, 0, 0, 0, 0]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
            assert_eq!(messages(bytes).count(), 0, "{bytes:?}");
        }
    }
}
