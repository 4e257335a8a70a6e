//! A lost connection to a command that lives on, made again from where it broke.

use crate::report;
use kennel_core::{Error, Exec, Result, Sandbox};
use kennel_types::{ErrorCode, ExitStatus, Status, TermSize};
use std::time::Duration;

/// What came of it.
pub(super) enum Renewed {
    /// The same command on a new connection; no byte of its output is missing, or it was said which.
    Again(Exec),
    /// The command was the main process, and ended with the sandbox.
    Ended(ExitStatus),
}

/// Attaches again, a few times if need be.
pub(super) async fn renew(sandbox: &Sandbox, lost: &Exec, size: Option<TermSize>) -> Result<Renewed> {
    const TRIES: u32 = 6;
    const FIRST_WAIT: Duration = Duration::from_millis(50);
    let (process, from) = (lost.process(), lost.position());
    let mut tried = 0;
    loop {
        sandbox.hang_up().await;
        let error = match sandbox.attach(process, from, size).await {
            Ok(exec) => {
                report_lost(exec.lost());
                return Ok(Renewed::Again(exec));
            }
            Err(error) => error,
        };
        let info = sandbox.inspect().await?;
        if info.status != Status::Running {
            return match info.exit_code {
                Some(code) => Ok(Renewed::Ended(ExitStatus { code: Some(code), ..ExitStatus::default() })),
                None => Err(Error::stopped(&info.name)),
            };
        }
        tried += 1;
        if tried == TRIES || !error.code().retryable() {
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

/// Says how much output nobody held any more.
fn report_lost(bytes: u64) {
    if bytes > 0 {
        report::warning(&format!("{bytes} bytes of older output are no longer available"));
    }
}
