//! Commands that use the sandboxes of a server (`--server`, `KENNEL_URL`) instead of those of this machine.

use crate::environment;
use kennel_api::SandboxView;
use kennel_client::{Client, ServerAddress};
use kennel_core::{Error, Result};
use kennel_engine::Engine;
use kennel_types::{ErrorCode, NextStep, SandboxInfo};
use secrecy::SecretString;

/// Returns a client of a server. Its token is that of the environment. On this machine, it is the one that `kennel serve` has
/// created for this user, and a unix socket needs none.
pub(crate) fn client(server: &str, engine: &Engine) -> Result<Client> {
    let address: ServerAddress = server.parse()?;
    let token = match (environment::token(), &address) {
        (Some(token), _) => Some(token),
        (None, ServerAddress::Http { .. } | ServerAddress::Https { .. }) if address.is_local() => {
            let path = engine.directories()?.token_file();
            std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
        }
        _ => None,
    };
    Ok(Client::new(address, token.map(SecretString::from)))
}

/// The error of a command that cannot use a server.
pub(crate) fn only_here(server: &str) -> Error {
    let message = format!(
        "this command does not work through a server ({server}): only run, exec, attach, cp, ls, inspect, logs, stop and rm do"
    );
    Error::new(ErrorCode::Unsupported, message)
        .suggest(NextStep::advice("unset KENNEL_URL, or leave out --server, to use this machine's own sandboxes"))
}

/// The error of an option that names files of this machine, which the server does not see.
pub(crate) fn not_seen(option: &str) -> Error {
    Error::new(ErrorCode::Unsupported, format!("{option}: the server does not see the files of this machine"))
}

/// Converts the description of a sandbox, so that it is shown like those of this machine.
pub(crate) fn info(view: &SandboxView) -> Result<SandboxInfo> {
    let mut value = serde_json::to_value(view).map_err(|error| unreadable(&error))?;
    value["imageCommand"] = serde_json::Value::Null;
    value["enforcement"] = serde_json::json!({
        "mode": view.mode,
        "layers": view.layers,
        "limits": {
            "memory": view.limits.memory_bytes,
            "millicpus": view.limits.millicpus,
            "pids": view.limits.pids,
            "disk": view.limits.disk_bytes,
        },
    });
    serde_json::from_value(value).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Error {
    Error::new(ErrorCode::Internal, format!("read the description of a sandbox: {error}"))
}
