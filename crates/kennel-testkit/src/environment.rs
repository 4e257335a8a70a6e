//! The environment that tests run in. Nothing else in this kit reads it.

#![expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]

use std::ffi::OsString;
use std::path::PathBuf;

/// A variable: a socket to test on, or something that cargo, nextest or a shell has set.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Where temporary files go.
pub fn temp_dir() -> PathBuf {
    std::env::temp_dir()
}
