//! `kennel rename`.

use super::each::{SANDBOX_ID, each};
use crate::completion::sandboxes;
use kennel_engine::Engine;

const EXAMPLES: &str = "\
Examples:
  kennel rename box builder
  kennel rename 4k2 builder";

/// Rename a sandbox
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Rename {
    /// Id or name of the sandbox
    #[arg(add = sandboxes())]
    id: String,
    /// New name
    name: String,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Rename {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        each(&[self.id], self.json, SANDBOX_ID, async |name| {
            let sandbox = crate::sandboxes::find(engine, name).await?;
            sandbox.rename(&self.name).await?;
            Ok(sandbox.id().to_string())
        })
        .await
    }
}
