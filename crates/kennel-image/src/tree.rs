//! A layer's files as they are put on disk, one entry at a time, and never outside the layer's directory.
//!
//! Entries come from archives that anyone may have made. Every path is resolved by the kernel with the layer's directory as
//! its root, so a link in it leads nowhere else; the last part of a path is never followed; what is in the way is removed
//! first, and new files are made with `O_EXCL`. The directory is ours alone while this goes on.

use crate::error::{Error, Result, shown};
use crate::limits::Limits;
use crate::store::Kind;
use pathrs::error::ErrorKind;
use pathrs::flags::ResolverFlags;
use pathrs::{Handle, Root};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What begins the name of a mark for something that is not there any more.
const WHITEOUT: &[u8] = b".wh.";
/// What begins the names of marks with another meaning.
const MARK: &[u8] = b".wh..wh.";
/// The mark that hides all that lower layers have in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Longest name of one file.
const NAME: usize = 255;
/// Directories whose times are remembered until the end, counted in bytes of their paths.
const REMEMBERED: usize = 64 << 20;
/// What a directory needs for its owner to remove what is in it.
const OWN: u32 = 0o700;

/// One entry of an archive.
pub(crate) struct Entry<'a> {
    /// As it is in the archive.
    pub(crate) name: &'a [u8],
    pub(crate) what: What,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Timespec,
    /// Extended attributes, all that came.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What an entry is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A file of so many bytes.
    File(u64),
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    Fifo,
    Device,
}

/// A layer on its way to disk.
pub(crate) struct Tree<'a> {
    root: Root,
    /// Where it really is.
    path: PathBuf,
    kind: Kind,
    limits: &'a Limits,
    /// Whether names can be marks for what is removed: so in layers, not in plain file systems.
    marks: bool,
    /// The directory that was last used.
    open: Option<(Vec<u8>, OwnedFd)>,
    /// When directories were changed: set last, because to put something into one changes it.
    times: BTreeMap<Vec<u8>, Timespec>,
    remembered: usize,
    /// Devices that were left out.
    pub(crate) left_out: u64,
}

impl<'a> Tree<'a> {
    /// In a directory that is empty and ours.
    pub(crate) fn new(path: &Path, kind: Kind, limits: &'a Limits, marks: bool) -> Result<Self> {
        let what = |error| Error::io(format!("open {}", path.display()), error);
        let fd = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| what(error.into()))?;
        let path = path.canonicalize().map_err(what)?;
        // What the layer itself does not say about its root is as everywhere.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755)).map_err(|error| what(error.into()))?;
        let root = Root::from_fd(fd);
        Ok(Self { root, path, kind, limits, marks, open: None, times: BTreeMap::new(), remembered: 0, left_out: 0 })
    }

    /// Puts an entry where it belongs. `content` is that of a file; `count` is called with each piece of it.
    pub(crate) fn put(
        &mut self,
        entry: &Entry<'_>,
        content: &mut dyn Read,
        count: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let path = judge(entry.name, self.limits).map_err(|why| refused(entry.name, &why))?;
        self.put_at(entry, &path, content, count).map_err(|fault| match fault {
            Fault::Refused(why) => refused(entry.name, &why),
            Fault::System(error) => Error::io(format!("unpack {}", shown(entry.name)), error),
            Fault::Ours(error) => error,
        })
    }

    fn put_at(
        &mut self,
        entry: &Entry<'_>,
        path: &[u8],
        content: &mut dyn Read,
        count: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(), Fault> {
        if path.is_empty() {
            return match entry.what {
                What::Directory => self.dress_root(entry),
                _ => Err("it has no name".into()),
            };
        }
        let (parent, name) = split(path);
        if self.marks {
            if name == OPAQUE {
                let kind = self.kind;
                return mark_opaque(self.dir(parent)?, kind);
            }
            // Of file systems of long ago, and of no use.
            if path.split(|&byte| byte == b'/').any(|part| part.starts_with(MARK)) {
                return Ok(());
            }
            if let Some(hidden) = name.strip_prefix(WHITEOUT) {
                return self.hide(parent, hidden);
            }
        }
        match &entry.what {
            What::Device => {
                self.left_out += 1;
                Ok(())
            }
            What::Directory => self.directory(entry, path, parent, name),
            What::File(size) => {
                self.make_way(path, parent, name)?;
                let kind = self.kind;
                let dir = self.dir(parent)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = File::from(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?);
                copy(content, &file, *size, count)?;
                dress(file.as_fd(), entry, kind, entry.mode)?;
                Ok(rustix::fs::futimens(&file, &modified(entry.modified))?)
            }
            What::Symlink(target) => {
                if target.is_empty() || target.len() > self.limits.path || target.contains(&0) {
                    return Err("it is a link to what cannot be a path".into());
                }
                self.make_way(path, parent, name)?;
                let kind = self.kind;
                let dir = self.dir(parent)?;
                rustix::fs::symlinkat(OsStr::from_bytes(target), dir, name)?;
                dress_name(dir, name, entry, kind)
            }
            What::Fifo => {
                self.make_way(path, parent, name)?;
                let kind = self.kind;
                let dir = self.dir(parent)?;
                rustix::fs::mknodat(dir, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
                dress_name(dir, name, entry, kind)?;
                // It has just been made, and is no link.
                Ok(rustix::fs::chmodat(dir, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())?)
            }
            What::HardLink(target) => self.hard_link(target, path, parent, name),
        }
    }

    /// The times of directories, when nothing is put into them any more.
    pub(crate) fn finish(mut self) -> Result<u64> {
        for (path, time) in std::mem::take(&mut self.times).into_iter().rev() {
            let (parent, name) = split(&path);
            let set = if path.is_empty() {
                rustix::fs::futimens(&self.root, &modified(time)).map_err(Fault::from)
            } else {
                self.dir(parent)
                    .and_then(|dir| Ok(rustix::fs::utimensat(dir, name, &modified(time), AtFlags::SYMLINK_NOFOLLOW)?))
            };
            set.map_err(|fault| fault.of(&path))?;
        }
        Ok(self.left_out)
    }

    fn dress_root(&mut self, entry: &Entry<'_>) -> Result<(), Fault> {
        dress(self.root.as_fd(), entry, self.kind, self.directory_mode(entry))?;
        self.remember(b"", entry.modified)
    }

    /// As an ordinary user's, so that it can be removed again.
    fn directory_mode(&self, entry: &Entry<'_>) -> u32 {
        if self.kind == Kind::User { entry.mode | OWN } else { entry.mode }
    }

    fn directory(&mut self, entry: &Entry<'_>, path: &[u8], parent: &[u8], name: &OsName) -> Result<(), Fault> {
        let mode = self.directory_mode(entry);
        let kind = self.kind;
        let found = look(self.dir(parent)?, name)?;
        let anew = match &found {
            Some(stat) if is(stat, FileType::Directory) => false,
            Some(_) => {
                self.make_way(path, parent, name)?;
                true
            }
            None => true,
        };
        let dir = self.dir(parent)?;
        if anew {
            rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(OWN))?;
        }
        let made = open_dir(dir, name)?;
        if found.is_some_and(|stat| is_whiteout(&stat)) {
            // What was below by that name is gone; this is a new one.
            mark_opaque(made.as_fd(), kind)?;
        }
        dress(made.as_fd(), entry, kind, mode)?;
        self.remember(path, entry.modified)
    }

    /// Marks that something of a lower layer is gone.
    fn hide(&mut self, parent: &[u8], name: &OsName) -> Result<(), Fault> {
        if name.is_empty() || name == b"." || name == b".." {
            return Err("it hides nothing that could be there".into());
        }
        let kind = self.kind;
        let dir = self.dir(parent)?;
        match look(dir, name)? {
            // It speaks of lower layers only: what this one has stays, and hides what is below by itself.
            Some(stat) if is(&stat, FileType::Directory) => mark_opaque(open_dir(dir, name)?.as_fd(), kind),
            Some(_) => Ok(()),
            None => Ok(rustix::fs::mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), 0)?),
        }
    }

    fn hard_link(&mut self, target: &[u8], path: &[u8], parent: &[u8], name: &OsName) -> Result<(), Fault> {
        let told = shown(target);
        let first = judge(target, self.limits).map_err(|why| format!("it is a hard link to {told}, and {why}"))?;
        let (first_parent, first_name) = split(&first);
        let out = || Fault::from(format!("it is a hard link to {told}, which is not in the same layer"));
        if first.is_empty() {
            return Err(out());
        }
        let from = match self.resolve(first_parent) {
            Ok(from) => from,
            Err(Fault::System(_)) => return Err(out()),
            Err(other) => return Err(other),
        };
        match look(from.as_fd(), first_name)? {
            None => return Err(out()),
            Some(stat) if is_whiteout(&stat) => return Err(out()),
            Some(stat) if is(&stat, FileType::Directory) => {
                return Err(format!("it is a hard link to {told}, a directory").into());
            }
            Some(_) => {}
        }
        if first == path {
            return Ok(());
        }
        self.make_way(path, parent, name)?;
        let dir = self.dir(parent)?;
        match rustix::fs::linkat(&from, first_name, dir, name, AtFlags::empty()) {
            // What was in the way held it.
            Err(Errno::NOENT) => Err(out()),
            done => Ok(done?),
        }
    }

    /// Removes what is where something is to be put.
    fn make_way(&mut self, path: &[u8], parent: &[u8], name: &OsName) -> Result<(), Fault> {
        let dir = self.dir(parent)?;
        let Some(stat) = look(dir, name)? else { return Ok(()) };
        if !is(&stat, FileType::Directory) {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
            // Paths may have led through it, if it was a link.
            self.open = None;
            return Ok(());
        }
        let real = real_path(dir)?;
        if !real.starts_with(&self.path) {
            return Err("it is outside".into());
        }
        std::fs::remove_dir_all(real.join(OsStr::from_bytes(name)))?;
        self.open = None;
        self.times
            .retain(|known, _| !(known == path || (known.starts_with(path) && known.get(path.len()) == Some(&b'/'))));
        Ok(())
    }

    /// A directory of the layer, made if it is not there.
    fn dir(&mut self, path: &[u8]) -> Result<BorrowedFd<'_>, Fault> {
        if path.is_empty() {
            return Ok(self.root.as_fd());
        }
        if self.open.as_ref().is_none_or(|(known, _)| known != path) {
            let found = match self.resolve(path) {
                Err(Fault::System(error)) if missing(&error) => self.make_dirs(path)?,
                found => found?,
            };
            self.open = Some((path.to_vec(), found));
        }
        match &self.open {
            Some((_, dir)) => Ok(dir.as_fd()),
            None => Err("it has no directory".into()),
        }
    }

    /// A directory of the layer that is there.
    fn resolve(&self, path: &[u8]) -> Result<OwnedFd, Fault> {
        if path.is_empty() {
            return Ok(self.root.as_fd().try_clone_to_owned()?);
        }
        let path = OsStr::from_bytes(path);
        let strict = self.root.as_ref().with_resolver_flags(ResolverFlags::NO_SYMLINKS).resolve(path).map_err(system);
        match strict {
            Ok(dir) => directory(dir),
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                // Through a link. It ends in the layer, but perhaps deeper than its name says.
                let dir = directory(self.root.resolve(path).map_err(system)?)?;
                let real = real_path(dir.as_fd())?;
                let inside = real.strip_prefix(&self.path).map_err(|_| Fault::from("it leads outside"))?;
                if inside.components().count() > self.limits.depth {
                    return Err("it is too deep".into());
                }
                Ok(dir)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the directories of a path that no entry has told of.
    fn make_dirs(&mut self, path: &[u8]) -> Result<OwnedFd, Fault> {
        let mut at = self.root.as_fd().try_clone_to_owned()?;
        let ends = (0..=path.len()).filter(|&index| index == path.len() || path[index] == b'/');
        for end in ends {
            let so_far = &path[..end];
            let name = split(so_far).1;
            at = match self.resolve(so_far) {
                Err(Fault::System(error)) if missing(&error) => {
                    match look(at.as_fd(), name)? {
                        None => rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(OWN))?,
                        Some(stat) if is_whiteout(&stat) => {
                            rustix::fs::unlinkat(&at, name, AtFlags::empty())?;
                            rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(OWN))?;
                            mark_opaque(open_dir(at.as_fd(), name)?.as_fd(), self.kind)?;
                        }
                        Some(stat) if is(&stat, FileType::Symlink) => {
                            return Err(format!("it goes through {}, a link that leads nowhere", shown(so_far)).into());
                        }
                        Some(_) => {
                            return Err(format!("it goes through {}, which is no directory", shown(so_far)).into());
                        }
                    }
                    let made = open_dir(at.as_fd(), name)?;
                    rustix::fs::fchmod(&made, Mode::from_raw_mode(0o755))?;
                    made
                }
                found => found?,
            };
        }
        Ok(at)
    }

    fn remember(&mut self, path: &[u8], time: Timespec) -> Result<(), Fault> {
        if self.times.insert(path.to_vec(), time).is_none() {
            // What the map itself takes for each counts too.
            self.remembered += path.len() + 64;
        }
        if self.remembered > REMEMBERED {
            return Err(Fault::Ours(Error::too_much("a layer has too many directories")));
        }
        Ok(())
    }
}

/// A part of a path.
type OsName = [u8];

/// Why an entry was not put.
#[derive(Debug)]
enum Fault {
    /// Because of what it is.
    Refused(String),
    /// Because the system did not.
    System(io::Error),
    /// Because of something that is known by itself.
    Ours(Error),
}

impl Fault {
    fn of(self, path: &[u8]) -> Error {
        match self {
            Self::Refused(why) => refused(path, &why),
            Self::System(error) => Error::io(format!("unpack {}", shown(path)), error),
            Self::Ours(error) => error,
        }
    }
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

impl From<&str> for Fault {
    fn from(why: &str) -> Self {
        Self::Refused(why.to_owned())
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

fn refused(name: &[u8], why: &str) -> Error {
    Error::unsound(format!("the entry {} is refused: {why}", shown(name)))
}

/// The path in a layer that a name means, empty for its root; or what is wrong with it. A leading slash means the layer's
/// own root, as everywhere.
fn judge(name: &[u8], limits: &Limits) -> Result<Vec<u8>, String> {
    let mut path = Vec::new();
    let mut depth = 0;
    for part in name.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            return Err("it goes up by ..".into());
        }
        if part.contains(&0) {
            return Err("it is not a file name".into());
        }
        depth += 1;
        if part.len() > NAME || path.len() + part.len() >= limits.path || depth > limits.depth {
            return Err("its path is too long".into());
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    Ok(path)
}

/// A path's directory, and its last part.
fn split(path: &[u8]) -> (&[u8], &OsName) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn copy(from: &mut dyn Read, mut to: &File, size: u64, count: &mut dyn FnMut(u64) -> Result<()>) -> Result<(), Fault> {
    let mut buffer = vec![0; 128 * 1024];
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let got = match from.read(&mut buffer[..most]) {
            Ok(0) => return Err("the archive ends in the middle of it".into()),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Fault::Ours(Error::unreadable(&error))),
        };
        count(got as u64).map_err(Fault::Ours)?;
        to.write_all(&buffer[..got])?;
        left -= got as u64;
    }
    Ok(())
}

/// Owner, permissions and attributes of a file or directory.
fn dress(file: BorrowedFd<'_>, entry: &Entry<'_>, kind: Kind, mode: u32) -> Result<(), Fault> {
    if kind == Kind::Root {
        rustix::fs::fchown(file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
    }
    // After the owner: to change that takes set-user-id away, and capabilities.
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name, kind)) {
        match rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
            // Some file systems have none. A capability that is lost makes a program weaker, never stronger.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Attributes that a layer may set. None of those that an overlay goes by, nor of the kernel's others.
fn is_kept(name: &[u8], kind: Kind) -> bool {
    let of_user = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    of_user || (kind == Kind::Root && name == b"security.capability")
}

/// Owner and time of what cannot be opened.
fn dress_name(dir: BorrowedFd<'_>, name: &OsName, entry: &Entry<'_>, kind: Kind) -> Result<(), Fault> {
    if kind == Kind::Root {
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(rustix::fs::utimensat(dir, name, &modified(entry.modified), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn mark_opaque(dir: BorrowedFd<'_>, kind: Kind) -> Result<(), Fault> {
    let name = match kind {
        Kind::Root => "trusted.overlay.opaque",
        Kind::User => "user.overlay.opaque",
    };
    // What was opened for its path only has no attributes; the file behind it has.
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    rustix::fs::setxattr(path, name, b"y", XattrFlags::empty()).map_err(|error| {
        let why = io::Error::from(error);
        Fault::Ours(Error::new(
            kennel_types::ErrorCode::Unsupported,
            format!("the file system of the image store cannot hold {name}, which layers need: {why}"),
        ))
    })
}

fn modified(time: Timespec) -> Timestamps {
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: time }
}

fn look(dir: BorrowedFd<'_>, name: &OsName) -> Result<Option<Stat>, Fault> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

/// No device of an archive is ever made: a character device here is a mark of ours.
fn is_whiteout(stat: &Stat) -> bool {
    is(stat, FileType::CharacterDevice)
}

fn open_dir(dir: BorrowedFd<'_>, name: &OsName) -> Result<OwnedFd, Fault> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

fn directory(handle: Handle) -> Result<OwnedFd, Fault> {
    let fd = OwnedFd::from(handle);
    if is(&rustix::fs::fstat(&fd)?, FileType::Directory) { Ok(fd) } else { Err(Errno::NOTDIR.into()) }
}

fn real_path(dir: BorrowedFd<'_>) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

fn missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(code) if code == Errno::NOENT.raw_os_error() || code == Errno::NOTDIR.raw_os_error())
}

fn system(error: pathrs::error::Error) -> io::Error {
    match error.kind() {
        ErrorKind::OsError(Some(code)) => io::Error::from_raw_os_error(code),
        _ => io::Error::other(error),
    }
}
