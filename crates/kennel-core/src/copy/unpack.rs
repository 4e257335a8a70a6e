//! Unpacks a tar archive inside.
//!
//! The archive is not trusted. Nothing in it gets outside the directory it is unpacked in: `..` is refused, and so is an
//! entry behind a symlink of the same archive. Symlinks that existed before belong to the sandbox, and are followed
//! inside, as in every copy. Owners and times are ignored, because the file requests cannot set them.

use super::archive::{Archive, Entry, EntryKind};
use super::streams::{Counted, FromInside, PipeReader, Plain};
use super::{Inside, Tally, cannot, join};
use crate::{Error, Fence, HostPath, LastLink, Result, WriteOptions};
use kennel_proto::caps;
use kennel_types::{ErrorCode, FileKind, LimitReason, NextStep};
use rustix::fs::OFlags;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use tokio::io::AsyncRead;

/// The maximum number of symlinks and closed directories in an archive. They are held in memory.
const REMEMBERED: usize = 1_000_000;

/// Unpacks an archive in a directory inside.
pub(super) async fn unpack(inside: &Inside, mut archive: Archive, target: &[u8], tally: &mut Tally) -> Result<()> {
    // If this is no archive, nothing is created.
    let mut next = archive.next().await?;
    inside.files.mkdir(target, true).await?;
    let mut unpacking = Unpacking { inside, target, links: HashSet::new(), closed: HashMap::new(), tally };
    while let Some(entry) = next {
        unpacking.entry(&mut archive, entry).await?;
        next = archive.next().await?;
    }
    archive.drain().await?;
    // The deepest first: a closed directory may not even be searched.
    let mut closed: Vec<(Vec<u8>, u32)> = unpacking.closed.into_iter().collect();
    closed.sort_unstable_by(|a, b| b.cmp(a));
    inside.set_modes(&closed).await
}

/// Opens an archive that the user named, a file or FIFO. `target` is what the user calls the place inside.
pub(super) async fn open(path: &Path, target: &str, fences: &[Fence]) -> Result<Archive> {
    let what = |error| cannot("read", path, error);
    let title = path.display().to_string();
    let resolved = HostPath::resolve(path, fences, LastLink::Follow).map_err(what)?;
    // Opening a FIFO blocks until it has a writer.
    let opened = tokio::task::spawn_blocking(move || {
        let file = File::from(resolved.open(OFlags::RDONLY)?);
        let meta = file.metadata()?;
        std::io::Result::Ok((file, meta))
    });
    let (file, meta) = opened.await.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(what)?;
    if meta.is_dir() {
        let message = format!("{title} is a directory, not an archive");
        let step = NextStep::CopyDirectory { from: title, to: target.to_owned() };
        return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(step));
    }
    let from: Box<dyn AsyncRead + Send + Unpin> =
        if meta.is_file() { Box::new(Plain(file)) } else { Box::new(PipeReader::new(file)) };
    Ok(Archive::new(from, title.clone(), Some(title), target.to_owned()))
}

struct Unpacking<'a> {
    inside: &'a Inside,
    target: &'a [u8],
    /// Symlinks that came from this archive.
    links: HashSet<Vec<u8>>,
    /// Directories that their owner may not write to. They get their permissions last.
    closed: HashMap<Vec<u8>, u32>,
    tally: &'a mut Tally,
}

impl Unpacking<'_> {
    async fn entry(&mut self, archive: &mut Archive, entry: Entry) -> Result<()> {
        let Entry { name, kind, mode } = entry;
        if let EntryKind::Other(why) = kind {
            self.tally.skip(&name, why);
            return Ok(());
        }
        let relative = self.judge(&name).map_err(|why| refused(&name, &why))?;
        if relative.is_empty() {
            // The target directory itself, which the user chose. It stays as it is.
            return if kind == EntryKind::Directory { Ok(()) } else { Err(refused(&name, "it has no name")) };
        }
        let path = join(self.target, &relative);
        if path.len() >= caps::PATH {
            return Err(refused(&name, "its path is too long"));
        }
        if self.links.remove(&relative) {
            // A later entry replaces the symlink, and is not written to its target.
            match self.inside.files.remove(&path, false).await {
                Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
                _ => {}
            }
        }
        match kind {
            EntryKind::File => {
                let content = Counted { from: archive.content(), tell: |count| self.tally.copied(count) };
                let written = self.inside.files.write_from(&path, content, options(mode)).await;
                written.map_err(|error| archive.cut().unwrap_or(error))?;
                self.tally.file();
            }
            EntryKind::Directory => self.directory(path, mode).await?,
            EntryKind::Symlink(text) => self.link(relative, &text, &path).await?,
            EntryKind::HardLink(first) => {
                let hard = format!("it is a hard link to {}", String::from_utf8_lossy(&first));
                let first = self.judge(&first).map_err(|why| refused(&name, &format!("{hard}, and {why}")))?;
                self.again(&first, relative, &path, mode)
                    .await?
                    .map_err(|why| refused(&name, &format!("{hard}{why}")))?;
            }
            EntryKind::Other(_) => {}
        }
        Ok(())
    }

    /// Returns the path below the target directory for a name of the archive; it is empty for the directory itself. If
    /// the name is refused, returns the reason.
    fn judge(&self, name: &[u8]) -> Result<Vec<u8>, String> {
        let mut path = Vec::new();
        for part in name.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            if part == b".." {
                return Err("its path contains ..".into());
            }
            if part.contains(&0) {
                return Err("it is not a file name".into());
            }
            if self.links.contains(&path) {
                let link = String::from_utf8_lossy(&path);
                return Err(format!("its path goes through {link}, a symlink of the archive"));
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part);
        }
        Ok(path)
    }

    async fn directory(&mut self, path: Vec<u8>, mode: u32) -> Result<()> {
        const OPEN: u32 = 0o700;
        let files = &self.inside.files;
        let mut made = files.make_dir(&path, mode | OPEN).await;
        if made.as_ref().is_err_and(|error| error.code() == ErrorCode::NotFound) {
            files.mkdir(parent(&path), true).await?;
            made = files.make_dir(&path, mode | OPEN).await;
        }
        match made {
            Ok(()) if mode & OPEN != OPEN => {
                self.closed.insert(path, mode);
                self.remembers()
            }
            // An existing directory keeps its permissions.
            Err(error) if error.code() == ErrorCode::AlreadyExists && self.inside.is_dir(&path).await? => Ok(()),
            done => done,
        }
    }

    async fn link(&mut self, relative: Vec<u8>, text: &[u8], path: &[u8]) -> Result<()> {
        if text.contains(&0) {
            return Err(refused(&relative, "its link target contains a zero byte"));
        }
        self.inside.files.mkdir(parent(path), true).await?;
        match self.inside.make_link(text, path).await? {
            Ok(()) => {
                self.tally.file();
                // It may have replaced an empty directory, whose permissions its target must not get.
                self.closed.remove(path);
                self.links.insert(relative);
            }
            Err(why) => self.tally.skip(path, &why),
        }
        self.remembers()
    }

    /// Copies the content of an earlier entry, for a hard link. If this is not possible, returns the reason.
    async fn again(&mut self, first: &[u8], relative: Vec<u8>, path: &[u8], mode: u32) -> Result<Result<(), &str>> {
        let from = join(self.target, first);
        let files = &self.inside.files;
        let stat = match files.stat(&from, false).await {
            Ok(stat) => stat,
            Err(error) if error.code() == ErrorCode::NotFound => return Ok(Err(", which is not there yet")),
            Err(error) => return Err(error),
        };
        match (stat.kind, stat.target) {
            (FileKind::File, _) if from == path => {}
            (FileKind::File, _) => {
                let from = FromInside::new(files.open(&from, 0, None).await?);
                files.write_from(path, Counted { from, tell: |count| self.tally.copied(count) }, options(mode)).await?;
                self.tally.file();
            }
            (FileKind::Symlink, Some(text)) => self.link(relative, &text, path).await?,
            _ => return Ok(Err(", which is not a file")),
        }
        Ok(Ok(()))
    }

    fn remembers(&self) -> Result<()> {
        if self.links.len() + self.closed.len() <= REMEMBERED {
            return Ok(());
        }
        let message = format!("the archive has more than {REMEMBERED} links or closed directories");
        Err(Error::limit(LimitReason::TooLarge, message))
    }
}

fn options(mode: u32) -> WriteOptions {
    WriteOptions { mode: Some(mode), parents: true }
}

fn refused(name: &[u8], why: &str) -> Error {
    let message = format!("{} is refused: {why}", String::from_utf8_lossy(name));
    Error::new(ErrorCode::InvalidConfig, message)
}

/// Returns the parent directory of a path.
fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => &path[..at.max(1)],
        None => b".",
    }
}
