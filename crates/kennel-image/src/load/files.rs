//! Packs a directory of plain files as a tar archive, so that there is only one way to load files, with one set of
//! rules.
//!
//! The same files always result in the same archive. Symlinks are not followed, and other filesystems are left out.

use crate::error::{Error, Result};
use crate::layer::Stream;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use tar::{Builder, EntryType, Header};

/// Passes a directory on as a stream.
pub(crate) fn packed<T>(from: &Path, take: impl FnOnce(Stream<Packed>) -> Result<T>) -> Result<T> {
    let (reader, writer) = io::pipe().map_err(|error| Error::io("create a pipe", error))?;
    let part = from.file_name().map_or_else(|| "files".to_owned(), |name| crate::error::shown(name.as_encoded_bytes()));
    std::thread::scope(|scope| {
        let (done, end) = mpsc::channel();
        scope.spawn(move || done.send(pack(from, writer)));
        // When the reader is dropped, the packing ends too.
        take(Stream { from: Packed { from: reader, end }, size: None, blob: None, diff_id: None, part })
    })
}

/// An archive that is being packed. It ends without an error only if everything could be packed.
pub(crate) struct Packed {
    from: io::PipeReader,
    end: mpsc::Receiver<io::Result<()>>,
}

impl Read for Packed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            // The error is returned once. Afterwards, the reader is at the end.
            self.end.recv().unwrap_or(Ok(()))?;
        }
        Ok(count)
    }
}

fn pack(from: &Path, to: impl Write) -> io::Result<()> {
    let mut packing =
        Packing { to: Builder::new(io::BufWriter::with_capacity(64 * 1024, to)), seen: HashMap::new(), device: 0 };
    let meta = std::fs::metadata(from)?;
    packing.device = meta.dev();
    packing.directory(from, Path::new("."), &meta)?;
    packing.to.into_inner()?.flush()
}

struct Packing<W: Write> {
    to: Builder<W>,
    /// Files with several names, by device and inode, with their first name.
    seen: HashMap<(u64, u64), PathBuf>,
    device: u64,
}

impl<W: Write> Packing<W> {
    fn directory(&mut self, path: &Path, name: &Path, meta: &Metadata) -> io::Result<()> {
        self.attributes(path)?;
        let mut header = header(meta, EntryType::Directory, 0);
        self.to.append_data(&mut header, name, io::empty())?;
        if meta.dev() != self.device {
            return Ok(());
        }
        let found = std::fs::read_dir(path).map_err(|error| about(path, error))?;
        let mut names = found.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        for part in names {
            let (path, name) = (path.join(&part), name.join(&part));
            let meta = match std::fs::symlink_metadata(&path) {
                Ok(meta) => meta,
                // It has just been removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if meta.is_dir() {
                self.directory(&path, &name, &meta)?;
            } else {
                self.file(&path, &name, &meta).map_err(|error| about(&path, error))?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, name: &Path, meta: &Metadata) -> io::Result<()> {
        let kind = meta.file_type();
        if meta.nlink() > 1 && !kind.is_socket() {
            if let Some(first) = self.seen.get(&(meta.dev(), meta.ino())) {
                return self.to.append_link(&mut header(meta, EntryType::Link, 0), name, first);
            }
            self.seen.insert((meta.dev(), meta.ino()), name.to_owned());
        }
        if kind.is_symlink() {
            let target = std::fs::read_link(path)?;
            return self.to.append_link(&mut header(meta, EntryType::Symlink, 0), name, target);
        }
        if kind.is_fifo() {
            return self.to.append_data(&mut header(meta, EntryType::Fifo, 0), name, io::empty());
        }
        if kind.is_char_device() || kind.is_block_device() {
            // Added only so that it is counted among the entries that were left out.
            return self.to.append_data(&mut header(meta, EntryType::Char, 0), name, io::empty());
        }
        if !kind.is_file() {
            return Ok(());
        }
        // The file may have been replaced by something else meanwhile.
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
        let file = File::options().read(true).custom_flags(flags as i32).open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("it changed while it was being read"));
        }
        self.attributes(path)?;
        let mut content = Exactly { from: file, left: meta.len() };
        self.to.append_data(&mut header(&meta, EntryType::Regular, meta.len()), name, &mut content)
    }

    /// Adds the extended attributes that a layer may have.
    fn attributes(&mut self, path: &Path) -> io::Result<()> {
        let mut found = Vec::new();
        for name in names_of_attributes(path) {
            let mut value = vec![0; 64 << 10];
            if let Ok(size) = rustix::fs::lgetxattr(path, name.as_str(), value.as_mut_slice()) {
                value.truncate(size);
                found.push((format!("SCHILY.xattr.{name}"), value));
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        self.to.append_pax_extensions(found.iter().map(|(name, value)| (name.as_str(), value.as_slice())))
    }
}

fn names_of_attributes(path: &Path) -> Vec<String> {
    let mut list = vec![0; 64 << 10];
    let size = rustix::fs::llistxattr(path, list.as_mut_slice()).unwrap_or(0);
    let names = list[..size].split(|&byte| byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("user.") || *name == "security.capability")
        .map(ToOwned::to_owned)
        .collect();
    names.sort();
    names
}

fn header(meta: &Metadata, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(meta.mode() & 0o7777);
    header.set_uid(meta.uid().into());
    header.set_gid(meta.gid().into());
    header.set_mtime(u64::try_from(meta.mtime()).unwrap_or(0));
    header
}

fn about(path: &Path, error: io::Error) -> io::Error {
    // The reader does not want the rest. This is no error of this file.
    if error.kind() == io::ErrorKind::BrokenPipe {
        return error;
    }
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A file that must have the announced size.
struct Exactly {
    from: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = self.from.read(&mut buffer[..most])?;
        if count == 0 && most > 0 {
            return Err(io::Error::other("it became shorter while it was being read"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}
