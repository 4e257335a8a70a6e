//! File requests, carried out in a worker.

use crate::holes;
use crate::paths::{self, failure, refused};
use crate::report::{Report, try_write_all, write_all};
use crate::worker::Pipes;
use kennel_proto::{Entry, Failure, FailureKind, FileKind, Outcome, Stat};
use minicbor::Encode;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

/// Bytes per read and write.
pub(crate) const CHUNK: usize = 256 * 1024;
/// The directory depth up to which `remove` descends.
const DEPTH: usize = 256;

/// The mode bits that files can get: all but set-user-id and set-group-id.
const FILE_BITS: u32 = 0o1777;

pub(crate) type Done = Result<Outcome, Failure>;

pub(crate) fn read(path: &[u8], offset: u64, limit: Option<u64>, pipes: &Pipes) -> Done {
    let file = paths::open_file(path, OFlags::RDONLY)?;
    if offset > 0 {
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(offset)).map_err(|error| failure(path, error))?;
    }
    Report::Ready.send(&pipes.status);
    let mut left = limit.unwrap_or(u64::MAX);
    copy(path, &file, &pipes.output, &mut left)?;
    Ok(Outcome::Nothing)
}

pub(crate) fn write(path: &[u8], mode: Option<u32>, parents: bool, sparse: bool, pipes: &Pipes) -> Done {
    if parents {
        make_parents(path)?;
    }
    let path = &through_links(path)?;
    let (dir, name) = paths::parent(path)?;
    let before = match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Some(stat),
        Ok(_) => return Err(refused(path, "it is there, and is not a file")),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(failure(path, error)),
    };
    let temporary = Temporary::create(&dir, path)?;
    if sparse {
        Report::ReadySparse.send(&pipes.status);
        holes::receive(path, &pipes.input, &temporary.file)?;
    } else {
        Report::Ready.send(&pipes.status);
        copy(path, &pipes.input, &temporary.file, &mut u64::MAX.clone())?;
    }
    if rustix::io::retry_on_intr(|| rustix::io::read(&pipes.control, &mut [0; 1])) != Ok(1) {
        return Err(Failure::new(FailureKind::Other, "the write was given up"));
    }
    let bits = mode.or(before.map(|stat| stat.st_mode)).unwrap_or(0o644) & FILE_BITS;
    if let Some(stat) = before {
        // Only root can do this, and only root would change the owner by replacing the file.
        let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        let _ = rustix::fs::fchown(&temporary.file, Some(owner.0), Some(owner.1));
    }
    rustix::fs::fchmod(&temporary.file, Mode::from_raw_mode(bits)).map_err(|error| failure(path, error))?;
    temporary.rename(name).map_err(|error| failure(path, error))?;
    Ok(Outcome::Nothing)
}

/// Writes a part of a file in place. The other bytes stay.
pub(crate) fn write_at(path: &[u8], offset: u64, mode: Option<u32>, parents: bool, pipes: &Pipes) -> Done {
    if parents {
        make_parents(path)?;
    }
    let path = &through_links(path)?;
    let file = open_or_create(path, mode)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(offset)).map_err(|error| failure(path, error))?;
    Report::Ready.send(&pipes.status);
    copy(path, &pipes.input, &file, &mut u64::MAX.clone())?;
    if rustix::io::retry_on_intr(|| rustix::io::read(&pipes.control, &mut [0; 1])) != Ok(1) {
        return Err(Failure::new(FailureKind::Other, "the write was given up"));
    }
    Ok(Outcome::Nothing)
}

/// Opens a regular file for writing, and creates it if it is missing. `mode` is for an existing file too.
fn open_or_create(path: &[u8], mode: Option<u32>) -> Result<OwnedFd, Failure> {
    let (dir, name) = paths::parent(path)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (file, bits) = match rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => (file, Some(mode.unwrap_or(0o644))),
        Err(Errno::EXIST) => (paths::open_file(path, OFlags::WRONLY)?, mode),
        Err(error) => return Err(failure(path, error)),
    };
    if let Some(bits) = bits {
        let bits = Mode::from_raw_mode(bits & FILE_BITS);
        rustix::fs::fchmod(&file, bits).map_err(|error| failure(path, error))?;
    }
    Ok(file)
}

/// A temporary file next to the real one. It is removed unless it is renamed to the real name.
struct Temporary<'a> {
    dir: &'a OwnedFd,
    name: String,
    file: OwnedFd,
}

impl<'a> Temporary<'a> {
    fn create(dir: &'a OwnedFd, path: &[u8]) -> Result<Self, Failure> {
        let name = temporary_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(dir, &name, flags, Mode::from_raw_mode(0o600)).map_err(|error| failure(path, error))?;
        Ok(Self { dir, name, file })
    }

    fn rename(mut self, name: &[u8]) -> Result<(), Errno> {
        rustix::fs::renameat(self.dir, &self.name, self.dir, name)?;
        self.name.clear();
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// A name for a new entry until it is complete.
fn temporary_name() -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec;
    format!(".kennel-{}-{now}", rustix::process::getpid())
}

/// Copies until the end, or until `left` bytes were copied.
fn copy(path: &[u8], from: impl AsFd, to: impl AsFd, left: &mut u64) -> Result<(), Failure> {
    let mut buffer = vec![0; CHUNK];
    while *left > 0 {
        let most = (*left).min(CHUNK as u64) as usize;
        match rustix::io::read(&from, &mut buffer[..most]) {
            Ok(0) => break,
            Ok(count) => {
                try_write_all(&to, &buffer[..count]).map_err(|error| failure(path, error))?;
                *left -= count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(failure(path, error)),
        }
    }
    Ok(())
}

pub(crate) fn list(path: &[u8], pipes: &Pipes) -> Done {
    let dir =
        paths::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(|error| failure(path, error))?;
    Report::Ready.send(&pipes.status);
    let mut out = Vec::with_capacity(CHUNK);
    for name in names(&dir).map_err(|error| failure(path, error))? {
        // The entry may have been removed since.
        let Ok(stat) = stat_at(&dir, &name) else { continue };
        put_item(&Entry { name: name.into(), stat, unreadable: false }, &mut out);
        if out.len() > CHUNK - 16 * 1024 {
            write_all(&pipes.output, &out);
            out.clear();
        }
    }
    write_all(&pipes.output, &out);
    Ok(Outcome::Nothing)
}

/// Appends a message, preceded by its length.
pub(crate) fn put_item<T: Encode<()>>(item: &T, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    minicbor::encode(item, &mut *out).expect("writing to a Vec cannot fail");
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Returns the names in a directory, without `.` and `..`.
pub(crate) fn names(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

pub(crate) fn stat(path: &[u8], follow: bool) -> Done {
    let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
    let found = paths::open(path, flags, Mode::empty()).map_err(|error| failure(path, error))?;
    let stat = rustix::fs::fstat(&found).map_err(|error| failure(path, error))?;
    let target = || rustix::fs::readlinkat(&found, "", Vec::new()).ok().map(std::ffi::CString::into_bytes);
    Ok(Outcome::Stat(convert(&stat, target)))
}

pub(crate) fn stat_at(dir: &OwnedFd, name: &[u8]) -> Result<Stat, Errno> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(convert(&stat, || rustix::fs::readlinkat(dir, name, Vec::new()).ok().map(std::ffi::CString::into_bytes)))
}

fn convert(stat: &rustix::fs::Stat, target: impl FnOnce() -> Option<Vec<u8>>) -> Stat {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    Stat {
        kind,
        size: stat.st_size as u64,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_ms: stat.st_mtime * 1000 + stat.st_mtime_nsec as i64 / 1_000_000,
        target: if kind == FileKind::Symlink { target().map(Into::into) } else { None },
    }
}

pub(crate) fn mkdir(path: &[u8], parents: bool, mode: Option<u32>) -> Done {
    if parents {
        // This includes paths without a last component, like / or a path that ends in /.
        if is_directory(path) {
            return Ok(Outcome::Nothing);
        }
        make_parents(path)?;
    }
    let (dir, name) = paths::parent(path)?;
    if mode.is_some() {
        // Set exactly these bits, as when a file is written.
        rustix::process::umask(Mode::empty());
    }
    match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode.unwrap_or(0o755) & 0o7777)) {
        Ok(()) => Ok(Outcome::Nothing),
        Err(Errno::EXIST) if parents && is_directory(path) => Ok(Outcome::Nothing),
        Err(error) => Err(failure(path, error)),
    }
}

fn is_directory(path: &[u8]) -> bool {
    paths::open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).is_ok()
}

/// Creates all missing directories above the last component.
fn make_parents(path: &[u8]) -> Result<(), Failure> {
    for (at, _) in path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/') {
        let above = &path[..at];
        if above.ends_with(b"/") || is_directory(above) {
            continue;
        }
        let (dir, name) = paths::parent(above)?;
        match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failure(above, error)),
        }
    }
    Ok(())
}

/// Resolves symlinks in the last component, so that a write goes to the symlink's target.
fn through_links(path: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut path = path.to_vec();
    for _ in 0..40 {
        let (dir, name) = paths::parent(&path)?;
        let Ok(target) = rustix::fs::readlinkat(&dir, name, Vec::new()) else { return Ok(path) };
        // A symlink below /proc may be a magic link, whose text has no meaning.
        if rustix::fs::fstatfs(&dir).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC) {
            return Err(failure(&path, Errno::LOOP));
        }
        let target = target.into_bytes();
        path = if target.starts_with(b"/") {
            target
        } else {
            let end = path.len() - name.len();
            [&path[..end], &target].concat()
        };
    }
    Err(failure(&path, Errno::LOOP))
}

pub(crate) fn rename(from: &[u8], to: &[u8], replace: bool) -> Done {
    let (from_dir, from_name) = paths::parent(from)?;
    let (to_dir, to_name) = paths::parent(to)?;
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(&from_dir, from_name, &to_dir, to_name, flags) {
        Ok(()) => Ok(Outcome::Nothing),
        Err(Errno::XDEV) => move_across(from, to, replace),
        Err(Errno::EXIST | Errno::NOTEMPTY) => Err(failure(to, Errno::EXIST)),
        Err(error) => Err(failure(from, error)),
    }
}

/// Moves a file to another filesystem: copies it under another name, renames the copy, and removes the original.
fn move_across(from: &[u8], to: &[u8], replace: bool) -> Done {
    let source = paths::open_file(from, OFlags::RDONLY)?;
    let bits = rustix::fs::fstat(&source).map_err(|error| failure(from, error))?.st_mode & FILE_BITS;
    let (to_dir, to_name) = paths::parent(to)?;
    if !replace && rustix::fs::statat(&to_dir, to_name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(failure(to, Errno::EXIST));
    }
    let temporary = Temporary::create(&to_dir, to)?;
    copy(from, &source, &temporary.file, &mut u64::MAX.clone())?;
    rustix::fs::fchmod(&temporary.file, Mode::from_raw_mode(bits)).map_err(|error| failure(to, error))?;
    temporary.rename(to_name).map_err(|error| failure(to, error))?;
    let (from_dir, from_name) = paths::parent(from)?;
    rustix::fs::unlinkat(&from_dir, from_name, AtFlags::empty()).map_err(|error| failure(from, error))?;
    Ok(Outcome::Nothing)
}

pub(crate) fn symlink(path: &[u8], target: &[u8], replace: bool) -> Done {
    let (dir, name) = paths::parent(path)?;
    match rustix::fs::symlinkat(target, &dir, name) {
        Ok(()) => return Ok(Outcome::Nothing),
        Err(Errno::EXIST) if replace => {}
        Err(error) => return Err(failure(path, error)),
    }
    let temporary = temporary_name();
    rustix::fs::symlinkat(target, &dir, &temporary).map_err(|error| failure(path, error))?;
    match rustix::fs::renameat(&dir, &temporary, &dir, name) {
        Ok(()) => Ok(Outcome::Nothing),
        Err(error) => {
            let _ = rustix::fs::unlinkat(&dir, &temporary, AtFlags::empty());
            Err(failure(path, if error == Errno::ISDIR { Errno::EXIST } else { error }))
        }
    }
}

pub(crate) fn chmod(path: &[u8], mode: u32, follow: bool) -> Done {
    let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
    let found = paths::open(path, flags, Mode::empty()).map_err(|error| failure(path, error))?;
    let stat = rustix::fs::fstat(&found).map_err(|error| failure(path, error))?;
    let bits = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => mode & FILE_BITS,
        FileType::Directory => mode & 0o7777,
        FileType::Symlink => return Err(refused(path, "it is a symlink, which is not followed")),
        _ => return Err(refused(path, "it is not a file or directory")),
    };
    // The descriptor was opened without the right to read, so that the kernel checks only who owns the file. `fchmod`
    // does not accept such a descriptor; its name in /proc refers to the same file, whatever happens to the path.
    let proc = paths::proc()?;
    let name = format!("self/fd/{}", found.as_raw_fd());
    rustix::fs::chmodat(&proc, name, Mode::from_raw_mode(bits), AtFlags::empty())
        .map_err(|error| failure(path, error))?;
    Ok(Outcome::Nothing)
}

pub(crate) fn remove(path: &[u8], recursive: bool) -> Done {
    let (dir, name) = paths::parent(path)?;
    remove_at(&dir, name, recursive, 0).map_err(|error| failure(path, error))?;
    Ok(Outcome::Nothing)
}

fn remove_at(dir: &OwnedFd, name: &[u8], recursive: bool, depth: usize) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return done,
    }
    if recursive {
        if depth == DEPTH {
            return Err(Errno::MFILE);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inner = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        for name in names(&inner)? {
            match remove_at(&inner, &name, true, depth + 1) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
    }
    rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_proto::FailureKind;

    #[test]
    fn a_failed_write_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        std::fs::write(&from, "some bytes").unwrap();
        let copied = |to: std::fs::File| {
            let mut left = u64::MAX;
            copy(b"/x", std::fs::File::open(&from).unwrap(), to, &mut left)
        };
        let full = copied(std::fs::File::options().write(true).open("/dev/full").unwrap()).unwrap_err();
        assert_eq!((full.kind, full.message.as_str()), (FailureKind::Limit, "/x: no space left on device"));
        // Not open for writing.
        let other = copied(std::fs::File::open(&from).unwrap()).unwrap_err();
        assert_eq!((other.kind, other.message.as_str()), (FailureKind::Other, "/x: bad file descriptor"));
    }
}
