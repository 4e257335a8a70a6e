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
    /// What is below the sandbox's own layer.
    #[n(1)]
    pub base: Base,
    /// The sandbox's users as the host sees them.
    #[n(2)]
    pub ids: Ids,
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
    /// Files of `/etc` inside that are to be others than below.
    #[n(9)]
    pub etc: Vec<EtcFile>,
    /// Whose rights it is made with.
    #[n(10)]
    pub rights: Rights,
    /// Nothing of its root can be written but `/tmp`, and what is shown of the host's.
    #[n(11)]
    pub read_only: bool,
    /// Its own layer is on a disk of its own: see [`DISK`].
    #[n(12)]
    pub disk: bool,
    /// Landlock is put up.
    #[n(13)]
    pub landlock: bool,
    /// Other sandboxes can be made inside.
    #[n(14)]
    pub nesting: bool,
    /// The file by which its host ids are claimed, if that goes with it. It names the sandbox's directory.
    #[n(30)]
    pub claim: Option<String>,
    /// A way out of its network, where it has one of its own.
    #[n(20)]
    pub link: Option<Link>,
}

/// The disk of a sandbox that has one: a file in its directory with a file system in it.
pub const DISK: &str = "disk.img";

/// A file of `/etc`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct EtcFile {
    /// Its name there.
    #[n(0)]
    pub name: String,
    /// What it says.
    #[n(1)]
    pub text: ByteVec,
    /// Only if there is none, or an empty one.
    #[n(2)]
    pub if_empty: bool,
}

/// Whose rights a sandbox is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Rights {
    /// The host's root. Mounts are made outside, and ids are shifted.
    #[n(0)]
    Root,
    /// An ordinary user's. Mounts are made inside, where that user is root.
    #[n(1)]
    User,
}

/// What is below a sandbox's own layer.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Base {
    /// The layers of an image: read-only directories, topmost first.
    #[n(0)]
    Image(#[n(0)] Vec<String>),
    /// The host's root as a user without any rights sees it, below a layer that masks more of it.
    #[n(2)]
    Host {
        /// Other filesystems of the host that are shown: where they are mounted, without a leading slash, parents first.
        #[n(0)]
        filesystems: Vec<String>,
        /// The layer that masks host paths, parents first.
        #[n(1)]
        cover: Vec<Cover>,
    },
    /// The host's root, put together part by part, parents first: an ordinary user cannot have it as a whole.
    #[n(1)]
    Parts(#[n(0)] Vec<Part>),
}

/// A part of a root.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Part {
    /// Where, without a leading slash.
    #[n(0)]
    pub path: String,
    /// What.
    #[n(1)]
    pub kind: PartKind,
}

/// What a part of a root is.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PartKind {
    /// The host's directory of the same path, with a private layer over it. If that cannot be, to be read only.
    #[n(0)]
    Host(#[n(0)] u32),
    /// A directory of the sandbox's own.
    #[n(1)]
    Own(#[n(0)] u32),
    /// A link.
    #[n(2)]
    Link(#[n(0)] String),
}

/// How users and groups inside meet those outside. The first of each is root's.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ids {
    /// Users.
    #[n(0)]
    pub users: Vec<IdMap>,
    /// Groups.
    #[n(1)]
    pub groups: Vec<IdMap>,
}

impl Ids {
    /// The same range of both.
    pub fn range(inside: u32, outside: u32, count: u32) -> Self {
        let map = vec![IdMap { inside, outside, count }];
        Self { users: map.clone(), groups: map }
    }

    /// Root inside, as the host sees it.
    pub fn root(&self) -> (u32, u32) {
        let first = |maps: &[IdMap]| maps.first().map_or(u32::MAX, |map| map.outside);
        (first(&self.users), first(&self.groups))
    }

    /// A user and a group inside, as the host sees them. `None` if there are none of these numbers.
    pub fn outside(&self, user: u32, group: u32) -> Option<(u32, u32)> {
        let find = |maps: &[IdMap], id: u32| {
            let above = |map: &IdMap| id.checked_sub(map.inside).filter(|above| *above < map.count);
            maps.iter().find_map(|map| above(map).map(|above| map.outside + above))
        };
        Some((find(&self.users, user)?, find(&self.groups, group)?))
    }
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
    /// Whose its files are inside.
    #[n(3)]
    pub owners: Owners,
    /// What in it, relative to it, must not be seen inside: Kennel's own, and secrets.
    #[n(4)]
    pub hide: Vec<ByteVec>,
    /// Paths in it that are mount points of their own, so that nobody inside can rename or remove them. Parents first.
    #[n(5)]
    pub pins: Vec<Pin>,
}

/// A path of a [`Bind`] that is mounted over itself.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Pin {
    /// Relative to the bind.
    #[n(0)]
    pub path: ByteVec,
    /// Whether it can only be read.
    #[n(1)]
    pub read_only: bool,
}

/// How the owners of files in a mount are shown inside.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Owners {
    /// As the sandbox's own ids are shifted: root's are those of root inside. For mounts that are only read.
    #[n(0)]
    Shifted,
    /// Those on disk (`inside`) are shown to the kernel as others (`outside`).
    #[n(1)]
    As(#[n(0)] Ids),
    /// As they are: they are the sandbox's already, or an ordinary user made the sandbox, who cannot change how they are shown.
    #[n(2)]
    Kept,
    /// The owner of the mount's top directory, or of the one file that is mounted, is shown as this user and group (as the
    /// host sees them). Nobody else inside can own a file there.
    #[n(3)]
    Top {
        /// The user.
        #[n(0)]
        user: u32,
        /// The group.
        #[n(1)]
        group: u32,
    },
}

/// The network. Not part of the plan but the jail's first argument: namespaces are made before there is a plan. The second is
/// the first of the sandbox's host ids, if the host's root makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Loopback only.
    None,
    /// Its own, to which [`Plan::link`] adds a way out: it is there before the plan is carried out.
    Joined,
    /// The host's.
    Host,
}

impl Network {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Joined, Self::Host];

    /// As the jail's argument.
    pub fn argument(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Joined => "joined",
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
    /// The group in which `kennel` is made, or where the hierarchies are.
    #[n(4)]
    pub parent: String,
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

/// The argument that makes the jail remove a directory, and do nothing else.
pub const CLEAR: &str = "clear";

/// A directory to be removed with the rights of a sandbox's users, who may have shut it against everyone else.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Clear {
    /// The directory.
    #[n(0)]
    pub dir: String,
    /// The users.
    #[n(1)]
    pub ids: Ids,
}
