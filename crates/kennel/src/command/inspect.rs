//! `kennel inspect`.

use crate::completion::sandboxes;
use crate::output::print_json;
use crate::report;
use crate::result::JsonError;
use kennel_client::Client;
use kennel_core::Result;
use kennel_engine::Engine;
use kennel_types::SandboxInfo;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  kennel inspect box
  kennel inspect box | jq '.[0].enforcement'";

/// Show a sandbox in detail, as JSON
///
/// Prints an array. `enforcement` shows what is enforced for each sandbox.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Inspect {
    /// Ids or names of sandboxes
    #[arg(value_name = "ID", required = true, add = sandboxes())]
    ids: Vec<String>,
    /// Also print errors as JSON, each in the place of its sandbox
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Row<'a> {
    Found(Box<SandboxInfo>),
    Failed { asked: &'a str, error: JsonError },
}

impl Inspect {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        self.show(async |name| Ok(crate::sandboxes::find(engine, name).await?.info().clone())).await
    }

    pub(crate) async fn run_at(self, client: &Client) -> u8 {
        self.show(async |name| crate::remote::info(&client.sandbox(name).await?)).await
    }

    async fn show(&self, find: impl AsyncFn(&str) -> Result<SandboxInfo>) -> u8 {
        let mut status = 0;
        let mut found = Vec::new();
        for name in &self.ids {
            match find(name).await {
                Ok(info) => found.push(Row::Found(Box::new(info))),
                Err(error) => {
                    status = if status == 0 { report::exit_status(&error) } else { status };
                    if self.json {
                        found.push(Row::Failed { asked: name, error: JsonError::from_error(&error) });
                    } else {
                        report::error(&error);
                    }
                }
            }
        }
        match print_json(&found) {
            0 => status,
            failed => failed,
        }
    }
}
