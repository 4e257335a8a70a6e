//! The error of the programs that start a sandbox: the keeper and the jail.
//!
//! It is only a message. The host knows what it asked for, so the host adds the code and what to do next when it creates
//! its own error from the message.

/// Why a sandbox could not be started, or its files could not be removed: what was attempted on what, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub struct StartError(String);

impl StartError {
    /// The message.
    pub fn message(&self) -> &str {
        &self.0
    }
}

impl From<String> for StartError {
    fn from(message: String) -> Self {
        Self(message)
    }
}

impl From<&str> for StartError {
    fn from(message: &str) -> Self {
        Self(message.to_owned())
    }
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}
