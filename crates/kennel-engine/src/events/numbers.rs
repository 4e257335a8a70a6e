//! Numbers that are never given out twice.

use kennel_core::{Error, Result};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// How many numbers are reserved at once. A killed process wastes at most these.
const RESERVED: u64 = 10_000;

/// A source of growing numbers. The file holds the number up to which all may be in use.
pub(super) struct Numbers {
    path: PathBuf,
    last: u64,
    reserved: u64,
}

impl Numbers {
    /// Continues after all numbers that may have been given out before.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let failed = |error: std::io::Error| Error::io(format!("read {}", path.display()), error);
        let last = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map_err(|_| failed(std::io::Error::other("expected a number")))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { path, last, reserved: last })
    }

    /// The last number that was given out, or may have been.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Gives out a number.
    pub(super) fn next(&mut self) -> Result<u64> {
        if self.last == self.reserved {
            let reserved = self.reserved + RESERVED;
            write(&self.path, reserved).map_err(|error| Error::io(format!("write {}", self.path.display()), error))?;
            self.reserved = reserved;
        }
        self.last += 1;
        Ok(self.last)
    }
}

/// Replaces the file in one step.
fn write(path: &Path, number: u64) -> std::io::Result<()> {
    let partial = path.with_extension("new");
    let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    writeln!(file, "{number}")?;
    file.sync_all()?;
    std::fs::rename(partial, path)
}
