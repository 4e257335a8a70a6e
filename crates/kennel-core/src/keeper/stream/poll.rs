//! Polling a stream that carries bytes in both directions, for `AsyncRead` and `AsyncWrite`.

use super::{End, KeeperStream, StreamState};
use crate::keeper::{ConnectionState, lock};
use crate::printable;
use std::io::{Error, ErrorKind, Result};
use std::task::{Context, Poll};

/// The tasks that can wait for one stream.
#[derive(Clone, Copy)]
enum Side {
    Reader,
    Writer,
}

impl KeeperStream {
    /// Returns the next bytes, or none at their end. Bytes that were returned before count as consumed.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        self.acknowledge([u64::MAX; 2]);
        let polled = self.poll_state(cx, Side::Reader, |stream| {
            let incoming = &mut stream.incoming[0];
            if !incoming.bytes.is_empty() {
                return Some(Ok(std::mem::take(&mut incoming.bytes)));
            }
            match &stream.end {
                Some(End::Failed(failure)) => Some(Err(reset(&failure.message))),
                Some(End::Closed) => Some(Err(reset("the keeper closed the connection"))),
                Some(End::Done(_) | End::Exit(_)) => Some(Ok(Vec::new())),
                None => incoming.eof.then(|| Ok(Vec::new())),
            }
        });
        if let Poll::Ready(Ok(bytes)) = &polled {
            self.unacknowledged[0] += bytes.len() as u64;
        }
        polled
    }

    /// Returns how many bytes may be sent after the first `sent` ones, once it is more than none.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>, sent: u64, window: u64) -> Poll<Result<u64>> {
        self.poll_state(cx, Side::Writer, |stream| {
            if let Some(error) = refusal(stream) {
                return Some(Err(error));
            }
            let ahead = sent.saturating_sub(stream.stdin_consumed);
            (ahead < window).then(|| Ok(window - ahead))
        })
    }

    /// Waits until the keeper has passed on the first `sent` bytes, or passes on no more.
    pub(crate) fn poll_passed_on(&self, cx: &mut Context<'_>, sent: u64) -> Poll<Result<()>> {
        self.poll_state(cx, Side::Writer, |stream| {
            (stream.stdin_consumed >= sent || refusal(stream).is_some()).then_some(Ok(()))
        })
    }

    fn poll_state<T>(
        &self,
        cx: &mut Context<'_>,
        side: Side,
        ready: impl FnOnce(&mut StreamState) -> Option<Result<T>>,
    ) -> Poll<Result<T>> {
        let mut state = lock(&self.link.shared);
        let ConnectionState { streams, closed, .. } = &mut *state;
        let Some(stream) = streams.get_mut(&self.stream) else {
            return Poll::Ready(Err(reset("the stream is closed")));
        };
        if let Some(found) = ready(stream) {
            return Poll::Ready(found);
        }
        if let Some(reason) = closed {
            return Poll::Ready(Err(Error::new(ErrorKind::ConnectionAborted, reason.error().to_string())));
        }
        let waker = &mut stream.wakers[side as usize];
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

fn reset(message: &str) -> Error {
    Error::new(ErrorKind::ConnectionReset, printable(message))
}

/// The error of a write, if nothing more is passed on.
fn refusal(stream: &StreamState) -> Option<Error> {
    match &stream.end {
        Some(End::Failed(failure)) => Some(reset(&failure.message)),
        None if !stream.stdin_refused => None,
        _ => Some(Error::new(ErrorKind::BrokenPipe, "the peer inside reads no more")),
    }
}
