//! A task in a session, with guaranteed cleanup: whatever ends the task, the session ends with it.

use super::end::TaskEnd;
use super::{OpenSession, STOP_GRACE, Sessions};
use crate::create::panic_message;
use crate::session::{Cause, SessionId, SessionState, Wanted};
use crate::store::Outcome;
use futures_util::FutureExt;
use kennel_core::{Error, Result, Sandbox};
use kennel_types::ErrorCode;
use std::panic::AssertUnwindSafe;
use tokio::sync::oneshot;

impl Sessions {
    /// Opens a session, runs a task in it, and ends the session with the task: `completed` if the task returns a
    /// value, `failed` if it returns an error or panics, and `stopped` if the caller gives up by dropping the future.
    /// The sandbox is stopped in each case, and removed if the spec says `auto_remove`.
    pub async fn run<T, F>(&self, request: OpenSession, task: impl FnOnce(Sandbox) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let id = self.open(request).await?.summary.id;
        let sessions = self.clone();
        // The sender is dropped with this future. There is no await between the end of `open` and the start of the
        // task, so nobody can give up in between.
        let (_here, gone) = oneshot::channel::<()>();
        match tokio::spawn(async move { sessions.run_in(&id, task, gone).await }).await {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::new(ErrorCode::Aborted, "the program ends")),
        }
    }

    async fn run_in<T, F>(
        &self,
        id: &SessionId,
        task: impl FnOnce(Sandbox) -> F,
        gone: oneshot::Receiver<()>,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let work = async { task(self.sandbox(id.as_str()).await?).await };
        let ended = tokio::select! {
            done = AssertUnwindSafe(work).catch_unwind() => Some(done),
            _ = gone => None,
        };
        let end = TaskEnd::new;
        let end = match &ended {
            Some(Ok(Ok(_))) => end(SessionState::Completed, Cause::TaskDone, None),
            Some(Ok(Err(error))) => end(SessionState::Failed, Cause::TaskFailed, Some(error.to_string())),
            Some(Err(panic)) => end(SessionState::Failed, Cause::Panicked, Some(panic_message(&**panic))),
            None => end(SessionState::Stopped, Cause::Cancelled, None),
        };
        let closed = self.close(id, &end).await;
        match ended {
            Some(Ok(Ok(value))) => closed.map(|()| value),
            // The task's own error says more than one of the cleanup, which reconciliation completes.
            Some(Ok(Err(error))) => Err(error),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(Error::new(ErrorCode::Aborted, "the caller gave up")),
        }
    }

    /// Stops the sandbox, and records how the task ended.
    pub(super) async fn close(&self, id: &SessionId, end: &TaskEnd) -> Result<()> {
        let _claim = self.claims.take(id).await?;
        let seen = self.get(id).await?.summary;
        if seen.state == SessionState::Running {
            let wanted = self.store.want(&seen, Wanted::Stopped, end.cause, end.error.clone()).await?;
            if wanted == Outcome::Recorded {
                match self.provider(&seen.provider)?.stop(&seen.sandbox, STOP_GRACE).await {
                    Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        self.settle_as(id, Some(end)).await.map(drop)
    }
}
