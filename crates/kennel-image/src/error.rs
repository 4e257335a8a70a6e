//! The error type of this crate: a code from `kennel-types`, what was attempted on what, and what to do next.
//!
//! Many texts come from archives and registries. They go through [`shown`] before they are put into a message.

use kennel_types::ErrorCode;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: ErrorCode,
    message: String,
    hint: Option<String>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, source: None }
    }

    /// The input is not an image, or not the image that it claims to be.
    pub(crate) fn unsound(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidConfig, message)
    }

    /// A cap was reached.
    pub(crate) fn too_much(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::LimitExceeded, message)
    }

    /// The input could not be parsed. The message contains the parser's reason.
    pub(crate) fn unreadable(error: &std::io::Error) -> Self {
        Self::unsound(format!("its content cannot be read: {}", shown(error.to_string().as_bytes())))
    }

    /// Creates an error for an I/O error that occurred while doing `what`.
    pub(crate) fn io(what: impl std::fmt::Display, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
            std::io::ErrorKind::AlreadyExists => ErrorCode::AlreadyExists,
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorCode::LimitExceeded,
            _ => ErrorCode::Internal,
        };
        let full = code == ErrorCode::LimitExceeded;
        let made = Self { source: Some(Box::new(error)), ..Self::new(code, String::new()) };
        let why = made.source.as_ref().map(ToString::to_string).unwrap_or_default();
        let message = format!("{what}: {}", shown(why.as_bytes()));
        let made = Self { message, ..made };
        if full { made.hint("free some disk space, then try again: kennel image prune --all") } else { made }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts the name of a larger operation in front of the message.
    pub(crate) fn of(mut self, what: impl std::fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The error code.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The hint: what to do next.
    pub fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Whether a later attempt may succeed, so that partial downloads are worth keeping.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.code, ErrorCode::NotAvailable | ErrorCode::Timeout | ErrorCode::Aborted)
    }
}

/// Prepares text from outside for a message: control characters are escaped, and long text is cut.
pub(crate) fn shown(text: &[u8]) -> String {
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(text);
    let mut out: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_reaches_a_terminal_raw() {
        assert_eq!(shown(b"a\x1b[31m\n\xff"), "a\\u{1b}[31m\\n\u{fffd}");
        assert!(shown(&[b'x'; 5000]).len() < 210);
    }

    #[test]
    fn a_full_disk_is_a_limit() {
        let error = Error::io("write", std::io::Error::from(std::io::ErrorKind::StorageFull));
        assert_eq!(error.code(), ErrorCode::LimitExceeded);
        assert!(error.next_step().is_some());
    }
}
