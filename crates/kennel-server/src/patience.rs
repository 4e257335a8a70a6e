//! How long the server waits for a client that sends a body: a client that is gone, or sends nothing, must not occupy it.

use crate::error::Failure;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use kennel_core::Error;
use kennel_types::ErrorCode;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// How long a body may pause.
const PAUSE: Duration = Duration::from_mins(1);

/// Whether a body has paused for too long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stalled(Arc<AtomicBool>);

impl Stalled {
    /// Returns the error of a request: that of its body, if it has paused for too long.
    pub(crate) fn or(&self, failure: impl Into<Failure>) -> Failure {
        if !self.0.load(Ordering::Relaxed) {
            return failure.into();
        }
        let message = format!("nothing of the request's body arrived for {} s", PAUSE.as_secs());
        Failure::with_status(StatusCode::REQUEST_TIMEOUT, Error::new(ErrorCode::Timeout, message))
    }
}

/// Fails when the body pauses for too long while it is read.
pub(crate) fn patient(body: Body) -> (Body, Stalled) {
    patient_for(body, PAUSE)
}

fn patient_for(body: Body, pause: Duration) -> (Body, Stalled) {
    let stalled = Stalled::default();
    let timer = Box::pin(tokio::time::sleep_until(Instant::now() + pause));
    (Body::new(Patient { body, pause, timer, is_waiting: false, stalled: stalled.clone() }), stalled)
}

struct Patient {
    body: Body,
    pause: Duration,
    timer: Pin<Box<Sleep>>,
    is_waiting: bool,
    stalled: Stalled,
}

impl HttpBody for Patient {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body.frame()).poll(cx) {
            self.is_waiting = false;
            return Poll::Ready(frame);
        }
        // The time in which the server does not read does not count.
        if !self.is_waiting {
            self.is_waiting = true;
            let until = Instant::now() + self.pause;
            self.timer.as_mut().reset(until);
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.stalled.0.store(true, Ordering::Relaxed);
        let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "the body paused for too long");
        Poll::Ready(Some(Err(axum::Error::new(error))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_pauses_for_too_long_fails_and_others_do_not() {
        let pause = Duration::from_millis(50);
        let (body, stalled) = patient_for(Body::from("complete"), pause);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "complete");
        assert_eq!(stalled.or(Failure::invalid("x")).status(), StatusCode::BAD_REQUEST);
        let endless = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let (body, stalled) = patient_for(Body::from_stream(endless), pause);
        assert!(body.collect().await.is_err());
        let failure = stalled.or(Failure::invalid("x"));
        assert_eq!((failure.status(), failure.error().code()), (StatusCode::REQUEST_TIMEOUT, ErrorCode::Timeout));
    }
}
