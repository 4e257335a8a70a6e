//! Several readers of one command. The keeper serves one reader per command; this module is that reader, and passes the
//! output on to any number of subscribers.
//!
//! Recent output is stored once, in a bounded history, and each subscriber is a position in it. So memory does not grow
//! with the number of subscribers. A late subscriber gets what is still in the history. A slow subscriber blocks nobody:
//! when the history has no room, its oldest bytes are removed, and each subscriber that has not read them is told
//! exactly how many bytes it missed. A subscriber can also ask to miss nothing ([`Lag::Wait`]): then the command waits
//! for it, and all other subscribers wait too once the history is full.
//!
//! The standard input has one writer at a time.

use crate::exec::wire_size;
use crate::keeper::{Closed, KeeperStream};
use crate::{Error, Exec, ExecEvent, Position, Result, Stdin};
use kennel_proto::{Body, Channel};
use kennel_types::{ErrorCode, ExitStatus, TermSize};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, OwnedMutexGuard};

/// Output is stored in pieces of at most this size.
const PIECE: usize = 64 * 1024;
/// The largest history.
const LARGEST: usize = 64 * 1024 * 1024;

/// Options of a fan-out.
#[derive(Clone, Copy, Debug)]
pub struct FanOutOptions {
    /// Bytes of recent output that are stored: at least 64 KiB, at most 64 MiB.
    pub history: usize,
    /// Whether nothing is removed from the history while there is no subscriber: the command waits for the next one.
    pub hold: bool,
    /// Whether output counts as consumed only when the subscribers for which the command waits ([`Lag::Wait`]) have
    /// acknowledged it ([`Subscriber::acknowledge`]). So what they have not acknowledged is not lost with this process:
    /// the keeper still has it. The history should be larger than 1 MiB, which is what the keeper sends ahead.
    pub acknowledge: bool,
}

impl Default for FanOutOptions {
    fn default() -> Self {
        Self { history: 1024 * 1024, hold: false, acknowledge: false }
    }
}

/// What happens when a subscriber is slower than the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lag {
    /// The subscriber misses the oldest output, and is told how much.
    #[default]
    Miss,
    /// The command waits for the subscriber.
    Wait,
}

/// An event for a subscriber.
#[derive(Clone, Debug, PartialEq)]
pub enum FanOutEvent {
    /// The command printed these bytes.
    Output {
        /// Standard output or standard error.
        channel: Channel,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: SharedBytes,
    },
    /// The next bytes of this channel are lost for this subscriber.
    Missed {
        /// Standard output or standard error.
        channel: Channel,
        /// The number of bytes.
        bytes: u64,
    },
    /// The command ended, and all its output has been returned.
    Exited(ExitStatus),
}

/// A part of stored output. All subscribers share its memory.
#[derive(Clone)]
pub struct SharedBytes {
    bytes: Arc<[u8]>,
    start: usize,
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl PartialEq for SharedBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// The one reader of a command, for many subscribers. Cheap to clone. When the last clone is dropped, a tied command
/// ends, and any other continues without a reader.
#[derive(Clone)]
pub struct FanOut {
    reader: Arc<Reader>,
}

struct Reader {
    shared: Arc<Shared>,
    process: u64,
    tty: bool,
    stdin: Arc<tokio::sync::Mutex<Stdin>>,
    stream: KeeperStream,
    task: tokio::task::AbortHandle,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.end(Err(Error::new(ErrorCode::Aborted, "the reader of this command's output is gone")));
    }
}

/// A reader of the command's output.
pub struct Subscriber {
    shared: Arc<Shared>,
    number: u64,
    /// The number of the next piece.
    next: u64,
    /// The offsets of the next bytes.
    seen: [u64; 2],
}

/// The right to write to the command's standard input. Nobody else has it until this is dropped.
pub struct FanOutStdin(OwnedMutexGuard<Stdin>);

impl Deref for FanOutStdin {
    type Target = Stdin;

    fn deref(&self) -> &Stdin {
        &self.0
    }
}

struct Shared {
    state: Mutex<State>,
    /// Notified when output has arrived, or the command has ended.
    arrived: Notify,
    /// Notified when there may be room in the history.
    read: Notify,
    /// Notified when more output is acknowledged.
    acknowledged: Notify,
}

struct State {
    options: FanOutOptions,
    pieces: VecDeque<Stored>,
    /// The number of the first piece.
    first: u64,
    /// Bytes in all pieces.
    size: usize,
    /// The offset of the first stored byte, per channel.
    start: [u64; 2],
    /// The offset after the last stored byte, per channel.
    end: [u64; 2],
    /// The command has printed at least this much, per channel. It may not have been read yet.
    printed: [u64; 2],
    subscribers: BTreeMap<u64, Cursor>,
    last_subscriber: u64,
    /// How the command ended, or why its output cannot be read any more. Each subscriber gets its own error.
    result: Option<std::result::Result<ExitStatus, Closed>>,
}

struct Stored {
    channel: usize,
    offset: u64,
    bytes: Arc<[u8]>,
}

/// The position of a subscriber.
struct Cursor {
    next: u64,
    lag: Lag,
    /// The offsets before which it has acknowledged all output.
    acknowledged: [u64; 2],
}

const CHANNELS: [Channel; 2] = [Channel::Stdout, Channel::Stderr];

impl FanOut {
    /// Reads the output of a command from now on. This must be called on a runtime.
    pub fn new(exec: Exec, options: FanOutOptions) -> Self {
        let Position { stdout, stderr } = exec.position();
        let options = FanOutOptions { history: options.history.clamp(PIECE, LARGEST), ..options };
        let state = State {
            options,
            pieces: VecDeque::new(),
            first: 0,
            size: 0,
            start: [stdout, stderr],
            end: [stdout, stderr],
            printed: [stdout, stderr],
            subscribers: BTreeMap::new(),
            last_subscriber: 0,
            result: None,
        };
        let exec = if options.acknowledge { exec.with_explicit_acknowledgement() } else { exec };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            arrived: Notify::new(),
            read: Notify::new(),
            acknowledged: Notify::new(),
        });
        let (process, tty, stdin, stream) = (exec.process(), exec.is_tty(), exec.stdin(), exec.sender());
        let stdin = Arc::new(tokio::sync::Mutex::new(stdin));
        let task = tokio::spawn(read(exec, shared.clone())).abort_handle();
        Self { reader: Arc::new(Reader { shared, process, tty, stdin, stream, task }) }
    }

    /// The id of the command.
    pub fn process(&self) -> u64 {
        self.reader.process
    }

    /// Whether the command runs on a terminal.
    pub fn is_tty(&self) -> bool {
        self.reader.tty
    }

    /// Says how much the command has printed already, so that a subscriber can start there before it was read.
    pub(crate) fn has_printed(&self, until: Position) {
        let mut state = self.reader.shared.lock();
        let known = [until.stdout, until.stderr];
        state.printed = std::array::from_fn(|index| state.printed[index].max(known[index]));
    }

    /// How much output has been read from the command. A subscriber that starts here gets new output only.
    pub fn position(&self) -> Position {
        self.reader.shared.lock().end.into()
    }

    /// Whether the command has ended, or its output cannot be read any more.
    pub fn has_ended(&self) -> bool {
        self.reader.shared.lock().result.is_some()
    }

    /// Adds a subscriber. It starts at `from`, or at the oldest stored output. If output after `from` is not stored any
    /// more, its first event says how much it missed.
    pub fn subscribe(&self, from: Option<Position>, lag: Lag) -> Result<Subscriber> {
        let mut state = self.reader.shared.lock();
        let seen = from.map_or(state.start, |from| [from.stdout, from.stderr]);
        let known = state.end.iter().zip(state.printed).map(|(end, printed)| printed.max(*end));
        if seen.iter().zip(known).any(|(seen, end)| *seen > end) {
            let message = "subscribe to output: the position is after the end of the output";
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
        state.last_subscriber += 1;
        let (number, next) = (state.last_subscriber, state.first);
        state.subscribers.insert(number, Cursor { next, lag, acknowledged: seen });
        drop(state);
        // It may have waited for the first subscriber.
        self.reader.shared.read.notify_one();
        Ok(Subscriber { shared: self.reader.shared.clone(), number, next, seen })
    }

    /// Takes the right to write to the command's standard input. Fails with `conflict` while someone else has it.
    pub fn stdin(&self) -> Result<FanOutStdin> {
        let taken = |_| Error::new(ErrorCode::Conflict, "another client writes to this command's standard input");
        self.reader.stdin.clone().try_lock_owned().map(FanOutStdin).map_err(taken)
    }

    /// Takes the right to write to the command's standard input, as soon as nobody else has it.
    pub async fn stdin_when_free(&self) -> FanOutStdin {
        FanOutStdin(self.reader.stdin.clone().lock_owned().await)
    }

    /// Sends a signal to the command's process group.
    pub fn signal(&self, signal: i32) {
        self.reader.stream.send(Body::Signal(signal));
    }

    /// Tells the command the new size of the terminal.
    pub fn resize(&self, size: TermSize) {
        self.reader.stream.send(Body::Resize(wire_size(size)));
    }

    /// A handle that does not keep the reader alive.
    pub(crate) fn downgrade(&self) -> WeakFanOut {
        WeakFanOut(Arc::downgrade(&self.reader))
    }
}

/// A fan-out that exists as long as someone else uses it.
pub(crate) struct WeakFanOut(std::sync::Weak<Reader>);

impl WeakFanOut {
    /// Returns the fan-out, if it still reads the command.
    pub(crate) fn upgrade(&self) -> Option<FanOut> {
        let reader = self.0.upgrade()?;
        Some(FanOut { reader }).filter(|fan_out| !fan_out.has_ended())
    }
}

/// Stores the output of the command until it ends.
async fn read(mut exec: Exec, shared: Arc<Shared>) {
    let explicit = shared.lock().options.acknowledge;
    let result = loop {
        let event = tokio::select! {
            event = exec.next() => event,
            () = shared.acknowledged.notified(), if explicit => {
                // Acknowledging fails only beyond what was returned, and that is not stored.
                let until = shared.lock().acknowledged();
                let _ = exec.acknowledge(until);
                continue;
            }
        };
        match event {
            Ok(ExecEvent::Output(channel, bytes)) => {
                for piece in bytes.chunks(PIECE) {
                    shared.store(usize::from(channel == Channel::Stderr), piece).await;
                }
            }
            Ok(ExecEvent::Exited(status)) => break Ok(status),
            Err(error) => break Err(error),
        }
    };
    shared.end(result);
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock, so the state is consistent even if the lock is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a piece, when there is room for it.
    async fn store(&self, channel: usize, bytes: &[u8]) {
        while !self.lock().make_room(bytes.len()) {
            self.read.notified().await;
        }
        let mut state = self.lock();
        let offset = state.end[channel];
        state.end[channel] += bytes.len() as u64;
        state.size += bytes.len();
        state.pieces.push_back(Stored { channel, offset, bytes: bytes.into() });
        drop(state);
        self.arrived.notify_waiters();
        // If the command waits for nobody, it is consumed at once.
        self.acknowledged.notify_one();
    }

    fn end(&self, result: Result<ExitStatus>) {
        self.lock().result.get_or_insert(result.map_err(Closed::from));
        self.arrived.notify_waiters();
    }
}

impl State {
    /// The position before which every subscriber that is waited for has acknowledged all output.
    fn acknowledged(&self) -> Position {
        // The first subscriber has not come yet.
        if self.last_subscriber == 0 {
            return self.start.into();
        }
        let waited = self.subscribers.values().filter(|place| place.lag == Lag::Wait);
        let least = waited
            .fold(self.end, |least, place| std::array::from_fn(|index| least[index].min(place.acknowledged[index])));
        least.into()
    }

    /// Removes the oldest pieces until there is room. Returns false if someone still needs them.
    fn make_room(&mut self, bytes: usize) -> bool {
        while self.size + bytes > self.options.history {
            let needed = |cursor: &Cursor| cursor.lag == Lag::Wait && cursor.next <= self.first;
            let held = self.options.hold && self.subscribers.is_empty();
            if held || self.subscribers.values().any(needed) {
                return false;
            }
            let Some(oldest) = self.pieces.pop_front() else { return true };
            self.first += 1;
            self.size -= oldest.bytes.len();
            self.start[oldest.channel] = oldest.offset + oldest.bytes.len() as u64;
        }
        true
    }
}

impl Subscriber {
    /// How much output [`Self::next`] has returned, or reported as missed.
    pub fn position(&self) -> Position {
        self.seen.into()
    }

    /// Acknowledges all output before this position: it need not be returned again, also by another process after this
    /// one was killed. Fails if [`Self::next`] has not returned it yet. Only a fan-out with
    /// [`FanOutOptions::acknowledge`] uses this.
    pub fn acknowledge(&self, until: Position) -> Result<()> {
        let until = [until.stdout, until.stderr];
        if until.iter().zip(self.seen).any(|(until, seen)| *until > seen) {
            let message = "acknowledge output: it has not been returned yet";
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
        if let Some(place) = self.shared.lock().subscribers.get_mut(&self.number) {
            place.acknowledged = std::array::from_fn(|index| place.acknowledged[index].max(until[index]));
        }
        self.shared.acknowledged.notify_one();
        Ok(())
    }

    /// Returns the next event. There is none after [`FanOutEvent::Exited`] or an error. It is safe to cancel this: no
    /// event is lost.
    pub async fn next(&mut self) -> Result<FanOutEvent> {
        let shared = self.shared.clone();
        loop {
            let arrived = shared.arrived.notified();
            if let Some(event) = self.take(&mut shared.lock()) {
                shared.read.notify_one();
                return event;
            }
            // It may have skipped pieces that it had already.
            shared.read.notify_one();
            arrived.await;
        }
    }

    fn take(&mut self, state: &mut State) -> Option<Result<FanOutEvent>> {
        for (index, channel) in CHANNELS.into_iter().enumerate() {
            let bytes = state.start[index].saturating_sub(self.seen[index]);
            if bytes > 0 {
                self.seen[index] += bytes;
                return Some(Ok(FanOutEvent::Missed { channel, bytes }));
            }
        }
        self.next = self.next.max(state.first);
        let mut found = None;
        while let Some(piece) = state.pieces.get((self.next - state.first) as usize) {
            self.next += 1;
            let (seen, end) = (&mut self.seen[piece.channel], piece.offset + piece.bytes.len() as u64);
            if *seen < end {
                let (offset, start) = (*seen, (*seen - piece.offset) as usize);
                *seen = end;
                let bytes = SharedBytes { bytes: piece.bytes.clone(), start };
                found = Some(Ok(FanOutEvent::Output { channel: CHANNELS[piece.channel], offset, bytes }));
                break;
            }
        }
        if let Some(cursor) = state.subscribers.get_mut(&self.number) {
            cursor.next = self.next;
        }
        found.or_else(|| {
            state.result.as_ref().map(|result| match result {
                Ok(status) => Ok(FanOutEvent::Exited(*status)),
                Err(closed) => Err(closed.error()),
            })
        })
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.shared.lock().subscribers.remove(&self.number);
        // The command may have waited for this subscriber.
        self.shared.read.notify_one();
        self.shared.acknowledged.notify_one();
    }
}
