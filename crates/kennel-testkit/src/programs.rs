//! Programs of this kit, which are compiled when they are needed and run anywhere.

use sha2::{Digest, Sha256};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Connects to a unix socket, or listens at one.
pub const KNOCK: &str = include_str!("../programs/knock.rs");
/// Tries to reach an address, or lets itself be reached.
pub const REACH: &str = include_str!("../programs/reach.rs");
/// Attacks the sandbox that it is run in.
pub const ESCAPE: &str = include_str!("../programs/escape.rs");
/// Makes system calls that a sandbox changes or refuses.
pub const CALLS: &str = include_str!("../programs/calls.rs");
/// Makes system calls by their numbers.
pub const SYSCALLS: &str = include_str!("../programs/syscalls.rs");

/// All of them, for whoever has become an ordinary user since, and may have neither a compiler nor a way to this build.
static PREPARED: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();

/// Puts one of them there, compiled statically. It is compiled once for a build.
pub fn compile(source: &str, to: &Path) {
    let prepared = PREPARED.get().and_then(|all| all.iter().find(|(name, _)| *name == source));
    let bytes = prepared.map_or_else(|| read(source), |(_, bytes)| bytes.clone());
    std::fs::write(to, bytes).expect("put a program of the kit there");
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755)).expect("make it a program");
}

/// Has all of them at hand, before this thread becomes an ordinary user's.
pub fn prepare() {
    PREPARED.get_or_init(|| [KNOCK, REACH, ESCAPE, CALLS, SYSCALLS].map(|source| (source, read(source))).into());
}

/// Puts all of them into a directory that is to be a build's elsewhere, where nothing can be compiled.
pub fn put_all(dir: &Path) {
    for source in [KNOCK, REACH, ESCAPE, CALLS, SYSCALLS] {
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

/// A short word for what these say.
pub(crate) fn fingerprint(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize()[..4].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
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
