//! Errors as HTTP responses.
//!
//! A handler returns [`Failure`]. The response that it becomes carries the error beside an empty body, and
//! [`crate::request_id`] writes the body when it knows the id of the request. So responses of the framework get a body of
//! the same form.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kennel_api::{ApiError, ErrorBody};
use kennel_core::Error;
use kennel_types::{ErrorCode, LimitReason, NextStep};
use std::sync::Arc;

/// The result of a handler.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// An error, with its status and headers if they are not those of its code.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Error,
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// The error of a response, for [`crate::request_id`].
#[derive(Clone)]
pub(crate) struct Carried(Arc<Error>);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { error, status, headers: Vec::new() }
    }
}

impl Failure {
    /// An error with another status than that of its code.
    pub(crate) fn with_status(status: StatusCode, error: Error) -> Self {
        Self { error, status, headers: Vec::new() }
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The request is malformed.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorCode::InvalidConfig, message).into()
    }

    /// There is no valid token.
    pub(crate) fn unauthenticated(message: &str) -> Self {
        let error = Error::new(ErrorCode::PermissionDenied, message)
            .suggest(NextStep::advice("send the header `Authorization: Bearer TOKEN`"));
        Self::with_status(StatusCode::UNAUTHORIZED, error)
            .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// The token does not allow this.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Error::new(ErrorCode::PermissionDenied, message).into()
    }

    /// Too many requests. The client may try again after this many seconds.
    pub(crate) fn busy(message: &str, seconds: u64) -> Self {
        Self::from(Error::limit(LimitReason::TooManyRequests, message))
            .header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// The error.
    #[allow(dead_code)] // used by streams
    pub(crate) fn error(&self) -> &Error {
        &self.error
    }

    /// The error, without its status.
    pub(crate) fn into_error(self) -> Error {
        self.error
    }

    /// The status of the response.
    #[allow(dead_code)] // used by streams
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.headers_mut().extend(self.headers);
        response.extensions_mut().insert(Carried(Arc::new(self.error)));
        response
    }
}

/// Writes the body of a response with status 400 or above, unless it has one already.
pub(crate) fn with_body(response: Response, request_id: &str) -> Response {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let error = response.extensions().get::<Carried>().cloned();
    let body = match error {
        Some(Carried(error)) => body(&error, request_id),
        // A response that comes from inside a sandbox is passed on as it is.
        None if response.extensions().get::<FromInside>().is_some() => return response,
        None => body(&of_framework(status), request_id),
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(header::CONTENT_LENGTH);
    let bytes = serde_json::to_vec(&body).unwrap_or_default();
    Response::from_parts(parts, bytes.into())
}

/// Marks a response whose status and body come from a program inside a sandbox.
#[derive(Clone, Copy)]
#[allow(dead_code)] // made by the routes of ports
pub(crate) struct FromInside;

/// Returns the body for an error.
pub(crate) fn body(error: &Error, request_id: &str) -> ErrorBody {
    ErrorBody { error: api_error(error, request_id) }
}

/// Returns the error as the API describes it. Streams use it for errors after their start.
pub(crate) fn api_error(error: &Error, request_id: &str) -> ApiError {
    ApiError::new(error, error.next_step().and_then(hint), request_id)
}

/// The error for a status that the framework has chosen.
fn of_framework(status: StatusCode) -> Error {
    match status {
        StatusCode::NOT_FOUND => Error::new(ErrorCode::NotFound, "there is nothing at this path")
            .suggest(NextStep::advice("GET /openapi.json lists all paths")),
        StatusCode::METHOD_NOT_ALLOWED => {
            Error::new(ErrorCode::Unsupported, "this path has no such method; the header `allow` lists those it has")
        }
        StatusCode::PAYLOAD_TOO_LARGE => Error::limit(LimitReason::TooLarge, "the request is too large"),
        StatusCode::REQUEST_TIMEOUT => Error::new(ErrorCode::Timeout, "the request took too long to arrive"),
        status if status.is_client_error() => {
            Error::new(ErrorCode::InvalidConfig, status.canonical_reason().unwrap_or("the request is malformed"))
        }
        _ => Error::new(ErrorCode::Internal, "the server could not handle the request"),
    }
}

/// Words a next step as a request of this API. Steps that only the operator of the server can take have no words here; the
/// response has them as data.
fn hint(step: &NextStep) -> Option<String> {
    Some(match step {
        NextStep::ListSandboxes => "GET /v1/sandboxes".into(),
        NextStep::StartSandbox { name } => format!("POST /v1/sandboxes/{name}/start"),
        NextStep::ResumeSandbox { name } => format!("POST /v1/sandboxes/{name}/resume"),
        NextStep::StopOrRemoveSandbox { name } => {
            format!("POST /v1/sandboxes/{name}/stop, or DELETE /v1/sandboxes/{name}?force=true")
        }
        NextStep::RemoveSandbox { name, force, volumes } => {
            let query: Vec<&str> =
                [(*force, "force=true"), (*volumes, "volumes=true")].iter().filter(|it| it.0).map(|it| it.1).collect();
            let mark = if query.is_empty() { "" } else { "?" };
            format!("DELETE /v1/sandboxes/{name}{mark}{}", query.join("&"))
        }
        NextStep::InspectSandbox { name } => format!("GET /v1/sandboxes/{name}"),
        NextStep::ReadLogs { name } => format!("GET /v1/sandboxes/{name}/logs"),
        NextStep::ListVolumes => "GET /v1/volumes".into(),
        NextStep::ListSessions => "GET /v1/sessions".into(),
        NextStep::StartSession { name } => format!("POST /v1/sessions/{name}/start"),
        NextStep::ShowSession { name } => format!("GET /v1/sessions/{name}"),
        NextStep::ListProfiles => "GET /v1/profiles".into(),
        NextStep::ListImages { .. } => "GET /v1/images".into(),
        NextStep::Advice { text } | NextStep::Text { text } => text.clone(),
        NextStep::Either { steps } => {
            let words: Vec<String> = steps.iter().filter_map(hint).collect();
            if words.is_empty() {
                return None;
            }
            words.join(", or ")
        }
        _ => return None,
    })
}
