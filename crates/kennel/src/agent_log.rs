//! What an agent writes to standard error, on this program's standard error, line by line. Text from a sandbox is escaped.
//!
//! Some editors do not read the standard error of an agent. The agent must not wait for them, so lines that do not fit into
//! a queue are dropped and counted.

use crate::output::Stream;
use kennel_acp::Watch;
use kennel_types::printable_within;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The lines that wait to be printed.
const QUEUE: usize = 1024;
/// The longest line that is printed, in bytes. The rest of a longer one is dropped.
const WIDTH: usize = 4096;
/// How long the last lines may take.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Prints the lines of an agent.
pub(crate) struct AgentLog {
    lines: mpsc::Sender<String>,
    printer: JoinHandle<()>,
    dropped: AtomicU64,
    /// The beginning of the next line.
    partial: Mutex<Vec<u8>>,
}

impl AgentLog {
    pub(crate) fn start() -> Self {
        let (lines, queue) = mpsc::channel(QUEUE);
        let printer = tokio::spawn(print(queue));
        Self { lines, printer, dropped: AtomicU64::new(0), partial: Mutex::default() }
    }

    /// Prints what is left, unless nobody reads it.
    pub(crate) async fn finish(self) {
        let partial = std::mem::take(&mut *self.partial.lock().unwrap_or_else(PoisonError::into_inner));
        if !partial.is_empty() {
            self.say(&String::from_utf8_lossy(&partial));
        }
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            self.say(&format!("kennel: {dropped} lines of the agent were not printed, because nobody read them"));
        }
        drop(self.lines);
        let _ = tokio::time::timeout(LAST_WAIT, self.printer).await;
    }

    fn say(&self, line: &str) {
        if self.lines.try_send(format!("{}\n", printable_within(line, WIDTH))).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn print(mut queue: mpsc::Receiver<String>) {
    while let Some(line) = queue.recv().await {
        if Stream::Stderr.write(line.into_bytes()).await.is_err() {
            return;
        }
    }
}

impl Watch for AgentLog {
    fn stderr(&self, bytes: &[u8]) {
        let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = WIDTH.saturating_sub(partial.len());
            partial.extend_from_slice(&text[..text.len().min(room)]);
            if text.len() < piece.len() {
                let line = std::mem::take(&mut *partial);
                self.say(&String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line)));
            }
        }
    }

    fn notice(&self, text: &str) {
        self.say(&format!("kennel: {text}"));
    }
}
