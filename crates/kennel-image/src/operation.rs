//! One process's work on the store: a directory below `tmp` that is locked during the work and removed afterwards.
//!
//! It also lists the layers that the work needs, so that no other process removes existing ones before the image is
//! written.

use crate::Digest;
use crate::error::{Error, Result};
use crate::store::{Store, entries, read_json};
use std::collections::HashSet;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const NEEDS: &str = "needs.json";

/// Work in progress.
#[derive(Debug)]
pub(crate) struct Operation {
    dir: PathBuf,
    _lock: File,
    parts: AtomicU32,
}

impl Operation {
    /// Starts an operation. If no other process works on the store, leftovers of killed processes are removed.
    pub(crate) fn begin(store: &Store) -> Result<Self> {
        store.make()?;
        if let Some(_exclusive) = store.try_exclusive()? {
            sweep(store)?;
        }
        // Until the directory is locked, it looks like a leftover.
        let _shared = store.shared()?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| Error::io("get a random number", std::io::Error::other(error)))?;
        let dir = store.tmp().join(format!("{:016x}", u64::from_le_bytes(random)));
        let what = |error| Error::io(format!("create {}", dir.display()), error);
        DirBuilder::new().mode(0o700).create(&dir).map_err(what)?;
        let lock = File::open(&dir).map_err(what)?;
        lock.try_lock().map_err(|error| what(error.into()))?;
        Ok(Self { dir, _lock: lock, parts: AtomicU32::new(0) })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns an unused path below the directory.
    pub(crate) fn place(&self) -> PathBuf {
        self.dir.join(self.parts.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Lists layers that must not be removed. Call this before checking whether they exist.
    pub(crate) fn needs(&self, store: &Store, layers: &[Digest]) -> Result<()> {
        let _shared = store.shared()?;
        let path = self.dir.join(NEEDS);
        let text = serde_json::to_vec(layers).map_err(|error| Error::io("write the list of layers", error))?;
        std::fs::write(&path, text).map_err(|error| Error::io(format!("write {}", path.display()), error))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // If this fails now, the next operation removes it.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Removes directories that no process works in, and returns the layers that others need. The caller must hold the
/// exclusive lock.
pub(crate) fn sweep(store: &Store) -> Result<HashSet<Digest>> {
    let mut needed = HashSet::new();
    for dir in entries(&store.tmp())? {
        let what = |error| Error::io(format!("remove leftovers in {}", dir.display()), error);
        let lock = match File::open(&dir) {
            Ok(lock) => lock,
            // The operation has just ended.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(what(error)),
        };
        if lock.try_lock().is_err() {
            needed.extend(read_json::<Vec<Digest>>(&dir.join(NEEDS))?.unwrap_or_default());
            continue;
        }
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(what(error)),
            _ => {}
        }
    }
    Ok(needed)
}
