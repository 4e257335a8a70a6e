//! The plan that the provider sends to the jail.

use crate::Link;
use kennel_proto::KeeperConfig;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// Everything the jail needs to know. The provider has made all decisions. If the plan cannot be carried out, that is
/// an error.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Plan {
    /// The sandbox's directory (see `kennel_provider::Records`).
    #[n(0)]
    pub dir: String,
    /// What is below the sandbox's upper layer.
    #[n(1)]
    pub base: Base,
    /// The mapping of the sandbox's ids to the host's.
    #[n(2)]
    pub ids: Ids,
    /// The host paths that are mounted inside.
    #[n(3)]
    pub binds: Vec<Bind>,
    /// The cgroup with its limits.
    #[n(4)]
    pub cgroup: Option<Cgroup>,
    /// The host name inside.
    #[n(5)]
    pub hostname: String,
    /// Capabilities of root inside, as bits.
    #[n(6)]
    pub capabilities: u64,
    /// The keeper's configuration.
    #[n(7)]
    pub keeper: KeeperConfig,
    /// Whether the sandbox's directory is removed when it ends.
    #[n(8)]
    pub remove_dir: bool,
    /// Files in `/etc` that are replaced.
    #[n(9)]
    pub etc: Vec<EtcFile>,
    /// The rights with which the sandbox is created.
    #[n(10)]
    pub rights: Rights,
    /// Whether the root filesystem is read-only. `/tmp` and mounts stay writable.
    #[n(11)]
    pub read_only: bool,
    /// Whether the upper layer is on its own disk; see [`DISK`].
    #[n(12)]
    pub disk: bool,
    /// Whether Landlock is used.
    #[n(13)]
    pub landlock: bool,
    /// Whether sandboxes can be created inside.
    #[n(14)]
    pub nesting: bool,
    /// The connection of its network to the outside, if it has its own network.
    #[n(20)]
    pub link: Option<Link>,
}

/// The disk of a sandbox that has one: a file in its directory that contains a filesystem.
pub const DISK: &str = "disk.img";

/// A file of `/etc`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct EtcFile {
    /// The name in `/etc`.
    #[n(0)]
    pub name: String,
    /// The content.
    #[n(1)]
    pub text: ByteVec,
    /// Write it only if the file does not exist or is empty.
    #[n(2)]
    pub if_empty: bool,
}

/// The rights with which a sandbox is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Rights {
    /// Those of the host's root. Mounts are created outside, and ids are shifted.
    #[n(0)]
    Root,
    /// Those of an ordinary user. Mounts are created inside, where that user is root.
    #[n(1)]
    User,
}

/// What is below a sandbox's upper layer.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Base {
    /// The layers of an image: read-only directories, topmost first.
    #[n(0)]
    Image(#[n(0)] Vec<String>),
    /// The host's root as an unprivileged user sees it, below a layer that masks more of it.
    #[n(2)]
    Host {
        /// The mount points of other host filesystems that are shown, without a leading slash, parents first.
        #[n(0)]
        filesystems: Vec<String>,
        /// The layer that masks host paths, parents first.
        #[n(1)]
        masks: Vec<MaskEntry>,
    },
    /// The host's root, assembled from its directories, parents first: an ordinary user cannot use it as a whole.
    #[n(1)]
    HostDirs(#[n(0)] Vec<HostDir>),
    /// The one that was sent [ahead](Ahead), with further entries of its mask layer.
    #[n(3)]
    Ahead(#[n(0)] Vec<MaskEntry>),
}

/// The argument with which the jail first reads what it can prepare before there is a plan.
pub const AHEAD: &str = "ahead";

/// What the jail can prepare before there is a plan, if it has the rights of the host's root.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ahead {
    /// The mapping of the sandbox's ids to the host's.
    #[n(0)]
    pub ids: Ids,
    /// What is below the sandbox's upper layer.
    #[n(1)]
    pub base: Base,
}

/// A directory (or symlink) of the host's root filesystem that the sandbox shows.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct HostDir {
    /// The path, without a leading slash.
    #[n(0)]
    pub path: String,
    /// How it is provided.
    #[n(1)]
    pub kind: HostDirKind,
}

/// How a directory of the host's root is provided inside.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum HostDirKind {
    /// The host's directory of the same path, under a private overlay, or read-only if that is not possible. The number
    /// is its mode.
    #[n(0)]
    Host(#[n(0)] u32),
    /// A private directory of the sandbox, with this mode.
    #[n(1)]
    Own(#[n(0)] u32),
    /// A symlink to this target.
    #[n(2)]
    Link(#[n(0)] String),
}

/// The mapping of users and groups inside to those outside. The first entry of each is root's.
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
    /// Maps the same range of users and groups.
    pub fn range(inside: u32, outside: u32, count: u32) -> Self {
        let map = vec![IdMap { inside, outside, count }];
        Self { users: map.clone(), groups: map }
    }

    /// The user and group on the host of root inside.
    pub fn root(&self) -> (u32, u32) {
        let first = |maps: &[IdMap]| maps.first().map_or(u32::MAX, |map| map.outside);
        (first(&self.users), first(&self.groups))
    }

    /// The user and group on the host of a user and group inside. `None` if they are not mapped.
    pub fn outside(&self, user: u32, group: u32) -> Option<(u32, u32)> {
        let find = |maps: &[IdMap], id: u32| {
            let above = |map: &IdMap| id.checked_sub(map.inside).filter(|above| *above < map.count);
            maps.iter().find_map(|map| above(map).map(|above| map.outside + above))
        };
        Some((find(&self.users, user)?, find(&self.groups, group)?))
    }

    /// The maps of users and of groups as arguments of the jail, which writes them before there is a plan.
    pub fn arguments(&self) -> [String; 2] {
        let text = |maps: &[IdMap]| maps.iter().flat_map(IdMap::words).collect::<Vec<_>>().join(" ");
        [text(&self.users), text(&self.groups)]
    }

    /// Reads what [`Ids::arguments`] returned. `None` if the arguments are invalid.
    pub fn from_arguments(users: &str, groups: &str) -> Option<Self> {
        let read = |text: &str| {
            let numbers: Option<Vec<u32>> = text.split(' ').map(|word| word.parse().ok()).collect();
            let numbers = numbers?;
            let (maps, rest) = numbers.as_chunks();
            let maps =
                maps.iter().map(|[inside, outside, count]| IdMap { inside: *inside, outside: *outside, count: *count });
            rest.is_empty().then(|| maps.collect())
        };
        Some(Self { users: read(users)?, groups: read(groups)? })
    }
}

/// An entry of the mask layer, which hides what is below it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MaskEntry {
    /// The path, without a leading slash.
    #[n(0)]
    pub path: String,
    /// The kind of entry.
    #[n(1)]
    pub kind: MaskEntryKind,
}

/// The kinds of entries in the mask layer.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum MaskEntryKind {
    /// A directory that shows the one below, with this mode.
    #[n(0)]
    Through(#[n(0)] u32),
    /// An empty directory, with this mode.
    #[n(1)]
    Empty(#[n(0)] u32),
    /// A whiteout: nothing exists at this path.
    #[n(2)]
    Nothing,
    /// A file with this mode and content.
    #[n(3)]
    File(#[n(0)] u32, #[n(1)] ByteVec),
}

/// A range of ids: `inside` and the following `count - 1` ids are mapped to `outside` and the following.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct IdMap {
    /// The first id inside.
    #[n(0)]
    pub inside: u32,
    /// The first id outside.
    #[n(1)]
    pub outside: u32,
    /// The number of ids.
    #[n(2)]
    pub count: u32,
}

impl IdMap {
    /// The three numbers as text, in the order in which the kernel and `newuidmap` expect them.
    pub fn words(&self) -> [String; 3] {
        [self.inside, self.outside, self.count].map(|id| id.to_string())
    }
}

/// A host path that is mounted inside.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Bind {
    /// The path on the host.
    #[n(0)]
    pub host: ByteVec,
    /// The path inside.
    #[n(1)]
    pub target: ByteVec,
    /// Whether it is read-only inside.
    #[n(2)]
    pub read_only: bool,
    /// How the owners of its files appear inside.
    #[n(3)]
    pub owners: Owners,
    /// Paths in it, relative to it, that are hidden inside: Kennel's own directories, and secrets.
    #[n(4)]
    pub hide: Vec<ByteVec>,
    /// Paths in it that become mount points, so that processes inside cannot rename or remove them. Parents first.
    #[n(5)]
    pub pins: Vec<Pin>,
}

/// A path of a [`Bind`] that is mounted over itself.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Pin {
    /// The path, relative to the bind.
    #[n(0)]
    pub path: ByteVec,
    /// Whether it is read-only inside.
    #[n(1)]
    pub read_only: bool,
}

/// How the owners of files in a mount appear inside.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Owners {
    /// Shifted like the sandbox's own ids: files of root belong to root inside. For read-only mounts.
    #[n(0)]
    Shifted,
    /// Ids on disk (`inside`) appear to the kernel as other ids (`outside`).
    #[n(1)]
    As(#[n(0)] Ids),
    /// Unchanged, because they already have the sandbox's ids, or because an ordinary user, who cannot change them,
    /// created the sandbox.
    #[n(2)]
    Kept,
    /// The owner of the mount's top directory, or of the mounted file, appears as this user and group (numbers of the
    /// host). Nobody else inside can own a file there.
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

/// The network. It is not part of the plan but the jail's first argument, because namespaces are created before there
/// is a plan. If the host's root creates the sandbox, the second argument is the sandbox's first host id. Otherwise the
/// second and third arguments are the id maps; see [`Ids::arguments`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Its own network namespace: loopback, and what [`Plan::link`] adds.
    Own,
    /// The host's network.
    Host,
}

impl Network {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Own, Self::Host];

    /// The value of the jail's argument.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Host => "host",
        }
    }
}

/// A cgroup and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Cgroup {
    /// The name below `kennel` in every hierarchy.
    #[n(0)]
    pub name: String,
    /// The cgroup in which `kennel` is created, or the directory of the hierarchies.
    #[n(4)]
    pub parent: String,
    /// Memory in bytes.
    #[n(1)]
    pub memory: Option<u64>,
    /// CPU in thousandths of a CPU.
    #[n(2)]
    pub millicpus: Option<u32>,
    /// The number of processes and threads.
    #[n(3)]
    pub pids: Option<u32>,
}

/// The argument that makes the jail only remove a directory.
pub const CLEAR: &str = "clear";

/// A directory to remove or to measure with the rights of a sandbox's users, who may have made it inaccessible to everyone else.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Clear {
    /// The directory.
    #[n(0)]
    pub dir: String,
    /// The ids of the users.
    #[n(1)]
    pub ids: Ids,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_maps_are_passed_as_arguments() {
        let mut ids = Ids::range(0, 1000, 1);
        ids.users.push(IdMap { inside: 1, outside: 100_000, count: 65_536 });
        let [users, groups] = ids.arguments();
        assert_eq!((&*users, &*groups), ("0 1000 1 1 100000 65536", "0 1000 1"));
        assert_eq!(Ids::from_arguments(&users, &groups), Some(ids));
        for invalid in ["", "0", "0 1000", "0 1000 1 ", "0 1000 1 1", "0 -1 1", "0 x 1"] {
            assert_eq!(Ids::from_arguments(invalid, "0 1000 1"), None, "{invalid:?}");
        }
    }
}
