//! The environment of tests. No other module of this crate reads environment variables.

#![expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]

use std::ffi::OsString;
use std::path::PathBuf;

/// Returns an environment variable: a socket to test on, or a variable of cargo, nextest or a shell.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Returns the directory for temporary files.
pub fn temp_dir() -> PathBuf {
    std::env::temp_dir()
}
