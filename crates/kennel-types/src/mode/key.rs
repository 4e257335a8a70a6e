//! The keys of modes.
//!
//! Code that decides something about a mode reads its key. The name is derived from the key, and only people read it.
//! Decisions here match every variant, so a new kind of machine, root filesystem or id map does not compile until each
//! decision about it has been made.

use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The conditions under which a mode applies. Each row of the mode table has its own key. Most combinations have no row:
/// such sandboxes do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModeKey {
    /// The provider.
    pub provider: ProviderKind,
    /// The user who creates the sandboxes: the caller on native, the user of the engine on an engine.
    pub runs_as: RunsAs,
    /// The machine that the sandboxes run on.
    pub machine: Machine,
    /// The source of the root filesystem.
    pub root: RootSource,
    /// How ids inside are mapped to ids outside.
    pub id_scheme: IdScheme,
    /// Whether there is a cgroup for each sandbox, which limits and pausing need.
    pub cgroups: bool,
}

/// A provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    /// Linux namespaces.
    Native,
    /// A Docker engine.
    Docker,
    /// A Podman engine.
    Podman,
    /// Plain processes of the host.
    Local,
    /// Memory (for tests).
    Mock,
}

impl ProviderKind {
    /// All providers.
    pub const ALL: [Self; 5] = [Self::Native, Self::Docker, Self::Podman, Self::Local, Self::Mock];

    /// The name in settings, in records and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Local => "local",
            Self::Mock => "mock",
        }
    }
}

/// The user who creates sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RunsAs {
    /// Root of the machine.
    Root,
    /// An ordinary user. An engine that runs as one is rootless.
    User,
    /// Anyone: the mode is the same for every user.
    Anyone,
}

/// The machine that sandboxes run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// This machine.
    Here,
    /// Another machine, with an engine that Kennel connects to.
    Remote,
    /// Another machine whose processor cannot run Kennel's keeper.
    RemoteForeign,
}

/// The source of a root filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RootSource {
    /// The host's root filesystem.
    Host,
    /// An image.
    Image,
    /// Memory (for tests).
    Memory,
}

/// How ids inside are mapped to ids outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum IdScheme {
    /// The default of the provider. Native maps a range of ids. An engine of root maps nothing. A rootless engine maps
    /// the range of its user.
    Usual,
    /// Only one id: root inside is the user.
    One,
    /// Docker's `userns-remap`: all ids are in the engine's range.
    Remap,
    /// Podman's `--userns auto`: a range for each sandbox.
    Auto,
    /// Podman's `--userns keep-id`: the user has the same id inside and outside.
    KeepId,
}

impl IdScheme {
    /// Whether an engine gives each sandbox its own user namespace, in addition to the one of a rootless engine.
    pub const fn has_own_user_namespace(self) -> bool {
        match self {
            Self::Remap | Self::Auto | Self::KeepId => true,
            Self::Usual | Self::One => false,
        }
    }
}

/// Serializes a key with the name of its mode, for programs that show it to people.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(super) fn with_name<S: Serializer>(key: &ModeKey, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Named<'a> {
        name: String,
        #[serde(flatten)]
        key: &'a ModeKey,
    }
    Named { name: key.to_string(), key }.serialize(serializer)
}

/// Writes the name of the mode, for example `native, user, image, one id`.
impl fmt::Display for ModeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, runs_as, machine, root, id_scheme, cgroups } = *self;
        f.write_str(provider.name())?;
        let is_engine = match provider {
            ProviderKind::Docker | ProviderKind::Podman => true,
            ProviderKind::Native => false,
            // These have one mode each, which needs no more than the provider's name.
            ProviderKind::Local | ProviderKind::Mock => return Ok(()),
        };
        f.write_str(match runs_as {
            RunsAs::Root => ", root",
            RunsAs::User if is_engine => ", rootless",
            RunsAs::User => ", user",
            RunsAs::Anyone => "",
        })?;
        f.write_str(match root {
            RootSource::Host => ", host",
            // An engine always uses an image.
            RootSource::Image if is_engine => "",
            RootSource::Image => ", image",
            RootSource::Memory => ", memory",
        })?;
        f.write_str(match machine {
            Machine::Here => "",
            Machine::Remote => ", remote",
            Machine::RemoteForeign => ", remote, no keeper",
        })?;
        let (before, after) = match id_scheme {
            IdScheme::Usual => ("", ""),
            IdScheme::One => (", one id", ""),
            IdScheme::Remap => ("", ", userns remap"),
            IdScheme::Auto => ("", ", userns auto"),
            IdScheme::KeepId => ("", ", userns keep-id"),
        };
        let limits = if cgroups { "" } else { ", no limits" };
        write!(f, "{before}{limits}{after}")
    }
}
