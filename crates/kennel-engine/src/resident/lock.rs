//! The lock that makes a process the only resident process of a state directory.

use crate::lock_file;
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NextStep};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// The lock. The kernel releases it when the process ends, in whatever way.
pub(super) struct ResidentLock {
    _file: File,
}

impl ResidentLock {
    /// Takes the lock in this file, and writes the process id to it.
    pub(super) fn take(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| Error::io(format!("lock {}", path.display()), error);
        if let Some(dir) = path.parent() {
            lock_file::create_dir(dir).map_err(failed)?;
        }
        let mut file = lock_file::open(path).map_err(failed)?;
        if !lock_file::try_lock(&file).map_err(failed)? {
            return Err(taken(path));
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn taken(path: &Path) -> Error {
    let holder = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let who = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    Error::new(ErrorCode::Conflict, format!("{who} is the resident process of this state directory already"))
        .suggest(NextStep::advice("use that one, or end it first"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_process_is_resident() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/resident");
        let first = ResidentLock::take(&path).unwrap();
        let error = ResidentLock::take(&path).err().expect("there is one already");
        assert_eq!(error.code(), ErrorCode::Conflict);
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        ResidentLock::take(&path).unwrap();
    }
}
