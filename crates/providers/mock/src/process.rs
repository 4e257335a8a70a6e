//! A command that the mock pretends to run: its output in two ring buffers, its input in a small buffer, and its
//! result.
//!
//! While there is a reader, the command waits for it. Without one, the oldest bytes are overwritten, unless the command
//! holds its output.

use crate::log::Log;
use crate::tree;
use kennel_proto::{Channel, ExitReport, OutputOffsets, ProcessInfo, Reply, Spawn, caps};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

pub(crate) struct Process {
    pub(crate) id: u64,
    argv: Vec<String>,
    tag: Option<String>,
    started_ms: u64,
    pub(crate) detached: bool,
    hold: bool,
    /// For how long it keeps running after its connection was lost.
    pub(crate) linger: Option<Duration>,
    /// Notified when a value below changed.
    pub(crate) changed: Notify,
    /// The signal that ends it; 0 means none.
    signal: watch::Sender<i32>,
    /// The log, for the output of the main process.
    log: Option<Arc<Log>>,
    state: Mutex<ProcessState>,
}

pub(crate) struct ProcessState {
    output: [Ring; 2],
    stdin: VecDeque<u8>,
    stdin_taken: u64,
    stdin_open: bool,
    exit: Option<ExitReport>,
    /// The current reader. Each attach gets the next number; 0 means nobody.
    reader: u64,
    readers: u64,
    /// Whether nobody will read it any more.
    given_up: bool,
}

#[derive(Default)]
struct Ring {
    start: u64,
    bytes: VecDeque<u8>,
    /// The current reader has consumed all bytes before this offset.
    consumed: u64,
    /// Some reader has consumed all bytes before this offset.
    most_consumed: u64,
}

/// What a reader sends next.
pub(crate) enum Next {
    Data(Channel, u64, Vec<u8>),
    /// This many bytes of standard input were consumed.
    Taken(u64),
    Exit(ExitReport),
    TakenOver,
    Wait,
}

/// The position of a reader.
pub(crate) struct Reader {
    number: u64,
    sent: [u64; 2],
    told_taken: u64,
}

const CHANNELS: [Channel; 2] = [Channel::Stdout, Channel::Stderr];

impl Process {
    pub(crate) fn new(id: u64, argv: Vec<String>, spawn: &Spawn, log: Option<Arc<Log>>) -> Self {
        let state = ProcessState {
            output: [Ring::default(), Ring::default()],
            stdin: VecDeque::new(),
            stdin_taken: 0,
            stdin_open: spawn.stdin,
            exit: None,
            reader: 0,
            readers: 0,
            given_up: false,
        };
        let (changed, signal) = (Notify::new(), watch::Sender::new(0));
        Self {
            id,
            argv,
            tag: spawn.tag.clone(),
            started_ms: tree::now_ms().max(0) as u64,
            detached: spawn.detached,
            hold: spawn.hold,
            linger: spawn.linger_ms.map(Duration::from_millis),
            changed,
            signal,
            log,
            state: Mutex::new(state),
        }
    }

    /// Describes it, with up to `argv` bytes of its arguments.
    pub(crate) fn info(&self, argv: usize) -> ProcessInfo {
        let state = self.lock();
        let [stdout, stderr] = state
            .output
            .each_ref()
            .map(|ring| Some(OutputOffsets { produced: ring.end(), consumed: ring.most_consumed, kept: ring.start }));
        let mut info = ProcessInfo {
            process: self.id,
            program: self.argv[0].as_bytes().to_vec().into(),
            running: state.exit.is_none(),
            attached: state.reader != 0,
            detached: self.detached,
            tag: self.tag.clone(),
            started_ms: Some(self.started_ms),
            exit: state.exit,
            stdout,
            stderr,
            stdin: Some(state.stdin_taken),
            ..ProcessInfo::default()
        };
        info.set_argv(self.argv.iter().map(String::as_bytes), argv);
        info
    }

    /// Whether it has output that must not be lost, although it may have ended.
    pub(crate) fn holds_output(&self) -> bool {
        let state = self.lock();
        self.hold && !state.given_up && state.output.iter().any(|ring| ring.consumed < ring.end())
    }

    /// Waits until it has no output that must not be lost.
    pub(crate) async fn output_is_released(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.holds_output() {
                return;
            }
            changed.await;
        }
    }

    /// Ends it, because nobody will read it any more.
    pub(crate) fn give_up(&self) {
        self.lock().given_up = true;
        self.changed.notify_waiters();
        self.signal(9);
    }

    /// The number of readers so far.
    pub(crate) fn readers(&self) -> u64 {
        self.lock().readers
    }

    fn lock(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.lock().exit.is_none()
    }

    /// Prints, as fast as the reader consumes it.
    pub(crate) async fn print(&self, channel: Channel, mut bytes: &[u8]) {
        if let Some(log) = &self.log {
            log.push(channel, bytes);
        }
        while !bytes.is_empty() {
            let changed = self.changed.notified();
            let taken = {
                let mut state = self.lock();
                let attached = state.reader != 0 || self.hold;
                state.output[usize::from(channel == Channel::Stderr)].push(bytes, attached)
            };
            if taken == 0 {
                changed.await;
            } else {
                bytes = &bytes[taken..];
                self.changed.notify_waiters();
            }
        }
    }

    /// Returns the next bytes of standard input, or `None` at the end.
    pub(crate) async fn read(&self) -> Option<Vec<u8>> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                if !state.stdin.is_empty() {
                    let bytes: Vec<u8> = state.stdin.drain(..).collect();
                    state.stdin_taken += bytes.len() as u64;
                    drop(state);
                    self.changed.notify_waiters();
                    return Some(bytes);
                }
                if !state.stdin_open {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Accepts bytes for standard input. Returns false if they are out of order or exceed the window.
    pub(crate) fn feed(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut state = self.lock();
        if state.exit.is_some() || !state.stdin_open {
            return true;
        }
        let fits = state.stdin.len() + bytes.len() <= caps::STDIN_WINDOW as usize;
        if !fits || offset != state.stdin_taken + state.stdin.len() as u64 {
            return false;
        }
        state.stdin.extend(bytes);
        drop(state);
        self.changed.notify_waiters();
        true
    }

    pub(crate) fn close_stdin(&self) {
        self.lock().stdin_open = false;
        self.changed.notify_waiters();
    }

    pub(crate) fn end(&self, report: ExitReport) {
        self.lock().exit.get_or_insert(report);
        self.changed.notify_waiters();
    }

    /// Accepts a signal, unless it does not end a process, or the process is already ending.
    pub(crate) fn signal(&self, signal: i32) {
        const HARMLESS: [i32; 7] = [0, 17, 18, 19, 20, 23, 28];
        self.signal.send_if_modified(|fatal| {
            let new = *fatal == 0 && !HARMLESS.contains(&signal);
            if new {
                *fatal = signal;
            }
            new
        });
    }

    /// Waits for a signal that ends the process.
    pub(crate) async fn fatal_signal(&self) -> i32 {
        let mut signals = self.signal.subscribe();
        // The sender is in `self`, so the wait cannot fail.
        signals.wait_for(|signal| *signal != 0).await.map_or(9, |signal| *signal)
    }

    /// Makes the caller the reader, starting at these offsets or at the first available bytes.
    pub(crate) fn attach(&self, from: [u64; 2]) -> (Reader, Reply) {
        let mut state = self.lock();
        state.readers += 1;
        state.reader = state.readers;
        for (ring, from) in state.output.iter_mut().zip(from) {
            let from = if self.hold { from.max(ring.consumed) } else { from };
            ring.consumed = from.clamp(ring.start, ring.end());
            ring.most_consumed = ring.most_consumed.max(ring.consumed);
        }
        let sent = [state.output[0].consumed, state.output[1].consumed];
        let reader = Reader { number: state.reader, sent, told_taken: state.stdin_taken };
        let reply = Reply::Running {
            process: self.id,
            stdout: sent[0],
            stderr: sent[1],
            stdin_window: caps::STDIN_WINDOW,
            stdin: state.stdin_taken + state.stdin.len() as u64,
            tty: false,
            stdin_passed_on: Some(state.stdin_taken),
        };
        drop(state);
        self.changed.notify_waiters();
        (reader, reply)
    }

    pub(crate) fn detach(&self, reader: &Reader) {
        let mut state = self.lock();
        if state.reader == reader.number {
            state.reader = 0;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn consumed(&self, reader: &Reader, channel: Channel, offset: u64) {
        let mut state = self.lock();
        let index = usize::from(channel == Channel::Stderr);
        if state.reader == reader.number {
            let ring = &mut state.output[index];
            ring.consumed = ring.consumed.max(offset.min(reader.sent[index]));
            ring.most_consumed = ring.most_consumed.max(ring.consumed);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn next(&self, reader: &mut Reader) -> Next {
        let state = self.lock();
        if state.reader != reader.number {
            return Next::TakenOver;
        }
        if state.stdin_taken != reader.told_taken {
            reader.told_taken = state.stdin_taken;
            return Next::Taken(state.stdin_taken);
        }
        for (index, ring) in state.output.iter().enumerate() {
            let sent = &mut reader.sent[index];
            let until = ring.end().min(ring.consumed + caps::WINDOW).min(*sent + caps::DATA as u64);
            if until > *sent {
                let (from, to) = ((*sent - ring.start) as usize, (until - ring.start) as usize);
                let bytes = ring.bytes.range(from..to).copied().collect();
                return Next::Data(CHANNELS[index], std::mem::replace(sent, until), bytes);
            }
        }
        let done = |(ring, sent): (&Ring, u64)| sent == ring.end() && (!self.hold || ring.consumed == ring.end());
        let all_done = state.output.iter().zip(reader.sent).all(done);
        match state.exit {
            Some(report) if all_done => Next::Exit(report),
            _ => Next::Wait,
        }
    }
}

impl Ring {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Accepts as much as fits. With a reader, nothing is overwritten that it has not consumed.
    fn push(&mut self, bytes: &[u8], attached: bool) -> usize {
        const SIZE: usize = caps::WINDOW as usize;
        let room = if attached { SIZE - (self.end() - self.consumed) as usize } else { SIZE };
        let take = bytes.len().min(room);
        self.bytes.extend(&bytes[..take]);
        let over = self.bytes.len().saturating_sub(SIZE);
        self.bytes.drain(..over);
        self.start += over as u64;
        take
    }
}
