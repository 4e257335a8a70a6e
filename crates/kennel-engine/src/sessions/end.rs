//! The end of a session: notices it, records exit code, cause and last log lines, and removes the sandbox if that was
//! requested.

use super::{Sessions, in_state, is_down};
use crate::create::remove_sandbox;
use crate::session::{Cause, LOG_LINES, Session, SessionId, SessionState, SessionSummary, Wanted};
use crate::store::{Change, Outcome};
use futures_util::StreamExt;
use kennel_core::{Error, LogOptions, Provider, Result};
use kennel_types::{EndCause, ErrorCode, EventKind, SandboxId, SandboxInfo};

/// The most bytes of a log that a session keeps. What is inside decides how long its lines are.
const LOG_BYTES: usize = 64 * 1024;

/// How a task of a session ended. It decides the result, in place of the main process.
pub(super) struct TaskEnd {
    pub(super) to: SessionState,
    pub(super) cause: Cause,
    pub(super) error: Option<String>,
    /// The exit code and the last lines of the task, in place of those of the main process.
    pub(super) exit_code: Option<i32>,
    pub(super) log: Option<Vec<String>>,
}

impl TaskEnd {
    pub(super) fn new(to: SessionState, cause: Cause, error: Option<String>) -> Self {
        Self { to, cause, error, exit_code: None, log: None }
    }
}

impl Sessions {
    /// Compares a session with its sandbox, records the end of the sandbox if it has ended, and returns the session.
    /// If the provider cannot say what became of the sandbox, that is an error, and nothing is changed.
    pub async fn settle(&self, id_or_name: &str) -> Result<Session> {
        let session = self.store.find(id_or_name).await?;
        // Only the sandbox of a running session can have ended unnoticed.
        if session.summary.state != SessionState::Running {
            return Ok(session);
        }
        self.settle_now(&session.summary.id).await
    }

    /// Waits until a session has ended, and returns it with its result.
    pub async fn wait(&self, id_or_name: &str) -> Result<Session> {
        let id = self.store.find(id_or_name).await?.summary.id;
        loop {
            let mut seen = self.get(&id).await?.summary;
            if seen.state == SessionState::Creating {
                // Whoever opens it has its claim.
                drop(self.claims.take(&id).await?);
                seen = self.get(&id).await?.summary;
                if seen.state == SessionState::Creating {
                    return Err(in_state(&seen));
                }
            }
            // Watch first, and look afterwards: so no end is missed in between.
            let mut events = self.provider(&seen.provider)?.watch().await?;
            let session = self.settle_now(&id).await?;
            if session.summary.state != SessionState::Running {
                return Ok(session);
            }
            loop {
                let Some(event) = events.next().await.transpose()? else {
                    let message = format!("wait for session {id}: the provider reports no more events");
                    return Err(Error::new(ErrorCode::NotAvailable, message));
                };
                let ours = event.sandbox.is_none_or(|sandbox| sandbox == seen.sandbox);
                if ours && matches!(event.kind, EventKind::Stopped | EventKind::Removed | EventKind::Missed) {
                    break;
                }
            }
        }
    }

    /// Settles a session, whatever its state.
    pub(super) async fn settle_now(&self, id: &SessionId) -> Result<Session> {
        self.settle_as(id, None).await
    }

    pub(super) async fn settle_as(&self, id: &SessionId, task: Option<&TaskEnd>) -> Result<Session> {
        loop {
            // The session is read first. If it is changed after the provider has replied, nothing is recorded.
            let session = self.get(id).await?;
            let seen = &session.summary;
            let ended = matches!(seen.state, SessionState::Stopped | SessionState::Completed | SessionState::Failed);
            if ended && seen.auto_remove {
                // The result is recorded, so the sandbox is no longer needed. It may be gone already.
                remove_sandbox(&*self.provider(&seen.provider)?, &seen.sandbox, false).await?;
            }
            if seen.state != SessionState::Running {
                return Ok(session);
            }
            let provider = self.provider(&seen.provider)?;
            let change = match provider.get(seen.sandbox.as_str()).await {
                Ok(info) if is_down(info.status) => {
                    let log = match task.and_then(|task| task.log.clone()) {
                        Some(log) => Some(log),
                        None => last_lines(&*provider, &seen.sandbox).await,
                    };
                    Change { log, ..ended_as(&info, seen, task) }
                }
                Ok(_) => return Ok(session),
                Err(error) if error.code() == ErrorCode::NotFound => Change {
                    error: task.and_then(|task| task.error.clone()),
                    exit_code: task.and_then(|task| task.exit_code),
                    log: task.and_then(|task| task.log.clone()),
                    ..Change::new(SessionState::Failed, Cause::Lost)
                },
                Err(error) => {
                    return Err(error.context(format_args!("look for the sandbox of session {}", seen.label())));
                }
            };
            // Whoever was first has recorded the same end, or something later: look again.
            let _: Outcome = self.store.change(seen, change).await?;
        }
    }
}

/// The change that the end of a sandbox means for its session.
fn ended_as(info: &SandboxInfo, seen: &SessionSummary, task: Option<&TaskEnd>) -> Change {
    let result = |to, cause| Change { exit_code: info.exit_code, ..Change::new(to, cause) };
    if let Some(task) = task {
        let exit_code = task.exit_code.or(info.exit_code);
        return Change { error: task.error.clone(), exit_code, ..result(task.to, task.cause) };
    }
    if seen.wanted == Wanted::Stopped {
        return result(SessionState::Stopped, Cause::Requested);
    }
    match (info.end_cause, info.exit_code) {
        (Some(EndCause::Requested), _) => result(SessionState::Stopped, Cause::Requested),
        (Some(EndCause::Idle), _) => result(SessionState::Stopped, Cause::Idle),
        (Some(EndCause::OutOfMemory), _) => result(SessionState::Failed, Cause::OutOfMemory),
        (Some(EndCause::Killed | EndCause::OwnerGone), _) | (_, None) => result(SessionState::Failed, Cause::Killed),
        (Some(EndCause::Exited) | None, Some(0)) => result(SessionState::Completed, Cause::Exited),
        (Some(EndCause::Exited) | None, Some(_)) => result(SessionState::Failed, Cause::Exited),
    }
}

/// Returns the last lines of the main process's log, or `None` if they cannot be read.
pub(super) async fn last_lines(provider: &dyn Provider, sandbox: &SandboxId) -> Option<Vec<String>> {
    let mut chunks = provider.logs(sandbox, LogOptions { tail: Some(LOG_LINES), follow: false }).await.ok()?;
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.next().await {
        bytes.extend_from_slice(&chunk.ok()?.bytes);
        let over = bytes.len().saturating_sub(LOG_BYTES);
        bytes.drain(..over);
    }
    Some(lines(&bytes))
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_cut_to_its_last_lines() {
        let many: Vec<String> = (0..80).map(|n| format!("line {n}")).collect();
        let kept = lines(many.join("\n").as_bytes());
        assert_eq!((kept.len(), kept[0].as_str(), kept[49].as_str()), (50, "line 30", "line 79"));
        assert_eq!(lines(b""), Vec::<String>::new());
        assert_eq!(lines(b"\xff\nlast without an end"), ["\u{fffd}", "last without an end"]);
    }
}
