//! The static programs that run in sandboxes, as bytes, and their installation on disk.
//!
//! The build script compiles them with their own flags and target directory, so a plain `cargo build` is enough. If
//! `KENNEL_KEEPER_PREBUILT` names a directory, the programs in it are used instead.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A program that runs in sandboxes.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    name: &'static str,
    bytes: &'static [u8],
    hash: &'static str,
}

/// The keeper: process 1 of a container.
pub const KEEPER: Program = Program {
    name: "kennel-keeper",
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/kennel-keeper")),
    hash: env!("KENNEL_KEEPER_HASH"),
};

/// The jail: builds a native sandbox around itself, and then becomes its keeper.
pub const JAIL: Program = Program {
    name: "kennel-jail",
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/kennel-jail")),
    hash: env!("KENNEL_JAIL_HASH"),
};

impl Program {
    /// The program as bytes.
    pub fn bytes(&self) -> &'static [u8] {
        self.bytes
    }

    /// SHA-256 of the bytes, in hex.
    pub fn hash(&self) -> &'static str {
        self.hash
    }

    /// Writes the program to `dir` under its content hash, unless it exists. It is never changed afterwards, because
    /// running sandboxes map or mount it.
    pub fn install(&self, dir: &Path) -> std::io::Result<PathBuf> {
        let path = dir.join(format!("{}-{}", self.name, &self.hash[..16]));
        if path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() == self.bytes.len() as u64) {
            return Ok(path);
        }
        std::fs::create_dir_all(dir)?;
        // Several processes or threads may do this at once: each renames a complete file into place.
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
