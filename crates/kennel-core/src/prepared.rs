//! What a provider makes of a sandbox before the sandbox is known.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;

/// A part of a sandbox that was made before the details of the sandbox were known. One process makes it, and any process
/// of the same user can use it, once it has the descriptors.
#[derive(Debug)]
pub struct Prepared {
    /// What the provider must know to use it, in a format of its own.
    pub description: String,
    /// The first is a socket. The part ends itself when all copies of the socket are closed, and nothing is sent on the
    /// socket before the part is used.
    pub descriptors: Vec<OwnedFd>,
}

impl Prepared {
    /// Whether the part still waits to be used. If not, it has ended.
    pub fn is_waiting(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended =
            |socket| poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&now)).map_or(true, |ready| ready > 0);
        self.descriptors.first().is_some_and(|socket| !ended(socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_waits_until_its_end_of_the_socket_is_closed() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let prepared = Prepared { description: String::new(), descriptors: vec![ours.into()] };
        assert!(prepared.is_waiting());
        drop(theirs);
        assert!(!prepared.is_waiting());
        assert!(!Prepared { description: String::new(), descriptors: Vec::new() }.is_waiting());
    }
}
