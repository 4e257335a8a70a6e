//! Messages from a child of the keeper, over a socket: a length and a message, as in the protocol.

use kennel_proto::{ExitReport, Failure, Outcome};
use minicbor::{Decode, Encode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Bytes in the longest message.
const CAP: usize = 64 * 1024;

#[derive(Debug, Encode, Decode)]
pub(crate) enum Report {
    /// The command runs, or the data of a file may be sent.
    #[n(0)]
    Ready,
    /// The request failed.
    #[n(1)]
    Failed(#[n(0)] Failure),
    /// The command ended.
    #[n(2)]
    Exited(#[n(0)] ExitReport),
    /// The request is done.
    #[n(3)]
    Done(#[n(0)] Outcome),
    /// Segments of a sparse file may be sent.
    #[n(4)]
    ReadySparse,
    /// The descriptor on which calls of the command arrive. It is attached to this message.
    #[n(5)]
    Listening,
    /// The requested socket is open. It is attached to this message.
    #[n(6)]
    Opened {
        /// Identifies the path of a listening Unix socket.
        #[n(0)]
        inode: Option<Inode>,
    },
}

/// The numbers of a file's filesystem and of the file.
pub(crate) type Inode = (u64, u64);

impl Report {
    /// Writes the message to a blocking pipe. If the keeper is gone, nobody needs it.
    pub(crate) fn send(&self, pipe: impl AsFd) {
        write_all(pipe, &self.to_bytes());
    }

    /// Writes the message to a socket, together with a descriptor.
    pub(crate) fn send_with(&self, socket: impl AsFd, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        passed.push(SendAncillaryMessage::ScmRights(&fds));
        let bytes = self.to_bytes();
        let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut passed, SendFlags::NOSIGNAL)?;
        if sent == bytes.len() { Ok(()) } else { Err(Errno::IO) }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        minicbor::encode(self, &mut bytes).expect("writing to a Vec cannot fail");
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Removes the first complete message from the received bytes.
    pub(crate) fn take(bytes: &mut Vec<u8>) -> Option<Result<Self, ()>> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*head) as usize;
        if length > CAP {
            return Some(Err(()));
        }
        let report = minicbor::decode(rest.get(..length)?).map_err(drop);
        bytes.drain(..4 + length);
        Some(report)
    }
}

/// Reads what a child has sent. Returns the number of bytes, and the descriptor that came with them.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut passed, RecvFlags::CMSG_CLOEXEC)?;
    let fd = passed.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((received.bytes, fd))
}

/// Writes everything, or as much as the other side takes.
pub(crate) fn write_all(pipe: impl AsFd, bytes: &[u8]) -> bool {
    try_write_all(pipe, bytes).is_ok()
}

/// Writes everything, or returns why not.
pub(crate) fn try_write_all(to: impl AsFd, mut bytes: &[u8]) -> Result<(), rustix::io::Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(&to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
