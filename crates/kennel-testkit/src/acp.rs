//! Published ACP agents and clients from npm, for the tests that play a turn with them. `cargo xtask test` installs them.

use std::io;
use std::path::{Path, PathBuf};

/// The packages, with their versions. The agent asks its client for files and terminals, unlike newer ones.
const PACKAGES: [&str; 2] = ["@zed-industries/claude-code-acp@0.16.2", "@agentclientprotocol/sdk@2.4.0"];

/// The agent's program.
const AGENT: &str = "node_modules/.bin/claude-code-acp";

/// Returns the directory of the packages. All builds of this checkout share it.
pub fn directory() -> PathBuf {
    let project =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package is two directories down");
    project.join(format!("target/kennel-test-acp-{}", crate::programs::fingerprint(&PACKAGES.map(str::as_bytes))))
}

/// Whether the packages are installed.
pub fn is_installed() -> bool {
    directory().join(AGENT).exists()
}

/// Installs the packages with `npm`, if they are missing.
pub fn install() -> io::Result<()> {
    if is_installed() {
        return Ok(());
    }
    crate::npm::install(&directory(), &PACKAGES, |made| made.join(AGENT).exists())
}
