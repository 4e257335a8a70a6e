//! Published ACP agents and clients, for the tests that play a turn with them. `cargo xtask test` installs them.

use std::io;
use std::path::{Path, PathBuf};

/// The packages of npm, with their versions, and the program of each. Claude's agent asks its client for files and terminals,
/// unlike newer ones. Codex's is not a script. The last two are clients.
const PACKAGES: [(&str, &str); 5] = [
    ("@zed-industries/claude-code-acp@0.16.2", "claude-code-acp"),
    ("@google/gemini-cli@0.61.0", "gemini"),
    ("@zed-industries/codex-acp@0.16.0", "codex-acp"),
    ("@agentclientprotocol/sdk@2.4.0", ""),
    ("acpx@0.19.1", "acpx"),
];

/// Returns the directory of the packages. All builds of this checkout share it.
pub fn directory() -> PathBuf {
    let project =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package is two directories down");
    project.join(format!("target/kennel-test-acp-{}", fingerprint()))
}

/// A hash of the names and versions of all packages.
pub(crate) fn fingerprint() -> String {
    crate::programs::fingerprint(&PACKAGES.map(|(package, _)| package.as_bytes()))
}

/// Returns the agent that is no script, but loads libraries.
pub(crate) fn codex() -> PathBuf {
    let name = format!("codex-acp-linux-{}", if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" });
    directory().join("node_modules/@zed-industries").join(name).join("bin/codex-acp")
}

/// Whether the packages are installed.
pub fn is_installed() -> bool {
    has_all(&directory())
}

/// Installs the packages with `npm`, if they are missing.
pub fn install() -> io::Result<()> {
    if is_installed() {
        return Ok(());
    }
    crate::npm::install(&directory(), &PACKAGES.map(|(package, _)| package), has_all)
}

fn has_all(dir: &Path) -> bool {
    PACKAGES.iter().all(|(_, program)| dir.join("node_modules/.bin").join(program).exists())
}
