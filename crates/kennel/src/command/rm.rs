//! `kennel rm`.

use super::each::each;
use crate::completion::sandboxes;
use crate::providers::Providers;
use kennel_core::RemoveOptions;

const EXAMPLES: &str = "\
Examples:
  kennel rm box
  kennel rm --force box              also if it runs
  kennel rm $(kennel ls --all -q)";

/// Remove sandboxes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Rm {
    /// Ids or names
    #[arg(value_name = "ID", required = true, add = sandboxes())]
    ids: Vec<String>,
    /// Also if it runs
    #[arg(short, long)]
    force: bool,
    /// Its data volumes too
    #[arg(short = 'v', long)]
    volumes: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Rm {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        let options = RemoveOptions { volumes: self.volumes, force: self.force };
        each(&self.ids, self.json, async |name| {
            let sandbox = providers.find(name).await?;
            sandbox.remove(options).await?;
            Ok(sandbox.id().clone())
        })
        .await
    }
}
