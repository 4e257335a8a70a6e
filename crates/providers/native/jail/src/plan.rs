//! The plan, as it goes from the provider to the jail.

use crate::Link;
use kennel_proto::KeeperConfig;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// Everything the jail needs to know. All decisions are made; what cannot be carried out is an error.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Plan {
    /// The sandbox's directory (see `kennel_core::Records`).
    #[n(0)]
    pub dir: String,
    /// Read-only directories below the root, topmost first. Their ids are shifted by [`Plan::ids`].
    #[n(1)]
    pub lower: Vec<String>,
    /// The sandbox's users as the host sees them.
    #[n(2)]
    pub ids: IdMap,
    /// The host's paths shown inside.
    #[n(3)]
    pub binds: Vec<Bind>,
    /// Limits.
    #[n(4)]
    pub cgroup: Option<Cgroup>,
    /// The host name inside.
    #[n(5)]
    pub hostname: String,
    /// Capabilities of root inside, as bits.
    #[n(6)]
    pub capabilities: u64,
    /// The keeper's settings.
    #[n(7)]
    pub keeper: KeeperConfig,
    /// The sandbox's directory goes with it.
    #[n(8)]
    pub remove_dir: bool,
    /// Content of `/etc/resolv.conf` inside, if it is to be another than below.
    #[n(9)]
    pub resolv_conf: Option<ByteVec>,
    /// What lies over the layers below, in order: parents first.
    #[n(10)]
    pub cover: Vec<Cover>,
    /// A way out of its network, where it has one of its own.
    #[n(20)]
    pub link: Option<Link>,
}

/// Something that lies over what is below it, and hides it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Cover {
    /// Where, without a leading slash.
    #[n(0)]
    pub path: String,
    /// What.
    #[n(1)]
    pub kind: CoverKind,
}

/// What lies over something.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum CoverKind {
    /// A directory through which the one below is seen.
    #[n(0)]
    Through(#[n(0)] u32),
    /// An empty directory.
    #[n(1)]
    Empty(#[n(0)] u32),
    /// Nothing.
    #[n(2)]
    Nothing,
    /// A file: permissions, content.
    #[n(3)]
    File(#[n(0)] u32, #[n(1)] ByteVec),
}

/// A range of ids: `inside` and the following `count - 1` are `outside` and the following.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct IdMap {
    /// First id inside.
    #[n(0)]
    pub inside: u32,
    /// First id outside.
    #[n(1)]
    pub outside: u32,
    /// How many.
    #[n(2)]
    pub count: u32,
}

/// A host path shown inside.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Bind {
    /// Outside.
    #[n(0)]
    pub host: ByteVec,
    /// Inside.
    #[n(1)]
    pub target: ByteVec,
    /// Whether it can only be read.
    #[n(2)]
    pub read_only: bool,
    /// How the files' owners on disk (`inside`) are shown to the kernel (`outside`): users, groups. Without it, as the
    /// sandbox's own ids are shifted.
    #[n(3)]
    pub owners: Option<(IdMap, IdMap)>,
    /// Directories in it, relative to it, that must not be seen inside: Kennel's own.
    #[n(4)]
    pub hide: Vec<ByteVec>,
}

/// The network. Not part of the plan but the jail's one argument: namespaces are made before there is a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Its own: loopback, and what [`Plan::link`] adds.
    None,
    /// The host's.
    Host,
}

impl Network {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::None, Self::Host];

    /// As the jail's argument.
    pub fn argument(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Host => "host",
        }
    }
}

/// Limits, and the name of the group that holds them.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Cgroup {
    /// Name below `kennel` in every hierarchy.
    #[n(0)]
    pub name: String,
    /// Bytes.
    #[n(1)]
    pub memory: Option<u64>,
    /// Thousandths of a CPU.
    #[n(2)]
    pub millicpus: Option<u32>,
    /// Processes and threads.
    #[n(3)]
    pub pids: Option<u32>,
}
