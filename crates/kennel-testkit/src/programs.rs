//! Programs of this kit, which are compiled when they are needed and run anywhere.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Connects to a unix socket, or listens at one.
pub const KNOCK: &str = include_str!("../programs/knock.rs");
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

/// Puts a script in the place of a program of Kennel's own, and answers what was there. Of the same size, it is taken for
/// the real one.
pub fn replace(program: &Path, script: &str) -> Vec<u8> {
    let real = std::fs::read(program).expect("read the program");
    let mut bytes = format!("#!/bin/sh\n{script}\n").into_bytes();
    assert!(bytes.len() < real.len(), "a script longer than the program");
    bytes.resize(real.len(), b'\n');
    put(program, &bytes);
    real
}

/// Puts a program there, also where another is that runs.
pub fn put(program: &Path, bytes: &[u8]) {
    let beside = program.with_extension("new");
    std::fs::write(&beside, bytes).expect("write the program");
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o555)).expect("make it a program");
    std::fs::rename(&beside, program).expect("put the program in place");
}
