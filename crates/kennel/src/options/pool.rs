//! Whether a new sandbox comes from a pool.

use crate::report;
use kennel_core::{Provider, Result};
use kennel_engine::{Claimed, Engine, PoolResult, PoolUse};
use kennel_types::SandboxSpec;

/// Options of `run`, `create`, `session create` and `profile start`.
#[derive(Debug, clap::Args)]
pub(crate) struct PoolOptions {
    /// Whether to use a pool: prefer, require or never [default: prefer; `run`: never]
    #[arg(long, value_name = "USE")]
    pool: Option<PoolUse>,
}

impl PoolOptions {
    /// Whether the user chose.
    pub(crate) fn is_given(&self) -> bool {
        self.pool.is_some()
    }

    /// Returns what the user chose, or what applies otherwise.
    pub(crate) fn usage(&self, usual: PoolUse) -> PoolUse {
        self.pool.unwrap_or(usual)
    }

    /// Claims a member for a sandbox that is started at once.
    pub(crate) async fn claim(
        &self,
        engine: &Engine,
        provider: &dyn Provider,
        spec: &SandboxSpec,
        usual: PoolUse,
    ) -> Result<Claimed> {
        match self.usage(usual) {
            PoolUse::Never => Claimed::none(),
            usage => engine.pool_claims()?.claim(provider, spec, usage).await,
        }
    }

    /// Tells the user whether the sandbox came from a pool.
    pub(crate) fn report(&self, result: Option<&PoolResult>) {
        match result {
            // The user asked for it, so a program that reads standard error expects it.
            Some(result) if self.is_given() => {
                report::say(&format!("kennel: {}", kennel_core::printable(&result.to_string())));
            }
            Some(result) if !result.is_without_pools() => report::note(&result.to_string()),
            _ => {}
        }
    }
}
