//! The home directory of one test: state, programs and a workspace that no other test uses. It is removed on drop.

use std::path::{Path, PathBuf};

/// The home directory of one test.
pub struct Home {
    dir: tempfile::TempDir,
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Home {
    /// Creates the directories.
    pub fn new() -> Self {
        // The capital letter keeps it apart from the names of sandboxes, which are in lower case. Podman keeps a monitor
        // for five minutes after each exec, and the name is among its arguments. Such a monitor is not a leftover.
        let dir = tempfile::Builder::new().prefix("kennel-test-H").tempdir().expect("make a home for a test");
        let home = Self { dir };
        for dir in [home.state(), home.workspace()] {
            std::fs::create_dir(&dir).unwrap_or_else(|error| panic!("make {}: {error}", dir.display()));
        }
        home
    }

    /// The path of the directory, which corresponds to `KENNEL_HOME`.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A unique word that processes and mounts of this home contain.
    pub fn mark(&self) -> String {
        self.path().file_name().expect("a temporary directory has a name").to_string_lossy().into_owned()
    }

    /// The state directory of a provider.
    pub fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    /// The directory of Kennel's programs. All tests of one build share it, so that it is not written for each.
    pub fn programs(&self) -> PathBuf {
        build().join("kennel-test-programs")
    }

    /// A directory that providers must mask in sandboxes, as the command line requests for the user's settings. It does
    /// not exist.
    pub fn settings(&self) -> PathBuf {
        self.path().join("top/.config/kennel")
    }

    /// The directory to mount as the workspace.
    pub fn workspace(&self) -> PathBuf {
        self.path().join("workspace")
    }
}

/// The directory of files that are created once per build, for all tests.
pub(crate) fn build() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own program");
    test.ancestors().nth(2).expect("a test's program is two directories down").to_owned()
}
