//! Lists a directory and the directories below it, to a depth. Every directory is opened by its name in the directory
//! above, and never through a symlink. So a directory that is replaced meanwhile cannot lead elsewhere.

use crate::files::{CHUNK, Done, names, put_item, stat_at};
use crate::paths::{self, failure};
use crate::report::{Report, write_all};
use crate::worker::Pipes;
use kennel_proto::{Entry, Failure, FileKind, Limit, Outcome, caps};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

/// Sends the entries of a directory and of `depth - 1` levels below it.
pub(crate) fn to_depth(path: &[u8], depth: u32, pipes: &Pipes) -> Done {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = paths::open(path, flags, Mode::empty()).map_err(|error| failure(path, error))?;
    let top = names(&dir).map_err(|error| failure(path, error))?;
    Report::Ready.send(&pipes.status);
    let mut listing =
        Listing { output: &pipes.output, path, out: Vec::with_capacity(CHUNK), left: caps::LISTED_ENTRIES };
    listing.add(&dir, top, &[], depth)?;
    write_all(&pipes.output, &listing.out);
    Ok(Outcome::Nothing)
}

struct Listing<'a> {
    output: &'a OwnedFd,
    path: &'a [u8],
    out: Vec<u8>,
    /// How many more entries it may have.
    left: usize,
}

impl Listing<'_> {
    /// Adds the entries of a directory, whose path relative to the listing is `above`.
    fn add(&mut self, dir: &OwnedFd, names: Vec<Vec<u8>>, above: &[u8], depth: u32) -> Result<(), Failure> {
        for name in names {
            // The entry may have been removed since.
            let Ok(stat) = stat_at(dir, &name) else { continue };
            let relative = if above.is_empty() { name.clone() } else { [above, b"/", &name].concat() };
            if relative.len() >= caps::PATH {
                return Err(self.limit(&format!("a path below it is longer than {} bytes", caps::PATH - 1)));
            }
            let inner = (stat.kind == FileKind::Directory && depth > 1).then(|| open(dir, &name));
            let unreadable = inner.as_ref().is_some_and(Option::is_none);
            self.put(&Entry { name: relative.clone().into(), stat, unreadable })?;
            if let Some(Some((inner, names))) = inner {
                self.add(&inner, names, &relative, depth - 1)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, entry: &Entry) -> Result<(), Failure> {
        let left = self.left.checked_sub(1);
        self.left = left.ok_or_else(|| self.limit(&format!("more than {} entries", caps::LISTED_ENTRIES)))?;
        put_item(entry, &mut self.out);
        if self.out.len() > CHUNK - 16 * 1024 {
            write_all(self.output, &self.out);
            self.out.clear();
        }
        Ok(())
    }

    fn limit(&self, message: &str) -> Failure {
        Failure::limit(Limit::Size, format!("list {}: {message}", String::from_utf8_lossy(self.path)))
    }
}

/// Opens a directory in a directory and returns its names, unless the user may not read it.
fn open(dir: &OwnedFd, name: &[u8]) -> Option<(OwnedFd, Vec<Vec<u8>>)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inner = rustix::fs::openat(dir, name, flags, Mode::empty()).ok()?;
    let names = names(&inner).ok()?;
    Some((inner, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_entries_than_the_cap_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        for name in ["a/1", "a/b/2", "3"] {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        let output = OwnedFd::from(std::fs::File::create("/dev/null").unwrap());
        let list = |left| {
            let dir = OwnedFd::from(std::fs::File::open(root.path()).unwrap());
            let mut listing = Listing { output: &output, path: b"/x", out: Vec::new(), left };
            listing.add(&dir, names(&dir).unwrap(), &[], 3).map(|()| listing.left)
        };
        assert_eq!(list(6), Ok(1));
        assert_eq!(list(5), Ok(0));
        let failure = list(4).unwrap_err();
        assert_eq!(failure.limit, Some(Limit::Size));
        assert_eq!(failure.message, "list /x: more than 200000 entries");
    }

    #[test]
    fn too_long_paths_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("n".repeat(200)), "").unwrap();
        let output = OwnedFd::from(std::fs::File::create("/dev/null").unwrap());
        let dir = OwnedFd::from(std::fs::File::open(root.path()).unwrap());
        let mut listing = Listing { output: &output, path: b"/x", out: Vec::new(), left: 10 };
        let mut add = |above: usize| listing.add(&dir, names(&dir).unwrap(), &vec![b'a'; above], 1);
        assert_eq!(add(caps::PATH - 202), Ok(()));
        assert_eq!(add(caps::PATH - 201).unwrap_err().limit, Some(Limit::Size));
    }
}
