//! `kennel wait`.

use crate::completion::sandboxes;
use crate::output::{print, print_json};
use crate::providers::Providers;
use crate::report;
use futures_util::StreamExt;
use kennel_core::{Error, Result, Sandbox};
use kennel_types::{ErrorCode, SandboxId};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  kennel wait box                 prints the exit code of its main process
  test $(kennel wait box) = 0 && echo it went well";

/// Wait until sandboxes have ended
///
/// Prints for each the exit code of its main process, or `-` if it had none.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Wait {
    /// Ids or names
    #[arg(value_name = "ID", required = true, add = sandboxes())]
    ids: Vec<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ended {
    sandbox_id: SandboxId,
    exit_code: Option<i32>,
}

impl Wait {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        self.wait(providers).await.unwrap_or_else(|error| report::failed(&error))
    }

    async fn wait(&self, providers: &Providers) -> Result<u8> {
        let mut sandboxes = Vec::new();
        for name in &self.ids {
            sandboxes.push(providers.find(name).await?);
        }
        let mut all = Vec::new();
        for sandbox in sandboxes {
            let ended = Ended { sandbox_id: sandbox.id().clone(), exit_code: end_of(&sandbox).await? };
            if !self.json {
                let printed = print(&ended.exit_code.map_or("-".to_owned(), |code| code.to_string()));
                if printed != 0 {
                    return Ok(printed);
                }
            }
            all.push(ended);
        }
        Ok(if self.json { print_json(&all) } else { 0 })
    }
}

/// Waits for the end of one; answers its exit code. One that is removed when it ends has none that could be asked for.
async fn end_of(sandbox: &Sandbox) -> Result<Option<i32>> {
    // First listen, then look: what happens in between is heard.
    let mut events = sandbox.provider().watch().await?;
    loop {
        match sandbox.inspect().await {
            Ok(info) if info.status.is_up() => {}
            Ok(info) => return Ok(info.exit_code),
            Err(error) if error.code() == ErrorCode::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        match events.next().await {
            Some(event) => drop(event?),
            None => return Err(Error::new(ErrorCode::NotAvailable, "the provider no longer tells what happens")),
        }
    }
}
