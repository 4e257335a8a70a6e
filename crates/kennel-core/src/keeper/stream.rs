//! One request on a connection, and everything that follows from it.

mod poll;

use super::{ConnectionState, Link, failed, lock, lost, protocol};
use crate::{Error, Result};
use kennel_proto::{Body, Channel, ExitReport, Failure, Frame, Reply, caps, encode, encode_data_header};
use kennel_types::ErrorCode;
use std::sync::Arc;
use std::task::Waker;
use tokio::sync::Notify;

/// What has been received on a stream.
#[derive(Default)]
pub(super) struct StreamState {
    pub(super) arrived: Arc<Notify>,
    reply: Option<Reply>,
    replied: bool,
    /// `Stdout` and `Stderr`.
    incoming: [Incoming; 2],
    stdin_consumed: u64,
    /// Whether the keeper passes on no more of `Stdin`.
    stdin_refused: bool,
    /// The tasks that poll this stream: a reader and a writer.
    wakers: [Option<Waker>; 2],
    pub(super) end: Option<End>,
}

#[derive(Default)]
struct Incoming {
    bytes: Vec<u8>,
    /// The offset of the next byte to receive.
    next: u64,
    consumed: u64,
    eof: bool,
}

/// How a stream ended.
#[derive(Clone)]
pub(super) enum End {
    Exit(ExitReport),
    Done(kennel_proto::Outcome),
    Failed(Failure),
    Closed,
}

impl StreamState {
    pub(super) fn new(arrived: Arc<Notify>) -> Self {
        Self { arrived, ..Self::default() }
    }

    /// Wakes everyone who waits for this stream.
    pub(super) fn notify(&mut self) {
        self.arrived.notify_waiters();
        for waker in &mut self.wakers {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Whether the keeper has not replied yet.
    pub(super) fn awaits_reply(&self) -> bool {
        !self.replied && self.end.is_none()
    }

    /// Processes one frame, or returns the rule that it violates.
    pub(super) fn take(&mut self, body: Body) -> std::result::Result<(), &'static str> {
        if self.end.is_some() {
            return Err("a frame after the end of its stream");
        }
        match body {
            Body::Reply(Reply::Done(outcome)) => self.end = Some(End::Done(outcome)),
            Body::Reply(reply) => {
                if std::mem::replace(&mut self.replied, true) {
                    return Err("a second reply");
                }
                if let Reply::Running { stdout, stderr, stdin, stdin_passed_on, .. } = &reply {
                    for (incoming, offset) in self.incoming.iter_mut().zip([*stdout, *stderr]) {
                        incoming.next = offset;
                        incoming.consumed = offset;
                    }
                    self.stdin_consumed = stdin_passed_on.unwrap_or(*stdin).min(*stdin);
                }
                self.reply = Some(reply);
            }
            Body::Fail(failure) => self.end = Some(End::Failed(failure)),
            Body::Exit(report) => self.end = Some(End::Exit(report)),
            Body::Close => self.end = Some(End::Closed),
            Body::Data { channel: channel @ (Channel::Stdout | Channel::Stderr), offset, bytes } => {
                let incoming = &mut self.incoming[usize::from(channel == Channel::Stderr)];
                let end = offset.checked_add(bytes.len() as u64).ok_or("an offset past all numbers")?;
                if !self.replied || incoming.eof || offset != incoming.next {
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
                self.incoming[usize::from(channel == Channel::Stderr)].eof = true;
            }
            Body::Eof(Channel::Stdin) => self.stdin_refused = true,
            Body::Consumed { channel: Channel::Stdin, offset } => {
                self.stdin_consumed = self.stdin_consumed.max(offset);
            }
            _ => return Err("a frame that only a host sends"),
        }
        self.notify();
        Ok(())
    }
}

/// One request and everything that follows from it. Dropping it closes the stream.
pub struct KeeperStream {
    link: Arc<Link>,
    stream: u32,
    arrived: Arc<Notify>,
    /// Bytes that were returned to the caller but not yet reported as consumed, per channel.
    unacknowledged: [u64; 2],
    /// Whether bytes count as consumed only when the caller says so.
    explicit: bool,
    /// Whether dropping this handle closes the stream. It does not for a second handle that only sends.
    sole: bool,
}

impl Drop for KeeperStream {
    fn drop(&mut self) {
        if self.sole {
            self.close();
        }
    }
}

/// Received bytes, or the end of the stream.
pub(crate) enum Arrival {
    Bytes(Channel, Vec<u8>),
    Exit(ExitReport),
    Done(kennel_proto::Outcome),
}

impl KeeperStream {
    pub(super) fn new(link: Arc<Link>, stream: u32, arrived: Arc<Notify>) -> Self {
        Self { link, stream, arrived, unacknowledged: [0; 2], explicit: false, sole: true }
    }

    /// Waits until `ready` returns a value for the stream's state.
    async fn until<T>(&self, mut ready: impl FnMut(&mut StreamState) -> Option<Result<T>>) -> Result<T> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut state = lock(&self.link.shared);
                let ConnectionState { streams, closed, .. } = &mut *state;
                let Some(stream) = streams.get_mut(&self.stream) else { return Err(lost("stream is gone")) };
                if let Some(found) = ready(stream) {
                    return found;
                }
                if let Some(reason) = closed {
                    return Err(reason.error());
                }
            }
            arrived.await;
        }
    }

    /// Returns the first reply, or the error that replaces it.
    pub async fn reply(&self) -> Result<Reply> {
        self.until(|stream| match (stream.reply.take(), &stream.end) {
            (Some(reply), _) => Some(Ok(reply)),
            (None, Some(End::Failed(failure))) => Some(Err(failed(failure))),
            (None, Some(_)) => Some(Err(protocol("a stream ended without a reply"))),
            (None, None) => None,
        })
        .await
    }

    /// Returns the result of a request with a single reply.
    pub async fn done(&mut self) -> Result<kennel_proto::Outcome> {
        loop {
            match self.next().await? {
                Arrival::Done(outcome) => return Ok(outcome),
                Arrival::Bytes(..) => {}
                Arrival::Exit(_) => return Err(protocol("an exit where an outcome was due")),
            }
        }
    }

    /// From now on, bytes count as consumed only when [`Self::acknowledge_until`] is called.
    pub(crate) fn acknowledge_explicitly(&mut self) {
        self.explicit = true;
    }

    /// Returns the next bytes, or the end once all bytes were returned. Bytes that were returned before count as
    /// consumed, unless the caller acknowledges them explicitly.
    pub(crate) async fn next(&mut self) -> Result<Arrival> {
        if !self.explicit {
            self.acknowledge([u64::MAX; 2]);
        }
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
                    Some(End::Failed(failure)) => Some(Err(failed(failure))),
                    Some(End::Closed) => {
                        Some(Err(Error::new(ErrorCode::Aborted, "another client took over this command's output")))
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

    /// Reports the bytes before these offsets as consumed. Fails if one of them was not returned yet.
    pub(crate) fn acknowledge_until(&mut self, offsets: [u64; 2]) -> Result<()> {
        if offsets.iter().zip(self.returned()).any(|(offset, returned)| *offset > returned) {
            let message = "acknowledge output: it has not been returned yet";
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
        self.acknowledge(offsets);
        Ok(())
    }

    /// Reports returned bytes before these offsets as consumed.
    fn acknowledge(&mut self, offsets: [u64; 2]) {
        for (index, channel) in [Channel::Stdout, Channel::Stderr].into_iter().enumerate() {
            if self.unacknowledged[index] == 0 {
                continue;
            }
            let mut state = lock(&self.link.shared);
            let Some(stream) = state.streams.get_mut(&self.stream) else { return };
            let incoming = &mut stream.incoming[index];
            let count = offsets[index].saturating_sub(incoming.consumed).min(self.unacknowledged[index]);
            incoming.consumed += count;
            self.unacknowledged[index] -= count;
            let offset = incoming.consumed;
            drop(state);
            if count > 0 {
                self.send(Body::Consumed { channel, offset });
            }
        }
    }

    /// The offsets up to which output was consumed.
    pub(crate) fn consumed(&self) -> [u64; 2] {
        let state = lock(&self.link.shared);
        let consumed = |stream: &StreamState| stream.incoming.each_ref().map(|incoming| incoming.consumed);
        state.streams.get(&self.stream).map_or([0; 2], consumed)
    }

    /// The offsets up to which output was returned to the caller.
    pub(crate) fn returned(&self) -> [u64; 2] {
        let [stdout, stderr] = self.consumed();
        [stdout + self.unacknowledged[0], stderr + self.unacknowledged[1]]
    }

    /// Waits until the keeper has consumed all but `window` of the bytes sent so far. Returns how many bytes may be
    /// sent.
    pub(crate) async fn room(&self, sent: u64, window: u64) -> Result<u64> {
        self.until(|stream| {
            let ahead = sent.saturating_sub(stream.stdin_consumed);
            match &stream.end {
                Some(End::Failed(failure)) => Some(Err(failed(failure))),
                Some(_) => Some(Err(Error::new(ErrorCode::Stopped, "the command no longer reads its standard input"))),
                None => (ahead < window).then(|| Ok(window - ahead)),
            }
        })
        .await
    }

    /// Waits until the keeper has consumed more than `before` bytes, and returns how many.
    pub(crate) async fn taken(&self, before: u64) -> Result<u64> {
        self.until(|stream| {
            let taken = stream.stdin_consumed;
            match &stream.end {
                _ if taken > before => Some(Ok(taken)),
                Some(End::Failed(failure)) => Some(Err(failed(failure))),
                Some(_) => Some(Err(Error::new(ErrorCode::Stopped, "the command no longer reads its standard input"))),
                None => None,
            }
        })
        .await
    }

    /// Sends bytes of a channel, starting at `offset`.
    pub(crate) fn send_data(&self, channel: Channel, offset: u64, bytes: &[u8]) {
        let mut state = lock(&self.link.shared);
        if state.closed.is_none() {
            state.outgoing.extend_from_slice(&encode_data_header(self.stream, channel, offset, bytes.len()));
            state.outgoing.extend_from_slice(bytes);
            drop(state);
            self.link.shared.outgoing.notify_one();
        }
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

    /// A second handle on the same stream, for a task that writes while another reads.
    pub(crate) fn sender(&self) -> Self {
        Self {
            link: self.link.clone(),
            stream: self.stream,
            arrived: self.arrived.clone(),
            unacknowledged: [0; 2],
            explicit: false,
            sole: false,
        }
    }

    /// Removes the stream, and tells the keeper unless the stream has already ended.
    pub(crate) fn close(&self) {
        let over = lock(&self.link.shared).streams.remove(&self.stream).is_none_or(|stream| stream.end.is_some());
        if !over {
            self.send(Body::Close);
        }
    }
}
