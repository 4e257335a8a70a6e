//! `kennel volume inspect`.

use super::list;
use crate::completion::volumes;
use crate::output::print_json;
use crate::report;
use crate::result::JsonError;
use kennel_core::{Result, VolumeOptions};
use kennel_engine::Engine;
use kennel_types::VolumeInfo;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  kennel volume inspect data-box
  kennel volume inspect data-box | jq '.[0].usedBy'";

/// Show volumes in detail, as JSON
///
/// Prints an array. `usedBy` contains the sandboxes that use the volume, whether they run or not.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Inspect {
    /// Names of volumes
    #[arg(value_name = "NAME", required = true, add = volumes())]
    names: Vec<String>,
    /// Also print errors as JSON, each in the place of its volume
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Row<'a> {
    Found(&'a VolumeInfo),
    Failed { asked: &'a str, error: JsonError },
}

impl Inspect {
    pub(super) async fn run(&self, engine: &Engine) -> Result<u8> {
        let listing = list(engine, VolumeOptions { sizes: true }).await?;
        let (mut status, mut rows) = (0, Vec::new());
        for name in &self.names {
            match listing.find(name) {
                Ok(found) => rows.push(Row::Found(&found.info)),
                Err(error) => {
                    status = if status == 0 { report::exit_status(&error) } else { status };
                    if self.json {
                        rows.push(Row::Failed { asked: name, error: JsonError::from_error(&error) });
                    } else {
                        report::error(&error);
                    }
                }
            }
        }
        Ok(match print_json(&rows) {
            0 => status,
            failed => failed,
        })
    }
}
