//! How much was copied, what was left out, and a line about it for who waits.

use crate::report;
use kennel_types::format_bytes;
use std::io::Write;
use std::time::{Duration, Instant};

/// Counts, and shows progress to a person who waits for more than a second.
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) left_out: u64,
    /// Copied, but not as they were.
    pub(crate) damaged: u64,
    next_show: Option<Instant>,
    shown: bool,
}

impl Tally {
    pub(crate) fn begin() -> Self {
        const QUIET: Duration = Duration::from_secs(1);
        let next_show = report::is_watched().then(|| Instant::now() + QUIET);
        Self { files: 0, bytes: 0, left_out: 0, damaged: 0, next_show, shown: false }
    }

    /// So many more bytes are copied.
    pub(super) fn copied(&mut self, bytes: usize) {
        const PAUSE: Duration = Duration::from_millis(100);
        self.bytes += bytes as u64;
        if let Some(next) = &mut self.next_show
            && Instant::now() >= *next
        {
            *next = Instant::now() + PAUSE;
            self.shown = true;
            let _ = write!(std::io::stderr(), "\r\x1b[K{} in {} files", format_bytes(self.bytes), self.files + 1);
        }
    }

    /// An entry is not copied, and why.
    pub(super) fn leave_out(&mut self, path: &[u8], why: &str) {
        self.clear();
        self.left_out += 1;
        report::warning(&format!("{} is skipped: {why}", String::from_utf8_lossy(path)));
    }

    /// An entry is copied, but not as it was, and why.
    pub(super) fn damage(&mut self, path: &[u8], why: &str) {
        self.clear();
        self.damaged += 1;
        report::warning(&format!("{} is incomplete: {why}", String::from_utf8_lossy(path)));
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.clear();
    }
}
