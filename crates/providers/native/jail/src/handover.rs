//! What the process outside hands to the one inside, once there is a plan and its mounts are made.

use kennel_jail::{Base, Bind, EtcFile};
use kennel_proto::KeeperConfig;
use minicbor::{Decode, Encode};
use rustix::fd::OwnedFd;

/// Descriptors are numbers in the table that both share.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Handover {
    /// The sandbox's directory on the host.
    #[n(0)]
    pub(crate) dir: String,
    /// The host name inside.
    #[n(1)]
    pub(crate) hostname: String,
    /// Capabilities of root inside, as bits.
    #[n(2)]
    pub(crate) capabilities: u64,
    /// The keeper's settings.
    #[n(3)]
    pub(crate) keeper: KeeperConfig,
    /// The keeper's socket.
    #[n(4)]
    pub(crate) listener: i32,
    /// What its root is made of.
    #[n(5)]
    pub(crate) root: Root,
    /// Nothing of that can be written.
    #[n(6)]
    pub(crate) read_only: bool,
    /// Landlock is put up.
    #[n(7)]
    pub(crate) landlock: bool,
    /// Other sandboxes can be made inside.
    #[n(8)]
    pub(crate) nesting: bool,
}

/// What the root of the one inside is made of.
#[derive(Debug, Encode, Decode)]
pub(crate) enum Root {
    /// Mounts that the host's root has made: see `rootfs::Mounts::numbers`.
    #[n(0)]
    Made(#[n(0)] Vec<i32>),
    /// It makes them itself.
    #[n(1)]
    ToBeMade {
        #[n(0)]
        base: Base,
        #[n(1)]
        binds: Vec<Bind>,
        #[n(2)]
        etc: Vec<EtcFile>,
    },
}

impl Handover {
    /// Sends it, whole. Whether it arrived shows in the answer.
    pub(crate) fn send(&self, pipe: &OwnedFd) {
        let mut bytes = vec![0; 4];
        minicbor::encode(self, &mut bytes).expect("writing to a Vec cannot fail");
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        kennel_keeper::place::write_all(pipe, &bytes);
    }

    /// Waits for it. `None` if the one outside gave up.
    pub(crate) fn receive(pipe: &OwnedFd) -> Option<Self> {
        minicbor::decode(&kennel_keeper::place::read_told(pipe).ok()?).ok()
    }
}
