//! Removes images, and layers that no image, no sandbox and no operation needs.

use crate::error::{Error, Result};
use crate::image::Image;
use crate::operation::{self, Operation};
use crate::store::{Store, entries, sync_dir};
use crate::{Digest, Reference};
use std::collections::HashSet;
use std::fs::File;

/// Returns the layers that sandboxes use; see [`crate::noted_below`]. It is called while no image can be taken.
pub type InUse<'a> = &'a dyn Fn() -> Result<HashSet<Digest>>;

/// The result of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The names of removed images.
    pub images: Vec<Reference>,
    /// The number of removed layers.
    pub layers: usize,
    /// The number of removed incomplete downloads.
    pub downloads: usize,
    /// The number of freed bytes.
    pub freed: u64,
    /// The number of layers of removed images that sandboxes still use. They can be pruned when those are gone.
    pub in_use: usize,
}

impl Store {
    /// Removes images, by name or id, and their layers if nothing else needs them. If one of the images does not exist,
    /// none is removed.
    pub fn remove(&self, names: &[impl AsRef<str>], in_use: InUse<'_>) -> Result<Removed> {
        if let (false, Some(name)) = (self.exists(), names.first()) {
            return Err(Self::no_image(name.as_ref()));
        }
        let work = Operation::begin(self)?;
        let _exclusive = self.exclusive()?;
        let mut images: Vec<Image> = Vec::new();
        for name in names {
            let found = self.find(name.as_ref())?;
            if found.is_empty() {
                return Err(Self::no_image(name.as_ref()));
            }
            images.extend(found);
        }
        images.sort_by(|a, b| a.reference.cmp(&b.reference));
        images.dedup_by(|a, b| a.reference == b.reference);
        let used = in_use()?;
        let layers: HashSet<Digest> = images.iter().flat_map(|image| image.diff_ids.iter().copied()).collect();
        let mut removed = Removed { in_use: layers.intersection(&used).count(), ..Removed::default() };
        self.forget_all(&images, &mut removed)?;
        self.clear(&work, &used, |id| layers.contains(id), &mut removed)?;
        Ok(removed)
    }

    /// Removes what is not needed: layers without a name, abandoned downloads, and leftovers of a crash. With `all` it
    /// also removes every image that no sandbox uses.
    pub fn prune(&self, all: bool, in_use: InUse<'_>) -> Result<Removed> {
        let mut removed = Removed::default();
        if !self.exists() {
            return Ok(removed);
        }
        let work = Operation::begin(self)?;
        let _exclusive = self.exclusive()?;
        let used = in_use()?;
        if all {
            let mut images = self.list()?;
            images.retain(|image| image.diff_ids.is_empty() || !image.diff_ids.iter().all(|id| used.contains(id)));
            self.forget_all(&images, &mut removed)?;
        }
        self.clear(&work, &used, |_| true, &mut removed)?;
        self.drop_downloads(&mut removed)?;
        Ok(removed)
    }

    fn forget_all(&self, images: &[Image], removed: &mut Removed) -> Result<()> {
        for image in images {
            self.forget(&image.reference)?;
            removed.images.push(image.reference.clone());
        }
        Ok(())
    }

    /// Removes those of the given layers that nothing needs. The caller must hold the exclusive lock.
    fn clear(
        &self,
        work: &Operation,
        used: &HashSet<Digest>,
        may: impl Fn(&Digest) -> bool,
        removed: &mut Removed,
    ) -> Result<()> {
        let mut needed = operation::sweep(self)?;
        needed.extend(self.records()?.into_iter().flat_map(|record| record.diff_ids));
        for dir in entries(&self.layers())? {
            let Some(id) = dir.file_name().and_then(|name| Digest::from_hex(name.to_str()?)) else { continue };
            if needed.contains(&id) || used.contains(&id) || !may(&id) {
                continue;
            }
            let note = self.layer_note(&id)?;
            // Move it away atomically. The end of this operation deletes it, or the next one does.
            std::fs::rename(&dir, work.place())
                .map_err(|error| Error::io(format!("remove {}", dir.display()), error))?;
            removed.layers += 1;
            removed.freed += note.size;
        }
        sync_dir(&self.layers()).map_err(|error| Error::io("write the store to disk", error))
    }

    fn drop_downloads(&self, removed: &mut Removed) -> Result<()> {
        for path in entries(&self.blobs())? {
            let what = |error| Error::io(format!("remove {}", path.display()), error);
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(what(error)),
            };
            if file.try_lock().is_err() {
                continue;
            }
            removed.freed += file.metadata().map_err(what)?.len();
            removed.downloads += 1;
            std::fs::remove_file(&path).map_err(what)?;
        }
        Ok(())
    }
}
