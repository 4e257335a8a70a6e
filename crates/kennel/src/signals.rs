//! Receives the signals that are sent to this process, so that commands can pass them on or clean up before they end.

use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use std::future::poll_fn;
use std::io::Read;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that are passed on to a command in a sandbox.
const PASSED_ON: [SignalKind; 6] = [
    SignalKind::interrupt(),
    SignalKind::terminate(),
    SignalKind::hangup(),
    SignalKind::quit(),
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
];

/// The signals that ask a process to end.
pub(crate) const ENDING: [i32; 4] = [
    SignalKind::interrupt().as_raw_value(),
    SignalKind::terminate().as_raw_value(),
    SignalKind::hangup().as_raw_value(),
    SignalKind::quit().as_raw_value(),
];

/// SIGWINCH: the size of the terminal window has changed.
pub(crate) const WINDOW: i32 = SignalKind::window_change().as_raw_value();
/// SIGINT, which Ctrl-C sends.
pub(crate) const INTERRUPT: i32 = SignalKind::interrupt().as_raw_value();

/// A receiver for signals. It receives those that are sent after its creation.
pub(crate) struct Signals {
    streams: Vec<(i32, Signal)>,
}

impl Signals {
    /// Listens to the signals that are passed on to a command. Signals that this process ignores, for example because
    /// of `nohup`, stay ignored.
    pub(crate) fn listen() -> Result<Self> {
        let ignored = ignored();
        let mut signals = Self { streams: Vec::with_capacity(PASSED_ON.len() + 1) };
        for kind in PASSED_ON {
            if ignored & (1 << (kind.as_raw_value() - 1)) == 0 {
                signals.add(kind)?;
            }
        }
        Ok(signals)
    }

    /// Also listens to changes of the terminal window's size.
    pub(crate) fn and_window(mut self) -> Result<Self> {
        self.add(SignalKind::window_change())?;
        Ok(self)
    }

    fn add(&mut self, kind: SignalKind) -> Result<()> {
        let number = kind.as_raw_value();
        let stream = signal(kind).map_err(|error| Error::io(format!("listen to signal {number}"), error))?;
        self.streams.push((number, stream));
        Ok(())
    }

    /// Waits for the next signal and returns its number. No signal is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|cx| {
            for (number, stream) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next signal other than a change of the window's size, and returns its number.
    pub(crate) async fn end(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            if number != WINDOW {
                return number;
            }
        }
    }
}

/// Returns the error for an operation that a signal ended.
pub(crate) fn interrupted(signal: i32) -> Error {
    Error::new(ErrorCode::Aborted, format!("ended by signal {signal}")).exit_code(128 + signal)
}

/// Returns the signals that this process ignores, as bits. These were ignored when it started, except SIGPIPE, which
/// the standard library ignores.
fn ignored() -> u64 {
    // One read is enough for this short file. It matters, because every `run` does this.
    let mut buffer = [0; 4096];
    let count = std::fs::File::open("/proc/self/status").and_then(|mut file| file.read(&mut buffer)).unwrap_or(0);
    let status = String::from_utf8_lossy(&buffer[..count]);
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
}
