//! Reads a tar archive from a file or a pipe, one entry after the other.
//!
//! It understands old archives, POSIX archives with extended headers, and GNU archives with long names. Sizes in the
//! archive are checked against a cap before memory is allocated. Names are returned as they are; the caller must check
//! them.

use crate::{Error, Result};
use kennel_types::{ErrorCode, NextStep};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tar::Header;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader, ReadBuf};

/// Archives consist of blocks of this size.
pub(super) const BLOCK: usize = 512;
/// The maximum size of an extended header: far more than any path, and enough for the attributes of a file.
const EXTENDED: u64 = 1024 * 1024;
const BUFFER: usize = 128 * 1024;

/// An archive that is being read.
pub(super) struct Archive {
    from: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    title: String,
    /// The host file, for hints.
    file: Option<String>,
    target: String,
    /// Bytes read so far.
    at: u64,
    /// Entries before the current one.
    entries: u64,
    /// Bytes of the current entry's content that have not been read yet.
    content: u64,
    /// Bytes of padding after that content.
    filling: u64,
    /// The name of the current entry, for errors.
    name: Option<Vec<u8>>,
    /// Whether the archive ended within the content of an entry.
    cut: bool,
}

/// One entry of an archive, without its content.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
}

/// The kind of an archive entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// A file. Its content follows.
    File,
    Directory,
    /// A symlink with its target.
    Symlink(Vec<u8>),
    /// A hard link, with the name of the earlier entry that it links to.
    HardLink(Vec<u8>),
    /// An entry that cannot be copied, with the reason.
    Other(&'static str),
}

/// Values from extended headers, for the entry after them.
#[derive(Default)]
struct Extended {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

impl Archive {
    /// Creates a reader, and reads nothing yet. Error messages name the archive `title`. Hints contain the path `file`,
    /// if the archive is a file, and the destination `target` in the sandbox.
    pub(super) fn new(
        from: Box<dyn AsyncRead + Send + Unpin>,
        title: String,
        file: Option<String>,
        target: String,
    ) -> Self {
        let from = BufReader::with_capacity(BUFFER, from);
        Self { from, title, file, target, at: 0, entries: 0, content: 0, filling: 0, name: None, cut: false }
    }

    /// Returns the next entry, or `None` at the end. Skips content that was not read.
    pub(super) async fn next(&mut self) -> Result<Option<Entry>> {
        self.skip(self.content + self.filling).await?;
        (self.content, self.filling) = (0, 0);
        if self.name.take().is_some() {
            self.entries += 1;
        }
        let mut extended = Extended::default();
        loop {
            let block = self.block().await?;
            if block.iter().all(|&byte| byte == 0) {
                return self.end().await.map(|()| None);
            }
            let header = Header::from_byte_slice(&block);
            if !header.cksum().is_ok_and(|sum| sum == sum_of(&block)) {
                return Err(self.no_header());
            }
            let mut kind = header.as_old().linkflag[0];
            match kind {
                b'x' | b'X' => {
                    let text = self.extended(header).await?;
                    self.read_pax(&text, &mut extended)?;
                }
                b'L' => extended.name = Some(until_zero(&self.extended(header).await?).to_vec()),
                b'K' => extended.link = Some(until_zero(&self.extended(header).await?).to_vec()),
                // `g` is a header for all following entries, in practice only a comment. `V` is the name of a tape.
                b'g' | b'V' => {
                    let size = self.size(header)?;
                    self.skip(size + filling(size)).await?;
                }
                _ => {
                    let name = extended.name.unwrap_or_else(|| header.path_bytes().into_owned());
                    if extended.sparse || kind == b'S' {
                        let message = format!("{}: {} is stored as a sparse file", self.title, text(&name));
                        return Err(
                            Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::ArchiveWithoutSparse)
                        );
                    }
                    let link = || extended.link.unwrap_or_else(|| until_zero(&header.as_old().linkname).to_vec());
                    if matches!(kind, b'0' | 0) && name.ends_with(b"/") {
                        // Old archives mark a directory only by a trailing slash.
                        kind = b'5';
                    }
                    let kind = match kind {
                        b'0' | b'7' | 0 => EntryKind::File,
                        b'1' => EntryKind::HardLink(link()),
                        b'2' => EntryKind::Symlink(link()),
                        b'3' | b'4' | b'6' => EntryKind::Other("it is a FIFO, socket or device"),
                        b'5' | b'D' => EntryKind::Directory,
                        _ => EntryKind::Other("its type is unknown"),
                    };
                    // Links, devices, directories and FIFOs have no content, even if their header has a size.
                    if !matches!(header.as_old().linkflag[0], b'1'..=b'6') {
                        self.content = extended.size.map_or_else(|| self.size(header), Ok)?;
                        self.filling = filling(self.content);
                    }
                    let usual = if kind == EntryKind::Directory { 0o755 } else { 0o644 };
                    let mode = header.mode().unwrap_or(usual) & 0o777;
                    self.name = Some(name.clone());
                    return Ok(Some(Entry { name, kind, mode }));
                }
            }
        }
    }

    /// Returns the content of the current entry. Reading it fails if the archive ends too early.
    pub(super) fn content(&mut self) -> Content<'_> {
        Content(self)
    }

    /// Returns an error if the archive ended within the content of an entry.
    pub(super) fn cut(&self) -> Option<Error> {
        self.cut.then(|| self.ends_early())
    }

    /// Reads the bytes after the end, so that the writer of a pipe can finish.
    pub(super) async fn drain(&mut self) -> Result<()> {
        while self.take(u64::MAX).await? > 0 {}
        Ok(())
    }

    /// Checks what follows a block of zeros: a second one, or nothing. Anything else means that a part of the archive
    /// is missing.
    async fn end(&mut self) -> Result<()> {
        let mut second = [0; BLOCK];
        self.fill(&mut second).await?;
        if second.iter().any(|&byte| byte != 0) { Err(self.no_header()) } else { Ok(()) }
    }

    async fn block(&mut self) -> Result<[u8; BLOCK]> {
        let mut block = [0; BLOCK];
        let count = self.fill(&mut block).await?;
        if self.at == count as u64 {
            self.refuse_compressed(&block)?;
            if count == 0 {
                return Err(Error::new(ErrorCode::InvalidConfig, format!("{} is empty, not an archive", self.title)));
            }
        }
        if count < BLOCK { Err(self.ends_early()) } else { Ok(block) }
    }

    /// Reads until the buffer is full or the input ends. Returns the number of bytes.
    async fn fill(&mut self, into: &mut [u8]) -> Result<usize> {
        let mut count = 0;
        while count < into.len() {
            let bytes = self.from.fill_buf().await.map_err(|error| Error::io(format!("read {}", self.title), error))?;
            if bytes.is_empty() {
                break;
            }
            let take = bytes.len().min(into.len() - count);
            into[count..count + take].copy_from_slice(&bytes[..take]);
            self.consume(take);
            count += take;
        }
        Ok(count)
    }

    /// Skips at most `most` bytes. Returns the number of bytes skipped, which is 0 at the end.
    async fn take(&mut self, most: u64) -> Result<u64> {
        let bytes = self.from.fill_buf().await.map_err(|error| Error::io(format!("read {}", self.title), error))?;
        let count = most.min(bytes.len() as u64);
        self.consume(count as usize);
        Ok(count)
    }

    async fn skip(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            match self.take(count).await? {
                0 => return Err(self.ends_early()),
                taken => count -= taken,
            }
        }
        Ok(())
    }

    fn consume(&mut self, count: usize) {
        Pin::new(&mut self.from).consume(count);
        self.at += count as u64;
    }

    fn size(&self, header: &Header) -> Result<u64> {
        // No file is larger than `i64::MAX` bytes, and a sum with such a size does not overflow.
        let size = header.entry_size().ok().filter(|&size| i64::try_from(size).is_ok());
        size.ok_or_else(|| self.broken("a size is not a number"))
    }

    /// Reads the content of an extended header.
    async fn extended(&mut self, header: &Header) -> Result<Vec<u8>> {
        let size = self.size(header)?;
        if size > EXTENDED {
            return Err(self.broken("an extended header is too long"));
        }
        let mut content = vec![0; size as usize];
        if self.fill(&mut content).await? < content.len() {
            return Err(self.ends_early());
        }
        self.skip(filling(size)).await?;
        Ok(content)
    }

    fn read_pax(&self, text: &[u8], extended: &mut Extended) -> Result<()> {
        let broken = || self.broken("an extended header cannot be read");
        let mut rest = text;
        while let Some((key, value)) = pax_record(&mut rest).ok_or_else(broken)? {
            match key {
                b"path" => extended.name = Some(value.to_vec()),
                b"linkpath" => extended.link = Some(value.to_vec()),
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|size| size.parse::<i64>().ok());
                    extended.size = Some(size.and_then(|size| u64::try_from(size).ok()).ok_or_else(broken)?);
                }
                _ if key.starts_with(b"GNU.sparse.") => extended.sparse = true,
                _ => {}
            }
        }
        Ok(())
    }

    fn refuse_compressed(&self, start: &[u8; BLOCK]) -> Result<()> {
        const KINDS: [(&[u8], &str); 4] =
            [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2")];
        let Some((_, program)) = KINDS.iter().find(|(magic, _)| start.starts_with(magic)) else { return Ok(()) };
        let message = format!("{} is compressed with {program}", self.title);
        let (program, file, target) = ((*program).to_owned(), self.file.clone(), self.target.clone());
        Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::Decompress { program, file, target }))
    }

    fn no_header(&self) -> Error {
        if self.at == BLOCK as u64 {
            return Error::new(ErrorCode::InvalidConfig, format!("{} is not a tar archive", self.title));
        }
        self.broken("the next entry is not valid")
    }

    fn broken(&self, why: &str) -> Error {
        Error::new(ErrorCode::InvalidConfig, format!("{} is damaged: {why}, {}", self.title, self.so_far()))
    }

    fn ends_early(&self) -> Error {
        let within = self.name.as_ref().map(|name| format!(", within {}", text(name))).unwrap_or_default();
        Error::new(ErrorCode::InvalidConfig, format!("{} ends too early{within}, {}", self.title, self.so_far()))
    }

    fn so_far(&self) -> String {
        let entries = if self.entries == 1 { "entry" } else { "entries" };
        format!("after {} {entries} and {} bytes", self.entries, self.at)
    }
}

/// A reader for the content of the current entry.
pub(super) struct Content<'a>(&'a mut Archive);

impl AsyncRead for Content<'_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let archive = &mut *self.get_mut().0;
        if archive.content == 0 {
            return Poll::Ready(Ok(()));
        }
        let bytes = ready!(Pin::new(&mut archive.from).poll_fill_buf(cx))?;
        if bytes.is_empty() {
            archive.cut = true;
            return Poll::Ready(Err(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let count = archive.content.min(bytes.len().min(into.remaining()) as u64) as usize;
        into.put_slice(&bytes[..count]);
        archive.content -= count as u64;
        archive.consume(count);
        Poll::Ready(Ok(()))
    }
}

/// Returns the padding after content of this size.
pub(super) fn filling(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// Returns the checksum of a header: the sum of all bytes, with spaces in place of the checksum itself.
fn sum_of(block: &[u8; BLOCK]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    sum(&block[..148]) + 8 * u32::from(b' ') + sum(&block[156..])
}

/// Takes the first record, `LENGTH KEY=VALUE\n`, of an extended header. Returns `Some(None)` at its end, and `None` if
/// it is malformed. A value may contain any bytes, so only the length tells where it ends.
#[allow(clippy::option_option)] // `None`: malformed; `Some(None)`: the end; `Some(Some(_))`: a record
fn pax_record<'a>(rest: &mut &'a [u8]) -> Option<Option<(&'a [u8], &'a [u8])>> {
    if rest.first().is_none_or(|&byte| byte == 0) {
        return Some(None);
    }
    let space = rest.iter().position(|&byte| byte == b' ')?;
    let length: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    let record = rest.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|&byte| byte == b'=')?;
    *rest = &rest[length..];
    Some(Some((&record[..equals], &record[equals + 1..])))
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn text(name: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(name)
}

#[cfg(test)]
mod tests;
