//! Unpacks one layer: reads a stream, compressed or not, into a directory and verifies it.

use crate::Digest;
use crate::digest::Hashing;
use crate::error::{Error, Result, shown, unreadable, unsound};
use crate::limits::{Limits, Tally};
use crate::operation::Operation;
use crate::progress::{Doing, Progress, Teller};
use crate::store::{LayerNote, Store, StoreOwner, sync_dir};
use crate::tree::{Entry, Tree, What};
use flate2::read::MultiGzDecoder;
use kennel_types::NextStep;
use rustix::fs::Timespec;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::io::{self, BufReader, Cursor, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tar::{Archive, EntryType};

/// The largest window that a zstd stream may use, as a power of two. It limits the memory that unpacking needs.
const ZSTD_WINDOW: u32 = 27;
/// The maximum size of the headers of one entry, including long names and attributes. They are read into memory.
const HEADERS: u64 = 2 << 20;
/// How often progress is reported.
const TELL: Duration = Duration::from_millis(100);

/// The source of a layer, and its expected digests.
pub(crate) struct Stream<R> {
    pub(crate) from: R,
    /// The number of compressed bytes, if known.
    pub(crate) size: Option<u64>,
    /// The expected digest of the compressed bytes, if it has not been verified yet.
    pub(crate) blob: Option<Digest>,
    /// The expected digest of the unpacked bytes; unknown for plain files.
    pub(crate) diff_id: Option<Digest>,
    /// The name of the layer in progress reports.
    pub(crate) part: String,
}

/// An unpacked layer that is not in its final place yet.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) diff_id: Digest,
    pub(crate) note: LayerNote,
    dir: PathBuf,
}

impl Unpacked {
    /// Moves the layer to its final place. If another process has just done so, its copy is used.
    pub(crate) fn place(&self, store: &Store) -> Result<()> {
        let what = |error| Error::io("move a layer into the store", error);
        match std::fs::rename(&self.dir, store.layer(&self.diff_id)) {
            Err(_) if store.has_layer(&self.diff_id) => Ok(()),
            Err(error) => Err(what(error)),
            Ok(()) => sync_dir(&store.layers()).map_err(what),
        }
    }
}

/// Unpacks one layer, compressed or not, into an empty directory, with the same rules as the store. Returns its diff
/// id.
pub fn unpack_layer(from: impl Read, into: &Path, limits: &Limits) -> Result<Digest> {
    let owner = StoreOwner::calling_user();
    let tally = Tally::new(*limits);
    let mut tree = Tree::new(into, owner, tally.limits(), true)?;
    let stream = Stream { from, size: None, blob: None, diff_id: None, part: String::new() };
    let (digest, _) = read(stream, &mut tree, &tally, &Teller::silent())?;
    tree.finish()?;
    Ok(digest)
}

/// Unpacks a layer, verifies it, and syncs it to disk.
pub(crate) fn unpack<R: Read>(
    store: &Store,
    work: &Operation,
    stream: Stream<R>,
    tally: &Tally,
    teller: &Teller,
) -> Result<Unpacked> {
    let dir = work.place();
    let files = dir.join("fs");
    let what = |error| Error::io(format!("create {}", files.display()), error);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&files).map_err(what)?;
    // Layers of images contain whiteouts. Plain files, which have no expected diff id, do not.
    let mut tree = Tree::new(&files, store.owner(), tally.limits(), stream.diff_id.is_some())?;
    let part = stream.part.clone();
    let (diff_id, note) =
        read(stream, &mut tree, tally, teller).map_err(|error| error.context(format!("layer {part}")))?;
    let note = LayerNote { left_out: tree.finish()?, ..note };
    let text = serde_json::to_vec(&note).map_err(|error| Error::io("write the metadata of a layer", error))?;
    std::fs::write(dir.join("layer.json"), text).map_err(what)?;
    let on_disk = std::fs::File::open(&dir).map_err(what)?;
    // One sync is much faster than a sync for each file.
    rustix::fs::syncfs(&on_disk).map_err(|error| Error::io("write a layer to disk", error))?;
    teller.tell(Progress { part, doing: Doing::Done, bytes: None });
    Ok(Unpacked { diff_id, note, dir })
}

/// Reads a whole layer into a tree, and verifies the bytes that were read.
fn read<R: Read>(
    stream: Stream<R>,
    tree: &mut Tree<'_>,
    tally: &Tally,
    teller: &Teller,
) -> Result<(Digest, LayerNote)> {
    let Stream { from, size, blob, diff_id, part } = stream;
    let seen = Rc::new(Seen { packed: Cell::new(0), trouble: RefCell::new(None) });
    // Read only the announced number of bytes. Any further bytes do not belong to the layer.
    let from = Counted { from: from.take(size.unwrap_or(u64::MAX)), seen: seen.clone() };
    let mut packed = Hashing::new(from);
    let mut note = LayerNote::default();
    let found = {
        let plain = Metered {
            from: unpacked(&mut packed).map_err(|error| unreadable(&error))?,
            seen: seen.clone(),
            count: 0,
            tally,
            teller,
            shown: Instant::now(),
            progress: (part, size),
        };
        let mut plain = Hashing::new(plain);
        let read = entries(&mut plain, tree, tally, &mut note);
        let read = read.and_then(|()| plain.finish().map_err(|error| unreadable(&error)));
        // If one of the readers stopped the work, its reason is the real error.
        read.map_err(|error| seen.trouble.take().unwrap_or(error))?
    };
    let whole = packed.finish().map_err(|error| seen.trouble.take().unwrap_or_else(|| unreadable(&error)))?;
    if let Some(size) = size.filter(|size| seen.packed.get() != *size) {
        return Err(unsound(format!("it is truncated: found {} of {size} bytes", seen.packed.get())));
    }
    for (expected, found) in [(blob, whole), (diff_id, found)] {
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(unsound(format!("its digest does not match: expected {expected}, found {found}")));
        }
    }
    Ok((found, note))
}

/// Decompresses a stream according to its first bytes, because the declared format is often wrong.
pub(crate) fn unpacked<'a, R: Read + 'a>(mut from: R) -> io::Result<Box<dyn Read + 'a>> {
    let mut magic = Vec::new();
    from.by_ref().take(4).read_to_end(&mut magic)?;
    let gzip = magic.starts_with(&[0x1f, 0x8b]);
    let zstd = magic == [0x28, 0xb5, 0x2f, 0xfd];
    let whole = BufReader::with_capacity(128 * 1024, Cursor::new(magic).chain(from));
    Ok(if gzip {
        Box::new(MultiGzDecoder::new(whole))
    } else if zstd {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(whole)?;
        decoder.window_log_max(ZSTD_WINDOW)?;
        Box::new(decoder)
    } else {
        Box::new(whole)
    })
}

/// Adds all entries of a tar archive to a tree.
fn entries(from: &mut dyn Read, tree: &mut Tree<'_>, tally: &Tally, note: &mut LayerNote) -> Result<()> {
    let left = Rc::new(Cell::new(HEADERS));
    let mut archive = Archive::new(Budget { from, left: left.clone() });
    let mut entries = archive.entries().map_err(|error| unreadable(&error))?;
    loop {
        left.set(HEADERS);
        let Some(entry) = entries.next() else { return Ok(()) };
        let mut entry = entry.map_err(|error| unreadable(&error))?;
        left.set(u64::MAX);
        if matches!(entry.header().entry_type(), EntryType::XGlobalHeader) {
            drain(&mut entry)?;
            continue;
        }
        tally.entry()?;
        note.entries += 1;
        let name = entry.path_bytes().into_owned();
        let described =
            describe(&mut entry, &name).map_err(|error| error.context(format!("the entry {}", shown(&name))))?;
        let Describing { entry: described, sparse } = described;
        let size = &mut note.size;
        // A sparse file is larger than its data in the archive. Count what is written.
        let mut count = |bytes| {
            *size += bytes;
            if sparse { tally.bytes(bytes) } else { Ok(()) }
        };
        tree.put(&described, &mut entry, &mut count)?;
        drain(&mut entry)?;
    }
}

struct Describing<'a> {
    entry: Entry<'a>,
    sparse: bool,
}

fn drain(entry: &mut impl Read) -> Result<()> {
    io::copy(entry, &mut io::sink()).map_err(|error| unreadable(&error)).map(drop)
}

/// Converts the headers of a tar entry.
fn describe<'a, R: Read>(entry: &mut tar::Entry<'_, R>, name: &'a [u8]) -> Result<Describing<'a>> {
    let wrong = |error: io::Error| unreadable(&error);
    let mut xattrs = Vec::new();
    let mut modified = None;
    if let Some(extensions) = entry.pax_extensions().map_err(wrong)? {
        for extension in extensions {
            let extension = extension.map_err(wrong)?;
            let key = extension.key_bytes();
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                xattrs.push((name.to_vec(), extension.value_bytes().to_vec()));
            } else if key == b"mtime" {
                modified = extension.value().ok().and_then(time);
            } else if key.starts_with(b"GNU.sparse.") {
                return Err(unsound("it is a sparse file in a format that is not supported")
                    .suggest(NextStep::ArchiveWithoutSparse));
            }
        }
    }
    let link = entry.link_name_bytes().map(Cow::into_owned);
    let target = || link.clone().ok_or_else(|| unsound("it is a link without a target"));
    let kind = entry.header().entry_type();
    let what = match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            // Very old archives mark a directory only by a trailing slash.
            if kind == EntryType::Regular && name.ends_with(b"/") { What::Directory } else { What::File(entry.size()) }
        }
        EntryType::Directory => What::Directory,
        EntryType::Symlink => What::Symlink(target()?),
        EntryType::Link => What::HardLink(target()?),
        EntryType::Fifo => What::Fifo,
        EntryType::Char | EntryType::Block => What::Device,
        other => return Err(unsound(format!("it has the unknown type {:?}", char::from(other.as_byte())))),
    };
    let header = entry.header();
    let id = |found: io::Result<u64>| {
        let found = found.map_err(wrong)?;
        // To the kernel, the largest id means "do not change the owner".
        u32::try_from(found).ok().filter(|id| *id != u32::MAX).ok_or_else(|| unsound("its owner is not a valid id"))
    };
    let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0);
    let entry = Entry {
        name,
        what,
        mode: header.mode().map_err(wrong)? & 0o7777,
        uid: id(header.uid())?,
        gid: id(header.gid())?,
        modified: modified.unwrap_or(Timespec { tv_sec: seconds, tv_nsec: 0 }),
        xattrs,
    };
    Ok(Describing { entry, sparse: kind == EntryType::GNUSparse })
}

/// Parses a time from an extended header: seconds, perhaps with a fraction.
fn time(text: &str) -> Option<Timespec> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    Some(Timespec { tv_sec: seconds.parse().ok()?, tv_nsec: digits.parse().ok()? })
}

/// State that the readers of one layer share.
struct Seen {
    /// Compressed bytes read so far.
    packed: Cell<u64>,
    /// Why one of the readers stopped. It is stored here, because the decompressor and the tar reader in between return
    /// only an [`io::Error`].
    trouble: RefCell<Option<Error>>,
}

impl Seen {
    fn stop(&self, error: Error) -> io::Error {
        let told = io::Error::other(error.to_string());
        self.trouble.borrow_mut().get_or_insert(error);
        told
    }
}

/// A reader that counts the compressed bytes.
struct Counted<R> {
    from: R,
    seen: Rc<Seen>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.seen.packed.set(self.seen.packed.get() + count as u64);
        Ok(count)
    }
}

/// A reader that checks the unpacked bytes against the limits, and reports progress.
struct Metered<'a, R> {
    from: R,
    seen: Rc<Seen>,
    count: u64,
    tally: &'a Tally,
    teller: &'a Teller,
    shown: Instant,
    progress: (String, Option<u64>),
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.count += count as u64;
        let packed = self.seen.packed.get();
        self.teller
            .still_wanted()
            .and_then(|()| self.tally.bytes(count as u64))
            .and_then(|()| self.tally.growth(packed, self.count))
            .map_err(|error| self.seen.stop(error))?;
        if self.shown.elapsed() >= TELL {
            self.shown = Instant::now();
            let (part, size) = &self.progress;
            let bytes = size.map(|size| (packed.min(size), size));
            self.teller.tell(Progress { part: part.clone(), doing: Doing::Unpacking, bytes });
        }
        Ok(count)
    }
}

/// A reader that limits the bytes of an entry's headers, because the tar reader keeps them all in memory.
pub(crate) struct Budget<R> {
    pub(crate) from: R,
    pub(crate) left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Budget<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::other("the names and attributes of an entry are too long"));
        }
        let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = self.from.read(&mut buffer[..most])?;
        if left != u64::MAX {
            self.left.set(left - count as u64);
        }
        Ok(count)
    }
}

impl<R: io::Seek> io::Seek for Budget<R> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.from.seek(to)
    }
}

#[cfg(test)]
mod tests;
