//! `kennel pool rm`.

use crate::completion;
use crate::output::{print, print_json};
use crate::report;
use crate::result::JsonError;
use kennel_core::{Result, printable};
use kennel_engine::Engine;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  kennel pool rm quick";

/// Remove pools
///
/// The members that wait end. Sandboxes that came from the pool are not changed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Rm {
    /// Names of pools
    #[arg(value_name = "NAME", required = true, add = completion::pools())]
    names: Vec<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Rm {
    pub(super) async fn run(&self, engine: &Engine) -> Result<u8> {
        let pools = engine.pools()?;
        let (mut status, mut all) = (0, Vec::new());
        for name in &self.names {
            let removed = pools.remove(name).await;
            if let (Err(error), 0) = (&removed, status) {
                status = report::exit_status(error);
            }
            match removed {
                removed if self.json => {
                    all.push(json!({ "asked": name, "error": removed.as_ref().err().map(JsonError::from_error) }));
                }
                Ok(()) => match print(&printable(name)) {
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
