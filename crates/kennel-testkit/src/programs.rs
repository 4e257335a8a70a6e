//! Test programs. They are compiled when needed, statically, so that they run in any sandbox.

use sha2::{Digest, Sha256};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Connects to a Unix socket, or listens on one.
pub const KNOCK: &str = include_str!("../programs/knock.rs");
/// Tries to connect to an address, or listens on one.
pub const REACH: &str = include_str!("../programs/reach.rs");
/// Attacks the sandbox in which it runs.
pub const ESCAPE: &str = include_str!("../programs/escape.rs");
/// Makes system calls that a sandbox changes or refuses.
pub const CALLS: &str = include_str!("../programs/calls.rs");
/// Makes system calls by their numbers.
pub const SYSCALLS: &str = include_str!("../programs/syscalls.rs");

/// Serves sockets inside, and connects to them.
pub const SOCKETS: &str = include_str!("../programs/sockets.rs");

const ALL: [&str; 6] = [KNOCK, REACH, ESCAPE, CALLS, SYSCALLS, SOCKETS];

/// All compiled programs, for an ordinary user who may have no compiler and no access to the build directory.
static PREPARED: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();

/// Writes a compiled program to a path. It is compiled only once per build.
pub fn compile(source: &str, to: &Path) {
    let prepared = PREPARED.get().and_then(|all| all.iter().find(|(name, _)| *name == source));
    let bytes = prepared.map_or_else(|| read(source), |(_, bytes)| bytes.clone());
    std::fs::write(to, bytes).expect("put a program of the kit there");
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755)).expect("make it a program");
}

/// Compiles all programs, before this thread switches to an ordinary user.
pub fn prepare() {
    PREPARED.get_or_init(|| ALL.map(|source| (source, read(source))).into());
}

/// Writes all compiled programs to a directory, which is used as build directory on a machine without a compiler.
pub fn put_all(dir: &Path) {
    for source in ALL {
        compile(source, &dir.join(name(source)));
    }
}

fn name(source: &str) -> String {
    format!("kennel-test-program-{}", fingerprint(&[source.as_bytes()]))
}

fn read(source: &str) -> Vec<u8> {
    std::fs::read(compiled(source)).expect("read a program of the kit")
}

fn compiled(source: &str) -> PathBuf {
    let program = crate::home::build().join(name(source));
    if program.exists() {
        return program;
    }
    let _only_one = crate::docker::lock("program");
    if program.exists() {
        return program;
    }
    let dir = tempfile::tempdir_in(crate::home::build()).expect("make a directory for a program");
    let (file, made) = (dir.path().join("program.rs"), dir.path().join("program"));
    std::fs::write(&file, source).expect("write the program");
    let rustc = crate::environment::variable("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(rustc)
        .args(["--edition=2024", "-Copt-level=s", "-Cstrip=symbols", "-Cpanic=abort", "-Ctarget-feature=+crt-static"])
        .arg("-o")
        .arg(&made)
        .arg(&file)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "rustc could not make {}", program.display());
    std::fs::rename(made, &program).expect("put the program in its place");
    program
}

/// Returns a short hash of these bytes.
pub(crate) fn fingerprint(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize()[..4].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// Replaces one of Kennel's own programs by a script, and returns the old content. The script gets the same size, so
/// that Kennel uses it.
pub fn replace(program: &Path, script: &str) -> Vec<u8> {
    let real = std::fs::read(program).expect("read the program");
    let mut bytes = format!("#!/bin/sh\n{script}\n").into_bytes();
    assert!(bytes.len() < real.len(), "a script longer than the program");
    bytes.resize(real.len(), b'\n');
    put(program, &bytes);
    real
}

/// Writes a program to a path, also if a program at this path is running.
pub fn put(program: &Path, bytes: &[u8]) {
    let temporary = program.with_extension("new");
    std::fs::write(&temporary, bytes).expect("write the program");
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o555)).expect("make it a program");
    std::fs::rename(&temporary, program).expect("put the program in place");
}
