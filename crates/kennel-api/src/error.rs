//! The body of every response with status 400 or above.

use kennel_types::{Error, ErrorCode, LimitReason, NextStep};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of every response with status 400 or above.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ApiError,
}

/// What went wrong, and what to do about it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiError {
    /// The kind of the error. The library, the command line and its exit status use the same codes.
    pub code: ErrorCode,
    /// Which limit was reached, if the code is `limit_exceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<LimitReason>,
    /// What was attempted on what, and why it failed, for a person.
    pub message: String,
    /// Whether the same request may succeed if it is repeated.
    pub retryable: bool,
    /// Whether the session can continue after this error.
    pub recoverable: bool,
    /// The exit code that the command line would return, if there is one for this error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What to do next, as text that names a request of this API where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What to do next, as data.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "ignored")]
    #[schemars(with = "Option<NextStep>")]
    pub next_step: Option<NextStep>,
    /// The id of the request, which is also in the header `x-request-id` and in the server's log.
    pub request_id: String,
}

impl ApiError {
    /// Converts an error. `hint` is the next step in the words of this API.
    pub fn new(error: &Error, hint: Option<String>, request_id: impl Into<String>) -> Self {
        Self {
            code: error.code(),
            reason: error.reason(),
            message: error.to_string(),
            retryable: error.retryable(),
            recoverable: error.recoverable(),
            exit_code: (error.code() == ErrorCode::ExecFailed).then(|| error.exit_status()),
            hint,
            next_step: error.next_step().cloned(),
            request_id: request_id.into(),
        }
    }
}

/// Ignores the next step: `hint` has it as text, and a newer server may have steps that a client does not know.
fn ignored<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<NextStep>, D::Error> {
    serde::de::IgnoredAny::deserialize(deserializer).map(|_| None)
}
