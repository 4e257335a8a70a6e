//! `kennel setup`: gets what one provider needs. The same as `kennel doctor --fix` with that provider.

use super::doctor::get_what_is_missing;
use crate::providers::{ProviderName, Providers};
use crate::report;
use crate::settings::Settings;
use kennel_core::{Error, Result};
use kennel_types::ErrorCode;

const EXAMPLES: &str = "\
Examples:
  kennel setup                 what `kennel run` would use here
  kennel setup docker          install Docker, and start it
  kennel setup native --yes    without asking";

/// Get what a provider needs
///
/// Shows what is missing and the commands that get it, asks, runs them one by one and looks again. What
/// needs root is run with sudo. What a program should not do by itself is only shown. Exits with 0 if
/// the provider works.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Setup {
    /// The provider; if not given, the one that `kennel run` would use
    #[arg(value_name = "PROVIDER", value_enum)]
    chosen: Option<ProviderName>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl Setup {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        match self.provider(providers).await {
            Ok(name) => get_what_is_missing(&[name], self.yes, &format!("kennel setup {} --yes", name.as_str())).await,
            Err(error) => report::failed(&error),
        }
    }

    async fn provider(&self, providers: &Providers) -> Result<ProviderName> {
        match (self.chosen, providers.named()) {
            (Some(chosen), Some(named)) if chosen != named => {
                let message = format!("setup {} --provider {}: which one?", chosen.as_str(), named.as_str());
                Err(Error::new(ErrorCode::InvalidConfig, message).hint(format!("kennel setup {}", chosen.as_str())))
            }
            (Some(name), _) | (None, Some(name)) => Ok(name),
            (None, None) => providers.name_for_new(&Settings::in_force()?).await,
        }
    }
}
