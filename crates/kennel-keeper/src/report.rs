//! What a child of the keeper tells it, over a pipe of its own: length and message, as in the protocol.

use kennel_proto::{ExitReport, Failure, Outcome};
use minicbor::{Decode, Encode};
use rustix::fd::AsFd;

/// Longest message.
const CAP: usize = 64 * 1024;

#[derive(Debug, Encode, Decode)]
pub(crate) enum Report {
    /// The command runs, or bytes of the file may flow.
    #[n(0)]
    Ready,
    /// It could not be done.
    #[n(1)]
    Failed(#[n(0)] Failure),
    /// The command ended.
    #[n(2)]
    Exited(#[n(0)] ExitReport),
    /// The request is done.
    #[n(3)]
    Done(#[n(0)] Outcome),
    /// Segments of a file with holes may flow.
    #[n(4)]
    ReadySparse,
}

impl Report {
    /// Writes it to a blocking pipe. If the keeper is gone nobody wants it.
    pub(crate) fn send(&self, pipe: impl AsFd) {
        let mut bytes = vec![0; 4];
        minicbor::encode(self, &mut bytes).expect("writing to a Vec cannot fail");
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        write_all(pipe, &bytes);
    }

    /// Takes the first whole message out of what was read.
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

/// Writes everything, or as much as the other side takes.
pub(crate) fn write_all(pipe: impl AsFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match rustix::io::write(&pipe, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}
