//! Parses the descriptions in a layout.

use super::blobs::Blobs;
use crate::error::{Error, Result, shown, unsound};
use crate::{Digest, Reference};
use kennel_types::{ErrorCode, NextStep};
use oci_spec::image::{Arch, Descriptor, ImageIndex, ImageManifest, Os};
use serde::Deserialize;

/// An image of a layout.
pub(crate) struct Found {
    pub(crate) names: Vec<Reference>,
    pub(crate) manifest: Option<Digest>,
    pub(crate) config: Vec<u8>,
    pub(crate) layers: Vec<Part>,
}

/// A layer of the image.
pub(crate) struct Part {
    pub(crate) path: String,
    /// Digest and size, if the layout contains them.
    pub(crate) blob: Option<(Digest, u64)>,
}

/// An image as `docker save` describes it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Returns the images of a layout, or `None` if it is not a layout. `name` is the user's name for the image.
pub(crate) fn look(blobs: &dyn Blobs, name: Option<&Reference>) -> Result<Option<Vec<Found>>> {
    let found = if let Some(text) = blobs.read("manifest.json")? {
        saved(blobs, &text, name)?
    } else if let Some(text) = blobs.read("index.json")? {
        layout(blobs, &text, name)?
    } else {
        return Ok(None);
    };
    if found.is_empty() {
        return Err(Error::new(ErrorCode::ImageNotFound, "it contains no image"));
    }
    if name.is_some() && found.len() > 1 {
        let message = format!("it contains {} images, but one name was given", found.len());
        return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::LoadUnderOwnNames));
    }
    Ok(Some(found))
}

fn saved(blobs: &dyn Blobs, text: &[u8], name: Option<&Reference>) -> Result<Vec<Found>> {
    let images: Vec<Saved> = parse("manifest.json", text)?;
    images
        .into_iter()
        .map(|image| {
            let own = image.repo_tags.unwrap_or_default();
            let names = match name {
                Some(name) => vec![name.clone()],
                None => own.iter().map(|name| name.parse()).collect::<Result<_>>()?,
            };
            let config = blobs
                .read(&image.config)?
                .ok_or_else(|| unsound(format!("it does not contain {}", shown(image.config.as_bytes()))))?;
            // The file is named by its digest, in one of two ways.
            let called = image.config.strip_prefix("blobs/sha256/").or_else(|| image.config.strip_suffix(".json"));
            if let Some(expected) = called.and_then(Digest::from_hex) {
                check("the configuration", &expected, &config)?;
            }
            let layers = image.layers.into_iter().map(|path| {
                let blob = path.strip_prefix("blobs/sha256/").and_then(Digest::from_hex);
                let size = blobs.open(&path)?.map(|(_, size)| size);
                Ok(Part { path, blob: blob.zip(size) })
            });
            Ok(Found { names: named(names)?, manifest: None, config, layers: layers.collect::<Result<_>>()? })
        })
        .collect()
}

fn layout(blobs: &dyn Blobs, text: &[u8], name: Option<&Reference>) -> Result<Vec<Found>> {
    let index: ImageIndex = parse("index.json", text)?;
    let fits = |entry: &&Descriptor| entry.platform().is_none() || is_ours(entry);
    let ours: Vec<&Descriptor> = index.manifests().iter().filter(fits).collect();
    if ours.is_empty() && !index.manifests().is_empty() {
        return Err(nothing_for_us(&index));
    }
    ours.into_iter()
        .map(|entry| {
            let names = match name {
                Some(name) => vec![name.clone()],
                None => own_name(entry)?.into_iter().collect(),
            };
            let names = named(names)?;
            let mut entry = entry.clone();
            let mut text = blob(blobs, &entry)?;
            if is_index(&text)? {
                entry = choose(&parse::<ImageIndex>("an index", &text)?)?.clone();
                text = blob(blobs, &entry)?;
            }
            let (digest, _) = named_blob(&entry)?;
            let manifest: ImageManifest = parse("a manifest", &text)?;
            let config = blob(blobs, manifest.config())?;
            let layers = manifest.layers().iter().map(|layer| {
                let (digest, size) = named_blob(layer)?;
                Ok(Part { path: path_of(&digest), blob: Some((digest, size)) })
            });
            Ok(Found { names, manifest: Some(digest), config, layers: layers.collect::<Result<_>>()? })
        })
        .collect()
}

fn named(names: Vec<Reference>) -> Result<Vec<Reference>> {
    if names.is_empty() {
        return Err(Error::new(ErrorCode::InvalidConfig, "it contains an image without a name")
            .suggest(NextStep::NameLoadedImage { file: None }));
    }
    Ok(names)
}

/// Returns the full name that a layout gives an image. A tag alone is not a name.
fn own_name(entry: &Descriptor) -> Result<Option<Reference>> {
    let said = |key: &str| entry.annotations().as_ref().and_then(|all| all.get(key));
    let tag = || said("org.opencontainers.image.ref.name").filter(|name| name.contains(['/', ':']));
    said("io.containerd.image.name").or_else(tag).map(|name| name.parse()).transpose()
}

/// Reads a description that the layout refers to by digest and size.
fn blob(blobs: &dyn Blobs, entry: &Descriptor) -> Result<Vec<u8>> {
    let (digest, size) = named_blob(entry)?;
    let bytes = blobs.read(&path_of(&digest))?.ok_or_else(|| unsound(format!("it does not contain {digest}")))?;
    if bytes.len() as u64 != size {
        return Err(unsound(format!("{digest} has {} bytes: expected {size}", bytes.len())));
    }
    check("a description", &digest, &bytes)?;
    Ok(bytes)
}

fn path_of(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Returns the digest and size from a descriptor.
pub(crate) fn named_blob(entry: &Descriptor) -> Result<(Digest, u64)> {
    Ok((entry.digest().to_string().parse()?, entry.size()))
}

/// Checks that the bytes have the expected digest.
pub(crate) fn check(what: &str, expected: &Digest, bytes: &[u8]) -> Result<()> {
    let found = Digest::compute(bytes);
    if found == *expected {
        return Ok(());
    }
    Err(unsound(format!("the digest of {what} does not match: expected {expected}, found {found}")))
}

/// Parses a description.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(what: &str, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| {
        let why = shown(error.to_string().as_bytes());
        unsound(format!("parse {what}: {why}"))
    })
}

/// Whether a description is an index of several images, and not a manifest of one. Its content decides, not its
/// declared type. It must be one of the two.
pub(crate) fn is_index(text: &[u8]) -> Result<bool> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Parts {
        schema_version: u32,
        manifests: Option<serde::de::IgnoredAny>,
        layers: Option<serde::de::IgnoredAny>,
    }
    let Parts { schema_version, manifests, layers } = parse("the manifest", text)?;
    match (schema_version, manifests, layers) {
        (2, Some(_), None) => Ok(true),
        (2, None, Some(_)) => Ok(false),
        (2, ..) => Err(unsound("invalid manifest: expected either the layers of one image or a list of images")),
        (version, ..) => Err(unsound(format!("unsupported manifest version {version}: expected 2"))),
    }
}

fn is_ours(entry: &Descriptor) -> bool {
    let ours = |it: &oci_spec::image::Platform| *it.os() == Os::Linux && *it.architecture() == Arch::default();
    entry.platform().as_ref().is_some_and(ours)
}

/// Returns the image of an index that is for this machine.
pub(crate) fn choose(index: &ImageIndex) -> Result<&Descriptor> {
    let entries = index.manifests();
    let only = || entries.iter().next().filter(|entry| entries.len() == 1 && entry.platform().is_none());
    entries.iter().find(|entry| is_ours(entry)).or_else(only).ok_or_else(|| nothing_for_us(index))
}

fn nothing_for_us(index: &ImageIndex) -> Error {
    let platforms = index.manifests().iter().filter_map(|entry| entry.platform().as_ref());
    let mut there: Vec<String> = platforms.map(|it| format!("{}/{}", it.os(), it.architecture())).collect();
    // Build attestations are listed next to the images.
    there.retain(|name| name != "unknown/unknown");
    there.sort();
    there.dedup();
    let there = shown(there.join(", ").as_bytes());
    let message = format!("the image is not available for linux/{}, only for {there}", Arch::default());
    Error::new(ErrorCode::ImageNotFound, message)
}
