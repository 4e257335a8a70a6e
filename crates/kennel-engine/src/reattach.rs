//! Restores a lost connection to a command that outlives it, without losing output.

use kennel_core::{Error, Exec, Result, Sandbox};
use kennel_types::{ErrorCode, ExitStatus, NextStep, Status, TermSize};
use std::time::Duration;

/// How often the connection is tried.
const TRIES: u32 = 6;
/// The wait after the first attempt. It doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// The result of [`reattach`].
pub enum Reattached {
    /// The same command on a new connection, from the position at which the old one was lost. [`Exec::lost`] says how
    /// many bytes of output the keeper no longer had.
    Again(Exec),
    /// The command was the main process, and has ended together with the sandbox.
    Ended(ExitStatus),
}

/// Attaches to a command again after its connection was lost. Tries several times if necessary. `size` is the current
/// size of the caller's terminal, if it has one.
pub async fn reattach(sandbox: &Sandbox, lost: &Exec, size: Option<TermSize>) -> Result<Reattached> {
    let (process, from) = (lost.process(), lost.position());
    let mut tried = 0;
    loop {
        sandbox.hang_up().await;
        let error = match sandbox.attach(process, from, size).await {
            Ok(exec) => return Ok(Reattached::Again(exec)),
            Err(error) => error,
        };
        let info = sandbox.inspect().await?;
        if info.status != Status::Running {
            return match info.exit_code {
                Some(code) => Ok(Reattached::Ended(ExitStatus { code: Some(code), ..ExitStatus::default() })),
                None => Err(Error::stopped(&info.name)),
            };
        }
        tried += 1;
        if tried == TRIES || !error.retryable() {
            let message = format!("the connection was lost, and could not be restored: {error}");
            return Err(Error::new(ErrorCode::AttachFailed, message).suggest(NextStep::AttachAgain { name: info.name }));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a backoff: no event reports that a keeper can be reached again"
        )]
        tokio::time::sleep(FIRST_WAIT * 2u32.pow(tried - 1)).await;
    }
}
