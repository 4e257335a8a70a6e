//! The error type of all crates: a code, what was attempted on what, and what to do next.
//!
//! The message fits every front end: it names no command and no flag of Kennel. What to do next is data (see
//! [`NextStep`]), which each front end words itself.

use crate::{ErrorCode, LimitReason, NextStep, printable};
use std::time::Duration;

/// A result of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the library.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: ErrorCode,
    reason: Option<LimitReason>,
    message: String,
    /// Whether the message has several lines, each of which is already printable.
    lines: bool,
    /// In a box, because most results are not errors, and every result has room for one.
    next_step: Option<Box<NextStep>>,
    exit_code: Option<i32>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error with this code. The message says what was attempted on what, and why it failed. Use
    /// [`Error::limit`] for a limit.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: None,
            message: message.into(),
            lines: false,
            next_step: None,
            exit_code: None,
            source: None,
        }
    }

    /// Creates an error for a limit that was reached.
    pub fn limit(reason: LimitReason, message: impl Into<String>) -> Self {
        Self { reason: Some(reason), ..Self::new(ErrorCode::LimitExceeded, message) }
    }

    /// Creates an error whose message has several lines. Each line is escaped, so that none can break into two.
    pub fn of_lines(code: ErrorCode, lines: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let lines: Vec<String> = lines.into_iter().map(|line| printable(line.as_ref())).collect();
        Self { lines: true, ..Self::new(code, lines.join("\n")) }
    }

    /// Adds what the user can do next.
    #[must_use]
    pub fn suggest(mut self, step: NextStep) -> Self {
        self.next_step = Some(Box::new(step));
        self
    }

    /// Adds advice that is worded the same in every front end: it names no command and no flag of Kennel.
    #[must_use]
    pub fn advise(self, text: impl Into<String>) -> Self {
        self.suggest(NextStep::advice(text))
    }

    /// Sets the exit code that the command line should return.
    #[must_use]
    pub fn exit_code(mut self, code: i32) -> Self {
        self.exit_code = Some(code);
        self
    }

    /// Adds the underlying error, for programs that inspect it. The message already contains what a person needs.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Puts the name of a larger operation in front of the message.
    #[must_use]
    pub fn context(mut self, what: impl std::fmt::Display) -> Self {
        self.message = if self.lines {
            format!("{}: {}", printable(&what.to_string()), self.message)
        } else {
            format!("{what}: {}", self.message)
        };
        self
    }

    /// Creates an error for an I/O error that occurred while doing `what`.
    pub fn io(what: impl std::fmt::Display, error: impl Into<std::io::Error>) -> Self {
        use std::io::ErrorKind;
        let error = error.into();
        let message = format!("{what}: {error}");
        let made = match error.kind() {
            ErrorKind::NotFound => Self::new(ErrorCode::NotFound, message),
            ErrorKind::PermissionDenied => Self::new(ErrorCode::PermissionDenied, message),
            ErrorKind::AlreadyExists => Self::new(ErrorCode::AlreadyExists, message),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Self::limit(LimitReason::OutOfDisk, message).suggest(NextStep::FreeDiskSpace)
            }
            ErrorKind::OutOfMemory => Self::limit(LimitReason::OutOfMemory, message),
            ErrorKind::FileTooLarge => Self::limit(LimitReason::TooLarge, message),
            _ => Self::new(ErrorCode::Internal, message),
        };
        made.caused_by(error)
    }

    /// There is no sandbox of this name.
    pub fn no_sandbox(name: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no sandbox {name}")).suggest(NextStep::ListSandboxes)
    }

    /// There is no volume of this name.
    pub fn no_volume(name: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no volume {name}")).suggest(NextStep::ListVolumes)
    }

    /// A sandbox uses the volume, so it cannot be removed.
    pub fn volume_in_use(name: impl std::fmt::Display, user: impl Into<String>) -> Self {
        let user = user.into();
        Self::new(ErrorCode::Conflict, format!("remove the volume {name}: sandbox {user} uses it"))
            .suggest(NextStep::RemoveSandbox { name: user, force: false, volumes: false })
    }

    /// The sandbox could not be started.
    pub fn not_started(name: impl std::fmt::Display, reason: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::StartFailed, format!("start sandbox {name}: {reason}"))
    }

    /// The start exceeded its time limit. `what` is what was attempted.
    pub fn too_slow(what: impl std::fmt::Display, within: Duration) -> Self {
        let seconds = within.as_secs().saturating_mul(2).max(30);
        Self::new(ErrorCode::StartFailed, format!("{what}: it took longer than {within:?}"))
            .suggest(NextStep::AllowLongerStart { seconds })
    }

    /// The sandbox is not running.
    pub fn stopped(name: impl std::fmt::Display) -> Self {
        let name = name.to_string();
        Self::new(ErrorCode::Stopped, format!("sandbox {name} is not running")).suggest(NextStep::StartSandbox { name })
    }

    /// The sandbox is paused.
    pub fn paused(name: impl std::fmt::Display) -> Self {
        let name = name.to_string();
        Self::new(ErrorCode::Stopped, format!("sandbox {name} is paused")).suggest(NextStep::ResumeSandbox { name })
    }

    /// The sandbox is tied to its creator, so others cannot change it.
    pub fn is_tied(name: impl std::fmt::Display) -> Self {
        let message = format!("sandbox {name} is tied to a running command, and is removed with it");
        Self::new(ErrorCode::Conflict, message).suggest(NextStep::CreateLastingSandbox)
    }

    /// The sandbox is running, but must not be for this operation.
    pub fn is_running(name: impl std::fmt::Display) -> Self {
        let name = name.to_string();
        Self::new(ErrorCode::Conflict, format!("sandbox {name} is running"))
            .suggest(NextStep::StopOrRemoveSandbox { name })
    }

    /// The provider does not support something.
    pub fn unsupported(provider: &str, what: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::Unsupported, format!("the {provider} provider does not support {what}"))
    }

    /// The message for a person, escaped. It has several lines only if the error was created with lines. All lines but
    /// the first begin with a bar, so that none is mistaken for a suggestion.
    pub fn for_person(&self) -> String {
        if self.lines { self.message.replace('\n', "\n  | ") } else { printable(&self.message) }
    }

    /// The error code.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// Which limit was reached, if the code is [`ErrorCode::LimitExceeded`].
    pub fn reason(&self) -> Option<LimitReason> {
        self.reason
    }

    /// What the user can do next.
    pub fn next_step(&self) -> Option<&NextStep> {
        self.next_step.as_deref()
    }

    /// Whether the same call may succeed if it is repeated.
    pub fn retryable(&self) -> bool {
        self.reason.map_or_else(|| self.code.retryable(), LimitReason::retryable)
    }

    /// Whether the session can continue after this error.
    pub fn recoverable(&self) -> bool {
        self.code.recoverable()
    }

    /// The HTTP status.
    pub fn http_status(&self) -> u16 {
        self.reason.map_or_else(|| self.code.http_status(), LimitReason::http_status)
    }

    /// Whether the connection to a keeper's socket was refused because no process listens on it.
    pub fn is_refused(&self) -> bool {
        let io = self.source.as_ref().and_then(|source| source.downcast_ref::<std::io::Error>());
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    }

    /// The exit status that the command line should return.
    pub fn exit_status(&self) -> i32 {
        self.exit_code.unwrap_or_else(|| i32::from(self.code.exit_status()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn an_io_error_has_the_code_of_its_kind() {
        let full = Error::io("write", std::io::Error::from(ErrorKind::StorageFull));
        assert_eq!((full.code(), full.reason()), (ErrorCode::LimitExceeded, Some(LimitReason::OutOfDisk)));
        assert_eq!(full.next_step(), Some(&NextStep::FreeDiskSpace));
        let missing = Error::io("read", std::io::Error::from(ErrorKind::NotFound));
        assert_eq!((missing.code(), missing.reason()), (ErrorCode::NotFound, None));
    }

    #[test]
    fn the_reason_decides_the_http_status_and_whether_to_retry() {
        let seen = |error: Error| (error.http_status(), error.retryable());
        assert_eq!(seen(Error::limit(LimitReason::TooLarge, "x")), (413, false));
        assert_eq!(seen(Error::limit(LimitReason::TooManyRequests, "x")), (429, true));
        assert_eq!(seen(Error::is_running("x")), (409, false));
        assert_eq!(seen(Error::new(ErrorCode::Timeout, "x")), (504, true));
    }

    #[test]
    fn a_larger_operation_is_named_first() {
        assert_eq!(Error::new(ErrorCode::NotFound, "x is gone").context("pull y").to_string(), "pull y: x is gone");
        let lines = Error::of_lines(ErrorCode::NotFound, ["one", "two"]).context("a\nb");
        assert_eq!(lines.for_person(), "a\\nb: one\n  | two");
    }

    /// Clippy's limit for errors is 128 bytes.
    #[test]
    fn an_error_is_small() {
        assert!(size_of::<Error>() <= 96, "{}", size_of::<Error>());
    }
}
