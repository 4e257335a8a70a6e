//! `kennel setup`: installs what one provider needs, like `kennel doctor --fix` with that provider.

use super::doctor::get_what_is_missing;
use crate::next_step::Hint;
use crate::provider_name::ProviderName;
use crate::report;
use kennel_core::{Error, Result};
use kennel_engine::Engine;
use kennel_types::{ErrorCode, ProviderKind};

const EXAMPLES: &str = "\
Examples:
  kennel setup                 set up the provider that `kennel run` would use
  kennel setup docker          install and start Docker
  kennel setup native --yes    do not ask";

/// Install what a provider needs
///
/// Shows what is missing and the commands that fix it, asks, runs them one by one and checks again. Commands that need
/// root run with sudo. Steps that need your decision are only shown. Exits with 0 if the provider works.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Setup {
    /// Provider to set up [default: the one that `kennel run` would use]
    #[arg(value_name = "PROVIDER", value_enum)]
    chosen: Option<ProviderName>,
    /// Do not ask before running commands
    #[arg(long, short)]
    yes: bool,
}

impl Setup {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        match self.provider(engine).await {
            Ok(name) => {
                get_what_is_missing(engine, &[name], self.yes, &format!("kennel setup {} --yes", name.name())).await
            }
            Err(error) => report::failed(&error),
        }
    }

    async fn provider(&self, engine: &Engine) -> Result<ProviderKind> {
        if self.chosen.is_some_and(|chosen| chosen.kind().is_none()) {
            return Err(Error::new(ErrorCode::Unsupported, "there is no apple provider yet")
                .hint("kennel setup native, podman or docker"));
        }
        match (self.chosen.and_then(ProviderName::kind), engine.named()) {
            (Some(chosen), Some(named)) if chosen != named => {
                let message =
                    format!("setup {} --provider {}: expected only one provider", chosen.name(), named.name());
                Err(Error::new(ErrorCode::InvalidConfig, message).hint(format!("kennel setup {}", chosen.name())))
            }
            (Some(name), _) | (None, Some(name)) => Ok(name),
            (None, None) => engine.provider_for_new(&crate::sandboxes::settings(engine)?).await,
        }
    }
}
