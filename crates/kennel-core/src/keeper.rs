//! The client side of the keeper protocol: one connection, many streams.
//!
//! Two tasks per connection: one reads frames and puts bytes where their stream will find them, one writes. Nothing is
//! queued without bound: a stream holds at most a window of unread bytes per channel, and a keeper that sends more, out
//! of order, or what was not asked for, loses the connection.
//!
//! Requests may follow the hello at once: a keeper that does not welcome us answers none of them.

mod stream;

use crate::text::printable;
use crate::{ByteStream, Dialed, Error, Result};
use kennel_proto::{
    Body, Decoder, Failure, FailureKind, Frame, GENERATION, Hello, Request, Welcome, caps, encode, try_encode,
};
use kennel_types::ErrorCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
pub(crate) use stream::Arrival;
pub use stream::KeeperStream;
use stream::StreamState;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::Notify;

/// How long a keeper that runs may take to answer the hello.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How long the reason for its end may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes read at once.
const READ: usize = 256 * 1024;

/// A connection to a keeper. It ends when the last handle and the last stream are dropped.
#[derive(Clone)]
pub struct Keeper {
    link: Arc<Link>,
}

/// What the handles hold. The tasks hold [`Shared`] only, so dropping the last handle ends them.
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
    state: Mutex<State>,
    /// Something to write.
    outgoing: Notify,
    /// The keeper said welcome, or the connection is over.
    turned: Notify,
}

impl Shared {
    /// Waits until `find` finds what it looks for.
    async fn until<T>(&self, mut find: impl FnMut(&State) -> Option<T>) -> T {
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
struct State {
    welcome: Option<Arc<Welcome>>,
    streams: HashMap<u32, StreamState>,
    last_stream: u32,
    outgoing: Vec<u8>,
    /// Why the connection is over.
    closed: Option<Closed>,
}

/// Why a connection is over.
#[derive(Clone)]
struct Closed {
    code: ErrorCode,
    message: String,
    hint: Option<String>,
}

impl Closed {
    fn error(&self) -> Error {
        let error = Error::new(self.code, self.message.clone());
        match &self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl From<Error> for Closed {
    fn from(error: Error) -> Self {
        Self { code: error.code(), message: error.to_string(), hint: error.next_step().map(ToOwned::to_owned) }
    }
}

/// How long an answer to the hello is waited for.
#[derive(Clone, Copy)]
enum Patience {
    /// Of a keeper that runs.
    Running,
    /// Of one that is just starting: so long as a start may take.
    Starting(Duration),
}

impl Patience {
    fn within(self) -> Duration {
        match self {
            Self::Running => HELLO_WITHIN,
            Self::Starting(within) => within,
        }
    }

    /// The error when it is over.
    fn over(self) -> Error {
        match self {
            Self::Running => {
                Error::new(ErrorCode::Timeout, format!("the keeper did not answer within {HELLO_WITHIN:?}"))
            }
            Self::Starting(within) => Error::too_slow("start the sandbox", within),
        }
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    // Nothing in here panics while it holds the lock; a poisoned one is still consistent.
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn protocol(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Internal, format!("the keeper broke the protocol: {what}"))
}

fn lost(reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Stopped, format!("the connection to the keeper is lost: {reason}"))
}

impl Keeper {
    /// Says hello on a dialled stream, and goes on without waiting for the answer.
    pub fn greet(dialed: Dialed) -> Self {
        Self::hello(dialed, Patience::Running)
    }

    /// The same to a keeper that is just starting, and may take so long for that.
    pub fn greet_starting(dialed: Dialed, within: Duration) -> Self {
        Self::hello(dialed, Patience::Starting(within))
    }

    fn hello(dialed: Dialed, patience: Patience) -> Self {
        let hello = Hello { generation: GENERATION, token: dialed.token.map(Into::into), owner: dialed.owner };
        let mut state = State::default();
        encode(&Frame { stream: 0, body: Body::Hello(hello) }, &mut state.outgoing);
        let shared = Arc::new(Shared { state: Mutex::new(state), outgoing: Notify::new(), turned: Notify::new() });
        let (reader, writer) = tokio::io::split(dialed.stream);
        let tasks = [
            tokio::spawn(read(reader, shared.clone(), patience)).abort_handle(),
            tokio::spawn(write(writer, shared.clone())).abort_handle(),
        ];
        Self { link: Arc::new(Link { shared, tasks }) }
    }

    /// Says hello on a dialled stream and waits for the answer.
    pub async fn connect(dialed: Dialed) -> Result<Self> {
        Self::greet(dialed).welcomed().await
    }

    /// The same with a keeper that is just starting, and may take so long for that.
    pub async fn connect_starting(dialed: Dialed, within: Duration) -> Result<Self> {
        Self::greet_starting(dialed, within).welcomed().await
    }

    async fn welcomed(self) -> Result<Self> {
        self.welcome().await?;
        Ok(self)
    }

    /// What the keeper said of itself, once it has.
    pub async fn welcome(&self) -> Result<Arc<Welcome>> {
        let welcomed = self.link.shared.until(|state| match (&state.welcome, &state.closed) {
            (Some(welcome), _) => Some(Ok(welcome.clone())),
            (None, Some(closed)) => Some(Err(closed.error())),
            (None, None) => None,
        });
        welcomed.await
    }

    /// Whether the connection is over.
    pub fn is_closed(&self) -> bool {
        lock(&self.link.shared).closed.is_some()
    }

    /// Waits until the connection is over.
    pub async fn closed(&self) {
        self.link.shared.until(|state| state.closed.is_some().then_some(())).await;
    }

    /// Asks it to end everything inside (TERM, `grace`, KILL) and itself, and waits until it has hung up.
    pub async fn shut_down(&self, grace: Duration) -> Result<()> {
        let grace_ms = grace.as_millis().try_into().unwrap_or(u64::MAX);
        let hung_up = async {
            match self.call(Request::Shutdown { grace_ms }).await {
                // Who only stands in for a keeper ends nothing.
                Err(error) if error.code() == ErrorCode::Unsupported => return Err(error),
                // Its answer may be lost in its end: both mean the same.
                _ => self.closed().await,
            }
            Ok(())
        };
        tokio::time::timeout(grace + Duration::from_secs(35), hung_up)
            .await
            .map_err(|_| Error::new(ErrorCode::Timeout, "the keeper did not end when it was told to"))?
    }

    /// Opens a stream with a request.
    pub fn open(&self, request: Request) -> Result<KeeperStream> {
        let mut state = lock(&self.link.shared);
        if let Some(reason) = &state.closed {
            return Err(reason.error());
        }
        if state.streams.len() >= caps::STREAMS {
            return Err(Error::new(ErrorCode::LimitExceeded, format!("{} requests are under way", caps::STREAMS)));
        }
        let mut stream = state.last_stream.wrapping_add(1).max(1);
        while state.streams.contains_key(&stream) {
            stream = stream.wrapping_add(1).max(1);
        }
        let State { outgoing, .. } = &mut *state;
        try_encode(&Frame { stream, body: Body::Open(Box::new(request)) }, outgoing).map_err(|_| {
            let message = format!("a request takes more than {} bytes", caps::CONTROL);
            Error::new(ErrorCode::LimitExceeded, message).hint("pass large arguments as a file or on standard input")
        })?;
        state.last_stream = stream;
        let arrived = Arc::<Notify>::default();
        state.streams.insert(stream, StreamState::new(arrived.clone()));
        drop(state);
        self.link.shared.outgoing.notify_one();
        Ok(KeeperStream::new(self.link.clone(), stream, arrived))
    }

    /// A request that has one answer.
    pub async fn call(&self, request: Request) -> Result<kennel_proto::Outcome> {
        let mut stream = self.open(request)?;
        stream.done().await
    }
}

/// Asks a keeper that was dialled to end everything, and waits until it has hung up.
pub async fn shut_down(dialed: Result<Dialed>, grace: Duration) -> Result<()> {
    // Whoever stops a sandbox does not own it.
    Keeper::connect(Dialed { owner: false, ..dialed? }).await?.shut_down(grace).await
}

/// The library's error for a failure the keeper reports.
fn failed(failure: &Failure) -> Error {
    let message = printable(&failure.message);
    let (code, exit) = match failure.kind {
        FailureKind::NotFound => (ErrorCode::NotFound, None),
        FailureKind::Denied | FailureKind::Refused => (ErrorCode::PermissionDenied, None),
        FailureKind::Exists => (ErrorCode::AlreadyExists, None),
        FailureKind::Invalid => (ErrorCode::InvalidConfig, None),
        FailureKind::Limit => (ErrorCode::LimitExceeded, None),
        FailureKind::NotExecutable => (ErrorCode::ExecFailed, Some(126)),
        FailureKind::Unsupported => (ErrorCode::Unsupported, None),
        FailureKind::Other => (ErrorCode::Internal, None),
        FailureKind::NotStarted => (ErrorCode::StartFailed, None),
    };
    let error = Error::new(code, message);
    match exit {
        Some(exit) => error.exit_code(exit),
        None => error,
    }
}

/// Puts what arrives where its stream finds it, until the connection ends. Then it holds the line: a keeper that has
/// hung up takes its walls down once we have too, and whoever waited for it is on its way by then.
async fn read(mut reader: ReadHalf<Box<dyn ByteStream>>, shared: Arc<Shared>, patience: Patience) {
    let reason = match serve(&mut reader, &shared, patience).await {
        Err(reason) => reason,
        Ok(never) => match never {},
    };
    close(&shared, reason);
    std::future::pending::<()>().await;
}

async fn serve(
    reader: &mut ReadHalf<Box<dyn ByteStream>>,
    shared: &Shared,
    patience: Patience,
) -> std::result::Result<std::convert::Infallible, Error> {
    let mut decoder = Decoder::new();
    let mut buffer = vec![0; READ];
    let welcome = tokio::time::timeout(patience.within(), welcome(reader, &mut decoder, &mut buffer))
        .await
        .map_err(|_| patience.over())??;
    lock(shared).welcome = Some(Arc::new(welcome));
    shared.turned.notify_waiters();
    loop {
        while let Some(frame) = decoder.next_frame().map_err(lost)? {
            take(shared, frame).map_err(lost)?;
        }
        match reader.read(&mut buffer).await.map_err(lost)? {
            0 => return Err(lost("the keeper ended")),
            count => decoder.feed(&buffer[..count]),
        }
    }
}

/// The first frame, which must be a welcome.
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
            Ok(0) => return Err(Error::new(ErrorCode::Stopped, "the keeper hung up before its welcome")),
            Ok(count) => decoder.feed(&buffer[..count]),
            Err(error) => return Err(Error::io("read the keeper's welcome", error)),
        }
    };
    match frame {
        Frame { stream: 0, body: Body::Welcome(welcome) } => match welcome.generation {
            1..=GENERATION => Ok(welcome),
            other => Err(protocol(format!("it speaks generation {other}"))),
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
    for stream in state.streams.values() {
        stream.arrived.notify_waiters();
    }
    drop(state);
    shared.outgoing.notify_one();
    shared.turned.notify_waiters();
}

/// Takes one frame, or says what rule it breaks.
fn take(shared: &Shared, frame: Frame) -> std::result::Result<(), &'static str> {
    if frame.stream == 0 {
        return if matches!(frame.body, Body::Pong) { Ok(()) } else { Err("an unexpected frame on stream 0") };
    }
    // A stream we closed may still have frames on the way.
    lock(shared).streams.get_mut(&frame.stream).map_or(Ok(()), |stream| stream.take(frame.body))
}

/// Writes what is to be written, until the connection ends.
async fn write(mut writer: WriteHalf<Box<dyn ByteStream>>, shared: Arc<Shared>) {
    let mut bytes = Vec::new();
    loop {
        {
            let mut state = lock(&shared);
            if state.closed.is_some() {
                return;
            }
            bytes.clear();
            std::mem::swap(&mut bytes, &mut state.outgoing);
        }
        if bytes.is_empty() {
            shared.outgoing.notified().await;
        } else if let Err(error) = writer.write_all(&bytes).await {
            // The keeper has closed; what it said before that is the better reason.
            let heard = shared.until(|state| state.closed.is_some().then_some(()));
            let _ = tokio::time::timeout(LAST_WORDS, heard).await;
            return close(&shared, lost(error));
        }
    }
}
