//! Packs files of a sandbox into a tar archive, which is streamed and never held in memory as a whole.
//!
//! Names and sizes come from inside and are not trusted. An entry with an invalid name is skipped. An entry gets as many
//! bytes as its header says, even if the file changes meanwhile, so that the rest of the archive is valid; the damage is
//! reported. Set-user-id, set-group-id and sticky bits are not copied, because whoever unpacks the archive may be root.

use super::archive::{BLOCK, filling};
use super::host::{NewFile, checked};
use super::out::{Target, is_about_the_file};
use super::{Tally, cannot, join, last_name};
use crate::{Error, Fence, Files, Piece, Result, SparseReader};
use kennel_types::{DirEntry, ErrorCode, FileKind, FileStat, LimitReason, NextStep, format_bytes};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use tar::{EntryType, Header};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// The maximum number of entries of directories that are open at once, because a hostile keeper could send any number.
const OPEN: usize = 2_000_000;
const PERMISSIONS: u32 = 0o777;

/// Writes an archive of a file or directory to a host file.
pub(super) async fn pack(
    files: &Files,
    source: &[u8],
    target: &Path,
    fences: &[Fence],
    tally: &mut Tally,
) -> Result<()> {
    let what = |error| cannot("write", target, error);
    let (parent, name) = match Target::find(target, fences)? {
        Target::New(parent, name) => (parent, name),
        Target::Directory(_) => {
            let message = format!("{} is a directory: an archive needs a file name", target.display());
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
    };
    let mut sink = Sink::new(To::File(parent.new_file(&name, 0o666).map_err(what)?));
    pack_all(files, source, &mut sink, tally).await?;
    if let To::File(file) = sink.to {
        file.finish().map_err(what)?;
    }
    Ok(())
}

/// Writes an archive of a file or directory to a stream.
pub(super) async fn pack_stream(
    files: &Files,
    source: &[u8],
    to: impl AsyncWrite + Send + Unpin,
    title: &str,
    tally: &mut Tally,
) -> Result<()> {
    let mut to = to;
    pack_all(files, source, &mut Sink::new(To::Stream(&mut to, title)), tally).await
}

async fn pack_all(files: &Files, source: &[u8], sink: &mut Sink<'_>, tally: &mut Tally) -> Result<()> {
    // A symlink that the user named is followed. Symlinks below it are not.
    let stat = files.stat(source, true).await?;
    let name = last_name(source).unwrap_or(b".").to_vec();
    match stat.kind {
        FileKind::Directory => pack_tree(files, source, name, &stat, sink, tally).await?,
        FileKind::File => {
            let reader = files.open_sparse(source).await?;
            pack_file(reader, source, &name, &stat, sink, tally).await?;
        }
        _ => {
            let message = format!("{} is not a file or directory", String::from_utf8_lossy(source));
            return Err(Error::new(ErrorCode::Unsupported, message));
        }
    }
    sink.zeros(2 * BLOCK as u64).await?;
    sink.finish().await
}

/// A directory whose entries are being written.
struct Level {
    path: Vec<u8>,
    name: Vec<u8>,
    entries: std::vec::IntoIter<DirEntry>,
}

async fn pack_tree(
    files: &Files,
    path: &[u8],
    name: Vec<u8>,
    stat: &FileStat,
    sink: &mut Sink<'_>,
    tally: &mut Tally,
) -> Result<()> {
    let entries = files.list(path).await?.into_iter();
    sink.write(&head(&directory(&name), EntryType::Directory, stat, 0, b"")).await?;
    let mut levels = vec![Level { path: path.to_vec(), name, entries }];
    while let Some(level) = levels.last_mut() {
        let Some(DirEntry { name, stat }) = level.entries.next() else {
            levels.pop();
            continue;
        };
        if let Err(error) = checked(&name) {
            tally.skip(&join(&level.path, &name), &error.to_string());
            continue;
        }
        let (path, name) = (join(&level.path, &name), join(&level.name, &name));
        match stat.kind {
            FileKind::Directory => match files.list(&path).await {
                Ok(entries) => {
                    sink.write(&head(&directory(&name), EntryType::Directory, &stat, 0, b"")).await?;
                    levels.push(Level { path, name, entries: entries.into_iter() });
                    if levels.iter().map(|level| level.entries.len()).sum::<usize>() > OPEN {
                        let message = format!("more than {OPEN} entries in nested directories");
                        return Err(Error::limit(LimitReason::TooLarge, message));
                    }
                }
                Err(error) if is_about_the_file(&error) => tally.skip(&path, &error.to_string()),
                Err(error) => return Err(error),
            },
            // The file is opened before its header is written, so a file that cannot be read is not in the archive.
            FileKind::File => match files.open_sparse(&path).await {
                Ok(reader) => pack_file(reader, &path, &name, &stat, sink, tally).await?,
                Err(error) if is_about_the_file(&error) => tally.skip(&path, &error.to_string()),
                Err(error) => return Err(error),
            },
            FileKind::Symlink => match stat.target.as_deref() {
                Some(text) if !text.is_empty() && !text.contains(&0) => {
                    sink.write(&head(&name, EntryType::Symlink, &stat, 0, text)).await?;
                    tally.file();
                }
                _ => tally.skip(&path, "it is a symlink without a target"),
            },
            FileKind::Other => tally.skip(&path, "it is a FIFO, socket or device"),
        }
    }
    Ok(())
}

/// Writes one file. If there are more bytes than its size, it grew.
async fn pack_file(
    mut reader: SparseReader,
    path: &[u8],
    name: &[u8],
    stat: &FileStat,
    sink: &mut Sink<'_>,
    tally: &mut Tally,
) -> Result<()> {
    if i64::try_from(stat.size).is_err() {
        tally.skip(path, "its size is not valid");
        return Ok(());
    }
    sink.write(&head(name, EntryType::Regular, stat, stat.size, b"")).await?;
    let mut left = stat.size;
    loop {
        match reader.piece().await {
            Ok(Some(piece)) => {
                let length = match &piece {
                    Piece::Hole(length) => *length,
                    Piece::Data(bytes) => bytes.len() as u64,
                };
                let count = left.min(length);
                match piece {
                    Piece::Hole(_) => sink.hole(count).await?,
                    Piece::Data(mut bytes) => {
                        bytes.truncate(count as usize);
                        sink.pass(bytes).await?;
                        tally.copied(count as usize);
                    }
                }
                left -= count;
                if count < length {
                    tally.incomplete(path, "it grew while it was read, and its end is missing in the archive");
                    break;
                }
            }
            Ok(None) => {
                if left > 0 {
                    tally.incomplete(path, "it shrank while it was read, and has zeros at its end in the archive");
                }
                break;
            }
            Err(error) if is_about_the_file(&error) => {
                tally.incomplete(path, &error.to_string());
                break;
            }
            Err(error) => return Err(error),
        }
    }
    sink.hole(left).await?;
    sink.zeros(filling(stat.size)).await?;
    tally.file();
    Ok(())
}

/// Returns the name of a directory in an archive.
fn directory(name: &[u8]) -> Vec<u8> {
    [name, b"/"].concat()
}

/// Returns the header of an entry. A name or symlink text that is too long for it comes before, in the format of GNU
/// tar, which every other program reads too, and which allows any bytes.
pub(super) fn head(name: &[u8], kind: EntryType, stat: &FileStat, size: u64, link: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK);
    let mut header = Header::new_gnu();
    put(&mut out, EntryType::GNULongLink, link, &mut header.as_old_mut().linkname);
    put(&mut out, EntryType::GNULongName, name, &mut header.as_old_mut().name);
    header.set_entry_type(kind);
    header.set_mode(stat.mode & PERMISSIONS);
    header.set_uid(stat.uid.into());
    header.set_gid(stat.gid.into());
    header.set_mtime(stat.modified_ms.div_euclid(1000).try_into().unwrap_or(0));
    header.set_size(size);
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    out
}

/// Writes text to its field. If the field is too short, the whole text is also written before the header.
fn put(out: &mut Vec<u8>, kind: EntryType, text: &[u8], field: &mut [u8; 100]) {
    let fits = text.len().min(field.len());
    field[..fits].copy_from_slice(&text[..fits]);
    if text.len() > field.len() {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..13].copy_from_slice(b"././@LongLink");
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(text.len() as u64 + 1);
        header.set_cksum();
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(text);
        out.push(0);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
}

/// The maximum number of bytes of holes in a stream, for all files together.
const HOLES: u64 = 1 << 30;

/// The size of the buffer, so that headers are not written one by one.
const FULL: usize = 64 * 1024;

/// The destination of an archive.
struct Sink<'a> {
    to: To<'a>,
    buffer: Vec<u8>,
    /// Bytes of holes that were written to a stream.
    holes: u64,
}

enum To<'a> {
    /// A stream, and what errors call it.
    Stream(&'a mut (dyn AsyncWrite + Send + Unpin), &'a str),
    File(NewFile<'a>),
}

impl<'a> Sink<'a> {
    fn new(to: To<'a>) -> Self {
        Self { to, buffer: Vec::new(), holes: 0 }
    }

    /// Writes a large piece without copying it to the buffer.
    async fn pass(&mut self, bytes: Vec<u8>) -> Result<()> {
        if bytes.len() < FULL / 4 {
            return self.write(&bytes).await;
        }
        self.flush().await?;
        self.send(bytes).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < FULL { Ok(()) } else { self.flush().await }
    }

    async fn zeros(&mut self, mut count: u64) -> Result<()> {
        const ZEROS: [u8; 16 * BLOCK] = [0; 16 * BLOCK];
        while count > 0 {
            let now = count.min(ZEROS.len() as u64);
            self.write(&ZEROS[..now as usize]).await?;
            count -= now;
        }
        Ok(())
    }

    /// Writes zeros for a hole of a file, or for its missing end. An archive that is a file gets a hole too. A stream
    /// gets all zeros, up to a limit, because their number comes from inside.
    async fn hole(&mut self, length: u64) -> Result<()> {
        if length < FULL as u64 {
            return self.zeros(length).await;
        }
        self.flush().await?;
        match &mut self.to {
            To::File(new) => {
                // At least the end of the archive is written after it, so the file gets its size.
                let forward = i64::try_from(length).unwrap_or(i64::MAX);
                new.file.seek(SeekFrom::Current(forward)).map_err(|error| Error::io("write the archive", error))?;
                Ok(())
            }
            To::Stream(..) => {
                self.holes = self.holes.saturating_add(length);
                if self.holes > HOLES {
                    let message = format!(
                        "files have more than {} of holes, which a stream has to write as zeros",
                        format_bytes(HOLES)
                    );
                    return Err(Error::limit(LimitReason::TooLarge, message).suggest(NextStep::ArchiveToFile));
                }
                self.zeros(length).await
            }
        }
    }

    async fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.buffer);
        self.send(bytes).await
    }

    /// Writes everything that is still buffered.
    async fn finish(&mut self) -> Result<()> {
        self.flush().await?;
        if let To::Stream(to, title) = &mut self.to {
            to.flush().await.map_err(|error| Error::io(format!("write to {title}"), error))?;
        }
        Ok(())
    }

    async fn send(&mut self, bytes: Vec<u8>) -> Result<()> {
        match &mut self.to {
            To::File(new) => new.file.write_all(&bytes).map_err(|error| Error::io("write the archive", error)),
            To::Stream(to, title) => {
                to.write_all(&bytes).await.map_err(|error| Error::io(format!("write to {title}"), error))
            }
        }
    }
}
