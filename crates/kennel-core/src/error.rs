//! The library's error type: a code from `kennel-types`, what was attempted on what, and what to do next.

use crate::printable;
use kennel_types::ErrorCode;
use std::time::Duration;

/// A result of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the library.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: ErrorCode,
    message: String,
    /// Whether the message has several lines, each of which is already printable.
    lines: bool,
    hint: Option<String>,
    exit_code: Option<i32>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error with this code. The message says what was attempted on what, and why it failed.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), lines: false, hint: None, exit_code: None, source: None }
    }

    /// Creates an error whose message has several lines. Each line is escaped, so that none can break into two.
    pub fn of_lines(code: ErrorCode, lines: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let lines: Vec<String> = lines.into_iter().map(|line| printable(line.as_ref())).collect();
        Self { lines: true, ..Self::new(code, lines.join("\n")) }
    }

    /// Adds a hint: what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
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

    /// Creates an error for an I/O error that occurred while doing `what`.
    pub fn io(what: impl std::fmt::Display, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
            std::io::ErrorKind::AlreadyExists => ErrorCode::AlreadyExists,
            _ => ErrorCode::Internal,
        };
        Self::new(code, format!("{what}: {error}")).caused_by(error)
    }

    /// There is no sandbox of this name.
    pub fn no_sandbox(name: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no sandbox {name}")).hint("kennel ls --all")
    }

    /// The sandbox could not be started.
    pub fn not_started(name: impl std::fmt::Display, reason: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::StartFailed, format!("start sandbox {name}: {reason}"))
    }

    /// The start exceeded its time limit. `what` is what was attempted.
    pub fn too_slow(what: impl std::fmt::Display, within: Duration) -> Self {
        let more = within.as_secs().saturating_mul(2).max(30);
        Self::new(ErrorCode::StartFailed, format!("{what}: it took longer than {within:?}"))
            .hint(format!("kennel config set sandbox.startupTimeout {more}s; it applies to new sandboxes"))
    }

    /// The sandbox is not running.
    pub fn stopped(name: impl std::fmt::Display) -> Self {
        let hint = format!("kennel start {name}");
        Self::new(ErrorCode::Stopped, format!("sandbox {name} is not running")).hint(hint)
    }

    /// The sandbox is paused.
    pub fn paused(name: impl std::fmt::Display) -> Self {
        let hint = format!("kennel unpause {name}");
        Self::new(ErrorCode::Stopped, format!("sandbox {name} is paused")).hint(hint)
    }

    /// The sandbox is tied to its creator, so others cannot change it.
    pub fn is_tied(name: impl std::fmt::Display) -> Self {
        let message = format!("sandbox {name} is tied to a running command, and is removed with it");
        Self::new(ErrorCode::InvalidConfig, message).hint("use kennel create --start for a sandbox that stays")
    }

    /// The sandbox is running, but must not be for this operation.
    pub fn is_running(name: impl std::fmt::Display) -> Self {
        let hint = format!("kennel stop {name}, or kennel rm --force {name}");
        Self::new(ErrorCode::InvalidConfig, format!("sandbox {name} is running")).hint(hint)
    }

    /// The provider does not support something.
    pub fn unsupported(provider: &str, what: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::Unsupported, format!("the {provider} provider does not support {what}"))
    }

    /// The message for a person, escaped. It has several lines only if the error was created with lines. All lines but
    /// the first begin with a bar, so that none is mistaken for a hint.
    pub fn for_person(&self) -> String {
        if self.lines { self.message.replace('\n', "\n  | ") } else { printable(&self.message) }
    }

    /// The error code.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The hint.
    pub fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
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
