//! The beginning of a conversation, by the relay: `initialize`, and `session/new` with the working directory. A client that
//! sends its own gets the stored answers.

use super::{Definition, Knowledge};
use crate::splice;
use serde_json::json;

/// The version of the protocol that the relay offers.
const VERSION: u32 = 1;

pub(super) const INITIALIZE: &str = "\"kennel-initialize\"";
pub(super) const OPEN: &str = "\"kennel-session-new\"";

/// Returns the next request that the relay itself must send: its id, its method and its line. `is_open` says whether a request
/// waits for its response.
pub(super) fn next_request(
    definition: &Definition,
    knowledge: &Knowledge,
    is_open: impl Fn(&str) -> bool,
) -> Option<(&'static str, &'static str, Vec<u8>)> {
    let directory = definition.opens.as_ref()?;
    let line = |id: &str, method: &str, params: serde_json::Value| {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n").into_bytes()
    };
    if knowledge.initialized.is_none() {
        let served = definition.served;
        let params = json!({
            "protocolVersion": VERSION,
            "clientCapabilities": {
                "fs": { "readTextFile": served.files, "writeTextFile": served.files },
                "terminal": served.terminals,
            },
            "clientInfo": { "name": "kennel", "title": "Kennel", "version": env!("CARGO_PKG_VERSION") },
        });
        return (!is_open(INITIALIZE)).then(|| (INITIALIZE, "initialize", line(INITIALIZE, "initialize", params)));
    }
    let is_initialized = knowledge.initialized.as_ref().is_some_and(|answer| is_result(answer));
    if is_initialized && knowledge.opened.is_none() && !is_open(OPEN) {
        let params = json!({ "cwd": directory, "mcpServers": [] });
        return Some((OPEN, "session/new", line(OPEN, "session/new", params)));
    }
    None
}

/// Whether the relay has nothing left to send or to wait for.
pub(super) fn is_done(definition: &Definition, knowledge: &Knowledge) -> bool {
    definition.opens.is_none()
        || knowledge.opened.is_some()
        || knowledge.initialized.as_ref().is_some_and(|answer| !is_result(answer))
}

/// What happens to a client's request for what the relay has done already.
pub(super) enum Own {
    /// It is answered with the stored answer.
    Answer(Vec<u8>),
    /// It waits for the answer to the relay's own.
    Wait,
    /// It passes.
    Pass,
}

/// Decides about a client's request. If the relay's own one failed, the client's passes: perhaps it has logged in meanwhile.
pub(super) fn of_client(definition: &Definition, knowledge: &Knowledge, id: &str, method: &str) -> Own {
    let answer = match method {
        _ if definition.opens.is_none() => return Own::Pass,
        "initialize" => &knowledge.initialized,
        "session/new" => &knowledge.opened,
        _ => return Own::Pass,
    };
    match answer {
        Some(answer) if is_result(answer) || method == "initialize" => {
            Own::Answer(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{answer}}}\n").into_bytes())
        }
        Some(_) => Own::Pass,
        None if is_done(definition, knowledge) => Own::Pass,
        None => Own::Wait,
    }
}

/// Returns the answer in a response of the agent, to be stored.
pub(super) fn answer(line: &str) -> String {
    for key in ["result", "error"] {
        if let Some(value) = splice::get(line, &[key]) {
            return format!("\"{key}\":{value}");
        }
    }
    "\"result\":null".to_owned()
}

pub(super) fn is_result(answer: &str) -> bool {
    answer.starts_with("\"result\"")
}
