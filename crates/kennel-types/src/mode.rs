//! The mode table: what each backend enforces, who owns files, what is refused.
//!
//! This is the source. `inspect`, `doctor` and the contract suite read it; nothing repeats it.

use crate::NetworkMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One wall between a sandbox and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Its own view of the file system.
    MountNamespace,
    /// Its own processes only.
    PidNamespace,
    /// Its own System V and POSIX IPC.
    IpcNamespace,
    /// Its own host name.
    UtsNamespace,
    /// Its own network stack.
    NetNamespace,
    /// With network `bridge`, it connects neither to the host nor to another sandbox.
    NetworkFilter,
    /// Its root is an ordinary user outside.
    UserNamespace,
    /// Its own view of control groups.
    CgroupNamespace,
    /// Root inside has few capabilities.
    ReducedCapabilities,
    /// No program gains rights by being run.
    NoNewPrivileges,
    /// A list of allowed system calls.
    Seccomp,
    /// File access held by the kernel beyond mounts.
    Landlock,
}

impl Layer {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::MountNamespace,
        Self::PidNamespace,
        Self::IpcNamespace,
        Self::UtsNamespace,
        Self::NetNamespace,
        Self::NetworkFilter,
        Self::UserNamespace,
        Self::CgroupNamespace,
        Self::ReducedCapabilities,
        Self::NoNewPrivileges,
        Self::Seccomp,
        Self::Landlock,
    ];

    /// Its name, as it is written in JSON and typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::MountNamespace => "mount_namespace",
            Self::PidNamespace => "pid_namespace",
            Self::IpcNamespace => "ipc_namespace",
            Self::UtsNamespace => "uts_namespace",
            Self::NetNamespace => "net_namespace",
            Self::NetworkFilter => "network_filter",
            Self::UserNamespace => "user_namespace",
            Self::CgroupNamespace => "cgroup_namespace",
            Self::ReducedCapabilities => "reduced_capabilities",
            Self::NoNewPrivileges => "no_new_privileges",
            Self::Seccomp => "seccomp",
            Self::Landlock => "landlock",
        }
    }

    /// What it does, for a person.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::MountNamespace => "Its own view of the file system.",
            Self::PidNamespace => "It sees and signals its own processes only.",
            Self::IpcNamespace => "Its own shared memory and message queues.",
            Self::UtsNamespace => "Its own host name.",
            Self::NetNamespace => "Its own network stack (not with --network host).",
            Self::NetworkFilter => "It reaches neither the host nor other sandboxes (not with --network host).",
            Self::UserNamespace => "Its root is an ordinary user outside.",
            Self::CgroupNamespace => "Its own view of control groups.",
            Self::ReducedCapabilities => "Root inside has few capabilities.",
            Self::NoNewPrivileges => "No program gains rights by being run.",
            Self::Seccomp => "Only a list of system calls is allowed.",
            Self::Landlock => "File access is held by the kernel beyond mounts.",
        }
    }
}

/// Whether a mode gives something. What it does not give, it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// It is enforced, or creation fails.
    Given,
    /// Asking for it is an error.
    Refused,
}

/// What is below a sandbox's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// The host's own root, with a private writable layer.
    HostOverlay,
    /// The host's directories, with private layers over them. What belongs to its root cannot be changed, also not there.
    HostParts,
    /// An image.
    Image,
    /// The host itself.
    Host,
    /// Memory.
    Memory,
}

/// Who can own, on the host, what a sandbox makes in a writable mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MountOwners {
    /// The owner of the mount, and nobody else: users inside other than the sandbox's own can create nothing there.
    Mount,
    /// The user who runs it. There is no other inside.
    Caller,
    /// The user who runs it, or, for other users inside, an id of the range given to that user (`/etc/subuid`).
    Range,
    /// Whoever made it inside, and whomever root inside gives it to: ids are the same on both sides.
    Same,
    /// Nobody: nothing of this machine can be mounted.
    Nobody,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Mode {
    /// Its name, as `inspect` shows it.
    pub name: &'static str,
    /// The provider.
    pub provider: &'static str,
    /// What is below the root.
    pub backing: Backing,
    /// How user ids inside meet those outside.
    pub ids: &'static str,
    /// To whom files made in the workspace belong.
    pub workspace_files: &'static str,
    /// Who can own what is made in the workspace and other writable mounts.
    pub mount_owners: MountOwners,
    /// Walls that every sandbox of this mode has, or creation fails. With network `host` there is neither `NetNamespace`
    /// nor `NetworkFilter`.
    pub layers: &'static [Layer],
    /// Networks that can be asked for; the first is the default. Where native cannot have `bridge` on a machine, its
    /// default there is `none`, and it says so.
    pub networks: &'static [NetworkMode],
    /// Ports inside that can be reached on the host, with the network `bridge`.
    pub ports: Support,
    /// Memory, CPU and process limits.
    pub limits: Support,
    /// A limit on what is written to the sandbox's own files.
    pub disk: Support,
    /// Other sandboxes inside.
    pub nesting: Support,
    /// Paths of this machine, shown inside.
    pub mounts: Support,
    /// A directory of this machine as the workspace.
    pub workspace: Support,
    /// Volumes: one of its own that stays when it is removed, and shared ones.
    pub volumes: Support,
    /// A root that is only read. Whoever has it also runs containers with another runtime, and an image's own command as the main process.
    pub read_only: Support,
    /// Commands as another user.
    pub users: Support,
    /// Everything inside can be made to stand still, and to go on.
    pub pause: Support,
    /// A keeper is inside. Without one, the engine itself runs plain commands and copies files: no terminals, timeouts or
    /// signals, nothing that outlives its connection, no `run`.
    pub keeper: Support,
    /// Real processes of a real kernel run inside.
    pub processes: Support,
}

use Layer::{
    CgroupNamespace, IpcNamespace, MountNamespace, NetNamespace, NetworkFilter, NoNewPrivileges, PidNamespace,
    ReducedCapabilities, Seccomp, UserNamespace, UtsNamespace,
};

/// What every native sandbox has. The rows of the other modes say what is different there.
const NATIVE: Mode = Mode {
    name: "native, root, host",
    provider: "native",
    backing: Backing::HostOverlay,
    ids: "user namespace on a range of its own; root file system and mounts through idmapped mounts; what the kernel counts per user is charged to that range",
    workspace_files: "the owner of the mount",
    mount_owners: MountOwners::Mount,
    layers: &[
        MountNamespace,
        PidNamespace,
        IpcNamespace,
        UtsNamespace,
        NetNamespace,
        NetworkFilter,
        UserNamespace,
        CgroupNamespace,
        ReducedCapabilities,
        NoNewPrivileges,
        Seccomp,
    ],
    networks: &[NetworkMode::Bridge, NetworkMode::None, NetworkMode::Host],
    ports: Support::Given,
    limits: Support::Given,
    disk: Support::Given,
    nesting: Support::Given,
    mounts: Support::Given,
    workspace: Support::Given,
    volumes: Support::Given,
    read_only: Support::Given,
    users: Support::Given,
    pause: Support::Given,
    keeper: Support::Given,
    processes: Support::Given,
};

/// Native, made by an ordinary user who was given a range of ids.
const NATIVE_USER: Mode = Mode {
    name: "native, user, host",
    backing: Backing::HostParts,
    ids: "root inside is the user, others are of the range given to it (subuid); what the kernel counts per user is charged to the user",
    workspace_files: BY_RANGE,
    mount_owners: MountOwners::Range,
    disk: Support::Refused,
    ..NATIVE
};

/// Whose files are where root inside is the user and others inside are subordinate ids.
const BY_RANGE: &str = "the user; those that others inside made, to the user's subordinate ids";

/// The same by one who has no range.
const NATIVE_ONE_ID: Mode = Mode {
    name: "native, user, host, one id",
    ids: "root inside is the user, and there is nobody else; what the kernel counts per user is charged to the user",
    workspace_files: "the user",
    mount_owners: MountOwners::Caller,
    users: Support::Refused,
    ..NATIVE_USER
};

/// The same where no control group was given to the user.
const fn without_limits(name: &'static str, mode: Mode) -> Mode {
    Mode { name, limits: Support::Refused, pause: Support::Refused, ..mode }
}

const NATIVE_USER_IMAGE: Mode = Mode { name: "native, user, image", backing: Backing::Image, ..NATIVE_USER };

const NATIVE_ONE_ID_IMAGE: Mode =
    Mode { name: "native, user, image, one id", backing: Backing::Image, ..NATIVE_ONE_ID };

/// A container of an engine that runs as root.
const DOCKER: Mode = Mode {
    name: "docker, root",
    provider: "docker",
    backing: Backing::Image,
    ids: "no map: commands run as the invoking user, root on request",
    workspace_files: "whoever made or was given them inside, by the same ids",
    mount_owners: MountOwners::Same,
    layers: &[
        MountNamespace,
        PidNamespace,
        IpcNamespace,
        UtsNamespace,
        NetNamespace,
        NetworkFilter,
        ReducedCapabilities,
        NoNewPrivileges,
        Seccomp,
    ],
    networks: &[NetworkMode::Bridge, NetworkMode::Host, NetworkMode::None],
    disk: Support::Refused,
    nesting: Support::Refused,
    ..NATIVE
};

/// The same on another machine.
const DOCKER_REMOTE: Mode = Mode {
    name: "docker, root, remote",
    ids: "the image's, root on request",
    workspace_files: "nobody: this machine's files are not there",
    mount_owners: MountOwners::Nobody,
    // Which networks are that machine's is not known here.
    layers: &[
        MountNamespace,
        PidNamespace,
        IpcNamespace,
        UtsNamespace,
        NetNamespace,
        ReducedCapabilities,
        NoNewPrivileges,
        Seccomp,
    ],
    ports: Support::Refused,
    mounts: Support::Refused,
    workspace: Support::Refused,
    ..DOCKER
};

/// The same on a machine of another kind, where our programs do not run.
const DOCKER_FOREIGN: Mode =
    Mode { name: "docker, root, remote, no keeper", keeper: Support::Refused, ..DOCKER_REMOTE };

/// A container of an engine that an ordinary user runs.
const DOCKER_ROOTLESS: Mode = Mode {
    name: "docker, rootless",
    ids: "root inside is the user, others are of the range given to it (subuid)",
    workspace_files: BY_RANGE,
    mount_owners: MountOwners::Range,
    layers: &[
        MountNamespace,
        PidNamespace,
        IpcNamespace,
        UtsNamespace,
        NetNamespace,
        NetworkFilter,
        UserNamespace,
        ReducedCapabilities,
        NoNewPrivileges,
        Seccomp,
    ],
    // What it calls the host's is the one that it lives in itself.
    networks: &[NetworkMode::Bridge, NetworkMode::None],
    ..DOCKER
};

const ROOTLESS: Mode =
    Mode { name: "podman, rootless", provider: "podman", networks: DOCKER.networks, ..DOCKER_ROOTLESS };

/// The walls of containers with a user namespace each. For whoever connects to their keeper, the engine starts a program
/// beside it with all capabilities of the container: `NET_ADMIN`, which could remove firewall rules, must not be one of them.
const OWN_IDS: &[Layer] = &[
    MountNamespace,
    PidNamespace,
    IpcNamespace,
    UtsNamespace,
    NetNamespace,
    UserNamespace,
    ReducedCapabilities,
    NoNewPrivileges,
    Seccomp,
];

/// One in a user namespace where the user who runs Podman has the same ids inside.
const KEEP_ID: Mode = Mode {
    name: "podman, rootless, userns keep-id",
    ids: "the user is the same inside, root and others are of the range given to it (subuid)",
    layers: OWN_IDS,
    ..ROOTLESS
};

/// A container whose ids are all of a range that the engine was given (`userns-remap`).
const REMAPPED: Mode = Mode {
    name: "docker, root, userns remap",
    ids: "all of the range given to the engine",
    layers: OWN_IDS,
    networks: DOCKER_ROOTLESS.networks,
    // Nobody outside is known there.
    workspace_files: DOCKER_REMOTE.workspace_files,
    mount_owners: MountOwners::Nobody,
    mounts: Support::Refused,
    workspace: Support::Refused,
    ..DOCKER
};

const PODMAN: Mode = Mode { name: "podman, root", provider: "podman", ..DOCKER };

/// An ordinary process of the host: nothing is enforced, and nothing is promised.
const LOCAL: Mode = Mode {
    name: "local",
    provider: "local",
    backing: Backing::Host,
    ids: "the user itself",
    workspace_files: "the user",
    mount_owners: MountOwners::Same,
    layers: &[],
    networks: &[NetworkMode::Host],
    ports: Support::Refused,
    limits: Support::Refused,
    disk: Support::Refused,
    nesting: Support::Refused,
    mounts: Support::Refused,
    workspace: Support::Given,
    volumes: Support::Refused,
    read_only: Support::Refused,
    users: Support::Refused,
    pause: Support::Refused,
    keeper: Support::Given,
    processes: Support::Given,
};

/// The table.
pub const MODES: &[Mode] = &[
    NATIVE,
    NATIVE_USER,
    NATIVE_ONE_ID,
    without_limits("native, user, host, no limits", NATIVE_USER),
    without_limits("native, user, host, one id, no limits", NATIVE_ONE_ID),
    Mode {
        name: "native, root, image",
        backing: Backing::Image,
        ids: "user namespace on a range of its own; layers and mounts through idmapped mounts; what the kernel counts per user is charged to that range",
        ..NATIVE
    },
    NATIVE_USER_IMAGE,
    NATIVE_ONE_ID_IMAGE,
    without_limits("native, user, image, no limits", NATIVE_USER_IMAGE),
    without_limits("native, user, image, one id, no limits", NATIVE_ONE_ID_IMAGE),
    DOCKER,
    DOCKER_REMOTE,
    DOCKER_FOREIGN,
    REMAPPED,
    DOCKER_ROOTLESS,
    without_limits("docker, rootless, no limits", DOCKER_ROOTLESS),
    PODMAN,
    Mode {
        name: "podman, root, userns auto",
        provider: "podman",
        ids: "a range for each sandbox, which the engine chooses",
        // The next one has other ids.
        volumes: Support::Refused,
        ..REMAPPED
    },
    Mode { name: "podman, root, remote", provider: "podman", ..DOCKER_REMOTE },
    Mode { name: "podman, root, remote, no keeper", provider: "podman", ..DOCKER_FOREIGN },
    ROOTLESS,
    without_limits("podman, rootless, no limits", ROOTLESS),
    KEEP_ID,
    without_limits("podman, rootless, no limits, userns keep-id", KEEP_ID),
    LOCAL,
    Mode {
        name: "mock",
        provider: "mock",
        backing: Backing::Memory,
        ids: "none",
        workspace_files: "nobody",
        mount_owners: MountOwners::Nobody,
        networks: &[NetworkMode::None],
        processes: Support::Refused,
        ..LOCAL
    },
];

impl Mode {
    /// The row of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        MODES.iter().find(|mode| mode.name == name)
    }

    /// The network when none is asked for.
    pub fn default_network(&self) -> NetworkMode {
        self.networks[0]
    }

    /// The walls of a sandbox of this mode with that network.
    pub fn layers_with(&self, network: NetworkMode) -> Vec<Layer> {
        let host = network == NetworkMode::Host;
        let of_network = |layer: &Layer| matches!(layer, NetNamespace | NetworkFilter);
        self.layers.iter().copied().filter(|layer| !(host && of_network(layer))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_typed_as_it_is_written() {
        for layer in Layer::ALL {
            assert_eq!(serde_json::to_value(layer).unwrap(), layer.name());
        }
    }

    #[test]
    fn every_isolating_row_has_the_baseline() {
        for mode in MODES.iter().filter(|mode| !mode.layers.is_empty()) {
            for layer in
                [MountNamespace, PidNamespace, IpcNamespace, UtsNamespace, NetNamespace, NoNewPrivileges, Seccomp]
            {
                assert!(mode.layers.contains(&layer), "{}: {layer:?}", mode.name);
            }
            assert!(
                mode.layers.contains(&UserNamespace) || mode.layers.contains(&ReducedCapabilities),
                "{}",
                mode.name
            );
        }
    }
}
