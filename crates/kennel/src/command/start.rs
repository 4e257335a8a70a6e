//! `kennel start`.

use super::each::{SANDBOX_ID, each};
use crate::completion::sandboxes;
use crate::lifecycle::Deadline;
use crate::report;
use kennel_engine::Engine;
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
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        each(&self.ids, self.json, SANDBOX_ID, async |name| {
            let mut deadline = Deadline::begin(None)?;
            let sandbox = deadline.unless_ended(crate::sandboxes::find(engine, name)).await?;
            match deadline.unless_ended(sandbox.start()).await {
                Ok(()) => Ok(sandbox.id().to_string()),
                Err(error) => {
                    // The start was interrupted, so the sandbox is stopped again, unless it was already running.
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
