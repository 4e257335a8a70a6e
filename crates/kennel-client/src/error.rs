//! Errors of the server, as errors of the library.

use kennel_types::{Error, ErrorCode, LimitReason, Result};
use serde::Deserialize;

/// The body of a response with status 400 or above.
#[derive(Deserialize)]
struct Body {
    error: Received,
}

/// What the server says about an error. Fields that this client does not know are ignored.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Received {
    code: String,
    #[serde(default)]
    reason: Option<LimitReason>,
    message: String,
    #[serde(default)]
    exit_code: Option<i32>,
    #[serde(default)]
    hint: Option<String>,
}

impl Received {
    pub(crate) fn into_error(self) -> Error {
        // A newer server may have more codes.
        let code = ErrorCode::all().find(|code| code.name() == self.code).unwrap_or(ErrorCode::Internal);
        let mut error = match (code, self.reason) {
            (ErrorCode::LimitExceeded, Some(reason)) => Error::limit(reason, self.message),
            _ => Error::new(code, self.message),
        };
        if let Some(exit_code) = self.exit_code {
            error = error.exit_code(exit_code);
        }
        match self.hint {
            Some(hint) => error.advise(hint),
            None => error,
        }
    }
}

/// Converts the body of a failed response.
pub(crate) fn of_response(status: u16, body: &[u8]) -> Error {
    if let Ok(body) = serde_json::from_slice::<Body>(body) {
        return body.error.into_error();
    }
    // Something between the client and the server responded.
    let message = format!("the server responded with status {status}, and not as a Kennel server does");
    Error::new(ErrorCode::NotAvailable, message)
}

/// The error of a connection that broke.
pub(crate) fn broken(what: &str, error: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::NotAvailable, format!("{what}: {error}"))
}

/// Reads JSON of the server.
pub(crate) fn json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::new(ErrorCode::Internal, format!("read the response of the server: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_code_and_hint() {
        let error = of_response(
            409,
            br#"{"error": {"code": "stopped", "message": "sandbox box is not running", "hint": "start it", "more": 1}}"#,
        );
        assert_eq!((error.code(), error.to_string().as_str()), (ErrorCode::Stopped, "sandbox box is not running"));
        assert!(error.next_step().is_some());
        assert_eq!(of_response(400, br#"{"error": {"code": "new", "message": "x"}}"#).code(), ErrorCode::Internal);
        assert_eq!(of_response(502, b"<html>").code(), ErrorCode::NotAvailable);
    }
}
