//! The table of error codes. The library, `--json`, the exit status and, later, HTTP use the same codes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The engine is not installed or not running.
    NotAvailable,
    /// The image does not exist where it was looked for.
    ImageNotFound,
    /// The sandbox could not be started.
    StartFailed,
    /// The command could not be started, or its result was lost.
    ExecFailed,
    /// A time limit ran out.
    Timeout,
    /// The caller gave up.
    Aborted,
    /// No such sandbox, process or file.
    NotFound,
    /// The sandbox exists but does not run.
    Stopped,
    /// A terminal could not be attached.
    AttachFailed,
    /// The name is taken.
    AlreadyExists,
    /// A setting is wrong.
    InvalidConfig,
    /// The caller, or the user inside, may not do this.
    PermissionDenied,
    /// This provider cannot do what was asked, and will not do less silently.
    Unsupported,
    /// A cap was reached.
    LimitExceeded,
    /// A defect in Kennel, or a keeper that does not keep to the protocol.
    Internal,
}

struct Row {
    code: ErrorCode,
    name: &'static str,
    exit_status: u8,
    http_status: u16,
    retryable: bool,
    recoverable: bool,
}

const fn row(
    code: ErrorCode,
    name: &'static str,
    exit_status: u8,
    http_status: u16,
    retryable: bool,
    recoverable: bool,
) -> Row {
    Row { code, name, exit_status, http_status, retryable, recoverable }
}

// The order is the same as in the enum; a test checks this.
const TABLE: [Row; 15] = [
    row(ErrorCode::NotAvailable, "not_available", 125, 503, true, false),
    row(ErrorCode::ImageNotFound, "image_not_found", 125, 404, false, false),
    row(ErrorCode::StartFailed, "start_failed", 125, 500, true, false),
    row(ErrorCode::ExecFailed, "exec_failed", 126, 422, false, true),
    row(ErrorCode::Timeout, "timeout", 124, 504, true, true),
    row(ErrorCode::Aborted, "aborted", 130, 499, true, true),
    row(ErrorCode::NotFound, "not_found", 125, 404, false, false),
    row(ErrorCode::Stopped, "stopped", 125, 409, true, false),
    row(ErrorCode::AttachFailed, "attach_failed", 125, 500, true, true),
    row(ErrorCode::AlreadyExists, "already_exists", 125, 409, false, true),
    row(ErrorCode::InvalidConfig, "invalid_config", 125, 400, false, true),
    row(ErrorCode::PermissionDenied, "permission_denied", 125, 403, false, true),
    row(ErrorCode::Unsupported, "unsupported", 125, 501, false, true),
    row(ErrorCode::LimitExceeded, "limit_exceeded", 125, 429, true, true),
    row(ErrorCode::Internal, "internal", 125, 500, false, false),
];

impl ErrorCode {
    /// All codes.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.code)
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The name of the code in JSON and in documentation, for example `not_available`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The exit status of the command line for this code.
    pub fn exit_status(self) -> u8 {
        self.row().exit_status
    }

    /// The HTTP status for this code.
    pub fn http_status(self) -> u16 {
        self.row().http_status
    }

    /// Whether the same call may succeed if it is repeated.
    pub fn retryable(self) -> bool {
        self.row().retryable
    }

    /// Whether the session can continue after this error.
    pub fn recoverable(self) -> bool {
        self.row().recoverable
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorCode;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_of_the_wire() {
        for (index, code) in ErrorCode::all().enumerate() {
            assert_eq!(code as usize, index);
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
    }
}
