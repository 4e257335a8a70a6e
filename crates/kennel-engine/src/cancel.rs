//! Cancels operations that clean up after themselves.

use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A request to give up on an operation. All clones are the same request.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Default for Cancel {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Cancel {
    /// Asks the operation to give up. It undoes what it has done, and then fails with `aborted`.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Whether the operation is asked to give up.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the operation is asked to give up.
    pub(crate) async fn cancelled(&self) {
        // The sender cannot be gone, because this is one.
        let _ = self.0.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    /// Fails if the operation is asked to give up.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(given_up()) } else { Ok(()) }
    }

    /// Waits for work that may be cut off at any moment. Fails if the operation is asked to give up first.
    pub(crate) async fn interrupts<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = self.cancelled() => Err(given_up()),
        }
    }

    /// Runs a task to its end, also if the caller gives up by dropping the future. The task looks at `self` between its
    /// steps. If it succeeds although the caller gave up, `undo` takes its result back.
    pub(crate) async fn attend<T, U>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
        undo: impl FnOnce(T) -> U + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        U: Future<Output = Result<()>> + Send + 'static,
    {
        let mut caller = Caller { cancel: self.clone(), task: Some(tokio::spawn(task)), undo: Some(undo) };
        let Some(task) = &mut caller.task else { return Err(given_up()) };
        let done = joined(task.await);
        caller.task = None;
        match (done, caller.undo.take()) {
            (Ok(value), Some(undo)) if self.is_cancelled() => {
                // As a task, so that it is not cut off either.
                joined(tokio::spawn(undo(value)).await)?;
                Err(given_up())
            }
            (done, _) => done,
        }
    }
}

/// The error of an operation whose caller gave up.
fn given_up() -> Error {
    Error::new(ErrorCode::Aborted, "the caller gave up")
}

/// Returns the result of a task. Continues its panic, if it panicked.
fn joined<T>(done: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    match done {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::new(ErrorCode::Aborted, "the program ends")),
    }
}

/// The caller's side of a task. If the caller gives up, the task is told, and the result that it may already have is
/// taken back.
struct Caller<T, F, U>
where
    T: Send + 'static,
    F: FnOnce(T) -> U + Send + 'static,
    U: Future<Output = Result<()>> + Send + 'static,
{
    cancel: Cancel,
    task: Option<JoinHandle<Result<T>>>,
    undo: Option<F>,
}

impl<T, F, U> Drop for Caller<T, F, U>
where
    T: Send + 'static,
    F: FnOnce(T) -> U + Send + 'static,
    U: Future<Output = Result<()>> + Send + 'static,
{
    fn drop(&mut self) {
        let (Some(task), Some(undo)) = (self.task.take(), self.undo.take()) else { return };
        self.cancel.cancel();
        // Without a runtime the program ends, and leaves the rest to reconciliation.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Ok(Ok(value)) = task.await
                && let Err(error) = undo(value).await
            {
                tracing::warn!(%error, "the result of an operation that nobody waited for is left");
            }
        });
    }
}
