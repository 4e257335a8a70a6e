//! What the process outside sends to the process inside, once there is a plan and the mounts are created.

use crate::{Base, Bind, EtcFile};
use kennel_keeper::StartError;
use kennel_proto::KeeperConfig;
use minicbor::{Decode, Encode};
use rustix::fd::OwnedFd;

/// The message to the process inside. Descriptors are numbers in the table that both processes share.
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
    /// The keeper's configuration.
    #[n(3)]
    pub(crate) keeper: KeeperConfig,
    /// The keeper's listening socket.
    #[n(4)]
    pub(crate) listener: i32,
    /// How the root filesystem is built.
    #[n(5)]
    pub(crate) root: Root,
    /// Whether the root filesystem is read-only.
    #[n(6)]
    pub(crate) read_only: bool,
    /// Whether Landlock is used.
    #[n(7)]
    pub(crate) landlock: bool,
    /// Whether sandboxes can be created inside.
    #[n(8)]
    pub(crate) nesting: bool,
    /// Whether the process inside waits until its network is connected.
    #[n(9)]
    pub(crate) joined: bool,
}

/// How the root filesystem is built.
#[derive(Debug, Encode, Decode)]
pub(crate) enum Root {
    /// From mounts that the process outside created; see `rootfs::Mounts::numbers`.
    #[n(0)]
    Made(#[n(0)] Vec<i32>),
    /// The process inside creates the mounts itself.
    #[n(1)]
    ToBeMade {
        #[n(0)]
        base: Base,
        #[n(1)]
        binds: Vec<Bind>,
        #[n(2)]
        etc: Vec<EtcFile>,
        /// Whether what the sandbox writes does not have to reach the disk.
        #[n(3)]
        volatile: bool,
    },
}

impl Handover {
    /// Sends the whole message. The reply shows whether it arrived.
    pub(crate) fn send(&self, pipe: &OwnedFd) {
        let mut bytes = vec![0; 4];
        minicbor::encode(self, &mut bytes).expect("writing to a Vec cannot fail");
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        kennel_keeper::sandbox_dir::write_all(pipe, &bytes);
    }

    /// Waits for the message. Returns `None` if the process outside gave up.
    pub(crate) fn receive(pipe: &OwnedFd) -> Option<Self> {
        minicbor::decode(&kennel_keeper::sandbox_dir::read_message(pipe).ok()?).ok()
    }
}

/// Tells the process inside that what it waits for is done.
pub(crate) fn go_on(pipe: &OwnedFd) {
    kennel_keeper::sandbox_dir::write_all(pipe, b".");
}

/// Waits for [`go_on`]. If the process outside gave up, it kills this process.
pub(crate) fn wait(pipe: &OwnedFd) -> Result<(), StartError> {
    let failed = |error: &dyn std::fmt::Display| StartError::from(format!("wait for the process outside: {error}"));
    match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut [0])) {
        Ok(0) => Err(failed(&"it ended")),
        done => done.map(drop).map_err(|error| failed(&error)),
    }
}
