//! Installs packages of npm for tests.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Installs packages into a directory, which gets its place only when it is complete and `is_complete` says so.
pub(crate) fn install(to: &Path, packages: &[&str], is_complete: impl Fn(&Path) -> bool) -> io::Result<()> {
    let parent = to.parent().expect("it is in the build directory");
    std::fs::create_dir_all(parent)?;
    let made = tempfile::Builder::new().prefix("kennel-test-npm-").tempdir_in(parent)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--no-save", "--prefix"]).arg(made.path());
    npm.args(packages).stdin(Stdio::null());
    if !npm.status()?.success() || !is_complete(made.path()) {
        return Err(io::Error::other(format!("{npm:?} did not install a program that runs")));
    }
    match std::fs::remove_dir_all(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::rename(made.path(), to)?;
    // Nothing is left under the old name.
    let _ = made.keep();
    Ok(())
}
