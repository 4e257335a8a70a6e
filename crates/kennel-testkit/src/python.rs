//! A Python environment with packages from PyPI, for tests with real clients. `cargo xtask test` installs it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The version of `websockets`.
pub const WEBSOCKETS: &str = "15.0.1";
/// The version of `agent-client-protocol`.
pub const ACP: &str = "0.12.1";

/// The version of `schemathesis`, which calls the operations of an OpenAPI document with generated requests.
pub const SCHEMATHESIS: &str = "4.32.5";

/// Returns the directory of the environment. All builds of this checkout share it.
pub fn directory() -> PathBuf {
    let project =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package is two directories down");
    project.join(format!("target/kennel-test-python-{WEBSOCKETS}-{ACP}-{SCHEMATHESIS}"))
}

/// The interpreter, which finds the packages.
pub fn program() -> PathBuf {
    directory().join("bin/python3")
}

/// The program of `schemathesis`.
pub fn schemathesis() -> PathBuf {
    directory().join("bin/schemathesis")
}

/// Whether the environment is there, and has the packages.
pub fn is_installed() -> bool {
    let mut python = Command::new(program());
    let script = "from importlib.metadata import version as v; \
                  print(v('websockets'), v('agent-client-protocol'), v('schemathesis'))";
    python.args(["-c", script]).stdin(Stdio::null());
    let expected = format!("{WEBSOCKETS} {ACP} {SCHEMATHESIS}");
    python.output().is_ok_and(|output| output.stdout.trim_ascii() == expected.as_bytes())
}

/// Creates the environment and installs the packages with `pip`, if they are missing.
pub fn install() -> io::Result<()> {
    if is_installed() {
        return Ok(());
    }
    // An environment contains its own path, so it is not moved. What a killed process left is replaced.
    let to = directory();
    let mut python = Command::new("python3");
    python.args(["-m", "venv", "--clear"]).arg(&to).stdin(Stdio::null());
    let mut pip = Command::new(program());
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).stdin(Stdio::null());
    let packages = [("websockets", WEBSOCKETS), ("agent-client-protocol", ACP), ("schemathesis", SCHEMATHESIS)];
    pip.args(packages.map(|(name, version)| format!("{name}=={version}")));
    for mut command in [python, pip] {
        if !command.status()?.success() {
            return Err(io::Error::other(format!("{command:?} failed")));
        }
    }
    if is_installed() { Ok(()) } else { Err(io::Error::other("the Python environment does not work")) }
}
