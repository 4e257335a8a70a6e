//! `kennel stop`.

use super::each::Targets;
use kennel_client::Client;
use kennel_core::Sandbox;
use kennel_engine::Engine;
use kennel_types::parse_duration;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  kennel stop box
  kennel stop --timeout 1s box other";

/// Stop a sandbox
///
/// Asks all processes in it to end, and kills them after the grace period. A stopped sandbox can be started again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Stop {
    #[command(flatten)]
    targets: Targets,
    /// Grace period before processes are killed; 0 kills at once
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = grace)]
    timeout: Duration,
}

impl Stop {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        self.targets.each(engine, async |sandbox: &Sandbox| sandbox.stop(self.timeout).await).await
    }

    pub(crate) async fn run_at(self, client: &Client) -> u8 {
        self.targets.each_at(async |name| Ok(client.stop(name, self.timeout).await?.id)).await
    }
}

fn grace(text: &str) -> Result<Duration, kennel_types::InvalidQuantity> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_duration(text) }
}
