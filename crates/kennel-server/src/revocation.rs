//! Ends the streams of tokens that were revoked. `kennel token revoke` is another process, so the tokens of open streams
//! are looked up once in a while. Without open streams of tokens, nothing is looked up.

use crate::app::App;
use crate::auth::Identity;
use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use kennel_core::Error;
use kennel_types::ErrorCode;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// The tokens of open streams, by id.
#[derive(Default)]
pub(crate) struct Revocations {
    watched: Mutex<HashMap<String, watch::Sender<bool>>>,
    added: Notify,
}

impl Revocations {
    /// Returns a receiver that becomes true when the caller's token is revoked. `None` if it has none.
    pub(crate) fn watch(&self, identity: &Identity) -> Option<watch::Receiver<bool>> {
        let token = identity.token()?;
        let mut watched = self.watched();
        let sender = watched.entry(token.id.clone()).or_insert_with(|| watch::Sender::new(false));
        self.added.notify_one();
        Some(sender.subscribe())
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<bool>>> {
        // No code panics while it holds the lock.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for revoked tokens, without an end.
    pub(crate) async fn run(&self, app: &App) {
        loop {
            self.added.notified().await;
            while self.has_streams() {
                #[expect(clippy::disallowed_methods, reason = "the time between two looks")]
                tokio::time::sleep(LOOK).await;
                let known = match app.tokens().list().await {
                    Ok(known) => known,
                    Err(error) => {
                        tracing::warn!(%error, "could not look for revoked tokens");
                        continue;
                    }
                };
                self.watched().retain(|id, sender| {
                    let is_known = known.iter().any(|token| token.id == *id);
                    if !is_known {
                        sender.send_replace(true);
                    }
                    is_known
                });
            }
        }
    }

    /// Whether a stream of a token is open. Tokens without one are forgotten.
    fn has_streams(&self) -> bool {
        let mut watched = self.watched();
        watched.retain(|_, sender| sender.receiver_count() > 0);
        !watched.is_empty()
    }
}

/// What ends a stream from the server's side.
pub(crate) struct StreamEnd {
    ending: watch::Receiver<bool>,
    revoked: Option<watch::Receiver<bool>>,
}

/// Why a stream was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The server ends.
    ServerEnds,
    /// The caller's token was revoked.
    Revoked,
}

impl Why {
    pub(crate) fn error(self) -> Error {
        match self {
            Self::ServerEnds => Error::new(ErrorCode::Aborted, "the server ends"),
            Self::Revoked => Error::new(ErrorCode::PermissionDenied, "the token was revoked"),
        }
    }
}

impl StreamEnd {
    pub(crate) fn new(ending: watch::Receiver<bool>, revoked: Option<watch::Receiver<bool>>) -> Self {
        Self { ending, revoked }
    }

    /// Waits until the stream must end.
    pub(crate) async fn reached(&mut self) -> Why {
        let revoked = async {
            match &mut self.revoked {
                // The sender is gone only after it has sent.
                Some(revoked) => drop(revoked.wait_for(|revoked| *revoked).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = crate::serve::ended(&mut self.ending) => Why::ServerEnds,
            () = revoked => Why::Revoked,
        }
    }
}

/// Cuts off a body when its stream must end. The client sees a connection that broke, and no end of the body.
pub(crate) fn until_end(body: Body, mut end: StreamEnd) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let end = Box::pin(async move { end.reached().await });
    Body::new(UntilEnd { body, end })
}

struct UntilEnd {
    body: Body,
    end: Pin<Box<dyn Future<Output = Why> + Send>>,
}

impl HttpBody for UntilEnd {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(why) = self.end.as_mut().poll(context) {
            return Poll::Ready(Some(Err(axum::Error::new(why.error()))));
        }
        Pin::new(&mut self.body.frame()).poll(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
