//! The client side of the keeper protocol: one connection, many streams.
//!
//! Each connection has two tasks. One reads frames and stores their bytes for the stream they belong to, the other
//! writes. Nothing is queued without bound: a stream holds at most one window of unread bytes per channel. If a keeper
//! sends more, out of order, or something that was not requested, the connection is closed.
//!
//! Requests may be sent right after the hello, before the welcome. A keeper that refuses the handshake replies to none
//! of them.

mod stream;

use crate::printable;
use crate::{ByteStream, Dialed, Error, Gate, IdleTime, Pass, Result};
use kennel_proto::{
    Body, Decoder, Failure, FailureKind, Features, Frame, GENERATION, Hello, Limit, Request, Welcome, caps, encode,
    try_encode,
};
use kennel_types::{ErrorCode, LimitReason, NextStep};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
pub(crate) use stream::Arrival;
pub use stream::KeeperStream;
use stream::StreamState;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tracing::Instrument;

/// How long a running keeper may take to reply to the hello.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait for the reason after the connection was closed.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes per read.
const READ: usize = 256 * 1024;

/// A connection to a keeper. It is closed when the last handle and the last stream are dropped.
#[derive(Clone)]
pub struct Keeper {
    link: Arc<Link>,
}

/// The part that handles own. The tasks hold only [`Shared`], so dropping the last handle ends them.
struct Link {
    shared: Arc<Shared>,
    tasks: [tokio::task::AbortHandle; 2],
}

impl Drop for Link {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

struct Shared {
    state: Mutex<ConnectionState>,
    /// Notified when there is something to write.
    outgoing: Notify,
    /// Notified when the welcome has arrived, or the connection is closed.
    turned: Notify,
    /// The gate that requests pass through, if the sandbox has one.
    gate: Option<Arc<dyn Gate>>,
}

impl Shared {
    /// Waits until `find` returns a value.
    async fn until<T>(&self, mut find: impl FnMut(&ConnectionState) -> Option<T>) -> T {
        loop {
            let turned = self.turned.notified();
            if let Some(found) = find(&lock(self)) {
                return found;
            }
            turned.await;
        }
    }
}

#[derive(Default)]
struct ConnectionState {
    welcome: Option<Arc<Welcome>>,
    streams: HashMap<u32, StreamState>,
    last_stream: u32,
    outgoing: Vec<u8>,
    /// Why the connection is closed.
    closed: Option<Closed>,
}

impl ConnectionState {
    /// Whether the keeper has not replied yet to something that was sent: the hello or a request.
    fn awaits_reply(&self) -> bool {
        self.welcome.is_none() || self.streams.values().any(StreamState::awaits_reply)
    }
}

/// Why a connection is closed, or a command can no longer be read. Everyone concerned gets an error of their own.
#[derive(Clone)]
pub(crate) struct Closed {
    code: ErrorCode,
    reason: Option<LimitReason>,
    message: String,
    next_step: Option<NextStep>,
}

impl Closed {
    pub(crate) fn error(&self) -> Error {
        let error = match self.reason {
            Some(reason) => Error::limit(reason, self.message.clone()),
            None => Error::new(self.code, self.message.clone()),
        };
        match &self.next_step {
            Some(step) => error.suggest(step.clone()),
            None => error,
        }
    }
}

impl From<Error> for Closed {
    fn from(error: Error) -> Self {
        Self {
            code: error.code(),
            reason: error.reason(),
            message: error.to_string(),
            next_step: error.next_step().cloned(),
        }
    }
}

/// How long to wait for the reply to the hello.
#[derive(Clone, Copy)]
enum HelloTimeout {
    /// The keeper is running.
    Running,
    /// The keeper is just starting; the wait is the time limit of the start.
    Starting(Duration),
}

impl HelloTimeout {
    fn duration(self) -> Duration {
        match self {
            Self::Running => HELLO_WITHIN,
            Self::Starting(within) => within,
        }
    }

    /// Returns the error for a reply that comes too late.
    fn error(self) -> Error {
        match self {
            Self::Running => {
                Error::new(ErrorCode::Timeout, format!("the keeper did not reply within {HELLO_WITHIN:?}"))
            }
            Self::Starting(within) => Error::too_slow("start the sandbox", within),
        }
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, ConnectionState> {
    // No code panics while it holds the lock, so the state is consistent even if the lock is poisoned.
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn protocol(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Internal, format!("the keeper broke the protocol: {what}"))
}

fn lost(reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Stopped, format!("the connection to the keeper is lost: {reason}"))
}

impl Keeper {
    /// Starts the handshake on a dialled stream, and returns without waiting for the reply.
    pub fn greet(dialed: Dialed) -> Self {
        Self::hello(dialed, HelloTimeout::Running, None)
    }

    /// Like [`Self::greet`]. The hello and all requests pass through the gate of the sandbox, if it has one.
    pub fn greet_through(gate: Option<Arc<dyn Gate>>, dialed: Dialed) -> Self {
        Self::hello(dialed, HelloTimeout::Running, gate)
    }

    /// Starts the handshake with a keeper that is just starting, and returns without waiting. The reply may take
    /// `within`.
    pub fn greet_starting(dialed: Dialed, within: Duration) -> Self {
        Self::hello(dialed, HelloTimeout::Starting(within), None)
    }

    /// Like [`Self::greet_starting`]. The hello and all requests pass through the gate of the sandbox, if it has one.
    pub fn greet_starting_through(gate: Option<Arc<dyn Gate>>, dialed: Dialed, within: Duration) -> Self {
        Self::hello(dialed, HelloTimeout::Starting(within), gate)
    }

    fn hello(dialed: Dialed, timeout: HelloTimeout, gate: Option<Arc<dyn Gate>>) -> Self {
        let hello = Hello { generation: GENERATION, token: dialed.token.map(Into::into), owner: dialed.owner };
        let mut state = ConnectionState::default();
        encode(&Frame { stream: 0, body: Body::Hello(hello) }, &mut state.outgoing);
        let shared =
            Arc::new(Shared { state: Mutex::new(state), outgoing: Notify::new(), turned: Notify::new(), gate });
        let (reader, writer) = tokio::io::split(dialed.stream);
        let tasks = [
            tokio::spawn(read(reader, shared.clone(), timeout)).abort_handle(),
            tokio::spawn(write(writer, shared.clone())).abort_handle(),
        ];
        Self { link: Arc::new(Link { shared, tasks }) }
    }

    /// Performs the handshake on a dialled stream.
    pub async fn connect(dialed: Dialed) -> Result<Self> {
        Self::greet(dialed).welcomed().await
    }

    /// Performs the handshake with a keeper that is just starting. The reply may take `within`.
    pub async fn connect_starting(dialed: Dialed, within: Duration) -> Result<Self> {
        Self::greet_starting(dialed, within).welcomed().await
    }

    async fn welcomed(self) -> Result<Self> {
        self.welcome().await?;
        Ok(self)
    }

    /// Waits for the keeper's half of the handshake and returns it.
    pub async fn welcome(&self) -> Result<Arc<Welcome>> {
        let welcomed = self.link.shared.until(|state| match (&state.welcome, &state.closed) {
            (Some(welcome), _) => Some(Ok(welcome.clone())),
            (None, Some(closed)) => Some(Err(closed.error())),
            (None, None) => None,
        });
        welcomed.await
    }

    /// Checks that the keeper has a feature. A keeper of an older Kennel would close the connection when it receives an
    /// unknown request, and ignore an unknown field.
    pub(crate) async fn require(&self, feature: Features, what: &str) -> Result<()> {
        let welcome = self.welcome().await?;
        if welcome.features.contains(feature) {
            return Ok(());
        }
        let (message, advice) = if welcome.generation < GENERATION {
            let message = format!("{what}: this sandbox was started by an older Kennel, which does not support it");
            (message, "restart the sandbox")
        } else {
            let message = format!("{what}: the keeper of this sandbox does not support it");
            (message, "if the sandbox was started by an older Kennel, restart it")
        };
        Err(Error::new(ErrorCode::Unsupported, message).advise(advice))
    }

    /// Returns for how long the sandbox has not been used. With `reset`, this time starts again at 0. This is not use.
    pub async fn idle(&self, reset: bool) -> Result<IdleTime> {
        self.require(Features::IDLE, "read the idle time").await?;
        idle_time(&self.call(Request::Idle { reset }).await?)
    }

    /// Ends the sandbox, if it is not in use, and waits until the connection is closed. Returns whether it ends.
    pub async fn end_if_idle(&self) -> Result<bool> {
        self.require(Features::IDLE, "stop the idle sandbox").await?;
        match self.call(Request::EndIfIdle).await {
            Ok(outcome) if idle_time(&outcome)?.in_use => return Ok(false),
            // The reply may get lost because the keeper exits.
            Err(error) if error.code() != ErrorCode::Stopped => return Err(error),
            _ => {}
        }
        self.closed().await;
        Ok(true)
    }

    /// Ties the sandbox to this connection, or unties it. While it is tied, it ends when the connection is lost.
    pub async fn tie(&self, tied: bool) -> Result<()> {
        self.require(Features::TIE, "tie the sandbox to a connection").await?;
        self.call(Request::Tie { tied }).await.map(drop)
    }

    /// Whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.link.shared).closed.is_some()
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) {
        self.link.shared.until(|state| state.closed.is_some().then_some(())).await;
    }

    /// Asks the keeper to end everything inside (TERM, `grace`, KILL) and to exit, and waits until the connection is
    /// closed.
    pub async fn shut_down(&self, grace: Duration) -> Result<()> {
        let grace_ms = grace.as_millis().try_into().unwrap_or(u64::MAX);
        let hung_up = async {
            match self.call(Request::Shutdown { grace_ms }).await {
                // The replacement for a keeper on an engine does not support this.
                Err(error) if error.code() == ErrorCode::Unsupported => return Err(error),
                // The reply may get lost because the keeper exits. Both cases mean the same.
                _ => self.closed().await,
            }
            Ok(())
        };
        tokio::time::timeout(grace + Duration::from_secs(35), hung_up)
            .await
            .map_err(|_| Error::new(ErrorCode::Timeout, "the keeper did not stop when requested"))?
    }

    /// Opens a stream with a request.
    pub fn open(&self, request: Request) -> Result<KeeperStream> {
        let name = request.name();
        let mut state = lock(&self.link.shared);
        if let Some(reason) = &state.closed {
            return Err(reason.error());
        }
        if state.streams.len() >= caps::STREAMS {
            return Err(Error::limit(
                LimitReason::TooManyRequests,
                format!("too many requests at once: the limit is {}", caps::STREAMS),
            ));
        }
        let mut stream = state.last_stream.wrapping_add(1).max(1);
        while state.streams.contains_key(&stream) {
            stream = stream.wrapping_add(1).max(1);
        }
        let ConnectionState { outgoing, .. } = &mut *state;
        try_encode(&Frame { stream, body: Body::Open(Box::new(request)) }, outgoing).map_err(|_| {
            let message = format!("the request is larger than {} bytes", caps::CONTROL);
            Error::limit(LimitReason::TooLarge, message).advise("pass large arguments as a file or on standard input")
        })?;
        state.last_stream = stream;
        let arrived = Arc::<Notify>::default();
        state.streams.insert(stream, StreamState::new(arrived.clone()));
        drop(state);
        tracing::debug!(stream, request = name, "sent a request to the keeper");
        self.link.shared.outgoing.notify_one();
        Ok(KeeperStream::new(self.link.clone(), stream, arrived))
    }

    /// Sends a request and returns its single result.
    pub async fn call(&self, request: Request) -> Result<kennel_proto::Outcome> {
        let span = tracing::debug_span!("keeper", request = request.name());
        let call = async {
            let mut stream = self.open(request)?;
            stream.done().await
        };
        call.instrument(span).await
    }
}

/// Asks a dialled keeper to end everything and to exit, and waits until the connection is closed.
pub async fn shut_down(dialed: Result<Dialed>, grace: Duration) -> Result<()> {
    // The caller that stops a sandbox is not its owner.
    Keeper::connect(Dialed { owner: false, ..dialed? }).await?.shut_down(grace).await
}

fn idle_time(outcome: &kennel_proto::Outcome) -> Result<IdleTime> {
    match outcome {
        kennel_proto::Outcome::Idle(report) => {
            Ok(IdleTime { in_use: report.in_use, idle: Duration::from_millis(report.idle_ms) })
        }
        _ => Err(protocol("no idle time")),
    }
}

/// Converts a failure that the keeper reported into the library's error.
fn failed(failure: &Failure) -> Error {
    let message = printable(&failure.message);
    let (code, exit) = match failure.kind {
        FailureKind::NotFound => (ErrorCode::NotFound, None),
        FailureKind::Denied | FailureKind::Refused => (ErrorCode::PermissionDenied, None),
        FailureKind::Exists => (ErrorCode::AlreadyExists, None),
        FailureKind::Invalid => (ErrorCode::InvalidConfig, None),
        FailureKind::Limit => return limit(failure.limit, message),
        FailureKind::NotExecutable => (ErrorCode::ExecFailed, Some(126)),
        FailureKind::Unsupported => (ErrorCode::Unsupported, None),
        FailureKind::Other => (ErrorCode::Internal, None),
        FailureKind::NotStarted => (ErrorCode::StartFailed, None),
        FailureKind::Stopping => (ErrorCode::Stopped, None),
    };
    let error = Error::new(code, message);
    match exit {
        Some(exit) => error.exit_code(exit),
        None => error,
    }
}

/// The error for a limit inside. Keepers of earlier versions do not say which one it was.
fn limit(limit: Option<Limit>, message: String) -> Error {
    let reason = match limit {
        Some(Limit::Size) => LimitReason::TooLarge,
        Some(Limit::Memory) => LimitReason::OutOfMemory,
        Some(Limit::Disk) => LimitReason::OutOfDisk,
        Some(Limit::Number) => LimitReason::Exhausted,
        Some(Limit::Requests) => LimitReason::TooManyRequests,
        None => return Error::new(ErrorCode::LimitExceeded, message),
    };
    Error::limit(reason, message)
}

/// Stores received frames for their streams, until the connection ends. Afterwards it keeps the socket open for a
/// moment: a keeper that has closed the connection exits once the host has closed its side too, and by then the callers
/// have their results.
async fn read(mut reader: ReadHalf<Box<dyn ByteStream>>, shared: Arc<Shared>, timeout: HelloTimeout) {
    let reason = match serve(&mut reader, &shared, timeout).await {
        Err(reason) => reason,
        Ok(never) => match never {},
    };
    tracing::debug!(%reason, "the connection to the keeper is closed");
    close(&shared, reason);
    std::future::pending::<()>().await;
}

async fn serve(
    reader: &mut ReadHalf<Box<dyn ByteStream>>,
    shared: &Shared,
    timeout: HelloTimeout,
) -> std::result::Result<std::convert::Infallible, Error> {
    let mut decoder = Decoder::new();
    let mut buffer = vec![0; READ];
    let welcome = tokio::time::timeout(timeout.duration(), welcome(reader, &mut decoder, &mut buffer))
        .await
        .map_err(|_| timeout.error())??;
    lock(shared).welcome = Some(Arc::new(welcome));
    shared.turned.notify_waiters();
    loop {
        while let Some(frame) = decoder.next_frame().map_err(lost)? {
            take(shared, frame).map_err(lost)?;
        }
        if shared.gate.is_some() {
            // The writer may have to leave the gate, because this was the last reply.
            shared.outgoing.notify_one();
        }
        match reader.read(&mut buffer).await.map_err(lost)? {
            0 => return Err(lost("the keeper ended")),
            count => decoder.feed(&buffer[..count]),
        }
    }
}

/// Reads the first frame, which must be a welcome.
async fn welcome(
    reader: &mut ReadHalf<Box<dyn ByteStream>>,
    decoder: &mut Decoder,
    buffer: &mut [u8],
) -> Result<Welcome> {
    let frame = loop {
        if let Some(frame) = decoder.next_frame().map_err(protocol)? {
            break frame;
        }
        match reader.read(buffer).await {
            Ok(0) => return Err(Error::new(ErrorCode::Stopped, "the keeper closed the connection before its welcome")),
            Ok(count) => decoder.feed(&buffer[..count]),
            Err(error) => return Err(Error::io("read the keeper's welcome", error)),
        }
    };
    match frame {
        Frame { stream: 0, body: Body::Welcome(mut welcome) } => match welcome.generation {
            1..=GENERATION => {
                if welcome.generation == 1 {
                    welcome.features = welcome.features.intersection(Features::FIRST);
                }
                let version = printable(&welcome.version);
                tracing::debug!(generation = welcome.generation, version, "connected to the keeper");
                Ok(welcome)
            }
            other => Err(protocol(format!("it replied with generation {other}"))),
        },
        Frame { stream: 0, body: Body::Fail(failure) } if failure.kind == FailureKind::NotStarted => {
            let message = format!("start the sandbox: {}", printable(&failure.message));
            Err(Error::new(ErrorCode::StartFailed, message))
        }
        Frame { stream: 0, body: Body::Fail(failure) } => Err(failed(&failure)),
        _ => Err(protocol("no welcome after the hello")),
    }
}

fn close(shared: &Shared, reason: Error) {
    let mut state = lock(shared);
    state.closed.get_or_insert(reason.into());
    for stream in state.streams.values_mut() {
        stream.notify();
    }
    drop(state);
    shared.outgoing.notify_one();
    shared.turned.notify_waiters();
}

/// Processes one frame, or returns the rule that it violates.
fn take(shared: &Shared, frame: Frame) -> std::result::Result<(), &'static str> {
    if frame.stream == 0 {
        return if matches!(frame.body, Body::Pong) { Ok(()) } else { Err("an unexpected frame on stream 0") };
    }
    // Frames for a stream that was just closed here may still arrive.
    lock(shared).streams.get_mut(&frame.stream).map_or(Ok(()), |stream| stream.take(frame.body))
}

/// Writes outgoing frames until the connection ends. If the sandbox has a gate, it is entered before a request is written,
/// and left when the keeper has replied to all requests.
async fn write(mut writer: WriteHalf<Box<dyn ByteStream>>, shared: Arc<Shared>) {
    let mut bytes = Vec::new();
    let mut pass: Option<Pass> = None;
    loop {
        let is_in_gate = {
            let mut state = lock(&shared);
            if state.closed.is_some() {
                return;
            }
            bytes.clear();
            std::mem::swap(&mut bytes, &mut state.outgoing);
            shared.gate.is_some() && state.awaits_reply()
        };
        if !is_in_gate {
            pass = None;
        } else if let (Some(gate), None, false) = (&shared.gate, &pass, bytes.is_empty()) {
            match gate.enter().await {
                Ok(entered) => pass = Some(entered),
                Err(error) => return close(&shared, error),
            }
        }
        if bytes.is_empty() {
            shared.outgoing.notified().await;
        } else if let Err(error) = writer.write_all(&bytes).await {
            // The keeper closed the connection. What it sent before is the better reason.
            let heard = shared.until(|state| state.closed.is_some().then_some(()));
            let _ = tokio::time::timeout(LAST_WORDS, heard).await;
            return close(&shared, lost(error));
        }
    }
}
