//! Requests that create something, as tasks of their own: a client that is gone cannot cut them off halfway.
//!
//! With the header `Idempotency-Key`, the id of what is created is recorded first. A repeated request gets the response of
//! the first one, also if the server was killed in between. Without the header, what was created for a client that is gone
//! by then is removed again.

use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kennel_core::{Error, new_id};
use kennel_engine::{Begun, Cancel, IdempotencyKeys};
use kennel_types::{ErrorCode, SandboxId};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::sync::PoisonError;
use tracing::Instrument as _;

static KEY: HeaderName = HeaderName::from_static("idempotency-key");
static REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The longest key.
const LONGEST: usize = 255;

/// The creation that a request asks for.
pub(crate) struct Creation {
    /// The id of what is created.
    pub(crate) id: SandboxId,
    /// Whether the id was recorded, so that a repeated request finds what was created.
    pub(crate) recorded: bool,
    /// Whether an earlier request may have created it already.
    pub(crate) resumed: bool,
    /// Asks to give up, because the client is gone.
    pub(crate) cancel: Cancel,
}

/// Creates something once for each key. `asked` is what the request asks for, and `make` creates it.
pub(crate) async fn once<T, F>(
    app: &AppState,
    identity: &Identity,
    headers: &HeaderMap,
    asked: &[&[u8]],
    make: impl FnOnce(Creation) -> F,
) -> Outcome<Response>
where
    T: Serialize + Send + 'static,
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    let Some(key) = key(headers)? else { return at_most_once(make).await };
    let keys = IdempotencyKeys::new(app.store.clone());
    let caller = identity.key().to_owned();
    let claim = Claim::take(app, &caller, &key);
    let id = new_id()?;
    let (id, resumed) = match keys.begin(&caller, &key, &hash(asked), id.as_str()).await? {
        Begun::Different => {
            let message = "the idempotency key was used for another request";
            return Err(Failure::with_status(
                StatusCode::UNPROCESSABLE_ENTITY,
                Error::new(ErrorCode::Conflict, message).advise("use a new key for each new request"),
            ));
        }
        Begun::Finished(status, body) => return Ok(replayed(status, body)),
        Begun::New => (id, false),
        Begun::Unfinished(id) => {
            (SandboxId::new(id).map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?, true)
        }
    };
    let Some(claim) = claim else {
        let error = Error::new(ErrorCode::Conflict, "a request with the same idempotency key has not ended yet");
        return Err(Failure::from(error).header(header::RETRY_AFTER, HeaderValue::from(1)));
    };
    let making = make(Creation { id, recorded: true, resumed, cancel: Cancel::default() });
    let task = async move {
        let _claim = claim;
        match making.await {
            Ok(made) => {
                let body = body(&made)?;
                keys.finish(&caller, &key, StatusCode::CREATED.as_u16(), &body).await?;
                Ok(created(body))
            }
            Err(failure) => {
                keys.forget(&caller, &key).await?;
                Err(failure)
            }
        }
    };
    let task = tokio::spawn(task.in_current_span());
    joined(task.await)
}

/// Creates something, unless the client is gone before it gets the response.
async fn at_most_once<T, F>(make: impl FnOnce(Creation) -> F) -> Outcome<Response>
where
    T: Serialize + Send + 'static,
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    let cancel = Cancel::default();
    let making = make(Creation { id: new_id()?, recorded: false, resumed: false, cancel: cancel.clone() });
    let mut gone = CancelWhenDropped(Some(cancel));
    let task = tokio::spawn(async move { body(&making.await?).map(created) }.in_current_span());
    let done = joined(task.await);
    gone.0 = None;
    done
}

struct CancelWhenDropped(Option<Cancel>);

impl Drop for CancelWhenDropped {
    fn drop(&mut self) {
        if let Some(cancel) = &self.0 {
            cancel.cancel();
        }
    }
}

fn joined(done: Result<Outcome<Response>, tokio::task::JoinError>) -> Outcome<Response> {
    done.unwrap_or_else(
        |error| Err(Error::new(ErrorCode::Internal, format!("the request ended early: {error}")).into()),
    )
}

/// A request with a key that goes on in this process.
struct Claim {
    app: AppState,
    entry: (String, String),
}

impl Claim {
    fn take(app: &AppState, caller: &str, key: &str) -> Option<Self> {
        let entry = (caller.to_owned(), key.to_owned());
        let mut claims = app.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        claims.insert(entry.clone()).then(|| Self { app: app.clone(), entry })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.app.in_progress.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.entry);
    }
}

fn key(headers: &HeaderMap) -> Outcome<Option<String>> {
    let Some(value) = headers.get(&KEY) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if (1..=LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Some(text.to_owned()));
    }
    Err(Failure::invalid(format!(
        "invalid idempotency key: expected 1 to {LONGEST} characters of ASCII without spaces"
    )))
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn body(value: &impl Serialize) -> Outcome<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorCode::Internal, format!("write the response: {error}")).into())
}

fn created(body: String) -> Response {
    (StatusCode::CREATED, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn replayed(status: u16, body: String) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::CREATED);
    let mut response = created(body);
    *response.status_mut() = status;
    response.headers_mut().insert(REPLAYED.clone(), HeaderValue::from_static("true"));
    response
}
