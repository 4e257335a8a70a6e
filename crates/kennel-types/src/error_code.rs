//! The table of error codes. The library, `--json`, the exit status and, later, HTTP use the same codes.

use serde::{Deserialize, Serialize};

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// The request is valid, but the sandbox is in a state that does not allow it, or something else uses what it needs.
    Conflict,
    /// A setting is wrong.
    InvalidConfig,
    /// The caller, or the user inside, may not do this.
    PermissionDenied,
    /// This provider cannot do what was asked, and will not do less silently.
    Unsupported,
    /// A limit was reached. [`LimitReason`] says which kind.
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
const TABLE: [Row; 16] = [
    row(ErrorCode::NotAvailable, "not_available", 125, 503, true, false),
    row(ErrorCode::ImageNotFound, "image_not_found", 125, 404, false, false),
    row(ErrorCode::StartFailed, "start_failed", 125, 502, true, false),
    row(ErrorCode::ExecFailed, "exec_failed", 126, 422, false, true),
    row(ErrorCode::Timeout, "timeout", 124, 504, true, true),
    row(ErrorCode::Aborted, "aborted", 130, 499, true, true),
    row(ErrorCode::NotFound, "not_found", 125, 404, false, false),
    row(ErrorCode::Stopped, "stopped", 125, 409, true, false),
    row(ErrorCode::AttachFailed, "attach_failed", 125, 502, true, true),
    row(ErrorCode::AlreadyExists, "already_exists", 125, 409, false, true),
    row(ErrorCode::Conflict, "conflict", 125, 409, false, true),
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

    /// The HTTP status for this code. That of [`ErrorCode::LimitExceeded`] depends on the [`LimitReason`], if there is
    /// one.
    pub fn http_status(self) -> u16 {
        self.row().http_status
    }

    /// Whether the same call may succeed if it is repeated. For [`ErrorCode::LimitExceeded`] this depends on the
    /// [`LimitReason`], if there is one.
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

/// Which kind of limit was reached, with [`ErrorCode::LimitExceeded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LimitReason {
    /// A file, a request or an image is larger than its cap, or has more parts.
    TooLarge,
    /// No memory is left.
    OutOfMemory,
    /// No disk space is left.
    OutOfDisk,
    /// All of something that exists in a limited number are in use, such as user ids, open files or commands at once.
    Exhausted,
    /// Too many requests in a short time, or at once.
    TooManyRequests,
}

impl LimitReason {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::TooLarge, Self::OutOfMemory, Self::OutOfDisk, Self::Exhausted, Self::TooManyRequests];

    /// The name of the reason in JSON and in documentation, for example `too_large`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::OutOfMemory => "out_of_memory",
            Self::OutOfDisk => "out_of_disk",
            Self::Exhausted => "exhausted",
            Self::TooManyRequests => "too_many_requests",
        }
    }

    /// The HTTP status for this reason.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::TooLarge => 413,
            Self::OutOfMemory | Self::OutOfDisk => 507,
            Self::Exhausted => 503,
            Self::TooManyRequests => 429,
        }
    }

    /// Whether the same call may succeed if it is repeated, without a change by the user.
    pub const fn retryable(self) -> bool {
        match self {
            Self::TooLarge | Self::OutOfMemory | Self::OutOfDisk => false,
            Self::Exhausted | Self::TooManyRequests => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorCode, LimitReason};

    #[test]
    fn the_table_of_codes_matches_the_enum_and_the_wire_names() {
        for (index, code) in ErrorCode::all().enumerate() {
            assert_eq!(code as usize, index);
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
    }

    #[test]
    fn reasons_have_the_same_name_on_the_wire() {
        for reason in LimitReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
        }
    }
}
