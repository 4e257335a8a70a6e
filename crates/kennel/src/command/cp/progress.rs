//! The progress of a copy: warnings and, after a second, a line that counts files and bytes.

use crate::report;
use kennel_core::copy::{Counts, Progress};
use kennel_types::format_bytes;
use std::io::Write;
use std::time::{Duration, Instant};

/// Shows the progress of a copy. The line is removed when this is dropped.
pub(super) struct Shown {
    /// When to update the line next; `None` if progress is not shown.
    next: Option<Instant>,
    shown: bool,
}

impl Shown {
    pub(super) fn begin() -> Self {
        const QUIET: Duration = Duration::from_secs(1);
        Self { next: report::is_watched().then(|| Instant::now() + QUIET), shown: false }
    }

    pub(super) fn show(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Copied(counts) => self.count(counts),
            Progress::Skipped { path, why } => self.warn(path, &format!("is skipped: {why}")),
            Progress::Incomplete { path, why } => self.warn(path, &format!("is incomplete: {why}")),
            _ => {}
        }
    }

    fn count(&mut self, counts: Counts) {
        const PAUSE: Duration = Duration::from_millis(100);
        if let Some(next) = &mut self.next
            && Instant::now() >= *next
        {
            *next = Instant::now() + PAUSE;
            self.shown = true;
            let _ = write!(std::io::stderr(), "\r\x1b[K{} in {} files", format_bytes(counts.bytes), counts.files + 1);
        }
    }

    fn warn(&mut self, path: &[u8], what: &str) {
        self.clear();
        report::warning(&format!("{} {what}", String::from_utf8_lossy(path)));
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.clear();
    }
}
