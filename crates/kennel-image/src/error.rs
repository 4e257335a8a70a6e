//! Errors of this crate, which have the error type of all crates.
//!
//! Many texts come from archives and registries. They go through [`shown`] before they are put into a message.

use kennel_types::{ErrorCode, printable_within};

pub use kennel_types::{Error, Result};

/// The input is not an image, or not the image that it claims to be.
pub(crate) fn unsound(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidConfig, message)
}

/// The input could not be parsed. The message contains the parser's reason.
pub(crate) fn unreadable(error: &std::io::Error) -> Error {
    unsound(format!("its content cannot be read: {}", shown(error.to_string().as_bytes())))
}

/// Whether a later attempt may succeed, so that partial downloads are worth keeping.
pub(crate) fn may_pass(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::NotAvailable | ErrorCode::Timeout | ErrorCode::Aborted)
}

/// Prepares text from outside for a message: control characters are escaped, and long text is cut.
pub(crate) fn shown(text: &[u8]) -> String {
    printable_within(&String::from_utf8_lossy(text), 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_in_image_errors() {
        assert_eq!(shown(b"a\x1b[31m\n\xff"), "a\\u{1b}[31m\\n\u{fffd}");
        assert!(shown(&[b'x'; 5000]).len() < 210);
    }
}
