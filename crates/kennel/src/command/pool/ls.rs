//! `kennel pool ls`.

use crate::output::{print, print_json, table};
use crate::report;
use kennel_core::{Result, printable};
use kennel_engine::{Engine, PoolStatus};

const EXAMPLES: &str = "\
Examples:
  kennel pool ls
  kennel pool ls --json | jq '.[] | select(.ready == 0).name'";

/// List pools
///
/// SESSIONS says whether the members are only for sessions. READY is the number of members that wait. It is `-` if `kennel serve` does not run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Ls {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Ls {
    pub(super) async fn run(&self, engine: &Engine) -> Result<u8> {
        let pools = engine.pools()?.list().await?;
        if self.json {
            return Ok(print_json(&pools));
        }
        for PoolStatus { name, problem, .. } in &pools {
            if let Some(problem) = problem {
                report::warning(&format!("pool {name}: a member could not be made: {problem}"));
            }
        }
        let row = |pool: &PoolStatus| {
            let dash = || "-".to_owned();
            [
                printable(&pool.name),
                pool.provider.name().to_owned(),
                pool.profile.as_deref().map_or_else(dash, printable),
                if pool.sessions { "yes".to_owned() } else { dash() },
                pool.ready.map_or_else(dash, |ready| ready.to_string()),
                pool.min.to_string(),
                pool.max.to_string(),
            ]
        };
        Ok(print(&table(["NAME", "PROVIDER", "PROFILE", "SESSIONS", "READY", "MIN", "MAX"], pools.iter().map(row))))
    }
}
