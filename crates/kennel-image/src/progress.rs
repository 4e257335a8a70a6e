//! Progress reports, and running blocking work on another thread.

use crate::error::{Error, Result};
use kennel_types::ErrorCode;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// The progress of one part of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The part: a layer, by the first digits of its digest.
    pub part: String,
    /// The current step.
    pub doing: Doing,
    /// The number of bytes that are done, and the total number, if both are known.
    pub bytes: Option<(u64, u64)>,
}

/// A step of the work on a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Another process downloads it.
    Waiting,
    /// It is being downloaded from a registry.
    Downloading,
    /// Its digest is being verified.
    Verifying,
    /// It is being unpacked.
    Unpacking,
    /// It is finished.
    Done,
    /// It already existed.
    Present,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting for another process",
            Self::Downloading => "downloading",
            Self::Verifying => "verifying",
            Self::Unpacking => "unpacking",
            Self::Done => "done",
            Self::Present => "already present",
        })
    }
}

/// A function that receives progress reports.
pub type Tell<'a> = &'a (dyn Fn(Progress) + Sync);

/// Sends progress from a working thread to the waiting task.
pub(crate) struct Teller {
    line: mpsc::UnboundedSender<Progress>,
    given_up: Arc<AtomicBool>,
}

impl Teller {
    pub(crate) fn tell(&self, progress: Progress) {
        // After the work was abandoned, nobody receives the reports.
        let _ = self.line.send(progress);
    }

    /// Returns an error if the work was abandoned. A thread cannot be stopped from outside.
    pub(crate) fn still_wanted(&self) -> Result<()> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorCode::Aborted, "the work was abandoned"));
        }
        Ok(())
    }

    /// A teller whose reports nobody receives.
    pub(crate) fn silent() -> Self {
        Self { line: mpsc::unbounded_channel().0, given_up: Arc::default() }
    }
}

struct GiveUp(Arc<AtomicBool>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs blocking work on another thread, and passes on its progress reports.
pub(crate) async fn blocking<T: Send + 'static>(
    tell: Tell<'_>,
    work: impl FnOnce(&Teller) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (line, mut heard) = mpsc::unbounded_channel();
    let given_up = Arc::new(AtomicBool::new(false));
    let _given_up_when_dropped = GiveUp(given_up.clone());
    let teller = Teller { line, given_up };
    let work = tokio::task::spawn_blocking(move || work(&teller));
    // The channel closes when the work ends.
    while let Some(progress) = heard.recv().await {
        tell(progress);
    }
    work.await.unwrap_or_else(|error| {
        Err(Error::new(ErrorCode::Internal, format!("the work on an image ended early: {error}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn step(part: &str) -> Progress {
        Progress { part: part.into(), doing: Doing::Done, bytes: None }
    }

    #[tokio::test]
    async fn all_progress_is_delivered_before_the_end() {
        let heard = Mutex::new(Vec::new());
        let tell = |progress: Progress| heard.lock().unwrap().push(progress.part);
        let done = blocking(&tell, |teller| {
            teller.tell(step("a"));
            teller.tell(step("b"));
            teller.still_wanted()?;
            Ok(7)
        });
        assert_eq!(done.await.unwrap(), 7);
        assert_eq!(*heard.lock().unwrap(), ["a", "b"]);
    }

    #[tokio::test]
    async fn work_ends_when_its_caller_is_gone() {
        let (ended, end) = std::sync::mpsc::channel();
        let work = blocking(&|_| {}, move |teller| {
            teller.tell(step("begun"));
            while teller.still_wanted().is_ok() {
                std::thread::yield_now();
            }
            let _ = ended.send(());
            Ok(())
        });
        // Dropped on its way.
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), work).await.is_err());
        end.recv().expect("the thread saw it");
    }
}
