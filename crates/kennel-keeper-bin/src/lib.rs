//! The static programs that go into sandboxes, as bytes, and a place on disk for them.
//!
//! The build script compiles them with their own flags and target directory, so a plain `cargo build` is enough. A
//! prebuilt one is taken instead if `KENNEL_KEEPER_PREBUILT` names a directory that holds them.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A program for the inside.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    name: &'static str,
    bytes: &'static [u8],
    hash: &'static str,
}

/// The keeper: process 1 of a sandbox that an engine makes.
pub const KEEPER: Program = Program {
    name: "kennel-keeper",
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/kennel-keeper")),
    hash: env!("KENNEL_KEEPER_HASH"),
};

/// The jail: builds a native sandbox's walls around itself, then is its keeper.
pub const JAIL: Program = Program {
    name: "kennel-jail",
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/kennel-jail")),
    hash: env!("KENNEL_JAIL_HASH"),
};

impl Program {
    /// The program itself.
    pub fn bytes(&self) -> &'static [u8] {
        self.bytes
    }

    /// SHA-256 of the bytes, in hex.
    pub fn hash(&self) -> &'static str {
        self.hash
    }

    /// Puts the program into `dir` under its content hash, unless it is there. It is never changed afterwards: running
    /// sandboxes map or mount it.
    pub fn install(&self, dir: &Path) -> std::io::Result<PathBuf> {
        let path = dir.join(format!("{}-{}", self.name, &self.hash[..16]));
        if path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() == self.bytes.len() as u64) {
            return Ok(path);
        }
        std::fs::create_dir_all(dir)?;
        // Two processes or threads may do this at once: each renames a whole file into place.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let mine = LAST.fetch_add(1, Ordering::Relaxed);
        let partial = dir.join(format!(".{}-{}-{mine}", self.name, std::process::id()));
        let _ = std::fs::remove_file(&partial);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        file.write_all(self.bytes)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o555))?;
        drop(file);
        std::fs::rename(&partial, &path)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_small_and_installed_once() {
        let dir = tempfile::tempdir().unwrap();
        for program in [KEEPER, JAIL] {
            assert!(program.bytes().len() < 2 * 1024 * 1024, "{}: {}", program.name, program.bytes().len());
            let path = program.install(dir.path()).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), program.bytes());
            let made = std::fs::metadata(&path).unwrap().modified().unwrap();
            assert_eq!(program.install(dir.path()).unwrap(), path);
            assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), made);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
