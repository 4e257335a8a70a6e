//! `kennel rm`.

use super::each::{SANDBOX_ID, each};
use crate::completion::sandboxes;
use kennel_client::Client;
use kennel_core::RemoveOptions;
use kennel_engine::Engine;

const EXAMPLES: &str = "\
Examples:
  kennel rm box
  kennel rm --force box              even if it is running
  kennel rm $(kennel ls --all -q)";

/// Remove a sandbox
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Rm {
    /// Ids or names of sandboxes
    #[arg(value_name = "ID", required = true, add = sandboxes())]
    ids: Vec<String>,
    /// Also remove running sandboxes
    #[arg(short, long)]
    force: bool,
    /// Also remove the data volumes of the sandboxes
    #[arg(short = 'v', long)]
    volumes: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Rm {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let options = RemoveOptions { volumes: self.volumes, force: self.force };
        each(&self.ids, self.json, SANDBOX_ID, async |name| {
            let sandbox = crate::sandboxes::find(engine, name).await?;
            sandbox.remove(options).await?;
            Ok(sandbox.id().to_string())
        })
        .await
    }

    pub(crate) async fn run_at(self, client: &Client) -> u8 {
        each(&self.ids, self.json, SANDBOX_ID, async |name| {
            let id = client.sandbox(name).await?.id;
            client.remove(&id, self.force, self.volumes).await?;
            Ok(id)
        })
        .await
    }
}
