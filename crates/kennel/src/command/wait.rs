//! `kennel wait`.

use crate::completion::sandboxes;
use crate::output::{print, print_json};
use crate::report;
use crate::result::JsonError;
use futures_util::StreamExt;
use kennel_core::{Error, Result, Sandbox};
use kennel_engine::Engine;
use kennel_types::{ErrorCode, SandboxId};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  kennel wait box                 print the exit code of its main process
  test $(kennel wait box) = 0 && echo it went well";

/// Wait until a sandbox ends
///
/// Prints one line per sandbox: the exit code of its main process, or `-` if it had none.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Wait {
    /// Ids or names of sandboxes
    #[arg(value_name = "ID", required = true, add = sandboxes())]
    ids: Vec<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ended<'a> {
    asked: &'a str,
    sandbox_id: Option<SandboxId>,
    exit_code: Option<i32>,
    error: Option<JsonError>,
}

impl Wait {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        if self.json { self.wait_json(engine).await } else { self.wait(engine).await }
    }

    async fn wait(&self, engine: &Engine) -> u8 {
        let mut sandboxes = Vec::new();
        for name in &self.ids {
            match crate::sandboxes::find(engine, name).await {
                Ok(sandbox) => sandboxes.push(sandbox),
                Err(error) => return report::failed(&error),
            }
        }
        for sandbox in sandboxes {
            let printed = match end_of(&sandbox).await {
                Ok(code) => print(&code.map_or("-".to_owned(), |code| code.to_string())),
                Err(error) => report::failed(&error),
            };
            if printed != 0 {
                return printed;
            }
        }
        0
    }

    /// Waits for all sandboxes, and prints a JSON array. The error for a sandbox is at its place in the array.
    async fn wait_json(&self, engine: &Engine) -> u8 {
        let mut sandboxes = Vec::new();
        for name in &self.ids {
            sandboxes.push((name.as_str(), crate::sandboxes::find(engine, name).await));
        }
        let mut status = 0;
        let mut all = Vec::new();
        for (asked, found) in sandboxes {
            let sandbox_id = found.as_ref().ok().map(|sandbox| sandbox.id().clone());
            let ended = match found {
                Ok(sandbox) => end_of(&sandbox).await,
                Err(error) => Err(error),
            };
            if let Err(error) = &ended
                && status == 0
            {
                status = report::exit_status(error);
            }
            let error = ended.as_ref().err().map(JsonError::from_error);
            all.push(Ended { asked, sandbox_id, exit_code: ended.ok().flatten(), error });
        }
        match print_json(&all) {
            0 => status,
            failed => failed,
        }
    }
}

/// Waits until a sandbox ends, and returns the exit code of its main process. Returns `None` if it had no main process,
/// or if it was removed when it ended.
async fn end_of(sandbox: &Sandbox) -> Result<Option<i32>> {
    // Subscribe before the first look, so that no event in between is missed.
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
            None => return Err(Error::new(ErrorCode::NotAvailable, "the provider no longer reports events")),
        }
    }
}
