//! The layers of isolation that modes consist of.

use serde::{Deserialize, Serialize};

/// A layer of isolation between a sandbox and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum IsolationLayer {
    /// The sandbox has its own view of the filesystem.
    MountNamespace,
    /// The sandbox sees only its own processes.
    PidNamespace,
    /// The sandbox has its own System V and POSIX IPC objects.
    IpcNamespace,
    /// The sandbox has its own host name.
    UtsNamespace,
    /// The sandbox has its own network stack.
    NetNamespace,
    /// With network `bridge`, the sandbox can connect neither to the host nor to another sandbox.
    NetworkFilter,
    /// Root inside is an ordinary user outside.
    UserNamespace,
    /// The sandbox has its own view of cgroups.
    CgroupNamespace,
    /// Root inside has only a few capabilities.
    ReducedCapabilities,
    /// No program gains privileges when it is executed (no-new-privileges).
    NoNewPrivileges,
    /// Only the system calls of an allow-list are available.
    Seccomp,
    /// The kernel restricts file access with Landlock, in addition to mounts.
    Landlock,
}

impl IsolationLayer {
    /// All layers.
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

    /// The name in JSON and on the command line.
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

    /// A one-line description for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::MountNamespace => "Its own view of the filesystem.",
            Self::PidNamespace => "It sees and signals its own processes only.",
            Self::IpcNamespace => "Its own shared memory and message queues.",
            Self::UtsNamespace => "Its own host name.",
            Self::NetNamespace => "Its own network stack (not with network host).",
            Self::NetworkFilter => "It reaches neither the host nor other sandboxes (not with network host).",
            Self::UserNamespace => "Its root is an ordinary user outside.",
            Self::CgroupNamespace => "Its own view of cgroups.",
            Self::ReducedCapabilities => "Root inside has few capabilities.",
            Self::NoNewPrivileges => "No program gains rights by being run.",
            Self::Seccomp => "Only a list of system calls is allowed.",
            Self::Landlock => "File access is held by the kernel beyond mounts.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_have_the_same_name_in_json() {
        for layer in IsolationLayer::ALL {
            assert_eq!(serde_json::to_value(layer).unwrap(), layer.name());
        }
    }
}
