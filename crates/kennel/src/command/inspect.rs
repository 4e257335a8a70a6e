//! `kennel inspect`.

use crate::completion::sandboxes;
use crate::output::print_json;
use crate::report;
use crate::result::JsonError;
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
        let mut status = 0;
        let mut found = Vec::new();
        for name in &self.ids {
            match crate::sandboxes::find(engine, name).await {
                Ok(sandbox) => found.push(Row::Found(Box::new(sandbox.info().clone()))),
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
