//! The same thing done to several sandboxes: one that fails does not keep the others from their turn.

use crate::output::{print, print_json};
use crate::report;
use crate::result::JsonError;
use kennel_core::Result;
use kennel_types::SandboxId;
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done<'a> {
    asked: &'a str,
    sandbox_id: Option<SandboxId>,
    error: Option<JsonError>,
}

/// Does it to each, prints the id of each it was done to, and answers the exit status of the first that failed.
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
            let error = result.as_ref().err().map(JsonError::of);
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
