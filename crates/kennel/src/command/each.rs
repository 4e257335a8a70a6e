//! Applies an action to several sandboxes. A failure for one does not stop the others.

use crate::completion::sandboxes;
use crate::output::{print, print_json};
use crate::progress::while_waiting;
use crate::report;
use crate::result::JsonError;
use kennel_core::{Result, Sandbox};
use kennel_engine::Engine;
use kennel_types::SandboxId;
use serde::Serialize;

/// Which sandboxes.
#[derive(Debug, clap::Args)]
pub(super) struct Targets {
    /// Ids or names of sandboxes
    #[arg(value_name = "ID", required = true, add = sandboxes())]
    ids: Vec<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Targets {
    /// Applies the action to each sandbox, and returns the exit status.
    pub(super) async fn each(&self, engine: &Engine, action: impl AsyncFn(&Sandbox) -> Result<()>) -> u8 {
        each(&self.ids, self.json, async |name| {
            let sandbox = crate::sandboxes::find(engine, name).await?;
            while_waiting(&format!("waiting for {}", sandbox.info().name), action(&sandbox)).await?;
            Ok(sandbox.id().clone())
        })
        .await
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done<'a> {
    asked: &'a str,
    sandbox_id: Option<SandboxId>,
    error: Option<JsonError>,
}

/// Applies the action to each sandbox, and prints the ids for which it succeeded. Returns the exit status of the first
/// failure.
pub(super) async fn each(asked: &[String], json: bool, action: impl AsyncFn(&str) -> Result<SandboxId>) -> u8 {
    let mut status = 0;
    let mut all = Vec::new();
    for name in asked {
        let result = action(name).await;
        if let Err(error) = &result
            && status == 0
        {
            status = report::exit_status(error);
        }
        if json {
            let error = result.as_ref().err().map(JsonError::from_error);
            all.push(Done { asked: name, sandbox_id: result.ok(), error });
            continue;
        }
        match result {
            Ok(id) => match print(id.as_str()) {
                0 => {}
                failed => return failed,
            },
            Err(error) => report::error(&error),
        }
    }
    if json {
        let printed = print_json(&all);
        if printed != 0 {
            return printed;
        }
    }
    status
}
