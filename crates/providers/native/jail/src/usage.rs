//! Measures directories whose content comes from inside sandboxes.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The argument that makes the jail only measure a directory.
pub const MEASURE: &str = "measure";

/// Returns the bytes that a directory and everything below it occupy on disk. A file with several names counts once.
/// Symlinks are not followed, even if the content changes meanwhile; what is gone meanwhile does not count.
pub fn disk_usage(dir: &Path) -> std::io::Result<u64> {
    const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    const BLOCK: u64 = 512;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let root = rustix::fs::open(dir, OPEN, Mode::empty())?;
    let mut total = rustix::fs::fstat(&root)?.st_blocks as u64 * BLOCK;
    let (mut left, mut linked) = (vec![PathBuf::from(".")], HashSet::new());
    while let Some(path) = left.pop() {
        let dir = match rustix::fs::openat2(&root, &path, OPEN, Mode::empty(), beneath) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            opened => opened?,
        };
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if [&b"."[..], b".."].contains(&name.to_bytes()) {
                continue;
            }
            let found = match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                found => found?,
            };
            let is_dir = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
            if is_dir {
                left.push(path.join(std::ffi::OsStr::from_bytes(name.to_bytes())));
            }
            if is_dir || found.st_nlink == 1 || linked.insert((found.st_dev, found.st_ino)) {
                total += found.st_blocks as u64 * BLOCK;
            }
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_counts_once_and_no_symlink_is_followed() {
        let (outside, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
        let empty = disk_usage(dir.path()).unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), vec![1; 1 << 16]).unwrap();
        let full = disk_usage(dir.path()).unwrap();
        assert!(full >= empty + (1 << 16), "{empty} {full}");
        std::fs::hard_link(dir.path().join("a/b/file"), dir.path().join("a/same")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("a/link")).unwrap();
        std::os::unix::fs::symlink("..", dir.path().join("a/loop")).unwrap();
        let linked = disk_usage(dir.path()).unwrap();
        assert!(linked < full + (1 << 16), "{full} {linked}");
        std::os::unix::fs::symlink(dir.path(), outside.path().join("volume")).unwrap();
        assert!(disk_usage(&outside.path().join("volume")).is_err());
    }
}
