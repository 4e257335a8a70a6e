//! What the user can do about an error, as data. Each front end words it in its own terms: the command line with its
//! commands and flags, an API with its requests.
//!
//! Text in a step must fit every front end. It names no command and no flag of Kennel.

use crate::{Port, ProviderKind};
use serde::Serialize;
use std::path::PathBuf;

/// What the user can do about an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum NextStep {
    /// List the sandboxes, also those that do not run.
    ListSandboxes,
    /// Start the sandbox.
    StartSandbox {
        /// The name or id of the sandbox.
        name: String,
    },
    /// Resume the paused sandbox.
    ResumeSandbox {
        /// The name or id of the sandbox.
        name: String,
    },
    /// Stop the running sandbox, or remove it although it runs.
    StopOrRemoveSandbox {
        /// The name or id of the sandbox.
        name: String,
    },
    /// Remove the sandbox.
    RemoveSandbox {
        /// The name or id of the sandbox.
        name: String,
        /// Remove it even if it runs.
        force: bool,
        /// Remove its volumes, too.
        volumes: bool,
    },
    /// Show what is known about the sandbox.
    InspectSandbox {
        /// The name or id of the sandbox.
        name: String,
    },
    /// Read the log of the sandbox's main process.
    ReadLogs {
        /// The name or id of the sandbox.
        name: String,
    },
    /// Attach to the sandbox again.
    AttachAgain {
        /// The name or id of the sandbox.
        name: String,
    },
    /// List the volumes.
    ListVolumes,
    /// List the pools.
    ListPools,
    /// Wait until a pool is filled by the resident process, or do not require a pool.
    FillPool,
    /// Create a sandbox that is not tied to a command.
    CreateLastingSandbox,
    /// Remove what killed programs left behind, or a sandbox that is no longer needed.
    CollectGarbage,

    /// List the sessions.
    ListSessions,
    /// Start the session again.
    StartSession {
        /// The name or id of the session.
        name: String,
    },
    /// Stop the running session, or remove it although it runs.
    StopOrRemoveSession {
        /// The name or id of the session.
        name: String,
    },
    /// Show what is recorded of the session.
    ShowSession {
        /// The name or id of the session.
        name: String,
    },
    /// Take over the sandboxes of a lost store.
    AdoptSandboxes,

    /// Give a field of the request a value.
    Set {
        /// The field.
        field: Field,
        /// The values that are possible here. Empty if there are too many to list.
        values: Vec<String>,
    },
    /// Give a field of the request another value, because this one is taken.
    ChooseAnother {
        /// The field.
        field: Field,
    },
    /// Leave a field out of the request.
    LeaveOut {
        /// The field.
        field: Field,
    },
    /// Leave one of these fields out of the request, because they exclude each other.
    LeaveOutOneOf {
        /// The fields.
        fields: Vec<Field>,
    },
    /// Leave a field out of the request, and copy the files into the sandbox.
    CopyInstead {
        /// The field.
        field: Field,
    },
    /// Use a directory of one's own as the workspace, or none.
    ChooseWorkspace,
    /// Leave the git repository in the workspace unprotected.
    LeaveGitUnprotected,
    /// Mount the directory read-only.
    MountReadOnly,
    /// Publish the port at a free port of the host.
    PublishAtFreePort {
        /// The port, without a port of the host. `None` if it is not known which port is in use.
        port: Option<Port>,
    },
    /// Use another provider.
    UseProvider {
        /// The providers that support the request.
        providers: Vec<ProviderKind>,
    },
    /// Set up a provider on this machine.
    SetUpProvider {
        /// The provider.
        provider: ProviderKind,
    },
    /// List the known agents.
    ListAgents,
    /// List the profiles.
    ListProfiles,
    /// Start the profile's sandbox.
    StartProfile {
        /// The name of the profile.
        name: String,
    },
    /// Change the profile.
    EditProfile {
        /// The name of the profile.
        name: String,
    },
    /// Restart the profile's sandbox, so that it is created again.
    RestartProfile {
        /// The name of the profile.
        name: String,
        /// Pull the image first.
        pull: bool,
    },
    /// Remove the definition from a settings file.
    RemoveFromSettings {
        /// The file.
        file: PathBuf,
    },
    /// Change to this directory, or below it.
    ChangeDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Read what the project's settings request, and trust them.
    TrustProject,
    /// Show the settings in effect and their origin.
    ShowSettings {
        /// Only this key.
        key: Option<String>,
    },
    /// Look up which settings exist.
    LookUpSettings,
    /// Show which providers support a feature.
    ExplainFeature {
        /// The feature.
        feature: Feature,
    },
    /// Use this path, which contains no symlink.
    UsePath {
        /// The path.
        path: PathBuf,
    },

    /// List the images in Kennel's store.
    ListImages {
        /// With their full ids, because the given part of an id is ambiguous.
        ids: bool,
    },
    /// Pull the image into Kennel's store.
    PullImage {
        /// The name of the image.
        image: String,
    },
    /// Load an image from an archive into Kennel's store.
    LoadImage,
    /// Load the image under a given name.
    NameLoadedImage {
        /// The file or directory. `None` if it is the one that was just loaded.
        file: Option<PathBuf>,
    },
    /// Load the images under the names that they have in the archive.
    LoadUnderOwnNames,
    /// Build the image.
    BuildImage {
        /// The name of the image.
        image: String,
    },
    /// Log in to a registry.
    LogIn {
        /// The program that stores logins.
        program: String,
        /// The registry. `None` is the program's default.
        registry: Option<String>,
    },
    /// Allow larger images, if their author is trusted.
    AllowLargerImages,
    /// Allow a registry without a verified certificate, if the network is trusted.
    AllowInsecureRegistry {
        /// The host and port of the registry.
        registry: String,
    },
    /// Free disk space, and try again.
    FreeDiskSpace,
    /// Give new sandboxes more time to start.
    AllowLongerStart {
        /// A time limit that may suffice, in seconds.
        seconds: u64,
    },
    /// Run as the user who owns Kennel's files, or keep them in a directory of one's own.
    UseOwnDirectory,

    /// Copy the directory as it is.
    CopyDirectory {
        /// The directory on the host.
        from: String,
        /// The target inside.
        to: String,
    },
    /// Pass the content to copy as a stream.
    CopyFromStream,
    /// Write the archive to a file, or copy without an archive.
    ArchiveToFile,
    /// Decompress the archive, and pass it as a stream.
    Decompress {
        /// The program that decompresses it.
        program: String,
        /// The file. `None` if it is a stream already.
        file: Option<String>,
        /// The target inside.
        target: String,
    },
    /// Create the archive again, without sparse files.
    ArchiveWithoutSparse,

    /// Check this machine for missing programs and kernel features.
    CheckMachine {
        /// What the check is for, if that is not clear from the error.
        purpose: Option<String>,
    },
    /// Install a package on the host.
    InstallPackage {
        /// The package.
        package: String,
    },
    /// Run a command on the host. It is a command of another program, not of Kennel.
    RunOnHost {
        /// What the command is for, if that is not clear from the error.
        purpose: Option<String>,
        /// The command line.
        command: String,
    },
    /// Read what the engine says.
    EngineSays {
        /// The name of the engine.
        engine: String,
        /// Its words.
        text: String,
    },
    /// Follow a piece of advice that is worded the same in every front end.
    Advice {
        /// The advice.
        text: String,
    },
    /// Follow a suggestion that a front end made, in its own terms. The library creates none.
    Text {
        /// The suggestion.
        text: String,
    },
    /// Take one of several steps.
    Either {
        /// The steps.
        steps: Vec<NextStep>,
    },
}

/// A field of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// The Dockerfile of a build.
    BuildFile,
    /// The caches: volumes that sandboxes share.
    Caches,
    /// The command.
    Command,
    /// The root filesystem.
    Image,
    /// The use of the image's own command as the main process.
    ImageCommand,
    /// The memory limit.
    Memory,
    /// The mounts of host paths.
    Mounts,
    /// The name of the sandbox.
    Name,
    /// Permission for nested sandboxes.
    Nesting,
    /// The network.
    Network,
    /// The published ports.
    Ports,
    /// The protection of the git repository in the workspace.
    ProtectGit,
    /// The engine's runtime.
    Runtime,
    /// The bridges to sockets of the host.
    Sockets,
    /// The time limit of a command.
    Timeout,
    /// The user namespace on an engine.
    Userns,
    /// The volumes.
    Volumes,
    /// The host directory that is mounted as the workspace.
    Workspace,
}

/// Something that a mode supports or refuses, and that can be looked up by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// Limits on what is written to disk.
    Disk,
    /// Root filesystems from images.
    Images,
    /// A keeper inside.
    Keeper,
    /// Limits on memory, CPU and processes.
    Limits,
    /// Bind mounts of host paths.
    Mounts,
    /// Nested sandboxes.
    Nesting,
    /// Pausing.
    Pause,
    /// Published ports.
    Ports,
    /// A read-only root filesystem.
    ReadOnly,
    /// Bridges to sockets of the host.
    Sockets,
    /// Commands as another user.
    Users,
    /// Volumes.
    Volumes,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 12] = [
        Self::Disk,
        Self::Images,
        Self::Keeper,
        Self::Limits,
        Self::Mounts,
        Self::Nesting,
        Self::Pause,
        Self::Ports,
        Self::ReadOnly,
        Self::Sockets,
        Self::Users,
        Self::Volumes,
    ];

    /// The name of the feature in JSON and in the table of modes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Images => "images",
            Self::Keeper => "keeper",
            Self::Limits => "limits",
            Self::Mounts => "mounts",
            Self::Nesting => "nesting",
            Self::Pause => "pause",
            Self::Ports => "ports",
            Self::ReadOnly => "read_only",
            Self::Sockets => "sockets",
            Self::Users => "users",
            Self::Volumes => "volumes",
        }
    }
}

impl NextStep {
    /// Advice that is worded the same in every front end.
    pub fn advice(text: impl Into<String>) -> Self {
        Self::Advice { text: text.into() }
    }

    /// One of several steps.
    pub fn either(steps: impl Into<Vec<Self>>) -> Self {
        Self::Either { steps: steps.into() }
    }

    /// Give a field a value.
    pub fn set(field: Field) -> Self {
        Self::Set { field, values: Vec::new() }
    }

    /// Give a field one of these values.
    pub fn set_to(field: Field, values: impl IntoIterator<Item = impl ToString>) -> Self {
        Self::Set { field, values: values.into_iter().map(|value| value.to_string()).collect() }
    }

    /// Use one of these providers.
    pub fn use_provider(providers: impl Into<Vec<ProviderKind>>) -> Self {
        Self::UseProvider { providers: providers.into() }
    }

    /// Check this machine.
    pub fn check_machine() -> Self {
        Self::CheckMachine { purpose: None }
    }

    /// Run this command on the host.
    pub fn run_on_host(command: impl Into<String>) -> Self {
        Self::RunOnHost { purpose: None, command: command.into() }
    }

    /// Run this command on the host, for this purpose.
    pub fn run_on_host_to(purpose: impl Into<String>, command: impl Into<String>) -> Self {
        Self::RunOnHost { purpose: Some(purpose.into()), command: command.into() }
    }

    /// The suggested steps: the step itself, or those of which one is to be taken.
    pub fn options(&self) -> &[Self] {
        match self {
            Self::Either { steps } => steps,
            one => std::slice::from_ref(one),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_tagged_object() {
        let json = |step: NextStep| serde_json::to_value(step).unwrap();
        assert_eq!(json(NextStep::ListSandboxes), serde_json::json!({ "step": "list_sandboxes" }));
        let either = NextStep::either([NextStep::set_to(Field::Network, ["bridge"]), NextStep::advice("wait")]);
        let expected = serde_json::json!({ "step": "either", "steps": [
            { "step": "set", "field": "network", "values": ["bridge"] },
            { "step": "advice", "text": "wait" },
        ] });
        assert_eq!(json(either), expected);
    }

    #[test]
    fn features_have_the_same_name_everywhere() {
        for feature in Feature::ALL {
            assert_eq!(serde_json::to_value(feature).unwrap(), feature.name());
        }
    }
}
