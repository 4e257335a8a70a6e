//! npm's `bun` package, for the test that runs a real project's tests with it. `cargo xtask test` installs it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The version of the package.
pub const VERSION: &str = "1.4.4";

/// The path of the program in the directory that [`install`] creates.
pub const PROGRAMS: &str = "node_modules/.bin";

/// Returns the directory of the package. All builds of this checkout share it.
pub fn directory() -> PathBuf {
    let project =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package is two directories down");
    project.join(format!("target/kennel-test-bun-{VERSION}"))
}

/// Whether the program is there, and runs.
pub fn is_installed() -> bool {
    runs(&directory())
}

/// Installs the package with `npm`, if it is missing.
pub fn install() -> io::Result<()> {
    if is_installed() {
        return Ok(());
    }
    crate::npm::install(&directory(), &[&format!("bun@{VERSION}")], runs)
}

fn runs(dir: &Path) -> bool {
    let output = Command::new(dir.join(PROGRAMS).join("bun")).arg("--version").stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success() && output.stdout.trim_ascii() == VERSION.as_bytes())
}
