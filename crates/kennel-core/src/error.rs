//! The one error of the library: a code of the table in `kennel-types`, what was attempted on what, and what to do next.

use crate::printable;
use kennel_types::ErrorCode;
use std::time::Duration;

/// A result of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: ErrorCode,
    message: String,
    /// Whether the message has several lines of its own, each of which is printable.
    lines: bool,
    hint: Option<String>,
    exit_code: Option<i32>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this code. The message says what was attempted on what, and why it failed.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), lines: false, hint: None, exit_code: None, source: None }
    }

    /// An error whose message has several lines. Each is made printable here, so none can break into two.
    pub fn of_lines(code: ErrorCode, lines: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let lines: Vec<String> = lines.into_iter().map(|line| printable(line.as_ref())).collect();
        Self { lines: true, ..Self::new(code, lines.join("\n")) }
    }

    /// Adds the next thing to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the exit code that a command line should end with.
    #[must_use]
    pub fn exit_code(mut self, code: i32) -> Self {
        self.exit_code = Some(code);
        self
    }

    /// Adds the cause, kept for those who look for it. The message already says what a person needs.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// An I/O error while doing `what`.
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

    /// No sandbox of that name.
    pub fn no_sandbox(name: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no sandbox {name}")).hint("kennel ls --all")
    }

    /// A sandbox that could not be started.
    pub fn not_started(name: impl std::fmt::Display, reason: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::StartFailed, format!("start sandbox {name}: {reason}"))
    }

    /// A start that took longer than it may. `what` is what was attempted.
    pub fn too_slow(what: impl std::fmt::Display, within: Duration) -> Self {
        let more = within.as_secs().saturating_mul(2).max(30);
        Self::new(ErrorCode::StartFailed, format!("{what}: it took longer than {within:?}"))
            .hint(format!("kennel config set sandbox.startupTimeout {more}s; it counts for new sandboxes"))
    }

    /// A sandbox that does not run.
    pub fn stopped(name: impl std::fmt::Display) -> Self {
        let hint = format!("kennel start {name}");
        Self::new(ErrorCode::Stopped, format!("sandbox {name} is not running")).hint(hint)
    }

    /// A sandbox in which everything stands still.
    pub fn paused(name: impl std::fmt::Display) -> Self {
        let hint = format!("kennel unpause {name}");
        Self::new(ErrorCode::Stopped, format!("sandbox {name} is paused")).hint(hint)
    }

    /// A sandbox that is tied to its maker, and so is nobody else's to change.
    pub fn is_tied(name: impl std::fmt::Display) -> Self {
        let message = format!("sandbox {name} belongs to a running command, and goes with it");
        Self::new(ErrorCode::InvalidConfig, message).hint("kennel create --start, for one that stays")
    }

    /// A sandbox that runs, and must not for this.
    pub fn is_running(name: impl std::fmt::Display) -> Self {
        let hint = format!("kennel stop {name}, or kennel rm --force {name}");
        Self::new(ErrorCode::InvalidConfig, format!("sandbox {name} is running")).hint(hint)
    }

    /// Something this provider does not give.
    pub fn unsupported(provider: &str, what: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::Unsupported, format!("the {provider} provider cannot give {what}"))
    }

    /// The message for a person: printable, and of several lines only if it was made of lines. All but the first begin with a bar, so
    /// that none is taken for a hint.
    pub fn for_person(&self) -> String {
        if self.lines { self.message.replace('\n', "\n  | ") } else { printable(&self.message) }
    }

    /// Which kind of error.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// What to do next.
    pub fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Whether nobody listens where a keeper was looked for.
    pub fn is_refused(&self) -> bool {
        let io = self.source.as_ref().and_then(|source| source.downcast_ref::<std::io::Error>());
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    }

    /// What a command line should exit with.
    pub fn exit_status(&self) -> i32 {
        self.exit_code.unwrap_or_else(|| i32::from(self.code.exit_status()))
    }
}
