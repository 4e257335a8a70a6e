//! Lines of JSON as a response, or server-sent events if the client asks for them.

use crate::revocation::StreamEnd;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use futures_util::{Stream, StreamExt as _};
use kennel_api::stream::StreamChannel;
use kennel_core::Error;
use kennel_proto::Channel;
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;

/// The time after which a silent stream of events sends a comment.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A response of lines. With `Accept: text/event-stream`, each line is the data of an event.
pub(crate) fn response<T: Serialize>(headers: &HeaderMap, lines: impl Stream<Item = T> + Send + 'static) -> Response {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepted.contains("text/event-stream") {
        let events = lines.map(|line| Ok::<_, Infallible>(Event::default().data(json(&line))));
        return Sse::new(events).keep_alive(keep_alive()).into_response();
    }
    let lines = lines.map(|line| Ok::<_, Infallible>(json(&line) + "\n"));
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// How a stream of events shows that it is alive.
pub(super) fn keep_alive() -> KeepAlive {
    KeepAlive::new().interval(KEEP_ALIVE)
}

/// Waits for the next part of a stream, or returns an error when the server ends or the caller's token is revoked.
pub(crate) async fn unless_ending<T>(end: &mut StreamEnd, next: impl Future<Output = T>) -> Result<T, Error> {
    tokio::select! {
        // A stream that always has something to send must end too.
        biased;
        why = end.reached() => Err(why.error()),
        next = next => Ok(next),
    }
}

pub(super) fn channel(channel: Channel) -> StreamChannel {
    if channel == Channel::Stderr { StreamChannel::Stderr } else { StreamChannel::Stdout }
}

/// The bytes of a channel, for JSON.
pub(super) enum Piece {
    Text(String),
    Base64(String),
}

impl Piece {
    /// The fields `text` and `base64`, of which one is there.
    pub(super) fn fields(self) -> (Option<String>, Option<String>) {
        match self {
            Self::Text(text) => (Some(text), None),
            Self::Base64(text) => (None, Some(text)),
        }
    }
}

/// Cuts bytes into pieces that are text where possible: a character that is still incomplete waits for the next bytes.
#[derive(Default)]
pub(super) struct Pieces {
    rest: Vec<u8>,
    /// The offset of the rest.
    offset: u64,
}

impl Pieces {
    /// Adds bytes. Returns a piece and its offset.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<(u64, Piece)> {
        self.rest.extend_from_slice(bytes);
        let complete = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.len(),
            // Only the last character is incomplete.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.rest.len(),
        };
        self.take(complete)
    }

    /// Returns what is left at the end.
    pub(super) fn finish(&mut self) -> Option<(u64, Piece)> {
        self.take(self.rest.len())
    }

    fn take(&mut self, count: usize) -> Option<(u64, Piece)> {
        if count == 0 {
            return None;
        }
        let rest = self.rest.split_off(count);
        let bytes = std::mem::replace(&mut self.rest, rest);
        let offset = self.offset;
        self.offset += count as u64;
        let piece = match String::from_utf8(bytes) {
            Ok(text) => Piece::Text(text),
            Err(error) => Piece::Base64(base64::engine::general_purpose::STANDARD.encode(error.as_bytes())),
        };
        Some((offset, piece))
    }
}

fn json(line: &impl Serialize) -> String {
    // The types of lines consist of numbers and text, so they can be written.
    serde_json::to_string(line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(found: Option<(u64, Piece)>) -> Option<(u64, String)> {
        found.map(|(offset, piece)| match piece {
            Piece::Text(text) => (offset, text),
            Piece::Base64(text) => (offset, format!("base64:{text}")),
        })
    }

    #[test]
    fn a_character_is_not_cut() {
        let mut pieces = Pieces::default();
        let all = "aé€😀z".as_bytes();
        let mut seen = String::new();
        for byte in all {
            if let Some((offset, piece)) = text(pieces.push(&[*byte])) {
                assert_eq!(offset, seen.len() as u64);
                seen += &piece;
            }
        }
        assert_eq!(seen.as_bytes(), all);
        assert!(pieces.finish().is_none());
    }

    #[test]
    fn bytes_that_are_not_text_are_base64() {
        let mut pieces = Pieces::default();
        assert_eq!(text(pieces.push(b"ok")), Some((0, "ok".into())));
        assert_eq!(text(pieces.push(b"\xff\xfe")), Some((2, "base64://4=".into())));
        assert_eq!(text(pieces.push(b"ok\xc3")), Some((4, "ok".into())));
        assert_eq!(text(pieces.finish()), Some((6, "base64:ww==".into())));
    }
}
