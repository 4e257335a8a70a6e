//! A host directory that is held by its descriptor, so that it cannot be swapped. Names in it may come from a sandbox.

use crate::{Fence, HostPath, LastLink};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A directory.
#[derive(Debug)]
pub(super) struct HostDir(OwnedFd);

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);
/// The permission bits that are copied: no set-user-id, set-group-id and sticky bits.
const PERMISSIONS: u32 = 0o777;

impl HostDir {
    /// Takes a directory that is already open.
    pub(super) fn new(dir: OwnedFd) -> Self {
        Self(dir)
    }

    /// Opens the directory that the user named, as [`HostPath`] resolves it.
    pub(super) fn open(path: &Path, fences: &[Fence]) -> Result<Self> {
        Ok(Self(HostPath::resolve(path, fences, LastLink::Follow)?.open(DIRECTORY)?))
    }

    /// Opens a directory in it, and creates it if it does not exist. A symlink is refused.
    pub(super) fn make_dir(&self, name: &[u8], mode: u32) -> Result<Self> {
        let name = checked(name)?;
        match rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(mode & PERMISSIONS | 0o700)) {
            Ok(()) | Err(Errno::EXIST) => self.dir(name.as_bytes()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a directory in it. A symlink is refused.
    pub(super) fn dir(&self, name: &[u8]) -> Result<Self> {
        Ok(Self(rustix::fs::openat(&self.0, checked(name)?, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?))
    }

    /// Opens a regular file in it for reading, and returns it with its permissions. A symlink is refused.
    pub(super) fn read_file(&self, name: &[u8]) -> Result<(File, u32)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, checked(name)?, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::other("it is not a regular file"));
        }
        Ok((File::from(file), stat.st_mode & PERMISSIONS))
    }

    /// Returns the entries, sorted by name: name, type and permissions.
    pub(super) fn entries(&self) -> Result<Vec<(Vec<u8>, FileType, u32)>> {
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let stat = rustix::fs::statat(&self.0, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            entries.push((name.to_vec(), FileType::from_raw_mode(stat.st_mode), stat.st_mode & PERMISSIONS));
        }
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(entries)
    }

    /// Whether there is a symlink of that name.
    pub(super) fn is_link(&self, name: &[u8]) -> bool {
        let name = OsStr::from_bytes(name);
        rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    /// Returns the text of a symlink.
    pub(super) fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.0, checked(name)?, Vec::new())?.into_bytes())
    }

    /// Creates a file that gets its name when it is complete.
    pub(super) fn new_file(&self, name: &[u8], mode: u32) -> Result<NewFile<'_>> {
        let name = checked(name)?.as_bytes().to_vec();
        let partial = partial_name()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, &partial, flags, Mode::from_raw_mode(mode & PERMISSIONS | 0o200))?;
        Ok(NewFile { dir: self, name, partial: Some(partial), file: File::from(file) })
    }

    /// Creates a symlink with this text, which is never followed here.
    pub(super) fn make_link(&self, name: &[u8], target: &[u8]) -> Result<()> {
        let name = checked(name)?;
        let partial = partial_name()?;
        rustix::fs::symlinkat(OsStr::from_bytes(target), &self.0, &partial)?;
        let moved = self.replace(&partial, name);
        if moved.is_err() {
            let _ = rustix::fs::unlinkat(&self.0, &partial, AtFlags::empty());
        }
        moved
    }

    /// Gives a new entry its name. An existing file or symlink is replaced, not written through; anything else is refused.
    fn replace(&self, partial: &str, name: &OsStr) -> Result<()> {
        match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile | FileType::Symlink => {}
                FileType::Directory => return Err(Errno::ISDIR.into()),
                _ => return Err(Error::other("there is a device, FIFO or socket in its place")),
            },
        }
        Ok(rustix::fs::renameat(&self.0, partial, &self.0, name)?)
    }
}

impl AsFd for HostDir {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A file that is being written. It is removed when this is dropped before it is finished.
#[derive(Debug)]
pub(super) struct NewFile<'a> {
    dir: &'a HostDir,
    name: Vec<u8>,
    partial: Option<String>,
    pub(super) file: File,
}

impl NewFile<'_> {
    /// Gives the complete file its name.
    pub(super) fn finish(mut self) -> Result<()> {
        if let Some(partial) = &self.partial {
            self.dir.replace(partial, OsStr::from_bytes(&self.name))?;
        }
        self.partial = None;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            let _ = rustix::fs::unlinkat(&self.dir.0, partial, AtFlags::empty());
        }
    }
}

/// Checks that a name is a single path component. It may come from inside.
pub(super) fn checked(name: &[u8]) -> Result<&OsStr> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::other("it is not a file name"));
    }
    Ok(OsStr::from_bytes(name))
}

/// Returns a name that nobody can guess, and so nobody can put a symlink there first.
fn partial_name() -> Result<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(Error::other)?;
    Ok(format!(".kennel-{:016x}", u64::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn nothing_is_written_through_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "theirs").unwrap();
        let inside = dir.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        symlink(outside.join("file"), inside.join("file")).unwrap();
        symlink(&outside, inside.join("dir")).unwrap();
        let host = HostDir::open(&inside, &[]).unwrap();
        let mut file = host.new_file(b"file", 0o4755).unwrap();
        file.file.write_all(b"ours").unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"theirs");
        let meta = std::fs::symlink_metadata(inside.join("file")).unwrap();
        assert!(meta.is_file());
        assert_eq!(meta.permissions().mode() & 0o7000, 0, "no set-user-id comes out");
        assert!(host.make_dir(b"dir", 0o755).is_err());
        assert!(host.dir(b"dir").is_err());
        assert!(host.read_file(b"dir").is_err());
        host.make_link(b"dir", b"/anywhere").unwrap();
        assert_eq!(host.read_link(b"dir").unwrap(), b"/anywhere");
        assert!(outside.exists());
    }

    #[test]
    fn names_that_are_paths_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostDir::open(dir.path(), &[]).unwrap();
        for bad in [&b""[..], b".", b"..", b"a/b", b"/etc/passwd", b"a\0b"] {
            assert!(host.make_dir(bad, 0o755).is_err());
            assert!(host.new_file(bad, 0o644).is_err());
            assert!(host.make_link(bad, b"x").is_err());
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn unfinished_files_are_removed_and_unusual_names_work() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostDir::open(dir.path(), &[]).unwrap();
        drop(host.new_file(b"gone", 0o644).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let name = b"new\nline \xff";
        host.new_file(name, 0o600).unwrap().finish().unwrap();
        assert_eq!(host.entries().unwrap(), [(name.to_vec(), FileType::RegularFile, 0o600)]);
        rustix::fs::mknodat(&host, "fifo", FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(host.new_file(b"fifo", 0o644).unwrap().finish().is_err(), "a FIFO is not replaced");
        assert!(host.read_file(b"fifo").is_err(), "a FIFO is not read");
    }
}
