//! `kennel inspect`.

use crate::completion::sandboxes;
use crate::output::print_json;
use crate::providers::Providers;
use crate::report;

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
    /// Print JSON: always so
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        let mut status = 0;
        let mut found = Vec::new();
        for name in &self.ids {
            match providers.find(name).await {
                Ok(sandbox) => found.push(sandbox.info().clone()),
                Err(error) => {
                    let failed = report::failed(&error);
                    status = if status == 0 { failed } else { status };
                }
            }
        }
        match print_json(&found) {
            0 => status,
            failed => failed,
        }
    }
}
