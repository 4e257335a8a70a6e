//! One process's work on the store: a directory of its own below `tmp`, locked while it works, gone afterwards.
//!
//! It also says which layers the work is about, so that nobody removes those that are here already before the image is
//! written down.

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
    /// Begins. What others left when they were killed is cleared away, if nobody is here.
    pub(crate) fn begin(store: &Store) -> Result<Self> {
        store.make()?;
        if let Some(_exclusive) = store.try_exclusive()? {
            sweep(store)?;
        }
        // Until it is locked, it looks like something that was left.
        let _shared = store.shared()?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| Error::io("get a random number", std::io::Error::other(error)))?;
        let dir = store.tmp().join(format!("{:016x}", u64::from_le_bytes(random)));
        let what = |error| Error::io(format!("make {}", dir.display()), error);
        DirBuilder::new().mode(0o700).create(&dir).map_err(what)?;
        let lock = File::open(&dir).map_err(what)?;
        lock.try_lock().map_err(|error| what(error.into()))?;
        Ok(Self { dir, _lock: lock, parts: AtomicU32::new(0) })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path below it that nothing is at.
    pub(crate) fn place(&self) -> PathBuf {
        self.dir.join(self.parts.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Says which layers must not be removed, before anyone looks whether they are here.
    pub(crate) fn needs(&self, store: &Store, layers: &[Digest]) -> Result<()> {
        let _shared = store.shared()?;
        let path = self.dir.join(NEEDS);
        let text = serde_json::to_vec(layers).map_err(|error| Error::io("describe the layers", error))?;
        std::fs::write(&path, text).map_err(|error| Error::io(format!("write {}", path.display()), error))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next who comes.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The layers that others work with, after what nobody works on is removed. Only for who has the store to itself.
pub(crate) fn sweep(store: &Store) -> Result<HashSet<Digest>> {
    let mut needed = HashSet::new();
    for dir in entries(&store.tmp())? {
        let what = |error| Error::io(format!("clear {}", dir.display()), error);
        let lock = match File::open(&dir) {
            Ok(lock) => lock,
            // It has just ended.
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
