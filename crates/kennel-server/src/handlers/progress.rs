//! Long operations whose progress is returned as lines while they go on. They are given up when the client closes the
//! connection.

use crate::app::AppState;
use crate::auth::Identity;
use crate::revocation::StreamEnd;
use crate::streams::lines::{self, unless_ending};
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::stream;
use kennel_core::{Error, Result};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How many lines wait for a client that reads slowly. Further ones are counted, and left out.
const WAITING: usize = 1024;

/// Where an operation reports its progress.
pub(super) struct Teller<T> {
    sender: mpsc::Sender<T>,
    missed: Arc<AtomicU64>,
}

impl<T> Teller<T> {
    /// Sends a line, or counts it if the client reads too slowly.
    pub(super) fn tell(&self, line: T) {
        if self.sender.try_send(line).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The lines of an operation that are not progress.
pub(super) struct Endings<T> {
    /// Makes the line that says how many were left out.
    pub(super) missed: fn(u64) -> T,
    /// Makes the last line of an operation that failed.
    pub(super) failed: Box<dyn Fn(&Error) -> T + Send>,
}

/// Runs an operation, and returns its progress as lines. The last line is what the operation returns, or its error.
pub(super) fn respond<T, F>(
    app: &AppState,
    identity: &Identity,
    headers: &HeaderMap,
    endings: Endings<T>,
    work: impl FnOnce(Teller<T>) -> F,
) -> Response
where
    T: Serialize + Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(WAITING);
    let missed = Arc::<AtomicU64>::default();
    let task = tokio::spawn(work(Teller { sender, missed: missed.clone() }));
    let going = Going { receiver, missed, task: Task(task), ending: app.stream_end(identity), endings, done: false };
    let lines = stream::unfold(going, |mut going| async move { Some((going.next().await?, going)) });
    lines::response(headers, lines)
}

/// A task that ends when its client is gone.
struct Task<T>(JoinHandle<Result<T>>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Going<T> {
    receiver: mpsc::Receiver<T>,
    missed: Arc<AtomicU64>,
    task: Task<T>,
    ending: StreamEnd,
    endings: Endings<T>,
    done: bool,
}

impl<T> Going<T> {
    async fn next(&mut self) -> Option<T> {
        if self.done {
            return None;
        }
        let missed = if self.receiver.is_empty() { self.missed.swap(0, Ordering::Relaxed) } else { 0 };
        if missed > 0 {
            return Some((self.endings.missed)(missed));
        }
        let ended = match unless_ending(&mut self.ending, self.receiver.recv()).await {
            Ok(Some(line)) => return Some(line),
            Ok(None) => crate::app::joined((&mut self.task.0).await),
            Err(error) => Err(error),
        };
        self.done = true;
        Some(ended.unwrap_or_else(|error| (self.endings.failed)(&error)))
    }
}
