//! `kennel stop`.

use super::each::each;
use crate::providers::Providers;
use kennel_types::parse_duration;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  kennel stop box
  kennel stop --timeout 1s box other";

/// Stop sandboxes
///
/// Everything in them is asked to end, and killed after the grace time. They can be started again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Stop {
    /// Ids or names
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// The grace time; 0 kills at once
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = grace)]
    timeout: Duration,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Stop {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        each(&self.ids, self.json, async |name| {
            let sandbox = providers.find(name).await?;
            sandbox.stop(self.timeout).await?;
            Ok(sandbox.id().clone())
        })
        .await
    }
}

fn grace(text: &str) -> Result<Duration, kennel_types::InvalidQuantity> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_duration(text) }
}
