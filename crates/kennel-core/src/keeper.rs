//! The client side of the keeper protocol: one connection, many streams.
//!
//! Two tasks per connection: one reads frames and puts bytes where their stream will find them, one writes. Nothing is
//! queued without bound: a stream holds at most a window of unread bytes per channel, and a keeper that sends more, out
//! of order, or what was not asked for, loses the connection.

use crate::text::printable;
use crate::{Dialed, Error, Result};
use kennel_proto::{
    Body, Channel, Decoder, ExitReport, Failure, FailureKind, Frame, GENERATION, Hello, Reply, Request, Welcome, caps,
    encode, try_encode,
};
use kennel_types::ErrorCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::Notify;

/// How long a keeper may take to answer the hello.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// A connection to a keeper. It ends when the last handle and the last stream are dropped.
#[derive(Clone)]
pub struct Keeper {
    link: Arc<Link>,
    welcome: Arc<Welcome>,
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
    /// The connection is over.
    ended: Notify,
}

#[derive(Default)]
struct State {
    streams: HashMap<u32, StreamState>,
    last_stream: u32,
    outgoing: Vec<u8>,
    /// Why the connection is over.
    closed: Option<String>,
}

/// What has arrived on a stream.
#[derive(Default)]
struct StreamState {
    arrived: Arc<Notify>,
    reply: Option<Reply>,
    replied: bool,
    /// `Stdout` and `Stderr`.
    incoming: [Incoming; 2],
    stdin_consumed: u64,
    end: Option<End>,
}

#[derive(Default)]
struct Incoming {
    bytes: Vec<u8>,
    /// The number of the next byte to arrive.
    next: u64,
    consumed: u64,
    eof: bool,
}

/// How a stream ended.
#[derive(Clone)]
enum End {
    Exit(ExitReport),
    Done(kennel_proto::Outcome),
    Failed(Failure),
    Closed,
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    // Nothing in here panics while it holds the lock; a poisoned one is still consistent.
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn protocol(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Internal, format!("the keeper broke the protocol: {what}"))
}

impl Keeper {
    /// Says hello on a dialled stream and waits for the answer.
    pub async fn connect(dialed: Dialed) -> Result<Self> {
        let (mut reader, mut writer) = tokio::io::split(dialed.stream);
        let hello = Hello { generation: GENERATION, token: dialed.token.map(Into::into), owner: dialed.owner };
        let mut bytes = Vec::new();
        encode(&Frame { stream: 0, body: Body::Hello(hello) }, &mut bytes);
        let mut decoder = Decoder::new();
        let greet = async {
            writer.write_all(&bytes).await.map_err(|error| Error::io("say hello to the keeper", error))?;
            loop {
                if let Some(frame) = decoder.next_frame().map_err(protocol)? {
                    return match frame {
                        Frame { stream: 0, body: Body::Welcome(welcome) } => Ok(welcome),
                        Frame { stream: 0, body: Body::Fail(failure) } => Err(failed("talk to the keeper", &failure)),
                        _ => Err(protocol("no welcome after the hello")),
                    };
                }
                let mut buffer = [0; 4096];
                let count =
                    reader.read(&mut buffer).await.map_err(|error| Error::io("read the keeper's welcome", error))?;
                if count == 0 {
                    return Err(Error::new(ErrorCode::Stopped, "the keeper hung up before its welcome"));
                }
                decoder.feed(&buffer[..count]);
            }
        };
        let welcome = tokio::time::timeout(HELLO_WITHIN, greet).await.map_err(|_| {
            Error::new(ErrorCode::Timeout, format!("the keeper did not answer within {HELLO_WITHIN:?}"))
        })??;
        if welcome.generation > GENERATION || welcome.generation == 0 {
            return Err(protocol(format!("it speaks generation {}", welcome.generation)));
        }
        let shared = Arc::new(Shared { state: Mutex::default(), outgoing: Notify::new(), ended: Notify::new() });
        let tasks = [
            tokio::spawn(read(reader, decoder, shared.clone())).abort_handle(),
            tokio::spawn(write(writer, shared.clone())).abort_handle(),
        ];
        Ok(Self { link: Arc::new(Link { shared, tasks }), welcome: Arc::new(welcome) })
    }

    /// What the keeper said of itself.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Whether the connection is over.
    pub fn is_closed(&self) -> bool {
        lock(&self.link.shared).closed.is_some()
    }

    /// Asks it to end everything inside (TERM, `grace`, KILL) and itself, and waits until it has hung up.
    pub async fn shut_down(&self, grace: Duration) -> Result<()> {
        let grace_ms = grace.as_millis().try_into().unwrap_or(u64::MAX);
        let hung_up = async {
            // Its answer may be lost in its end: both mean the same.
            let _ = self.call(Request::Shutdown { grace_ms }).await;
            self.closed().await;
        };
        tokio::time::timeout(grace + Duration::from_secs(35), hung_up)
            .await
            .map_err(|_| Error::new(ErrorCode::Timeout, "the keeper did not end when it was told to"))
    }

    /// Waits until the connection is over.
    pub async fn closed(&self) {
        loop {
            let ended = self.link.shared.ended.notified();
            if self.is_closed() {
                return;
            }
            ended.await;
        }
    }

    /// Opens a stream with a request.
    pub fn open(&self, request: Request) -> Result<KeeperStream> {
        let mut state = lock(&self.link.shared);
        if let Some(reason) = &state.closed {
            return Err(lost(reason));
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
        state.streams.insert(stream, StreamState { arrived: arrived.clone(), ..StreamState::default() });
        drop(state);
        self.link.shared.outgoing.notify_one();
        Ok(KeeperStream { link: self.link.clone(), stream, arrived, unacknowledged: [0; 2], sole: true })
    }

    /// A request that has one answer.
    pub async fn call(&self, request: Request) -> Result<kennel_proto::Outcome> {
        let mut stream = self.open(request)?;
        stream.done().await
    }
}

fn lost(reason: &str) -> Error {
    Error::new(ErrorCode::Stopped, format!("the connection to the keeper is lost: {reason}"))
}

/// Asks a keeper that was dialled to end everything, and waits until it has hung up.
pub async fn shut_down(dialed: Result<Dialed>, grace: Duration) -> Result<()> {
    // Whoever stops a sandbox does not own it.
    Keeper::connect(Dialed { owner: false, ..dialed? }).await?.shut_down(grace).await
}

/// The library's error for a failure the keeper reports.
pub(crate) fn failed(what: &str, failure: &Failure) -> Error {
    let message = format!("{what}: {}", printable(&failure.message));
    let (code, exit) = match failure.kind {
        FailureKind::NotFound => (ErrorCode::NotFound, None),
        FailureKind::Denied | FailureKind::Refused => (ErrorCode::PermissionDenied, None),
        FailureKind::Exists => (ErrorCode::AlreadyExists, None),
        FailureKind::Invalid => (ErrorCode::InvalidConfig, None),
        FailureKind::Limit => (ErrorCode::LimitExceeded, None),
        FailureKind::NotExecutable => (ErrorCode::ExecFailed, Some(126)),
        FailureKind::Unsupported => (ErrorCode::Unsupported, None),
        FailureKind::Other => (ErrorCode::Internal, None),
    };
    let error = Error::new(code, message);
    match exit {
        Some(exit) => error.exit_code(exit),
        None => error,
    }
}

/// One request and all that follows from it. Dropping it closes the stream.
pub struct KeeperStream {
    link: Arc<Link>,
    stream: u32,
    arrived: Arc<Notify>,
    /// Bytes handed out whose consumption was not told yet, per channel.
    unacknowledged: [u64; 2],
    /// Whether the stream is over when this handle is dropped; not so for a second one that only sends.
    sole: bool,
}

impl Drop for KeeperStream {
    fn drop(&mut self) {
        if self.sole {
            self.close();
        }
    }
}

/// Bytes that arrived, or the end.
pub(crate) enum Arrival {
    Bytes(Channel, Vec<u8>),
    Exit(ExitReport),
    Done(kennel_proto::Outcome),
}

impl KeeperStream {
    /// Waits until `ready` finds what it wants in the stream's state.
    async fn until<T>(&self, mut ready: impl FnMut(&mut StreamState) -> Option<Result<T>>) -> Result<T> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut state = lock(&self.link.shared);
                let State { streams, closed, .. } = &mut *state;
                let Some(stream) = streams.get_mut(&self.stream) else { return Err(lost("stream is gone")) };
                if let Some(found) = ready(stream) {
                    return found;
                }
                if let Some(reason) = closed {
                    return Err(lost(reason));
                }
            }
            arrived.await;
        }
    }

    /// The first reply, or why there is none.
    pub async fn reply(&self) -> Result<Reply> {
        self.until(|stream| match (stream.reply.take(), &stream.end) {
            (Some(reply), _) => Some(Ok(reply)),
            (None, Some(End::Failed(failure))) => Some(Err(failed("request", failure))),
            (None, Some(_)) => Some(Err(protocol("a stream ended without a reply"))),
            (None, None) => None,
        })
        .await
    }

    /// The outcome of a request that answers once.
    pub async fn done(&mut self) -> Result<kennel_proto::Outcome> {
        loop {
            match self.next().await? {
                Arrival::Done(outcome) => return Ok(outcome),
                Arrival::Bytes(..) => {}
                Arrival::Exit(_) => return Err(protocol("an exit where an outcome was due")),
            }
        }
    }

    /// The next bytes, or the end once all bytes were handed out. What was handed out before counts as consumed.
    pub(crate) async fn next(&mut self) -> Result<Arrival> {
        self.acknowledge();
        let arrival = self
            .until(|stream| {
                for (index, channel) in [Channel::Stdout, Channel::Stderr].into_iter().enumerate() {
                    let incoming = &mut stream.incoming[index];
                    if !incoming.bytes.is_empty() {
                        return Some(Ok(Arrival::Bytes(channel, std::mem::take(&mut incoming.bytes))));
                    }
                }
                match &stream.end {
                    Some(End::Exit(report)) => Some(Ok(Arrival::Exit(*report))),
                    Some(End::Done(outcome)) => Some(Ok(Arrival::Done(outcome.clone()))),
                    Some(End::Failed(failure)) => Some(Err(failed("request", failure))),
                    Some(End::Closed) => {
                        Some(Err(Error::new(ErrorCode::Aborted, "someone else took over this command's output")))
                    }
                    None => None,
                }
            })
            .await?;
        if let Arrival::Bytes(channel, bytes) = &arrival {
            self.unacknowledged[usize::from(*channel == Channel::Stderr)] += bytes.len() as u64;
        }
        Ok(arrival)
    }

    /// Tells the keeper what was consumed, if it is enough to matter.
    fn acknowledge(&mut self) {
        for (index, channel) in [Channel::Stdout, Channel::Stderr].into_iter().enumerate() {
            if self.unacknowledged[index] == 0 {
                continue;
            }
            let mut state = lock(&self.link.shared);
            let Some(stream) = state.streams.get_mut(&self.stream) else { return };
            let incoming = &mut stream.incoming[index];
            incoming.consumed += std::mem::take(&mut self.unacknowledged[index]);
            let offset = incoming.consumed;
            drop(state);
            self.send(Body::Consumed { channel, offset });
        }
    }

    /// The offsets up to which output was consumed.
    pub(crate) fn consumed(&self) -> [u64; 2] {
        let state = lock(&self.link.shared);
        let mut consumed = state
            .streams
            .get(&self.stream)
            .map_or([0; 2], |stream| [stream.incoming[0].consumed, stream.incoming[1].consumed]);
        consumed[0] += self.unacknowledged[0];
        consumed[1] += self.unacknowledged[1];
        consumed
    }

    /// Waits until the keeper has consumed all but `window` bytes of what was sent so far.
    pub(crate) async fn room(&self, sent: u64, window: u64) -> Result<u64> {
        self.until(|stream| {
            let ahead = sent.saturating_sub(stream.stdin_consumed);
            match &stream.end {
                Some(End::Failed(failure)) => Some(Err(failed("request", failure))),
                Some(_) => Some(Err(Error::new(ErrorCode::Stopped, "the command no longer reads its standard input"))),
                None => (ahead < window).then(|| Ok(window - ahead)),
            }
        })
        .await
    }

    /// Sends a frame on this stream.
    pub(crate) fn send(&self, body: Body) {
        let mut state = lock(&self.link.shared);
        if state.closed.is_none() {
            encode(&Frame { stream: self.stream, body }, &mut state.outgoing);
            drop(state);
            self.link.shared.outgoing.notify_one();
        }
    }

    /// A second handle on the same stream, for the one who writes while another reads.
    pub(crate) fn sender(&self) -> Self {
        Self {
            link: self.link.clone(),
            stream: self.stream,
            arrived: self.arrived.clone(),
            unacknowledged: [0; 2],
            sole: false,
        }
    }

    /// Forgets the stream and tells the keeper, unless it is over already.
    pub(crate) fn close(&self) {
        let over = lock(&self.link.shared).streams.remove(&self.stream).is_none_or(|stream| stream.end.is_some());
        if !over {
            self.send(Body::Close);
        }
    }
}

/// Puts what arrives where its stream finds it, until the connection ends.
async fn read(mut reader: ReadHalf<Box<dyn crate::ByteStream>>, mut decoder: Decoder, shared: Arc<Shared>) {
    let mut buffer = vec![0; 256 * 1024];
    let reason = 'reading: loop {
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    if let Err(reason) = take(&shared, frame) {
                        break 'reading reason.to_owned();
                    }
                }
                Ok(None) => break,
                Err(error) => break 'reading error.to_string(),
            }
        }
        match reader.read(&mut buffer).await {
            Ok(0) => break "the keeper ended".to_owned(),
            Ok(count) => decoder.feed(&buffer[..count]),
            Err(error) => break error.to_string(),
        }
    };
    close(&shared, reason);
}

fn close(shared: &Shared, reason: String) {
    let mut state = lock(shared);
    state.closed.get_or_insert(reason);
    for stream in state.streams.values() {
        stream.arrived.notify_waiters();
    }
    drop(state);
    shared.outgoing.notify_one();
    shared.ended.notify_waiters();
}

/// Takes one frame, or says what rule it breaks.
fn take(shared: &Shared, frame: Frame) -> std::result::Result<(), &'static str> {
    if frame.stream == 0 {
        return if matches!(frame.body, Body::Pong) { Ok(()) } else { Err("an unexpected frame on stream 0") };
    }
    let mut state = lock(shared);
    // A stream we closed may still have frames on the way.
    let Some(stream) = state.streams.get_mut(&frame.stream) else { return Ok(()) };
    if stream.end.is_some() {
        return Err("a frame after the end of its stream");
    }
    match frame.body {
        Body::Reply(Reply::Done(outcome)) => stream.end = Some(End::Done(outcome)),
        Body::Reply(reply) => {
            if std::mem::replace(&mut stream.replied, true) {
                return Err("a second reply");
            }
            if let Reply::Running { stdout, stderr, stdin, .. } = &reply {
                for (incoming, offset) in stream.incoming.iter_mut().zip([*stdout, *stderr]) {
                    incoming.next = offset;
                    incoming.consumed = offset;
                }
                stream.stdin_consumed = *stdin;
            }
            stream.reply = Some(reply);
        }
        Body::Fail(failure) => stream.end = Some(End::Failed(failure)),
        Body::Exit(report) => stream.end = Some(End::Exit(report)),
        Body::Close => stream.end = Some(End::Closed),
        Body::Data { channel: channel @ (Channel::Stdout | Channel::Stderr), offset, bytes } => {
            let incoming = &mut stream.incoming[usize::from(channel == Channel::Stderr)];
            let end = offset.checked_add(bytes.len() as u64).ok_or("an offset past all numbers")?;
            if !stream.replied || incoming.eof || offset != incoming.next {
                return Err("output out of order");
            }
            if end.saturating_sub(incoming.consumed) > caps::WINDOW {
                return Err("output past its window");
            }
            incoming.next = end;
            if incoming.bytes.is_empty() {
                incoming.bytes = bytes;
            } else {
                incoming.bytes.extend_from_slice(&bytes);
            }
        }
        Body::Eof(channel @ (Channel::Stdout | Channel::Stderr)) => {
            stream.incoming[usize::from(channel == Channel::Stderr)].eof = true;
        }
        Body::Consumed { channel: Channel::Stdin, offset } => {
            stream.stdin_consumed = stream.stdin_consumed.max(offset);
        }
        _ => return Err("a frame that only a host sends"),
    }
    stream.arrived.notify_waiters();
    Ok(())
}

/// Writes what is to be written, until the connection ends.
async fn write(mut writer: WriteHalf<Box<dyn crate::ByteStream>>, shared: Arc<Shared>) {
    loop {
        let bytes = {
            let mut state = lock(&shared);
            if state.closed.is_some() {
                return;
            }
            std::mem::take(&mut state.outgoing)
        };
        if bytes.is_empty() {
            shared.outgoing.notified().await;
        } else if let Err(error) = writer.write_all(&bytes).await {
            return close(&shared, error.to_string());
        }
    }
}
