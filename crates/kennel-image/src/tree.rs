//! Writes a layer's files to disk, one entry at a time, and never outside the layer's directory.
//!
//! Entries come from archives that anyone may have made. The kernel resolves every path with the layer's directory as
//! root, so symlinks cannot lead out of it. The last component of a path is never followed. An existing entry is
//! removed first, and new files are created with `O_EXCL`. No other process uses the directory meanwhile.

use crate::error::{Error, Result, shown, unreadable, unsound};
use crate::limits::Limits;
use crate::store::StoreOwner;
use kennel_types::LimitReason;
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

/// The prefix of a whiteout: a file that marks another as removed.
const WHITEOUT: &[u8] = b".wh.";
/// The prefix of other marks.
const MARK: &[u8] = b".wh..wh.";
/// The mark that hides everything that lower layers have in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Bytes in the longest file name.
const NAME: usize = 255;
/// The memory for directory times that are set at the end, in bytes of their paths.
const REMEMBERED: usize = 64 << 20;
/// The permissions that a directory needs so that its owner can remove its content.
const OWN: u32 = 0o700;

/// One entry of an archive.
pub(crate) struct Entry<'a> {
    /// The name in the archive.
    pub(crate) name: &'a [u8],
    pub(crate) what: What,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Timespec,
    /// All extended attributes of the entry.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The type of an entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A file with this number of bytes.
    File(u64),
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    Fifo,
    Device,
}

/// A layer that is being written to disk.
pub(crate) struct Tree<'a> {
    root: Root,
    /// The real path of the directory.
    path: PathBuf,
    owner: StoreOwner,
    limits: &'a Limits,
    /// Whether the archive can contain whiteouts: layers can, plain filesystems cannot.
    marks: bool,
    /// The directory that was used last.
    open: Option<(Vec<u8>, OwnedFd)>,
    /// The times of directories. They are set at the end, because adding an entry changes them.
    times: BTreeMap<Vec<u8>, Timespec>,
    remembered: usize,
    /// The number of devices that were left out.
    pub(crate) left_out: u64,
}

impl<'a> Tree<'a> {
    /// Creates a tree in an empty directory.
    pub(crate) fn new(path: &Path, owner: StoreOwner, limits: &'a Limits, marks: bool) -> Result<Self> {
        let what = |error| Error::io(format!("open {}", path.display()), error);
        let fd = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| what(error.into()))?;
        let path = path.canonicalize().map_err(what)?;
        // The usual permissions, in case the layer has no entry for its root.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755)).map_err(|error| what(error.into()))?;
        let root = Root::from_fd(fd);
        Ok(Self { root, path, owner, limits, marks, open: None, times: BTreeMap::new(), remembered: 0, left_out: 0 })
    }

    /// Adds an entry. `content` is that of a file; `count` is called with the size of each piece.
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
                let owner = self.owner;
                return mark_opaque(self.dir(parent)?, owner);
            }
            // Marks of very old filesystems, which have no use.
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
                let owner = self.owner;
                let dir = self.dir(parent)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = File::from(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?);
                copy(content, &file, *size, count)?;
                dress(file.as_fd(), entry, owner, entry.mode)?;
                Ok(rustix::fs::futimens(&file, &modified(entry.modified))?)
            }
            What::Symlink(target) => {
                if target.is_empty() || target.len() > self.limits.path || target.contains(&0) {
                    return Err("its link target is not a valid path".into());
                }
                self.make_way(path, parent, name)?;
                let owner = self.owner;
                let dir = self.dir(parent)?;
                rustix::fs::symlinkat(OsStr::from_bytes(target), dir, name)?;
                dress_name(dir, name, entry, owner)
            }
            What::Fifo => {
                self.make_way(path, parent, name)?;
                let owner = self.owner;
                let dir = self.dir(parent)?;
                rustix::fs::mknodat(dir, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
                dress_name(dir, name, entry, owner)?;
                // It was just created and is not a symlink.
                Ok(rustix::fs::chmodat(dir, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())?)
            }
            What::HardLink(target) => self.hard_link(target, path, parent, name),
        }
    }

    /// Sets the times of directories, after all entries were added.
    pub(crate) fn finish(mut self) -> Result<u64> {
        for (path, time) in std::mem::take(&mut self.times).into_iter().rev() {
            let (parent, name) = split(&path);
            let set = if path.is_empty() {
                rustix::fs::futimens(&self.root, &modified(time)).map_err(Fault::from)
            } else {
                self.dir(parent)
                    .and_then(|dir| Ok(rustix::fs::utimensat(dir, name, &modified(time), AtFlags::SYMLINK_NOFOLLOW)?))
            };
            set.map_err(|fault| fault.into_error(&path))?;
        }
        Ok(self.left_out)
    }

    fn dress_root(&mut self, entry: &Entry<'_>) -> Result<(), Fault> {
        dress(self.root.as_fd(), entry, self.owner, self.directory_mode(entry))?;
        self.remember(b"", entry.modified)
    }

    /// In the store of an ordinary user, adds permissions so that the directory can be removed again.
    fn directory_mode(&self, entry: &Entry<'_>) -> u32 {
        if self.owner == StoreOwner::User { entry.mode | OWN } else { entry.mode }
    }

    fn directory(&mut self, entry: &Entry<'_>, path: &[u8], parent: &[u8], name: &OsName) -> Result<(), Fault> {
        let mode = self.directory_mode(entry);
        let owner = self.owner;
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
            // The directory of this name in lower layers was removed; this is a new one.
            mark_opaque(made.as_fd(), owner)?;
        }
        dress(made.as_fd(), entry, owner, mode)?;
        self.remember(path, entry.modified)
    }

    /// Marks an entry of a lower layer as removed.
    fn hide(&mut self, parent: &[u8], name: &OsName) -> Result<(), Fault> {
        if name.is_empty() || name == b"." || name == b".." {
            return Err("it is a whiteout without a file name".into());
        }
        let owner = self.owner;
        let dir = self.dir(parent)?;
        match look(dir, name)? {
            // A whiteout concerns only lower layers. An entry of this layer stays, and hides the lower one anyway.
            Some(stat) if is(&stat, FileType::Directory) => mark_opaque(open_dir(dir, name)?.as_fd(), owner),
            Some(_) => Ok(()),
            None => Ok(rustix::fs::mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), 0)?),
        }
    }

    fn hard_link(&mut self, target: &[u8], path: &[u8], parent: &[u8], name: &OsName) -> Result<(), Fault> {
        let told = shown(target);
        let first = judge(target, self.limits).map_err(|why| format!("it is a hard link to {told}: {why}"))?;
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
            // The removed entry contained the target of the link.
            Err(Errno::NOENT) => Err(out()),
            done => Ok(done?),
        }
    }

    /// Removes an existing entry at the path of a new one.
    fn make_way(&mut self, path: &[u8], parent: &[u8], name: &OsName) -> Result<(), Fault> {
        let dir = self.dir(parent)?;
        let Some(stat) = look(dir, name)? else { return Ok(()) };
        if !is(&stat, FileType::Directory) {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
            // If it was a symlink, the open directory may have been reached through it.
            self.open = None;
            return Ok(());
        }
        let real = real_path(dir)?;
        if !real.starts_with(&self.path) {
            return Err("it is outside the layer".into());
        }
        std::fs::remove_dir_all(real.join(OsStr::from_bytes(name)))?;
        self.open = None;
        self.times
            .retain(|known, _| !(known == path || (known.starts_with(path) && known.get(path.len()) == Some(&b'/'))));
        Ok(())
    }

    /// Returns a directory of the layer, and creates it if necessary.
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
            None => Err("its directory was not opened".into()),
        }
    }

    /// Returns an existing directory of the layer.
    fn resolve(&self, path: &[u8]) -> Result<OwnedFd, Fault> {
        if path.is_empty() {
            return Ok(self.root.as_fd().try_clone_to_owned()?);
        }
        let path = OsStr::from_bytes(path);
        let strict = self.root.as_ref().with_resolver_flags(ResolverFlags::NO_SYMLINKS).resolve(path).map_err(system);
        match strict {
            Ok(dir) => directory(dir),
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                // The path contains a symlink. Its target is in the layer, but may be deeper than the path suggests.
                let dir = directory(self.root.resolve(path).map_err(system)?)?;
                let real = real_path(dir.as_fd())?;
                let inside = real.strip_prefix(&self.path).map_err(|_| Fault::from("it leads out of the layer"))?;
                if inside.components().count() > self.limits.depth {
                    return Err("it is too deep".into());
                }
                Ok(dir)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the directories of a path for which there was no entry.
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
                            mark_opaque(open_dir(at.as_fd(), name)?.as_fd(), self.owner)?;
                        }
                        Some(stat) if is(&stat, FileType::Symlink) => {
                            return Err(format!(
                                "its path contains {}, a symlink to a missing directory",
                                shown(so_far)
                            )
                            .into());
                        }
                        Some(_) => {
                            return Err(format!("its path contains {}, which is not a directory", shown(so_far)).into());
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
            // Count the overhead of the map, too.
            self.remembered += path.len() + 64;
        }
        if self.remembered > REMEMBERED {
            return Err(Fault::Ours(Error::limit(LimitReason::TooLarge, "a layer has too many directories")));
        }
        Ok(())
    }
}

/// A component of a path.
type OsName = [u8];

/// Why an entry was not written.
#[derive(Debug)]
enum Fault {
    /// The entry is not acceptable.
    Refused(String),
    /// The operating system returned an error.
    System(io::Error),
    /// An error that already has its own message.
    Ours(Error),
}

impl Fault {
    fn into_error(self, path: &[u8]) -> Error {
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
    unsound(format!("the entry {} is refused: {why}", shown(name)))
}

/// Returns the path in a layer for an entry's name, or what is wrong with the name. The path is empty for the root. A
/// leading slash means the layer's root.
fn judge(name: &[u8], limits: &Limits) -> Result<Vec<u8>, String> {
    let mut path = Vec::new();
    let mut depth = 0;
    for part in name.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            return Err("its path contains ..".into());
        }
        if part.contains(&0) {
            return Err("its path contains a zero byte".into());
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

/// Splits a path into its directory and its last component.
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
            Ok(0) => return Err("the archive ends before the end of its content".into()),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Fault::Ours(unreadable(&error))),
        };
        count(got as u64).map_err(Fault::Ours)?;
        to.write_all(&buffer[..got])?;
        left -= got as u64;
    }
    Ok(())
}

/// Sets the owner, permissions and attributes of a file or directory.
fn dress(file: BorrowedFd<'_>, entry: &Entry<'_>, owner: StoreOwner, mode: u32) -> Result<(), Fault> {
    if owner == StoreOwner::Root {
        rustix::fs::fchown(file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
    }
    // This comes after the owner, because changing the owner removes set-user-id bits and capabilities.
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name, owner)) {
        match rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
            // Some filesystems do not support attributes. A lost capability makes a program weaker, never stronger.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a layer may set this attribute: none that overlayfs uses, and no other of the kernel's.
fn is_kept(name: &[u8], owner: StoreOwner) -> bool {
    let of_user = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    of_user || (owner == StoreOwner::Root && name == b"security.capability")
}

/// Sets the owner and time of an entry that cannot be opened.
fn dress_name(dir: BorrowedFd<'_>, name: &OsName, entry: &Entry<'_>, owner: StoreOwner) -> Result<(), Fault> {
    if owner == StoreOwner::Root {
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(rustix::fs::utimensat(dir, name, &modified(entry.modified), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn mark_opaque(dir: BorrowedFd<'_>, owner: StoreOwner) -> Result<(), Fault> {
    let name = match owner {
        StoreOwner::Root => "trusted.overlay.opaque",
        StoreOwner::User => "user.overlay.opaque",
    };
    // A descriptor opened with O_PATH has no attributes. The path through /proc refers to the file itself.
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    rustix::fs::setxattr(path, name, b"y", XattrFlags::empty()).map_err(|error| {
        let why = io::Error::from(error);
        Fault::Ours(Error::new(
            kennel_types::ErrorCode::Unsupported,
            format!(
                "the filesystem of the image store does not support the attribute {name}, which layers need: {why}"
            ),
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

/// Devices in archives are never created, so a character device in a layer is a whiteout of Kennel.
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
