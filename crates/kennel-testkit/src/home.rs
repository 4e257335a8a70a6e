//! A home for one test: state, programs and a workspace that nobody else sees, gone when it is dropped.

use std::path::{Path, PathBuf};

/// Directories of one test.
pub struct Home {
    dir: tempfile::TempDir,
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Home {
    /// Makes the directories.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("kennel-test-").tempdir().expect("make a home for a test");
        let home = Self { dir };
        for dir in [home.state(), home.workspace()] {
            std::fs::create_dir(&dir).unwrap_or_else(|error| panic!("make {}: {error}", dir.display()));
        }
        home
    }

    /// Where it is: what `KENNEL_HOME` would be.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A word that is in no other home: processes and mounts that belong to it carry it.
    pub fn mark(&self) -> String {
        self.path().file_name().expect("a temporary directory has a name").to_string_lossy().into_owned()
    }

    /// A provider's state directory.
    pub fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    /// Where the keeper's program is put. It is the same for all tests of one build, and is not written for each.
    pub fn programs(&self) -> PathBuf {
        build().join("kennel-test-programs")
    }

    /// A directory that a provider is told to keep from sandboxes, as the command line does with the user's settings. It does
    /// not exist.
    pub fn settings(&self) -> PathBuf {
        self.path().join("top/.config/kennel")
    }

    /// A directory to mount as the workspace.
    pub fn workspace(&self) -> PathBuf {
        self.path().join("workspace")
    }
}

/// Where this build puts its programs: what is made once for all tests is there.
pub(crate) fn build() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own program");
    test.ancestors().nth(2).expect("a test's program is two directories down").to_owned()
}
