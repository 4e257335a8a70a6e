//! The id of each request: in the log, in the response, and in the body of an error.

use crate::error;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument as _;

/// The header with the id, in requests and responses.
pub(crate) static HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that a client may choose.
const LONGEST: usize = 64;

/// The id of a request. Handlers take it as `Extension<RequestId>`.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Gives the request its id, logs it, and completes the body of an error.
pub(crate) async fn identify(mut request: Request, next: Next) -> Response {
    let id = request.headers().get(&HEADER).and_then(chosen).unwrap_or_else(random);
    request.extensions_mut().insert(id.clone());
    let span = tracing::info_span!(
        "request",
        request_id = id.as_str(),
        trace_id = trace(request.headers()).as_deref().unwrap_or(id.as_str()),
        method = %request.method(),
        // Not the query, which may contain a ticket.
        path = request.uri().path()
    );
    let began = Instant::now();
    let response = next.run(request).instrument(span.clone()).await;
    let mut response = error::with_body(response, id.as_str());
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(HEADER.clone(), value);
    }
    let micros = began.elapsed().as_micros() as u64;
    span.in_scope(|| tracing::info!(status = response.status().as_u16(), micros, "responded"));
    response
}

/// Returns the id of the trace that the request belongs to: that of the header `traceparent`, as the W3C defines it.
fn trace(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let id = text.strip_prefix("00-")?.get(..32)?;
    let is_hex = id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_hex && text.as_bytes().get(35) == Some(&b'-') && id.bytes().any(|byte| byte != b'0')).then(|| id.to_owned())
}

/// Returns the id that the client has chosen, if it is harmless.
fn chosen(value: &HeaderValue) -> Option<RequestId> {
    let text = value.to_str().ok()?;
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    ((1..=LONGEST).contains(&text.len()) && text.chars().all(harmless)).then(|| RequestId(text.into()))
}

fn random() -> RequestId {
    let mut bytes = [0; 8];
    // Without random bytes the id is less useful, but the request can still be handled.
    let _ = getrandom::fill(&mut bytes);
    RequestId(format!("{:016x}", u64::from_le_bytes(bytes)).into())
}
