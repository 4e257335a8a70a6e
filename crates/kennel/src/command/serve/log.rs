//! The log of the server on standard error. A slow reader of it does not delay requests: lines that do not fit into the queue
//! are counted, and left out.

use kennel_core::{Error, Result, printable};
use kennel_types::ErrorCode;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// How many lines wait for the reader.
const QUEUE: usize = 8192;
/// How long the last lines may take.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LogFormat {
    Text,
    Json,
}

/// The least severe messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// The log. It works until the process ends.
#[derive(Clone)]
pub(super) struct Log {
    lines: SyncSender<Part>,
    lost: Arc<AtomicU64>,
    is_text: bool,
}

enum Part {
    Line(Vec<u8>),
    /// Everything before was written if this is received.
    Flush(SyncSender<()>),
}

/// Starts the log.
pub(super) fn start(format: LogFormat, level: Level) -> Result<Log> {
    let (lines, received) = sync_channel(QUEUE);
    let lost = Arc::<AtomicU64>::default();
    let log = Log { lines, lost: lost.clone(), is_text: format == LogFormat::Text };
    let thread = std::thread::Builder::new().name("kennel-log".into()).spawn({
        let is_text = log.is_text;
        move || write_all(&received, &lost, is_text)
    });
    thread.map_err(|error| Error::io("start the thread of the log", error))?;
    let level = match level {
        Level::Error => tracing::Level::ERROR,
        Level::Warn => tracing::Level::WARN,
        Level::Info => tracing::Level::INFO,
        Level::Debug => tracing::Level::DEBUG,
    };
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(log.clone());
    let started = match format {
        LogFormat::Text => subscriber.with_target(false).try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|error| Error::new(ErrorCode::Internal, format!("start the log: {error}")))?;
    Ok(log)
}

fn write_all(parts: &Receiver<Part>, lost: &AtomicU64, is_text: bool) {
    let mut out = std::io::stderr();
    while let Ok(part) = parts.recv() {
        match part {
            Part::Line(line) => {
                let count = lost.swap(0, Ordering::Relaxed);
                if count > 0 {
                    let message = format!("{count} lines of the log are left out: its reader is too slow");
                    let note = serde_json::json!({"level": "WARN", "message": message});
                    let text = if is_text { message } else { note.to_string() };
                    // If it cannot be written, there is nobody to tell.
                    let _ = writeln!(out, "{text}");
                }
                let _ = out.write_all(&line);
            }
            Part::Flush(done) => drop(done.send(())),
        }
    }
}

impl Log {
    /// Waits until everything is written, for a short time.
    pub(super) fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.lines.try_send(Part::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_WITHIN);
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { log: self.clone(), bytes: Vec::new() }
    }
}

/// A line that is sent when it is complete.
pub(super) struct Line {
    log: Log,
    bytes: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if self.log.is_text {
            // An error may quote what a sandbox said. JSON escapes it by itself.
            bytes = printable(String::from_utf8_lossy(bytes.trim_ascii_end()).as_ref()).into_bytes();
            bytes.push(b'\n');
        }
        if self.log.lines.try_send(Part::Line(bytes)).is_err() {
            self.log.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
