//! The lock that makes a process the only resident process of a state directory.

use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NextStep};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
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
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        }
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(taken(&mut file)),
            Err(error) => return Err(failed(error.into())),
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn taken(file: &mut File) -> Error {
    let mut holder = String::new();
    let _ = file.take(20).read_to_string(&mut holder);
    let who = match holder.trim().parse::<u32>() {
        Ok(pid) => format!("process {pid}"),
        Err(_) => "another process".to_owned(),
    };
    Error::new(ErrorCode::Conflict, format!("{who} is the resident process of this state directory already"))
        .suggest(NextStep::advice("use that one, or end it first"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_only_one() {
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
