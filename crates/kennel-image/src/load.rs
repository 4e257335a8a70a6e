//! Loads images from this machine: archives of `docker save`, OCI layouts, and plain filesystems, compressed or not.

mod archive;
mod blobs;
pub(crate) mod described;
mod files;

use crate::error::{Error, Result, unreadable, unsound};
use crate::image::{Described, Image};
use crate::layer::{self, Stream, Unpacked, unpacked};
use crate::limits::{Limits, Tally};
use crate::operation::Operation;
use crate::progress::{Doing, Progress, Tell, Teller, blocking};
use crate::store::{ImageRecord, Store};
use crate::{Digest, Reference};
use archive::Members;
use blobs::{Blobs, Directory};
use described::Found;
use kennel_types::{ErrorCode, LimitReason, NextStep};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Options for loading an image.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The name that the image gets instead of its own. Plain filesystems have no name of their own.
    pub name: Option<Reference>,
    /// Limits on its size.
    pub limits: Limits,
}

impl Store {
    /// Loads all images of an archive of `docker save` or of an OCI layout (a directory or an archive), or one image
    /// from a plain filesystem (a directory, or an archive as from `docker export`). An archive may be compressed with
    /// gzip or zstd, and may be a pipe. Either all images are loaded, or none.
    pub async fn load(&self, from: &Path, options: &LoadOptions, tell: Tell<'_>) -> Result<Vec<Image>> {
        let (store, from, options) = (self.clone(), from.to_owned(), options.clone());
        blocking(tell, move |teller| load(&store, &from, &options, teller)).await
    }
}

fn load(store: &Store, from: &Path, options: &LoadOptions, teller: &Teller) -> Result<Vec<Image>> {
    let what = |error| Error::io(format!("read {}", from.display()), error);
    let meta = std::fs::metadata(from).map_err(what)?;
    let work = Operation::begin(store)?;
    let loading = Loading { store, work: &work, options, teller, tally: Tally::new(options.limits) };
    if meta.is_dir() {
        let dir = Directory::open(from)?;
        let found = described::look(&dir, options.name.as_ref()).map_err(|error| error.context(from.display()))?;
        if let Some(found) = found {
            return loading.described(&dir, &found);
        }
        let name = loading.name(from)?;
        return files::packed(from, |stream| loading.files(name, stream));
    }
    let mut file = File::open(from).map_err(what)?;
    let packed = !meta.is_file() || is_packed(&file).map_err(what)?;
    if packed {
        file = loading.spool(file).map_err(|error| error.context(from.display()))?;
    }
    let size = file.metadata().map_err(what)?.len();
    let members = Members::index(&file).map_err(|error| error.context(from.display()))?;
    if let Some(members) = members
        && let Some(found) =
            described::look(&members, options.name.as_ref()).map_err(|error| error.context(from.display()))?
    {
        return loading.described(&members, &found);
    }
    let name = loading.name(from)?;
    file.seek(SeekFrom::Start(0)).map_err(what)?;
    let part = from.file_name().map(|name| crate::error::shown(name.as_encoded_bytes())).unwrap_or_default();
    loading.files(name, Stream { from: file, size: Some(size), blob: None, diff_id: None, part })
}

fn is_packed(mut file: &File) -> std::io::Result<bool> {
    let mut magic = Vec::new();
    file.take(4).read_to_end(&mut magic)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(magic.starts_with(&[0x1f, 0x8b]) || magic == [0x28, 0xb5, 0x2f, 0xfd])
}

struct Loading<'a> {
    store: &'a Store,
    work: &'a Operation,
    options: &'a LoadOptions,
    teller: &'a Teller,
    tally: Tally,
}

impl Loading<'_> {
    /// Returns the given name, for input without a name of its own.
    fn name(&self, from: &Path) -> Result<Reference> {
        self.options.name.clone().ok_or_else(|| {
            let message = format!("{} contains plain files, which have no image name", from.display());
            let step = NextStep::NameLoadedImage { file: Some(from.to_owned()) };
            Error::new(ErrorCode::InvalidConfig, message).suggest(step)
        })
    }

    /// Copies compressed input, or input from a pipe, to a file that can be read at any position.
    fn spool(&self, from: File) -> Result<File> {
        let path = self.work.place();
        let what = |error| Error::io(format!("write {}", path.display()), error);
        let mut to = File::options().read(true).write(true).create_new(true).open(&path).map_err(what)?;
        let from = unpacked(from).map_err(|error| unreadable(&error))?;
        let mut from = from.take(self.options.limits.bytes);
        let mut buffer = vec![0; 256 * 1024];
        loop {
            self.teller.still_wanted()?;
            let count = from.read(&mut buffer).map_err(|error| unreadable(&error))?;
            if count == 0 {
                break;
            }
            std::io::Write::write_all(&mut to, &buffer[..count]).map_err(what)?;
        }
        if from.limit() == 0 {
            return Err(Error::limit(LimitReason::TooLarge, "it is larger than the limit for an image"));
        }
        to.seek(SeekFrom::Start(0)).map_err(what)?;
        Ok(to)
    }

    /// Creates an image of plain files, with one layer.
    fn files<R: Read>(&self, name: Reference, stream: Stream<R>) -> Result<Vec<Image>> {
        let layer = layer::unpack(self.store, self.work, stream, &self.tally, self.teller)?;
        let described = Described::of_files(layer.diff_id);
        self.work.needs(self.store, &described.diff_ids)?;
        let layers = BTreeMap::from([(layer.diff_id, layer)]);
        install(self.store, self.work, &layers, vec![(name, None, described)])
    }

    /// Creates images from descriptions.
    fn described(&self, blobs: &dyn Blobs, found: &[Found]) -> Result<Vec<Image>> {
        let mut images = Vec::new();
        let mut wanted = Vec::new();
        for image in found {
            let described = Described::read(&image.config)?;
            let layers = image.layers.len();
            check_layers(&described, layers, &self.options.limits)?;
            wanted.extend(described.diff_ids.iter().copied().zip(&image.layers));
            images.push((image, described));
        }
        let ids: Vec<Digest> = wanted.iter().map(|(id, _)| *id).collect();
        self.work.needs(self.store, &ids)?;
        let mut layers: BTreeMap<Digest, Unpacked> = BTreeMap::new();
        for (id, part) in wanted {
            let name = id.short();
            if layers.contains_key(&id) {
                continue;
            }
            if self.store.has_layer(&id) {
                self.teller.tell(Progress { part: name, doing: Doing::Present, bytes: None });
                continue;
            }
            let (from, size) = blobs
                .open(&part.path)?
                .ok_or_else(|| unsound(format!("layer {name}: the archive does not contain it")))?;
            if let Some((_, said)) = part.blob.filter(|(_, said)| *said != size) {
                return Err(unsound(format!("layer {name}: it has {size} bytes: expected {said}")));
            }
            let blob = part.blob.map(|(digest, _)| digest);
            let stream = Stream { from, size: Some(size), blob, diff_id: Some(id), part: name };
            layers.insert(id, layer::unpack(self.store, self.work, stream, &self.tally, self.teller)?);
        }
        let named = images.into_iter().flat_map(|(image, described)| {
            image.names.iter().map(move |name| (name.clone(), image.manifest, described.clone()))
        });
        install(self.store, self.work, &layers, named.collect())
    }
}

/// Checks that a description and its manifest have the same number of layers, and not too many.
pub(crate) fn check_layers(described: &Described, layers: usize, limits: &Limits) -> Result<()> {
    if described.diff_ids.len() != layers {
        let said = described.diff_ids.len();
        return Err(unsound(format!("the image has {layers} layers, but its configuration lists {said}")));
    }
    if layers > limits.layers {
        return Err(Error::limit(
            LimitReason::TooLarge,
            format!("the image has {layers} layers: expected at most {}", limits.layers),
        ));
    }
    Ok(())
}

/// Moves layers to their final places, and then writes the records of the images.
pub(crate) fn install(
    store: &Store,
    work: &Operation,
    layers: &BTreeMap<Digest, Unpacked>,
    images: Vec<(Reference, Option<Digest>, Described)>,
) -> Result<Vec<Image>> {
    for layer in layers.values() {
        layer.place(store)?;
    }
    let mut installed = Vec::new();
    for (reference, manifest, Described { id, diff_ids, created, config }) in images {
        let mut size = 0;
        for id in crate::image::each_once(&diff_ids) {
            size += match layers.get(&id) {
                Some(layer) => layer.note.size,
                None => store.layer_note(&id)?.size,
            };
        }
        let record = ImageRecord { reference, id, manifest, diff_ids, size, created, config };
        store.write(&record, work.dir())?;
        installed.push(store.image(record));
    }
    Ok(installed)
}
