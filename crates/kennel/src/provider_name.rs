//! The names of providers on the command line.

use kennel_engine::Engine;
use kennel_types::ProviderKind;

/// The name of a provider on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProviderName {
    /// Linux namespaces on this machine, without an engine
    Native,
    /// Podman containers
    Podman,
    /// Docker containers
    Docker,
    /// Plain processes without isolation
    Local,
    /// Apple's containers
    #[value(alias = "macos-container", hide = true)]
    Apple,
}

impl ProviderName {
    /// Returns the provider, or `None` if it is not implemented yet.
    pub(crate) fn kind(self) -> Option<ProviderKind> {
        match self {
            Self::Native => Some(ProviderKind::Native),
            Self::Podman => Some(ProviderKind::Podman),
            Self::Docker => Some(ProviderKind::Docker),
            Self::Local => Some(ProviderKind::Local),
            Self::Apple => None,
        }
    }

    /// Restricts an engine to this provider.
    pub(crate) fn restrict(self, engine: Engine) -> Engine {
        match self.kind() {
            Some(kind) => engine.only(kind),
            None => engine.only_unimplemented("apple"),
        }
    }
}
