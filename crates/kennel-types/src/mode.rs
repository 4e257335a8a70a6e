//! The mode table: what each provider enforces in each mode, what it refuses, and who owns files.
//!
//! This table is the only source. `inspect`, `doctor` and the contract suite read it.

mod isolation_layer;
mod key;

use crate::NetworkMode;
use serde::Serialize;

pub use isolation_layer::IsolationLayer;
pub use key::{IdScheme, Machine, ModeKey, ProviderKind, RootSource, RunsAs};

/// Whether a mode supports a feature. A feature that is not supported is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// The feature is enforced, or creation fails.
    Given,
    /// Requesting the feature is an error.
    Refused,
}

/// What a sandbox's root filesystem is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// The host's root, under a private writable overlay.
    HostOverlay,
    /// The host's top-level directories, each under a private overlay. Files that belong to the host's root cannot be
    /// changed, not even in the overlay.
    HostParts,
    /// An image.
    Image,
    /// The host's root itself, without any layer.
    Host,
    /// Memory (for tests).
    Memory,
}

/// The possible owners, on the host, of files that a sandbox creates in a writable mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MountOwners {
    /// The owner of the mount, and nobody else. Other users inside cannot create files there.
    Mount,
    /// The user who runs the sandbox. There is no other user inside.
    Caller,
    /// The user who runs the sandbox, or, for other users inside, an id from that user's range in `/etc/subuid`.
    Range,
    /// Whoever created the file inside, or whomever root inside gave it to. Ids are the same inside and outside.
    Same,
    /// Nobody: files of this machine cannot be mounted.
    Nobody,
}

/// A row of the mode table: what a provider enforces and refuses under given conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Mode {
    /// The conditions under which this mode applies. The mode's name is derived from it.
    #[serde(flatten, serialize_with = "key::with_name")]
    pub key: ModeKey,
    /// What the root filesystem is based on.
    pub backing: Backing,
    /// How user ids inside are mapped to ids outside, in words.
    pub ids: &'static str,
    /// The owner of new files in the workspace, in words.
    pub workspace_files: &'static str,
    /// The possible owners of new files in the workspace and in other writable mounts.
    pub mount_owners: MountOwners,
    /// The isolation layers of every sandbox in this mode; without one of them, creation fails. With network `host`,
    /// `NetNamespace` and `NetworkFilter` do not apply.
    pub layers: &'static [IsolationLayer],
    /// The networks that can be requested; the first is the default. If native cannot provide `bridge` on a machine,
    /// its default there is `none`, and it says so.
    pub networks: &'static [NetworkMode],
    /// Publishing ports on the host, with network `bridge`.
    pub ports: Support,
    /// Memory, CPU and process limits.
    pub limits: Support,
    /// A limit on what is written to the sandbox's own files.
    pub disk: Support,
    /// Creating sandboxes inside the sandbox.
    pub nesting: Support,
    /// Mounting paths of this machine.
    pub mounts: Support,
    /// Using a directory of this machine as the workspace.
    pub workspace: Support,
    /// Volumes: one that belongs to the sandbox and survives its removal, and shared ones.
    pub volumes: Support,
    /// A read-only root filesystem. A mode with this also supports another container runtime, and the image's own
    /// command as the main process.
    pub read_only: Support,
    /// Running commands as another user.
    pub users: Support,
    /// Pausing and resuming all processes.
    pub pause: Support,
    /// A keeper runs inside. Without one, the engine itself runs plain commands and copies files: there are no
    /// terminals, timeouts, signals or detached commands, and no `run`.
    pub keeper: Support,
    /// Bridges to Unix sockets of the host.
    pub sockets: Support,
    /// Real processes run inside, on a real kernel.
    pub processes: Support,
}

use IsolationLayer::{
    CgroupNamespace, IpcNamespace, MountNamespace, NetNamespace, NetworkFilter, NoNewPrivileges, PidNamespace,
    ReducedCapabilities, Seccomp, UserNamespace, UtsNamespace,
};

/// A native sandbox on the host's files, created by root. The other modes are defined as differences to it.
const NATIVE: Mode = Mode {
    key: ModeKey {
        provider: ProviderKind::Native,
        runs_as: RunsAs::Root,
        machine: Machine::Here,
        root: RootSource::Host,
        id_scheme: IdScheme::Usual,
        cgroups: true,
    },
    backing: Backing::HostOverlay,
    ids: "user namespace with its own id range; the root filesystem and mounts are idmapped; per-user resources are charged to that range",
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
    sockets: Support::Given,
    processes: Support::Given,
};

/// Native, created by an ordinary user with a subordinate id range.
const NATIVE_USER: Mode = Mode {
    key: ModeKey { runs_as: RunsAs::User, ..NATIVE.key },
    backing: Backing::HostParts,
    ids: "root inside is the user, other ids are from the user's subordinate range (subuid); per-user resources are charged to the user",
    workspace_files: BY_RANGE,
    mount_owners: MountOwners::Range,
    disk: Support::Refused,
    ..NATIVE
};

/// The owner of workspace files if root inside is the user and other users inside have subordinate ids.
const BY_RANGE: &str = "the user; files of other users inside, to the user's subordinate ids";

/// Native, created by an ordinary user without a subordinate id range.
const NATIVE_ONE_ID: Mode = Mode {
    key: ModeKey { id_scheme: IdScheme::One, ..NATIVE_USER.key },
    ids: "root inside is the user, and there are no other ids; per-user resources are charged to the user",
    workspace_files: "the user",
    mount_owners: MountOwners::Caller,
    users: Support::Refused,
    ..NATIVE_USER
};

/// The given mode without limits and pause, for users without a delegated cgroup.
const fn without_limits(mode: Mode) -> Mode {
    let key = ModeKey { cgroups: false, ..mode.key };
    Mode { key, limits: Support::Refused, pause: Support::Refused, ..mode }
}

/// The given native mode with an image instead of the host's files.
const fn with_image(mode: Mode) -> Mode {
    Mode { key: ModeKey { root: RootSource::Image, ..mode.key }, backing: Backing::Image, ..mode }
}

/// The given mode of Docker, on Podman.
const fn on_podman(mode: Mode) -> Mode {
    Mode { key: ModeKey { provider: ProviderKind::Podman, ..mode.key }, ..mode }
}

const NATIVE_USER_IMAGE: Mode = with_image(NATIVE_USER);

const NATIVE_ONE_ID_IMAGE: Mode = with_image(NATIVE_ONE_ID);

/// A container of an engine that runs as root.
const DOCKER: Mode = Mode {
    key: ModeKey { provider: ProviderKind::Docker, root: RootSource::Image, ..NATIVE.key },
    backing: Backing::Image,
    ids: "no id map: commands run as the invoking user, or as root on request",
    workspace_files: "the user id that created or received them inside; ids are the same outside",
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

/// A container on a remote engine that runs as root.
const DOCKER_REMOTE: Mode = Mode {
    key: ModeKey { machine: Machine::Remote, ..DOCKER.key },
    ids: "the image's user, or root on request",
    workspace_files: "nobody: files of this machine cannot be mounted",
    mount_owners: MountOwners::Nobody,
    // There is no network filter, because the networks of that machine are not known here.
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

/// A container on a remote engine with another architecture, where the keeper cannot run.
const DOCKER_FOREIGN: Mode = Mode {
    key: ModeKey { machine: Machine::RemoteForeign, ..DOCKER_REMOTE.key },
    keeper: Support::Refused,
    sockets: Support::Refused,
    ..DOCKER_REMOTE
};

/// A container on a rootless engine.
const DOCKER_ROOTLESS: Mode = Mode {
    key: ModeKey { runs_as: RunsAs::User, ..DOCKER.key },
    ids: "root inside is the user, other ids are from the user's subordinate range (subuid)",
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
    // The network that the engine calls the host's is the engine's own network namespace.
    networks: &[NetworkMode::Bridge, NetworkMode::None],
    ..DOCKER
};

const ROOTLESS: Mode = Mode { networks: DOCKER.networks, ..on_podman(DOCKER_ROOTLESS) };

/// The layers of containers that each have their own user namespace. To connect to their keeper, the engine starts a
/// program inside with all capabilities of the container. So `NET_ADMIN`, which could remove firewall rules, must not
/// be one of them.
const OWN_IDS: &[IsolationLayer] = &[
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

/// Rootless Podman with `keep-id`: the user has the same id inside and outside.
const KEEP_ID: Mode = Mode {
    key: ModeKey { id_scheme: IdScheme::KeepId, ..ROOTLESS.key },
    ids: "the user has the same id inside, root and other ids are from the user's subordinate range (subuid)",
    layers: OWN_IDS,
    ..ROOTLESS
};

/// A container on a Docker with `userns-remap`: all its ids are in the engine's range.
const REMAPPED: Mode = Mode {
    key: ModeKey { id_scheme: IdScheme::Remap, ..DOCKER.key },
    ids: "all ids are from the range of the engine",
    layers: OWN_IDS,
    networks: DOCKER_ROOTLESS.networks,
    // Users of the host are not mapped into the container.
    workspace_files: DOCKER_REMOTE.workspace_files,
    mount_owners: MountOwners::Nobody,
    mounts: Support::Refused,
    workspace: Support::Refused,
    ..DOCKER
};

const PODMAN: Mode = on_podman(DOCKER);

/// A plain process of the host. Nothing is enforced or promised.
const LOCAL: Mode = Mode {
    key: ModeKey { provider: ProviderKind::Local, runs_as: RunsAs::Anyone, cgroups: false, ..NATIVE.key },
    backing: Backing::Host,
    ids: "the calling user",
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
    // A socket inside would be one of the host's.
    sockets: Support::Refused,
    processes: Support::Given,
};

/// The mode table.
pub const MODES: &[Mode] = &[
    NATIVE,
    NATIVE_USER,
    NATIVE_ONE_ID,
    without_limits(NATIVE_USER),
    without_limits(NATIVE_ONE_ID),
    Mode {
        ids: "user namespace with its own id range; layers and mounts are idmapped; per-user resources are charged to that range",
        ..with_image(NATIVE)
    },
    NATIVE_USER_IMAGE,
    NATIVE_ONE_ID_IMAGE,
    without_limits(NATIVE_USER_IMAGE),
    without_limits(NATIVE_ONE_ID_IMAGE),
    DOCKER,
    DOCKER_REMOTE,
    DOCKER_FOREIGN,
    REMAPPED,
    DOCKER_ROOTLESS,
    without_limits(DOCKER_ROOTLESS),
    PODMAN,
    Mode {
        key: ModeKey { id_scheme: IdScheme::Auto, ..PODMAN.key },
        ids: "a range for each sandbox, chosen by the engine",
        // The next sandbox gets other ids, so it could not use the volume.
        volumes: Support::Refused,
        ..REMAPPED
    },
    on_podman(DOCKER_REMOTE),
    on_podman(DOCKER_FOREIGN),
    ROOTLESS,
    without_limits(ROOTLESS),
    KEEP_ID,
    without_limits(KEEP_ID),
    LOCAL,
    Mode {
        key: ModeKey { provider: ProviderKind::Mock, root: RootSource::Memory, ..LOCAL.key },
        backing: Backing::Memory,
        ids: "none",
        workspace_files: "nobody",
        mount_owners: MountOwners::Nobody,
        networks: &[NetworkMode::None],
        volumes: Support::Given,
        processes: Support::Refused,
        ..LOCAL
    },
];

impl Mode {
    /// Returns the mode with this key.
    pub fn with(key: ModeKey) -> Option<&'static Self> {
        MODES.iter().find(|mode| mode.key == key)
    }

    /// Returns the mode with this name. Records and labels contain names.
    pub fn named(name: &str) -> Option<&'static Self> {
        MODES.iter().find(|mode| mode.name() == name)
    }

    /// Returns the first mode of a provider, which applies as long as nothing more is known.
    pub fn first_of(provider: ProviderKind) -> &'static Self {
        let found = MODES.iter().find(|mode| mode.key.provider == provider);
        found.expect("the mode table has a row for every provider")
    }

    /// The name that `inspect` shows, for example `native, root, host`.
    pub fn name(&self) -> String {
        self.key.to_string()
    }

    /// The name of the provider.
    pub fn provider(&self) -> &'static str {
        self.key.provider.name()
    }

    /// The network that is used if none is requested.
    pub fn default_network(&self) -> NetworkMode {
        self.networks[0]
    }

    /// The isolation layers of a sandbox in this mode with the given network.
    pub fn layers_with(&self, network: NetworkMode) -> Vec<IsolationLayer> {
        let host = network == NetworkMode::Host;
        let of_network = |layer: &IsolationLayer| matches!(layer, NetNamespace | NetworkFilter);
        self.layers.iter().copied().filter(|layer| !(host && of_network(layer))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_isolating_row_has_the_baseline() {
        for mode in MODES.iter().filter(|mode| !mode.layers.is_empty()) {
            for layer in
                [MountNamespace, PidNamespace, IpcNamespace, UtsNamespace, NetNamespace, NoNewPrivileges, Seccomp]
            {
                assert!(mode.layers.contains(&layer), "{}: {layer:?}", mode.name());
            }
            assert!(
                mode.layers.contains(&UserNamespace) || mode.layers.contains(&ReducedCapabilities),
                "{}",
                mode.name()
            );
        }
    }

    #[test]
    fn every_mode_has_a_key_and_a_name_of_its_own() {
        for mode in MODES {
            assert_eq!(Mode::with(mode.key), Some(mode), "another mode has the key of {}", mode.name());
            assert_eq!(Mode::named(&mode.name()), Some(mode), "another mode is called {}", mode.name());
        }
    }

    #[test]
    fn every_provider_has_a_mode() {
        for provider in ProviderKind::ALL {
            assert_eq!(Mode::first_of(provider).key.provider, provider);
            assert_eq!(serde_json::to_value(provider).unwrap(), provider.name());
        }
    }

    #[test]
    fn keys_agree_with_what_their_modes_support() {
        let given = |support| support == Support::Given;
        for mode in MODES {
            let Mode { key, .. } = mode;
            assert_eq!((key.cgroups, key.cgroups), (given(mode.limits), given(mode.pause)), "{key}");
            assert_eq!(key.machine == Machine::RemoteForeign, !given(mode.keeper), "{key}");
            assert_eq!(key.id_scheme == IdScheme::One, mode.mount_owners == MountOwners::Caller, "{key}");
            let root = match mode.backing {
                Backing::Image => RootSource::Image,
                Backing::HostOverlay | Backing::HostParts | Backing::Host => RootSource::Host,
                Backing::Memory => RootSource::Memory,
            };
            assert_eq!(key.root, root, "{key}");
        }
    }

    #[test]
    fn programs_get_the_name_and_the_key() {
        let mode = serde_json::to_value(NATIVE_USER_IMAGE).unwrap();
        let found = ["name", "provider", "runsAs", "root", "keeper"].map(|field| mode[field].as_str().unwrap());
        assert_eq!(found, ["native, user, image", "native", "user", "image", "given"]);
    }

    /// Records of existing sandboxes and labels of existing containers contain these names.
    #[test]
    fn names_do_not_change() {
        let names = [
            "native, root, host",
            "native, user, host",
            "native, user, host, one id",
            "native, user, host, no limits",
            "native, user, host, one id, no limits",
            "native, root, image",
            "native, user, image",
            "native, user, image, one id",
            "native, user, image, no limits",
            "native, user, image, one id, no limits",
            "docker, root",
            "docker, root, remote",
            "docker, root, remote, no keeper",
            "docker, root, userns remap",
            "docker, rootless",
            "docker, rootless, no limits",
            "podman, root",
            "podman, root, userns auto",
            "podman, root, remote",
            "podman, root, remote, no keeper",
            "podman, rootless",
            "podman, rootless, no limits",
            "podman, rootless, userns keep-id",
            "podman, rootless, no limits, userns keep-id",
            "local",
            "mock",
        ];
        assert_eq!(MODES.iter().map(Mode::name).collect::<Vec<_>>(), names);
    }
}
