//! `kennel volume rm`.

use super::list;
use crate::completion::volumes;
use crate::output::{print, print_json};
use crate::progress::while_waiting;
use crate::report;
use crate::result::JsonError;
use kennel_core::{Result, VolumeOptions, printable};
use kennel_engine::Engine;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  kennel volume rm data-box
  kennel volume rm $(kennel volume ls -q)      all that no sandbox uses; reports the others
  kennel --provider docker volume rm data-box";

/// Remove volumes and their content
///
/// A volume that a sandbox uses is not removed, whether the sandbox runs or not.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Rm {
    /// Names of volumes
    #[arg(value_name = "NAME", required = true, add = volumes())]
    names: Vec<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done<'a> {
    asked: &'a str,
    provider: Option<&'a str>,
    error: Option<JsonError>,
}

impl Rm {
    pub(super) async fn run(&self, engine: &Engine) -> Result<u8> {
        let listing = list(engine, VolumeOptions::default()).await?;
        let (mut status, mut all) = (0, Vec::new());
        for name in &self.names {
            let removed = match listing.find(name) {
                Ok(volume) => {
                    let removed = while_waiting(&format!("removing {name}"), volume.remove()).await;
                    removed.map(|()| volume.info.provider.as_str())
                }
                Err(error) => Err(error),
            };
            if let (Err(error), 0) = (&removed, status) {
                status = report::exit_status(error);
            }
            if self.json {
                let error = removed.as_ref().err().map(JsonError::from_error);
                all.push(Done { asked: name, provider: removed.ok(), error });
                continue;
            }
            match removed {
                Ok(_) => match print(&printable(name)) {
                    0 => {}
                    failed => return Ok(failed),
                },
                Err(error) => report::error(&error),
            }
        }
        Ok(match if self.json { print_json(&all) } else { 0 } {
            0 => status,
            failed => failed,
        })
    }
}
