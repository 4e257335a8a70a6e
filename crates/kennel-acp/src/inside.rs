//! Serves the agent's requests for files and terminals from its own sandbox. The keeper does the work inside, as the
//! sandbox's user. No file of the host is opened here.

mod files;
mod terminals;

use crate::splice;
use kennel_core::{Error, Sandbox};
use kennel_types::ErrorCode;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use terminals::Terminals;

/// The sessions whose working directory is remembered.
const SESSIONS: usize = 1024;

/// What an agent asks its client for, served inside.
pub(crate) struct Inside {
    sandbox: Sandbox,
    /// The working directory of each session, by its id.
    directories: Mutex<HashMap<String, String>>,
    terminals: Terminals,
}

/// Why a request failed, as JSON-RPC states it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: i32,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) const INVALID_REQUEST: i32 = -32600;
    pub(crate) const NO_METHOD: i32 = -32601;
    pub(crate) const INVALID_PARAMS: i32 = -32602;
    pub(crate) const INTERNAL: i32 = -32603;
    pub(crate) const PARSE: i32 = -32700;
    /// ACP's own code: there is no such file or terminal.
    pub(crate) const NOT_FOUND: i32 = -32002;

    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let code = match error.code() {
            ErrorCode::NotFound => Self::NOT_FOUND,
            ErrorCode::InvalidConfig => Self::INVALID_PARAMS,
            _ => Self::INTERNAL,
        };
        Self::new(code, error.to_string())
    }
}

/// Whether a method of an agent's request is served inside, and never reaches the client.
pub(crate) fn is_ours(method: &str) -> bool {
    method.starts_with("fs/") || method.starts_with("terminal/")
}

impl Inside {
    pub(crate) fn new(sandbox: Sandbox) -> Self {
        Self { sandbox, directories: Mutex::default(), terminals: Terminals::default() }
    }

    /// Remembers the working directory of a session.
    pub(crate) fn remember(&self, session: String, directory: String) {
        let mut directories = lock(&self.directories);
        if directories.len() < SESSIONS || directories.contains_key(&session) {
            directories.insert(session, directory);
        }
    }

    /// Serves a request, and returns its result.
    pub(crate) async fn serve(&self, method: &str, line: &[u8]) -> Result<Value, Refusal> {
        match method {
            "fs/read_text_file" => self.read_text_file(params(line)?).await,
            "fs/write_text_file" => self.write_text_file(params(line)?).await,
            "terminal/create" => self.create_terminal(params(line)?).await,
            "terminal/output" => self.terminals.output(&params(line)?),
            "terminal/wait_for_exit" => self.terminals.wait_for_exit(&params(line)?).await,
            "terminal/kill" => self.kill_terminal(&params(line)?).await,
            "terminal/release" => self.terminals.release(&params(line)?),
            _ => Err(Refusal::new(Refusal::NO_METHOD, format!("the method {method:?} is not served in the sandbox"))),
        }
    }

    /// Returns an absolute path. A relative one starts at the working directory of the session.
    fn absolute(&self, session: Option<&str>, path: &str) -> String {
        let directories = lock(&self.directories);
        match session.and_then(|session| directories.get(session)) {
            Some(directory) if !path.starts_with('/') => format!("{}/{path}", directory.trim_end_matches('/')),
            _ => path.to_owned(),
        }
    }

    /// Returns the working directory of a session, if it is known.
    pub(crate) fn directory(&self, session: Option<&str>) -> Option<String> {
        session.and_then(|session| lock(&self.directories).get(session).cloned())
    }
}

/// Reads the parameters of a request.
fn params<T: DeserializeOwned>(line: &[u8]) -> Result<T, Refusal> {
    let text = std::str::from_utf8(line).unwrap_or_default();
    let params = splice::get(text, &["params"]).unwrap_or("{}");
    serde_json::from_str(params)
        .map_err(|error| Refusal::new(Refusal::INVALID_PARAMS, format!("invalid params: {error}")))
}

/// Returns a response to a request, as a line.
pub(crate) fn response(id: &str, outcome: Result<Value, Refusal>) -> Vec<u8> {
    let (key, value) = match outcome {
        Ok(result) => ("result", result),
        Err(refusal) => ("error", json!({ "code": refusal.code, "message": refusal.message })),
    };
    // The id is repeated exactly as it was sent.
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{key}\":{value}}}\n").into_bytes()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
