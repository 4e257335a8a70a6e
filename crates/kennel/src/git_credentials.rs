//! The user's git credentials, from the credential helper on the host.

use kennel_core::{Error, Result};
use kennel_engine::GitCredentials;
use kennel_types::ErrorCode;
use std::io::Write;
use std::process::{Command, Stdio};

/// Asks `git credential fill`, which calls the user's credential helper. It never asks the user: a clone of a public
/// repository must not wait for a password.
pub(crate) struct HostCredentials;

impl GitCredentials for HostCredentials {
    fn credentials(&self, url: &str) -> Result<Option<(String, String)>> {
        let failed = |error| Error::io("ask git for credentials", error);
        // The repository in the current directory is not the user's to configure: commands in a sandbox can write to it.
        let mut command = Command::new("git");
        command
            .args(["credential", "fill"])
            .current_dir("/")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "true");
        command.env("SSH_ASKPASS", "true").env_remove("GIT_DIR");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            // Without git on the host there is no credential helper.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if url.contains(['\n', '\0']) {
            return Err(Error::new(ErrorCode::InvalidConfig, "invalid repository: its address contains a line break"));
        }
        let mut stdin = child.stdin.take().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        stdin.write_all(format!("url={url}\n\n").as_bytes()).map_err(failed)?;
        drop(stdin);
        let output = child.wait_with_output().map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let value =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned);
        Ok(value("username").zip(value("password")).filter(|(_, password)| !password.is_empty()))
    }
}
