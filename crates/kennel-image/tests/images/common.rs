//! Images made by the tests, valid and invalid, and functions that inspect a store.

use kennel_image::{Digest, Error, Image, Limits, LoadOptions, Progress, Reference, Result, Store};
use serde_json::json;
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// A store in its own directory.
pub(crate) struct Shelf {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) store: Store,
}

impl Shelf {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("kennel-image-").tempdir().unwrap();
        let store = Store::open(dir.path().join("images")).unwrap();
        Self { dir, store }
    }

    /// Writes a file next to the store, and returns its path.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn load_with(&self, path: &Path, options: &LoadOptions) -> Result<Vec<Image>> {
        wait(self.store.load(path, options, &quiet))
    }

    pub(crate) fn load(&self, bytes: &[u8]) -> Result<Vec<Image>> {
        self.load_with(&self.file("archive.tar", bytes), &LoadOptions::default())
    }

    pub(crate) fn load_named(&self, path: &Path, name: &str) -> Result<Vec<Image>> {
        self.load_with(path, &LoadOptions { name: Some(name.parse().unwrap()), ..LoadOptions::default() })
    }

    /// Lists all files of the store except its lock, without the contents of layers.
    pub(crate) fn holds(&self) -> Vec<String> {
        let root = self.dir.path().join("images");
        let mut all = Vec::new();
        for part in ["names", "layers", "blobs", "tmp"] {
            let Ok(found) = std::fs::read_dir(root.join(part)) else { continue };
            all.extend(found.map(|entry| format!("{part}/{}", entry.unwrap().file_name().to_string_lossy())));
        }
        all.sort();
        all
    }

    /// Asserts that nothing is left behind.
    #[track_caller]
    pub(crate) fn is_empty(&self) {
        assert_eq!(self.holds(), Vec::<String>::new());
    }

    /// Asserts that an archive is refused with this reason, and that nothing is left of it.
    #[track_caller]
    pub(crate) fn refuses(&self, archive: &[u8], why: &str) -> Error {
        let error = self.load(archive).expect_err("it is refused");
        assert!(error.to_string().contains(why), "{error}");
        self.is_empty();
        error
    }
}

pub(crate) fn quiet(_: Progress) {}

#[allow(clippy::unnecessary_wraps)] // the signature is that of a function that may fail
pub(crate) fn nobody() -> Result<HashSet<Digest>> {
    Ok(HashSet::new())
}

/// Runs a future to its end.
pub(crate) fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

pub(crate) fn reference(name: &str) -> Reference {
    name.parse().unwrap()
}

pub(crate) fn tight(bytes: u64) -> Limits {
    Limits { bytes, ..Limits::default() }
}

/// A layer that is being built as an archive.
pub(crate) struct Layer(Builder<Vec<u8>>);

impl Layer {
    pub(crate) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn header(kind: EntryType, mode: u32, size: usize) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(1234);
        header.set_gid(4321);
        header.set_mtime(1_700_000_000);
        header.set_size(size as u64);
        header
    }

    pub(crate) fn file(mut self, path: &str, content: &[u8]) -> Self {
        self.0.append_data(&mut Self::header(EntryType::Regular, 0o644, content.len()), path, content).unwrap();
        self
    }

    pub(crate) fn moded(mut self, path: &str, mode: u32, content: &[u8]) -> Self {
        self.0.append_data(&mut Self::header(EntryType::Regular, mode, content.len()), path, content).unwrap();
        self
    }

    pub(crate) fn dir(mut self, path: &str, mode: u32) -> Self {
        self.0.append_data(&mut Self::header(EntryType::Directory, mode, 0), path, std::io::empty()).unwrap();
        self
    }

    pub(crate) fn special(mut self, kind: EntryType, path: &str) -> Self {
        let mut header = Self::header(kind, 0o666, 0);
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
        self.0.append_data(&mut header, path, std::io::empty()).unwrap();
        self
    }

    pub(crate) fn symlink(mut self, path: &str, target: &str) -> Self {
        self.0.append_link(&mut Self::header(EntryType::Symlink, 0o777, 0), path, target).unwrap();
        self
    }

    /// Sets attributes of the next entry.
    pub(crate) fn xattrs(mut self, all: &[(&str, &[u8])]) -> Self {
        let names: Vec<String> = all.iter().map(|(name, _)| format!("SCHILY.xattr.{name}")).collect();
        let values = all.iter().map(|(_, value)| *value);
        self.0.append_pax_extensions(names.iter().map(String::as_str).zip(values)).unwrap();
        self
    }

    /// Adds an entry with a name or target that no tool would write.
    pub(crate) fn raw(mut self, kind: EntryType, name: &str, target: &str) -> Self {
        let content: &[u8] = if kind == EntryType::Regular { b"escaped" } else { b"" };
        let mut header = Self::header(kind, 0o644, content.len());
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        gnu.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    pub(crate) fn tar(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

/// Returns a configuration for these unpacked layers.
pub(crate) fn config(layers: &[&[u8]]) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::compute(layer).to_string()).collect();
    config_of(&diff_ids)
}

pub(crate) fn config_of(diff_ids: &[String]) -> Vec<u8> {
    let config = json!({
        "architecture": oci_spec::image::Arch::default().to_string(),
        "os": "linux",
        "created": "2026-01-02T03:04:05Z",
        "config": { "Env": ["A=b"], "Cmd": ["sh"], "Labels": { "team": "red" } },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    serde_json::to_vec(&config).unwrap()
}

/// Creates an archive in the older format of `docker save`: layers in directories, unpacked.
pub(crate) fn saved(name: &str, layers: &[&[u8]]) -> Vec<u8> {
    saved_with(name, &config(layers), layers)
}

pub(crate) fn saved_with(name: &str, config: &[u8], layers: &[&[u8]]) -> Vec<u8> {
    let config_name = format!("{}.json", Digest::compute(config).hex());
    let names: Vec<String> = (0..layers.len()).map(|index| format!("{index}/layer.tar")).collect();
    let manifest = json!([{ "Config": config_name, "RepoTags": [name], "Layers": names }]);
    let mut files = vec![(config_name, config.to_vec())];
    files.extend(names.into_iter().zip(layers.iter().map(|layer| layer.to_vec())));
    // Last, as Docker does.
    files.push(("manifest.json".into(), serde_json::to_vec(&manifest).unwrap()));
    archive(&files)
}

pub(crate) fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    files.iter().fold(Layer::new(), |archive, (name, bytes)| archive.file(name, bytes)).tar()
}

/// Creates the files of an OCI layout with one image. Layers are given unpacked and compressed.
pub(crate) fn layout(name: &str, layers: &[(&[u8], &[u8])]) -> Vec<(String, Vec<u8>)> {
    let plain: Vec<&[u8]> = layers.iter().map(|(plain, _)| *plain).collect();
    let config = config(&plain);
    let mut files = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
    let blob = |files: &mut Vec<(String, Vec<u8>)>, kind: &str, bytes: &[u8]| {
        let digest = Digest::compute(bytes);
        files.push((format!("blobs/sha256/{}", digest.hex()), bytes.to_vec()));
        json!({ "mediaType": kind, "digest": digest.to_string(), "size": bytes.len() })
    };
    let layers: Vec<_> = layers
        .iter()
        .map(|(_, packed)| blob(&mut files, "application/vnd.oci.image.layer.v1.tar+gzip", packed))
        .collect();
    let config = blob(&mut files, "application/vnd.oci.image.config.v1+json", &config);
    let manifest_kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({ "schemaVersion": 2, "mediaType": manifest_kind, "config": config, "layers": layers });
    let mut entry = blob(&mut files, manifest_kind, &serde_json::to_vec(&manifest).unwrap());
    entry["platform"] = json!({ "os": "linux", "architecture": oci_spec::image::Arch::default().to_string() });
    let mut other = entry.clone();
    other["platform"]["architecture"] = json!("s390x");
    other["digest"] = json!(Digest::compute(b"elsewhere").to_string());
    let index_kind = "application/vnd.oci.image.index.v1+json";
    let index = json!({ "schemaVersion": 2, "mediaType": index_kind, "manifests": [other, entry] });
    let mut top = blob(&mut files, index_kind, &serde_json::to_vec(&index).unwrap());
    top["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    let index = json!({ "schemaVersion": 2, "manifests": [top] });
    files.push(("index.json".into(), serde_json::to_vec(&index).unwrap()));
    files
}

/// Writes files to a directory.
pub(crate) fn spread(dir: &Path, files: &[(String, Vec<u8>)]) {
    for (name, bytes) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}
