//! Restores a lost connection to a command that outlives it, without losing output.

use crate::next_step::Hint;
use crate::report;
use kennel_core::{Error, Exec, Result, Sandbox};
use kennel_types::{ErrorCode, ExitStatus, Status, TermSize};
use std::time::Duration;

/// The result of a reconnection.
pub(super) enum Reconnected {
    /// The same command on a new connection. No output is missing, or the user was told how much.
    Again(Exec),
    /// The command was the main process, and has ended together with the sandbox.
    Ended(ExitStatus),
}

/// Attaches to the command again. Tries several times if necessary.
pub(super) async fn reconnect(sandbox: &Sandbox, lost: &Exec, size: Option<TermSize>) -> Result<Reconnected> {
    const TRIES: u32 = 6;
    const FIRST_WAIT: Duration = Duration::from_millis(50);
    let (process, from) = (lost.process(), lost.position());
    let mut tried = 0;
    loop {
        sandbox.hang_up().await;
        let error = match sandbox.attach(process, from, size).await {
            Ok(exec) => {
                report_lost(exec.lost());
                return Ok(Reconnected::Again(exec));
            }
            Err(error) => error,
        };
        let info = sandbox.inspect().await?;
        if info.status != Status::Running {
            return match info.exit_code {
                Some(code) => Ok(Reconnected::Ended(ExitStatus { code: Some(code), ..ExitStatus::default() })),
                None => Err(Error::stopped(&info.name)),
            };
        }
        tried += 1;
        if tried == TRIES || !error.retryable() {
            return Err(Error::new(
                ErrorCode::AttachFailed,
                format!("the connection was lost, and could not be restored: {error}"),
            )
            .hint(format!("kennel attach {}", info.name)));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a backoff: no event reports that a keeper can be reached again"
        )]
        tokio::time::sleep(FIRST_WAIT * 2u32.pow(tried - 1)).await;
    }
}

/// Reports how much output was lost, because the keeper no longer had it.
fn report_lost(bytes: u64) {
    if bytes > 0 {
        report::warning(&format!("{bytes} bytes of older output are no longer available"));
    }
}
