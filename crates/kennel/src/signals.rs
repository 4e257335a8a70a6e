//! Signals that this process gets, for those who pass them on or clean up first.

use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use std::future::poll_fn;
use std::io::Read;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a command inside gets to hear of.
const PASSED_ON: [SignalKind; 6] = [
    SignalKind::interrupt(),
    SignalKind::terminate(),
    SignalKind::hangup(),
    SignalKind::quit(),
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
];

/// Those that ask to end.
pub(crate) const ENDING: [i32; 4] = [
    SignalKind::interrupt().as_raw_value(),
    SignalKind::terminate().as_raw_value(),
    SignalKind::hangup().as_raw_value(),
    SignalKind::quit().as_raw_value(),
];

/// The window's size changed.
pub(crate) const WINDOW: i32 = SignalKind::window_change().as_raw_value();
/// Ctrl-C.
pub(crate) const INTERRUPT: i32 = SignalKind::interrupt().as_raw_value();

/// Signals as they come, from when this was made.
pub(crate) struct Signals {
    streams: Vec<(i32, Signal)>,
}

impl Signals {
    /// Listens to what a command should hear of. What is ignored stays ignored: `nohup` means it.
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

    /// Listens to changes of the window's size too.
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

    /// The next signal. Nothing is lost if this is dropped while it waits.
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

    /// The next signal that asks this process to end.
    pub(crate) async fn end(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            if number != WINDOW {
                return number;
            }
        }
    }
}

/// The error for work that a signal ended.
pub(crate) fn interrupted(signal: i32) -> Error {
    Error::new(ErrorCode::Aborted, format!("ended by signal {signal}")).exit_code(128 + signal)
}

/// Signals that were ignored when this process began, as bits. The standard library only ever adds SIGPIPE.
fn ignored() -> u64 {
    // One read: the file is short, and this is on the way of every `run`.
    let mut buffer = [0; 4096];
    let count = std::fs::File::open("/proc/self/status").and_then(|mut file| file.read(&mut buffer)).unwrap_or(0);
    let status = String::from_utf8_lossy(&buffer[..count]);
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
}
