//! The store: images on disk, for one user.
//!
//! ```text
//! <root>/lock                  shared while something is looked up and noted, exclusive while things are removed
//!       /names/<hash>.json     an image under one name; the hash is of the name
//!       /layers/<hex>/fs       a layer, by its diff id: the digest of its content. Never changed once it is here
//!                    /layer.json
//!       /blobs/<hex>           a download, whole or in part; locked by who fetches it
//!       /tmp/<random>          what one process works on; locked for as long as it does
//! ```
//!
//! Nothing here is ever half done: a layer is unpacked below `tmp`, written to disk, and renamed into place; a name is
//! a file that is renamed into place after all its layers are there. What a crash leaves lies below `tmp` and `blobs`,
//! unlocked: the next who works here removes the former, and the latter is continued, or pruned.
//!
//! A store belongs to one user. Root's keeps owners and capabilities and marks opaque directories with `trusted.` names;
//! an ordinary user's owns everything itself and marks them with `user.` names, which overlays of that user read.

use crate::error::{Error, Result};
use crate::image::{Image, ImageConfig, each_once};
use crate::{Digest, Reference};
use kennel_types::ErrorCode;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file in a sandbox's directory that says which layers it is made of; see [`Held::note`].
const NOTE: &str = "image-layers";
/// Largest file of our own that is read.
const LARGEST: u64 = 16 << 20;

/// Whose store it is, and so how layers are unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Root's: owners are kept, opaque directories are marked `trusted.overlay.opaque`.
    Root,
    /// An ordinary user's: all is the user's own, opaque directories are marked `user.overlay.opaque`.
    User,
}

impl Kind {
    /// That of a store of our own.
    pub(crate) fn ours() -> Self {
        if rustix::process::geteuid().is_root() { Self::Root } else { Self::User }
    }
}

/// Images on disk.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    kind: Kind,
}

/// An image under a name, as it is written down.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) reference: Reference,
    pub(crate) id: Digest,
    pub(crate) manifest: Option<Digest>,
    pub(crate) diff_ids: Vec<Digest>,
    pub(crate) size: u64,
    pub(crate) created: Option<i64>,
    pub(crate) config: ImageConfig,
}

/// What is written beside a layer.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayerNote {
    /// Bytes of its files.
    pub(crate) size: u64,
    /// Its files, directories and links.
    pub(crate) entries: u64,
    /// Devices that were left out.
    pub(crate) left_out: u64,
}

/// An image that is being taken: nothing is removed from the store meanwhile.
///
/// To keep its layers for longer than this lives, [`Held::note`] them in the directory of what uses them, and let
/// whoever removes images look there with [`noted_below`]. Such a note goes with its directory, so no crash leaves
/// a wrong one.
#[derive(Debug)]
pub struct Held {
    /// The image.
    pub image: Image,
    _shared: File,
}

impl Held {
    /// Notes the image's layers in a sandbox's directory. They are kept for as long as that is there.
    pub fn note(&self, sandbox: &Path) -> Result<()> {
        let lines: Vec<String> = self.image.diff_ids.iter().map(ToString::to_string).collect();
        let path = sandbox.join(NOTE);
        std::fs::write(&path, lines.join("\n")).map_err(|error| Error::io(format!("write {}", path.display()), error))
    }
}

/// The layers that are noted in the directories below this one: those that sandboxes are made of. What cannot be read
/// is an error, and never counts as unused.
pub fn noted_below(dir: &Path) -> Result<HashSet<Digest>> {
    let mut noted = HashSet::new();
    for sandbox in entries(dir)? {
        let path = sandbox.join(NOTE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // A sandbox without an image, or something that is no sandbox.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Err(error) => return Err(Error::io(format!("read {}", path.display()), error)),
        };
        if text.is_empty() {
            // The machine went down before it was on disk.
            let message = format!("{} does not say which layers are in use", path.display());
            return Err(Error::new(ErrorCode::Internal, message)
                .hint("remove the sandbox that it is of: kennel ls --all, then kennel rm"));
        }
        for line in text.lines() {
            noted.insert(line.parse::<Digest>().map_err(|error| error.of(path.display()))?);
        }
    }
    Ok(noted)
}

impl Store {
    /// The store in this directory. It is made when something is put into it.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        let own = rustix::process::geteuid();
        match std::fs::symlink_metadata(&root) {
            Ok(meta) if meta.uid() != own.as_raw() => {
                let message = format!("the images in {} belong to user {}, not to you", root.display(), meta.uid());
                return Err(Error::new(ErrorCode::PermissionDenied, message)
                    .hint("call Kennel as that user, or set KENNEL_HOME to a directory of your own"));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(format!("look at {}", root.display()), error));
            }
            _ => {}
        }
        Ok(Self { root, kind: Kind::ours() })
    }

    /// Whose store it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The image of that name, if it is here, whole. One small file is read.
    pub fn get(&self, reference: &Reference) -> Result<Option<Image>> {
        let Some(image) = self.record(reference)?.map(|record| self.image(record)) else { return Ok(None) };
        // Someone may have cleared up by hand: what is not whole is not here, and can be had again.
        Ok(image.layers.iter().all(|layer| layer.is_dir()).then_some(image))
    }

    /// The same, for use: no layer of it is removed while the answer lives.
    pub fn hold(&self, reference: &Reference) -> Result<Option<Held>> {
        if !self.root.is_dir() {
            return Ok(None);
        }
        let shared = self.shared()?;
        Ok(self.get(reference)?.map(|image| Held { image, _shared: shared }))
    }

    /// All images, by name.
    pub fn list(&self) -> Result<Vec<Image>> {
        let mut images: Vec<Image> = self.records()?.into_iter().map(|record| self.image(record)).collect();
        images.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(images)
    }

    /// The images that someone may mean: that of this name, or all with this id, or with an id that begins so.
    pub fn find(&self, text: &str) -> Result<Vec<Image>> {
        if let Ok(reference) = text.parse::<Reference>()
            && let Some(record) = self.record(&reference)?
        {
            return Ok(vec![self.image(record)]);
        }
        // Shorter ones are words.
        const SHORTEST: usize = 8;
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() < SHORTEST || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(Vec::new());
        }
        let found: Vec<Image> = self.list()?.into_iter().filter(|image| image.id.hex().starts_with(digits)).collect();
        if found.iter().any(|image| image.id != found[0].id) {
            return Err(Error::new(ErrorCode::InvalidConfig, format!("the ids of several images begin with {digits}"))
                .hint("give more digits: kennel image ls --format id,name"));
        }
        Ok(found)
    }

    /// The error for an image that is not here.
    pub(crate) fn no_image(name: &str) -> Error {
        let name = crate::error::shown(name.as_bytes());
        Error::new(ErrorCode::ImageNotFound, format!("there is no image {name}"))
            .hint(format!("kennel image ls, or kennel image pull {name}"))
    }

    pub(crate) fn image(&self, record: Record) -> Image {
        let Record { reference, id, manifest, diff_ids, size, created, config } = record;
        let diff_ids = each_once(&diff_ids);
        let layers = diff_ids.iter().map(|id| self.layer_files(id)).collect();
        Image { reference, id, manifest, layers, diff_ids, size, created, config }
    }

    fn record(&self, reference: &Reference) -> Result<Option<Record>> {
        let path = self.name_file(reference);
        let Some(record) = read_json::<Record>(&path)? else { return Ok(None) };
        // A name is as long as it likes, its file's name is not: that is a hash.
        if record.reference != *reference {
            return Err(Error::new(ErrorCode::Internal, format!("{} is of another image", path.display())));
        }
        Ok(Some(record))
    }

    /// All that is written down. One that cannot be read is an error: its layers must not count as unused.
    pub(crate) fn records(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for path in entries(&self.names())?.iter().filter(|path| path.extension().is_some_and(|it| it == "json")) {
            // One that is gone by now has just been removed.
            records.extend(read_json(path)?);
        }
        Ok(records)
    }

    /// Writes an image down under its name, in place of what was there.
    pub(crate) fn write(&self, record: &Record, work: &Path) -> Result<()> {
        let path = self.name_file(&record.reference);
        let text = serde_json::to_vec(record).map_err(|error| Error::io("describe the image", error))?;
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

    /// Makes the directories. Nobody else may look into them: programs in a layer may have set-user-id.
    pub(crate) fn make(&self) -> Result<()> {
        for dir in [self.root.clone(), self.names(), self.layers(), self.blobs(), self.tmp()] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.map_err(|error| Error::io(format!("make {}", dir.display()), error))?;
        }
        // It may have been made by someone else, wider.
        std::fs::set_permissions(&self.root, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .map_err(|error| Error::io(format!("close {} to others", self.root.display()), error))
    }

    /// Keeps what is here from being removed, until it is dropped. For moments only: who removes waits for it.
    pub(crate) fn shared(&self) -> Result<File> {
        let (file, what) = self.lock_file()?;
        file.lock_shared().map_err(|error| Error::io(what, error))?;
        Ok(file)
    }

    /// The right to remove, until it is dropped.
    pub(crate) fn exclusive(&self) -> Result<File> {
        let (file, what) = self.lock_file()?;
        file.lock().map_err(|error| Error::io(what, error))?;
        Ok(file)
    }

    /// The same, if nobody else is here.
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
        self.names().join(format!("{}.json", Digest::of(reference.to_string().as_bytes()).hex()))
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

/// What is in a directory; nothing if there is none.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let what = |error| Error::io(format!("list {}", dir.display()), error);
    match std::fs::read_dir(dir) {
        Ok(found) => found.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(what),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(what(error)),
    }
}

/// A file of our own; nothing if there is none.
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

/// Has a directory's entries written to disk.
pub(crate) fn sync_dir(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}
