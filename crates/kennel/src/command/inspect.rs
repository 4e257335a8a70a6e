//! `kennel inspect`.

use crate::completion::sandboxes;
use crate::output::print_json;
use crate::providers::Providers;
use crate::report;
use crate::result::JsonError;
use kennel_types::SandboxInfo;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  kennel inspect box
  kennel inspect box | jq '.[0].enforcement'";

/// Tell all about sandboxes, as JSON
///
/// Prints an array. `enforcement` says what really holds each of them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Inspect {
    /// Ids or names
    #[arg(value_name = "ID", required = true, add = sandboxes())]
    ids: Vec<String>,
    /// Print errors as JSON too, each in the place of its sandbox
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
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        let mut status = 0;
        let mut found = Vec::new();
        for name in &self.ids {
            match providers.find(name).await {
                Ok(sandbox) => found.push(Row::Found(Box::new(sandbox.info().clone()))),
                Err(error) => {
                    status = if status == 0 { report::exit_status(&error) } else { status };
                    if self.json {
                        found.push(Row::Failed { asked: name, error: JsonError::of(&error) });
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
