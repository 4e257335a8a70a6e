//! `kennel start`.

use super::each::each;
use crate::completion::sandboxes;
use crate::life::Watch;
use crate::providers::Providers;
use crate::report;
use kennel_types::{ErrorCode, Status};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  kennel start box
  kennel start box other";

/// Start a sandbox
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Start {
    /// Ids or names of sandboxes
    #[arg(value_name = "ID", required = true, add = sandboxes())]
    ids: Vec<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Start {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        each(&self.ids, self.json, async |name| {
            let mut watch = Watch::begin(None)?;
            let sandbox = watch.unless_ended(providers.find(name)).await?;
            match watch.unless_ended(sandbox.start()).await {
                Ok(()) => Ok(sandbox.id().clone()),
                Err(error) => {
                    // Given up half way: half started is not started. One that ran before is left alone.
                    if error.code() == ErrorCode::Aborted
                        && sandbox.info().status != Status::Running
                        && let Err(cleanup) = sandbox.stop(Duration::ZERO).await
                    {
                        report::error(&cleanup);
                    }
                    Err(error)
                }
            }
        })
        .await
    }
}
