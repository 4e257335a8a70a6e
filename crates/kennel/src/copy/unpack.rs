//! A tar archive, unpacked inside.
//!
//! The archive may be anyone's. Nothing of it goes outside the directory it is unpacked in: `..` is refused, and so is
//! an entry behind a link that the archive itself has made. Links that were inside before are the sandbox's own, and are
//! followed there as in every copy. What owners and times the archive names is not kept: the file calls cannot set them.

use super::archive::{Archive, Entry, Kind, STANDARD_INPUT};
use super::streams::{Counted, FromInside, Plain};
use super::{Inside, Tally, cannot, join};
use crate::input::{self, Input};
use kennel_core::{Error, Fence, HostPath, LastLink, Result, WriteOptions};
use kennel_proto::caps;
use kennel_types::{ErrorCode, FileKind};
use rustix::fs::OFlags;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;

/// Links, and directories that may not be written to, that an archive may have.
const REMEMBERED: usize = 1_000_000;

/// Unpacks an archive, a file here or our standard input, in a directory inside. `typed` is what the user calls that.
pub(crate) async fn unpack(
    inside: &Inside,
    source: Option<&Path>,
    target: &[u8],
    typed: &OsStr,
    fences: &[Fence],
    tally: &mut Tally,
) -> Result<()> {
    let mut archive = open(source, typed.display().to_string(), fences).await?;
    // Something that is no archive leaves nothing.
    let mut next = archive.next().await?;
    inside.files.mkdir(target, true).await?;
    let mut unpacking = Unpacking { inside, target, links: HashSet::new(), closed: Vec::new(), tally };
    while let Some(entry) = next {
        unpacking.entry(&mut archive, entry).await?;
        next = archive.next().await?;
    }
    archive.drain().await?;
    // What is below first: a closed directory may not even be looked into.
    let mut closed = unpacking.closed;
    closed.sort_unstable_by(|a, b| b.cmp(a));
    inside.set_modes(&closed).await
}

async fn open(source: Option<&Path>, target: String, fences: &[Fence]) -> Result<Archive> {
    let Some(path) = source else {
        if input::kind() == input::Kind::Terminal {
            let message = "standard input is a terminal, not an archive";
            return Err(
                Error::new(ErrorCode::InvalidConfig, message).hint(format!("tar c . | kennel cp --archive - {target}"))
            );
        }
        return Ok(Archive::new(Box::new(Input::open()), STANDARD_INPUT.to_owned(), target));
    };
    let what = |error| cannot("read", path, error);
    let title = path.display().to_string();
    let resolved = HostPath::resolve(path, fences, LastLink::Follow).map_err(what)?;
    // A FIFO is waited for.
    let opened = tokio::task::spawn_blocking(move || {
        let file = File::from(resolved.open(OFlags::RDONLY)?);
        let meta = file.metadata()?;
        std::io::Result::Ok((file, meta))
    });
    let (file, meta) = opened.await.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(what)?;
    if meta.is_dir() {
        let hint = format!("kennel cp {title} {target}");
        return Err(Error::new(ErrorCode::InvalidConfig, format!("{title} is a directory, not an archive")).hint(hint));
    }
    Ok(Archive::new(if meta.is_file() { Box::new(Plain(file)) } else { Box::new(Input::of(file)) }, title, target))
}

struct Unpacking<'a> {
    inside: &'a Inside,
    target: &'a [u8],
    /// Links that this archive has made.
    links: HashSet<Vec<u8>>,
    /// Directories that get their permissions last, because nothing could be put into them then.
    closed: Vec<(Vec<u8>, u32)>,
    tally: &'a mut Tally,
}

impl Unpacking<'_> {
    async fn entry(&mut self, archive: &mut Archive, entry: Entry) -> Result<()> {
        let Entry { name, kind, mode } = entry;
        if let Kind::Other(why) = kind {
            self.tally.leave_out(&name, why);
            return Ok(());
        }
        let relative = self.judge(&name).map_err(|why| refused(&name, &why))?;
        if relative.is_empty() {
            // The directory itself. It is the user's choice, and stays as it is.
            return if kind == Kind::Directory { Ok(()) } else { Err(refused(&name, "it has no name")) };
        }
        let path = join(self.target, &relative);
        if path.len() >= caps::PATH {
            return Err(refused(&name, "its path is too long"));
        }
        if self.links.remove(&relative) {
            // What comes later takes its place, and does not go to where it points.
            match self.inside.files.remove(&path, false).await {
                Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
                _ => {}
            }
        }
        match kind {
            Kind::File => {
                let content = Counted { from: archive.content(), tally: self.tally };
                let written = self.inside.files.write_from(&path, content, options(mode)).await;
                written.map_err(|error| archive.cut().unwrap_or(error))?;
                self.tally.files += 1;
            }
            Kind::Directory => self.directory(path, mode).await?,
            Kind::Symlink(text) => self.link(relative, &text, &path).await?,
            Kind::HardLink(first) => {
                let hard = format!("it is a hard link to {}", String::from_utf8_lossy(&first));
                let first = self.judge(&first).map_err(|why| refused(&name, &format!("{hard}, and {why}")))?;
                self.again(&first, relative, &path, mode)
                    .await?
                    .map_err(|why| refused(&name, &format!("{hard}{why}")))?;
            }
            Kind::Other(_) => {}
        }
        Ok(())
    }

    /// The path below the directory that a name of the archive means, empty for the directory itself; or what is wrong
    /// with it.
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
                self.closed.push((path, mode));
                self.remembers()
            }
            // One that was there keeps its permissions.
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
                self.tally.files += 1;
                self.links.insert(relative);
            }
            Err(why) => self.tally.leave_out(path, &why),
        }
        self.remembers()
    }

    /// A hard link: the same content again. Answers what is wrong with it, if it cannot be.
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
                files.write_from(path, Counted { from, tally: self.tally }, options(mode)).await?;
                self.tally.files += 1;
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
        Err(Error::new(ErrorCode::LimitExceeded, message))
    }
}

fn options(mode: u32) -> WriteOptions {
    WriteOptions { mode: Some(mode), parents: true }
}

fn refused(name: &[u8], why: &str) -> Error {
    let message = format!("{} is refused: {why}", String::from_utf8_lossy(name));
    Error::new(ErrorCode::InvalidConfig, message)
}

/// What a path is in.
fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => &path[..at.max(1)],
        None => b".",
    }
}
