//! Applies an action to several sandboxes or sessions. A failure for one does not stop the others.

use crate::completion::sandboxes;
use crate::output::{print, print_json};
use crate::progress::while_waiting;
use crate::report;
use crate::result::JsonError;
use kennel_core::{Result, Sandbox};
use kennel_engine::Engine;
use serde::Serialize;
use std::collections::BTreeMap;

/// The name of a sandbox's id in JSON.
pub(super) const SANDBOX_ID: &str = "sandboxId";

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
        each(&self.ids, self.json, SANDBOX_ID, async |name| {
            let sandbox = crate::sandboxes::find(engine, name).await?;
            while_waiting(&format!("waiting for {}", sandbox.info().name), action(&sandbox)).await?;
            Ok(sandbox.id().to_string())
        })
        .await
    }

    /// Applies the action to each sandbox of a server, which returns its id. Returns the exit status.
    pub(super) async fn each_at(&self, action: impl AsyncFn(&str) -> Result<String>) -> u8 {
        each(&self.ids, self.json, SANDBOX_ID, async |name| {
            while_waiting(&format!("waiting for {name}"), action(name)).await
        })
        .await
    }
}

#[derive(Serialize)]
struct Row<'a> {
    asked: &'a str,
    /// What was done, if it succeeded.
    #[serde(flatten)]
    done: BTreeMap<&'static str, Option<String>>,
    error: Option<JsonError>,
}

/// Applies the action to each sandbox or session that was asked for, and prints what it returned where it succeeded. In
/// JSON, this has the name `key`. Returns the exit status of the first failure.
pub(super) async fn each(
    asked: &[String],
    json: bool,
    key: &'static str,
    action: impl AsyncFn(&str) -> Result<String>,
) -> u8 {
    let mut status = 0;
    let mut rows = Vec::new();
    for name in asked {
        let result = action(name).await;
        if let Err(error) = &result
            && status == 0
        {
            status = report::exit_status(error);
        }
        if json {
            let error = result.as_ref().err().map(JsonError::from_error);
            rows.push(Row { asked: name, done: [(key, result.ok())].into(), error });
            continue;
        }
        match result {
            Ok(done) => match print(&done) {
                0 => {}
                failed => return failed,
            },
            Err(error) => report::error(&error),
        }
    }
    if json {
        let printed = print_json(&rows);
        if printed != 0 {
            return printed;
        }
    }
    status
}
