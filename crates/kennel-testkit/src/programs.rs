//! Programs of this kit, which are compiled when they are needed and run anywhere.

use std::path::Path;
use std::process::Command;

/// Connects to a unix socket, or listens at one.
pub const KNOCK: &str = include_str!("../programs/knock.rs");
/// Tries to reach an address, or lets itself be reached.
pub const REACH: &str = include_str!("../programs/reach.rs");
/// Attacks the sandbox that it is run in.
pub const ESCAPE: &str = include_str!("../programs/escape.rs");

/// Compiles one of them, statically.
pub fn compile(source: &str, to: &Path) {
    let dir = tempfile::tempdir().expect("make a directory for a program");
    let file = dir.path().join("program.rs");
    std::fs::write(&file, source).expect("write the program");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(rustc)
        .args(["--edition=2024", "-Copt-level=s", "-Cstrip=symbols", "-Cpanic=abort", "-Ctarget-feature=+crt-static"])
        .arg("-o")
        .arg(to)
        .arg(&file)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "rustc could not make {}", to.display());
}
