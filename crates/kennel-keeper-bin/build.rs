//! Builds the static programs, and checks that they are static.

#![expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts by variables")]

use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs, and the variables for their hashes.
const PROGRAMS: [(&str, &str); 2] = [("kennel-keeper", "KENNEL_KEEPER_HASH"), ("kennel-jail", "KENNEL_JAIL_HASH")];

/// The crates of this workspace that they consist of.
const SOURCES: [&str; 5] =
    ["kennel-proto", "kennel-syscalls", "kennel-netlink", "kennel-keeper", "providers/native/jail"];

/// Their build profile, whatever the profile of Kennel itself is. Size matters more than speed, because they are mapped
/// into every sandbox. The profile is not in the workspace's manifest, because any change there would rebuild them.
const PROFILE: [&str; 6] = [
    "profile.keeper.inherits = 'release'",
    "profile.keeper.opt-level = 's'",
    "profile.keeper.lto = 'fat'",
    "profile.keeper.codegen-units = 1",
    "profile.keeper.panic = 'abort'",
    "profile.keeper.strip = 'symbols'",
];

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Read when the script runs. The path at which the script was compiled may be that of another checkout, if both use one
    // target directory.
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let crates = manifest.parent().expect("this crate is in crates/").to_owned();
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=KENNEL_KEEPER_PREBUILT");
    // Not the lock file and the workspace's manifest, which are mostly about other crates. The dependencies of the
    // programs are also dependencies of this script, so cargo runs it again when one of them changes. tests/inputs.rs
    // checks both.
    for source in SOURCES {
        for input in ["src", "Cargo.toml", "build.rs"].map(|input| crates.join(source).join(input)) {
            if input.exists() {
                println!("cargo::rerun-if-changed={}", input.display());
            }
        }
    }
    let built = match std::env::var_os("KENNEL_KEEPER_PREBUILT") {
        Some(dir) => PathBuf::from(dir),
        None => build(&crates, &out),
    };
    for (program, variable) in PROGRAMS {
        let path = built.join(program);
        println!("cargo::rerun-if-changed={}", path.display());
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
        assert!(is_static(&bytes), "{} is not a static program for Linux", path.display());
        let hash = Sha256::digest(&bytes).iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("writing to a String cannot fail");
            hex
        });
        std::fs::write(out.join(program), bytes).expect("write to OUT_DIR");
        println!("cargo::rustc-env={variable}={hash}");
    }
}

/// Compiles them with a separate cargo, and returns their directory.
fn build(crates: &Path, out: &Path) -> PathBuf {
    let target = std::env::var("TARGET").expect("cargo sets TARGET");
    let mut cargo = Command::new(std::env::var_os("CARGO").expect("cargo sets CARGO"));
    cargo
        .current_dir(crates)
        .args(PROFILE.iter().flat_map(|setting| ["--config", setting]))
        .args(["build", "--locked", "--quiet", "--profile", "keeper", "--package", "kennel-keeper"])
        .args(["--package", "kennel-jail", "--bins", "--target", &target, "--target-dir"])
        .arg(out.join("target"))
        // The settings of the outer build do not apply to the inner one.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static");
    let status = cargo.status().expect("run cargo");
    assert!(status.success(), "building the keeper failed");
    out.join("target").join(target).join("keeper")
}

/// Whether the bytes are an ELF program without an interpreter.
fn is_static(bytes: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let half = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]) as usize);
    let (Some(offset), Some(size), Some(count)) = (
        bytes.get(32..40).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")) as usize),
        half(54),
        half(56),
    ) else {
        return false;
    };
    bytes.starts_with(b"\x7fELF\x02\x01")
        && (0..count).all(|index| {
            let at = offset + index * size;
            bytes.get(at..at + 4).is_some_and(|b| u32::from_le_bytes(b.try_into().expect("four bytes")) != PT_INTERP)
        })
}
