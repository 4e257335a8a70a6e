//! How far things are, told while they are done; and work that blocks, done beside.

use crate::error::{Error, Result};
use kennel_types::ErrorCode;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// How far a part of an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The part: a layer, by the first digits of its digest.
    pub part: String,
    /// What is being done with it.
    pub doing: Doing,
    /// How many bytes that is done for, and of how many, where both are known.
    pub bytes: Option<(u64, u64)>,
}

/// What is being done with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Another process fetches it.
    Waiting,
    /// It comes from a registry.
    Downloading,
    /// Its digest is checked.
    Verifying,
    /// It is unpacked.
    Unpacking,
    /// It is there.
    Done,
    /// It was there before.
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
            Self::Present => "already there",
        })
    }
}

/// Who is told.
pub type Tell<'a> = &'a (dyn Fn(Progress) + Sync);

/// The line from a thread that works to who waits for it.
pub(crate) struct Teller {
    line: mpsc::UnboundedSender<Progress>,
    given_up: Arc<AtomicBool>,
}

impl Teller {
    pub(crate) fn tell(&self, progress: Progress) {
        // Nobody listens any more once the work is given up.
        let _ = self.line.send(progress);
    }

    /// An error once nobody waits any more: a thread cannot be ended from outside.
    pub(crate) fn still_wanted(&self) -> Result<()> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorCode::Aborted, "it was given up"));
        }
        Ok(())
    }

    /// One that nobody listens to.
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

/// Does something that blocks on another thread, and passes on what it tells.
pub(crate) async fn blocking<T: Send + 'static>(
    tell: Tell<'_>,
    work: impl FnOnce(&Teller) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (line, mut heard) = mpsc::unbounded_channel();
    let given_up = Arc::new(AtomicBool::new(false));
    let _given_up_when_dropped = GiveUp(given_up.clone());
    let teller = Teller { line, given_up };
    let work = tokio::task::spawn_blocking(move || work(&teller));
    // The line ends with the work.
    while let Some(progress) = heard.recv().await {
        tell(progress);
    }
    work.await
        .unwrap_or_else(|error| Err(Error::new(ErrorCode::Internal, format!("work on an image broke off: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn step(part: &str) -> Progress {
        Progress { part: part.into(), doing: Doing::Done, bytes: None }
    }

    #[tokio::test]
    async fn everything_that_is_told_is_heard_before_the_end() {
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
    async fn work_that_nobody_waits_for_ends() {
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
