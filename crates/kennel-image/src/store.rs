//! The image store on disk, for one user.
//!
//! ```text
//! <root>/lock                  shared while an image is looked up and noted, exclusive while something is removed
//!       /names/<hash>.json     an image under one name; the hash is of the name
//!       /layers/<hex>/fs       a layer, by its diff id: the digest of its content. Never changed
//!                    /layer.json
//!       /blobs/<hex>           a complete or partial download; locked by the process that downloads it
//!       /tmp/<random>          work in progress of one process; locked by it
//! ```
//!
//! Nothing is ever half done. A layer is unpacked below `tmp`, synced to disk, and renamed into place. A name is a file
//! that is renamed into place after all its layers exist. A crash leaves only unlocked files below `tmp` and `blobs`:
//! the next operation removes the former, and the latter are continued or pruned.
//!
//! A store belongs to one user. Root's store keeps owners and capabilities, and marks opaque directories with
//! `trusted.` attributes. In the store of an ordinary user, all files belong to that user, and opaque directories have
//! `user.` attributes, which overlays of that user read.

use crate::error::{Error, Result};
use crate::image::{Image, ImageConfig, each_once};
use crate::{Digest, Reference};
use kennel_types::{ErrorCode, NextStep};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file in a sandbox's directory that lists the layers it uses; see [`Held::note`].
const NOTE: &str = "image-layers";
/// Bytes in the largest file of the store's own that is read.
const LARGEST: u64 = 16 << 20;

/// The owner of the store, which decides how layers are unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOwner {
    /// Root: file owners are kept, and opaque directories are marked `trusted.overlay.opaque`.
    Root,
    /// An ordinary user: all files belong to the user, and opaque directories are marked `user.overlay.opaque`.
    User,
}

impl StoreOwner {
    /// The owner of the calling user's store.
    pub(crate) fn calling_user() -> Self {
        if rustix::process::geteuid().is_root() { Self::Root } else { Self::User }
    }
}

/// The image store.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    owner: StoreOwner,
}

/// The stored description of an image under one name.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageRecord {
    pub(crate) reference: Reference,
    pub(crate) id: Digest,
    pub(crate) manifest: Option<Digest>,
    pub(crate) diff_ids: Vec<Digest>,
    pub(crate) size: u64,
    pub(crate) created: Option<i64>,
    pub(crate) config: ImageConfig,
}

/// The metadata that is stored next to a layer.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayerNote {
    /// The total size of its files in bytes.
    pub(crate) size: u64,
    /// The number of its files, directories and symlinks.
    pub(crate) entries: u64,
    /// The number of devices that were left out.
    pub(crate) left_out: u64,
}

/// An image in use: nothing is removed from the store while this value lives.
///
/// To keep its layers for longer, [`Held::note`] them in the directory of whatever uses them. Whoever removes images
/// reads these notes with [`noted_below`]. A note is deleted with its directory, so a crash leaves no stale one.
#[derive(Debug)]
pub struct Held {
    /// The image.
    pub image: Image,
    _shared: File,
}

impl Held {
    /// Notes the image's layers in a sandbox's directory. They are kept as long as this directory exists.
    pub fn note(&self, sandbox: &Path) -> Result<()> {
        let lines: Vec<String> = self.image.diff_ids.iter().map(ToString::to_string).collect();
        let path = sandbox.join(NOTE);
        std::fs::write(&path, lines.join("\n")).map_err(|error| Error::io(format!("write {}", path.display()), error))
    }
}

/// Returns the layers that are noted in the directories below this one, which are used by sandboxes. A note that cannot
/// be read is an error, and never counts as unused.
pub fn noted_below(dir: &Path) -> Result<HashSet<Digest>> {
    let mut noted = HashSet::new();
    for sandbox in entries(dir)? {
        let path = sandbox.join(NOTE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // A sandbox without an image, or not a sandbox.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Err(error) => return Err(Error::io(format!("read {}", path.display()), error)),
        };
        if text.is_empty() {
            // The machine crashed before the note was on disk.
            let message = format!("read the layers that a sandbox uses: {} is empty", path.display());
            return Err(Error::new(ErrorCode::Internal, message).advise("remove the sandbox that it belongs to"));
        }
        for line in text.lines() {
            noted.insert(line.parse::<Digest>().map_err(|error| error.context(path.display()))?);
        }
    }
    Ok(noted)
}

impl Store {
    /// Opens the store in this directory. The directory is created when something is stored.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        let own = rustix::process::geteuid();
        match std::fs::symlink_metadata(&root) {
            Ok(meta) if meta.uid() != own.as_raw() => {
                let message = format!("the images in {} belong to user {}, not to you", root.display(), meta.uid());
                return Err(Error::new(ErrorCode::PermissionDenied, message).suggest(NextStep::UseOwnDirectory));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(format!("read the owner of {}", root.display()), error));
            }
            _ => {}
        }
        Ok(Self { root, owner: StoreOwner::calling_user() })
    }

    /// The owner of the store.
    pub fn owner(&self) -> StoreOwner {
        self.owner
    }

    /// Returns the image with this name, if it is complete. This reads one small file.
    pub fn get(&self, reference: &Reference) -> Result<Option<Image>> {
        let Some(image) = self.record(reference)?.map(|record| self.image(record)) else { return Ok(None) };
        // Someone may have removed files by hand. An incomplete image counts as missing, and can be pulled again.
        Ok(image.layers.iter().all(|layer| layer.is_dir()).then_some(image))
    }

    /// Returns the image with this name for use: none of its layers is removed while the result lives.
    pub fn hold(&self, reference: &Reference) -> Result<Option<Held>> {
        if !self.root.is_dir() {
            return Ok(None);
        }
        let shared = self.shared()?;
        Ok(self.get(reference)?.map(|image| Held { image, _shared: shared }))
    }

    /// Returns all images, sorted by name.
    pub fn list(&self) -> Result<Vec<Image>> {
        let mut images: Vec<Image> = self.records()?.into_iter().map(|record| self.image(record)).collect();
        images.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(images)
    }

    /// Returns the images that a text may refer to: by name, by id, or by the beginning of an id.
    pub fn find(&self, text: &str) -> Result<Vec<Image>> {
        if let Ok(reference) = text.parse::<Reference>()
            && let Some(record) = self.record(&reference)?
        {
            return Ok(vec![self.image(record)]);
        }
        // A shorter text is a name, not an id.
        const SHORTEST: usize = 8;
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() < SHORTEST || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(Vec::new());
        }
        let found: Vec<Image> = self.list()?.into_iter().filter(|image| image.id.hex().starts_with(digits)).collect();
        if found.iter().any(|image| image.id != found[0].id) {
            return Err(Error::new(ErrorCode::InvalidConfig, format!("the ids of several images begin with {digits}"))
                .suggest(NextStep::ListImages { ids: true }));
        }
        Ok(found)
    }

    /// The error for an image that is not in the store.
    pub(crate) fn no_image(name: &str) -> Error {
        let name = crate::error::shown(name.as_bytes());
        let steps = [NextStep::ListImages { ids: false }, NextStep::PullImage { image: name.clone() }];
        Error::new(ErrorCode::ImageNotFound, format!("there is no image {name}")).suggest(NextStep::either(steps))
    }

    pub(crate) fn image(&self, record: ImageRecord) -> Image {
        let ImageRecord { reference, id, manifest, diff_ids, size, created, config } = record;
        let diff_ids = each_once(&diff_ids);
        let layers = diff_ids.iter().map(|id| self.layer_files(id)).collect();
        Image { reference, id, manifest, layers, diff_ids, size, created, config }
    }

    fn record(&self, reference: &Reference) -> Result<Option<ImageRecord>> {
        let path = self.name_file(reference);
        let Some(record) = read_json::<ImageRecord>(&path)? else { return Ok(None) };
        // A name may have any length, but the name of its file may not. So the file is named by a hash.
        if record.reference != *reference {
            return Err(Error::new(ErrorCode::Internal, format!("{} describes another image", path.display())));
        }
        Ok(Some(record))
    }

    /// Returns all records. One that cannot be read is an error: its layers must not count as unused.
    pub(crate) fn records(&self) -> Result<Vec<ImageRecord>> {
        let mut records = Vec::new();
        for path in entries(&self.names())?.iter().filter(|path| path.extension().is_some_and(|it| it == "json")) {
            // A missing file has just been removed.
            records.extend(read_json(path)?);
        }
        Ok(records)
    }

    /// Writes the record of an image, replacing the old one of the same name.
    pub(crate) fn write(&self, record: &ImageRecord, work: &Path) -> Result<()> {
        let path = self.name_file(&record.reference);
        let text = serde_json::to_vec(record).map_err(|error| Error::io("write the record of the image", error))?;
        let partial = work.join("name");
        let what = |error| Error::io(format!("write {}", path.display()), error);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial).map_err(what)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(what)?;
        std::fs::rename(&partial, &path).map_err(what)?;
        sync_dir(&self.names()).map_err(what)
    }

    pub(crate) fn has_layer(&self, id: &Digest) -> bool {
        self.layer_files(id).is_dir()
    }

    pub(crate) fn layer_note(&self, id: &Digest) -> Result<LayerNote> {
        Ok(read_json(&self.layer(id).join("layer.json"))?.unwrap_or_default())
    }

    /// Creates the directories. They are accessible only to the owner, because programs in a layer may be set-user-id.
    pub(crate) fn make(&self) -> Result<()> {
        for dir in [self.root.clone(), self.names(), self.layers(), self.blobs(), self.tmp()] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.map_err(|error| Error::io(format!("create {}", dir.display()), error))?;
        }
        // Someone else may have created it with wider permissions.
        std::fs::set_permissions(&self.root, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .map_err(|error| Error::io(format!("set the permissions of {}", self.root.display()), error))
    }

    /// Prevents removal from the store until the result is dropped. Hold it only briefly, because removal waits for it.
    pub(crate) fn shared(&self) -> Result<File> {
        let (file, what) = self.lock_file()?;
        file.lock_shared().map_err(|error| Error::io(what, error))?;
        Ok(file)
    }

    /// Takes the exclusive lock that removal needs, until the result is dropped.
    pub(crate) fn exclusive(&self) -> Result<File> {
        let (file, what) = self.lock_file()?;
        file.lock().map_err(|error| Error::io(what, error))?;
        Ok(file)
    }

    /// Takes the exclusive lock if no other process holds a lock.
    pub(crate) fn try_exclusive(&self) -> Result<Option<File>> {
        let (file, _) = self.lock_file()?;
        Ok(file.try_lock().is_ok().then_some(file))
    }

    fn lock_file(&self) -> Result<(File, String)> {
        let path = self.root.join("lock");
        let what = format!("lock {}", path.display());
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        file.map(|file| (file, what.clone())).map_err(|error| Error::io(what, error))
    }

    fn name_file(&self, reference: &Reference) -> PathBuf {
        self.names().join(format!("{}.json", Digest::compute(reference.to_string().as_bytes()).hex()))
    }

    pub(crate) fn forget(&self, reference: &Reference) -> Result<()> {
        let path = self.name_file(reference);
        std::fs::remove_file(&path).map_err(|error| Error::io(format!("remove {}", path.display()), error))
    }

    pub(crate) fn exists(&self) -> bool {
        self.root.is_dir()
    }

    fn names(&self) -> PathBuf {
        self.root.join("names")
    }

    pub(crate) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(crate) fn layer(&self, id: &Digest) -> PathBuf {
        self.layers().join(id.hex())
    }

    fn layer_files(&self, id: &Digest) -> PathBuf {
        self.layer(id).join("fs")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }
}

/// Returns the entries of a directory. The list is empty if the directory does not exist.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let what = |error| Error::io(format!("list {}", dir.display()), error);
    match std::fs::read_dir(dir) {
        Ok(found) => found.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(what),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(what(error)),
    }
}

/// Reads a file of the store's own, or returns `None` if it does not exist.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let what = || format!("read {}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(what(), error)),
    };
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, LARGEST), &mut bytes)
        .map_err(|error| Error::io(what(), error))?;
    let read = serde_json::from_slice(&bytes).map_err(|error| Error::io(what(), std::io::Error::other(error)))?;
    Ok(Some(read))
}

/// Syncs a directory's entries to disk.
pub(crate) fn sync_dir(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}
