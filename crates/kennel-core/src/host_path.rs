//! Opens host paths that a user named, so that no symlink left by a sandbox leads elsewhere.
//!
//! A relative path stays beneath the current directory, or beneath the directory that its leading `..` components name.
//! A path that enters a fence (the workspace of a sandbox) stays beneath it. Other symlinks are the user's own and are
//! followed. Every component is opened by descriptor and checked by the kernel, so nothing can be swapped between check
//! and use.

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

type Result<T, E = Error> = std::result::Result<T, E>;

/// The number of symlinks that are followed in one path, the same as the kernel's limit.
const LINKS: usize = 40;
/// How often a lookup is repeated if a concurrent rename disturbed it.
const DISTURBED: usize = 64;
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// A directory that symlinks below it must not leave. It is identified by device and inode, so any path to it is
/// recognised.
#[derive(Clone, Debug)]
pub struct Fence {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Fence {
    /// Creates a fence around this directory, or returns `None` if it does not exist.
    pub fn around(path: &Path) -> Option<Self> {
        let stat = rustix::fs::stat(path).ok()?;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        is_dir.then(|| Self { path: path.to_owned(), device: stat.st_dev, inode: stat.st_ino })
    }
}

/// What a path means if its last component is a symlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    /// The path means the target of the symlink.
    Follow,
    /// The path means the symlink itself.
    Keep,
}

/// A host path that a user named, ready to be opened.
#[derive(Debug)]
pub struct HostPath {
    base: OwnedFd,
    /// The rest of the path below `base`.
    rest: PathBuf,
    /// The directory that the path must stay beneath; `None` if it is not confined.
    limit: Option<String>,
    last: LastLink,
}

impl HostPath {
    /// Resolves a path up to the point from which the kernel opens it beneath a limit.
    pub fn resolve(path: &Path, fences: &[Fence], last: LastLink) -> Result<Self> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT.into());
        }
        let mut ahead = Vec::new();
        put_ahead(&mut ahead, path.as_os_str());
        Walk::begin(path.is_absolute(), fences)?.go(ahead, last)
    }

    /// Creates a path that must stay beneath a directory. Errors call the directory `title`.
    pub fn beneath(dir: OwnedFd, title: String, path: &Path) -> Self {
        Self { base: dir, rest: path.to_owned(), limit: Some(title), last: LastLink::Follow }
    }

    /// Opens a regular file for reading. FIFOs and devices are refused without waiting for them.
    pub fn open_regular(&self) -> Result<File> {
        let file = self.open(OFlags::RDONLY | OFlags::NONBLOCK)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
        }
        Ok(File::from(file))
    }

    /// Opens the path. `CLOEXEC` is always set.
    pub fn open(&self, flags: OFlags) -> Result<OwnedFd> {
        self.open_rest(&self.rest, flags, self.last)
    }

    /// Opens the parent directory, and returns it with the last component. Fails if the path does not end in a name.
    pub fn parent(&self) -> Result<(OwnedFd, OsString)> {
        let no_name = || Error::new(ErrorKind::InvalidInput, "it does not end in a file name");
        let name = self.rest.file_name().ok_or_else(no_name)?.to_owned();
        let parent = self.rest.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok((self.open_rest(parent, OFlags::RDONLY | OFlags::DIRECTORY, LastLink::Follow)?, name))
    }

    fn open_rest(&self, rest: &Path, flags: OFlags, last: LastLink) -> Result<OwnedFd> {
        let keep = if last == LastLink::Keep { OFlags::NOFOLLOW } else { OFlags::empty() };
        let flags = flags | keep | OFlags::CLOEXEC;
        match &self.limit {
            Some(limit) => open_beneath(&self.base, rest, flags).map_err(|error| match error {
                Errno::XDEV => Error::new(ErrorKind::PermissionDenied, format!("a symlink in it leads out of {limit}")),
                error => error.into(),
            }),
            None => Ok(rustix::fs::openat(&self.base, rest, flags, Mode::empty())?),
        }
    }
}

/// Opens a regular file for reading, as [`HostPath`] does. FIFOs and devices are refused without waiting for them.
pub fn open_regular_file(path: &Path, fences: &[Fence]) -> Result<File> {
    HostPath::resolve(path, fences, LastLink::Follow)?.open_regular()
}

/// Opens a regular file beneath a directory for reading. Symlinks that leave the directory, FIFOs and devices are
/// refused, without waiting for them.
pub fn open_regular_file_beneath(dir: &Path, path: &Path) -> Result<File> {
    let base = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    HostPath::beneath(base, dir.display().to_string(), path).open_regular()
}

/// Opens a path beneath a directory. Returns `XDEV` if the path leaves it.
fn open_beneath(base: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    for _ in 0..DISTURBED {
        match rustix::fs::openat2(base, path, flags, Mode::empty(), BENEATH) {
            // A concurrent rename while `..` was looked up, or a signal.
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

/// Puts the components of a path in front of the remaining ones. The next component is the last element.
fn put_ahead(ahead: &mut Vec<OsString>, path: &OsStr) {
    let parts = path.as_bytes().split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    ahead.extend(parts.rev().map(|part| OsStr::from_bytes(part).to_owned()));
}

/// A directory on the way.
struct Step {
    dir: OwnedFd,
    name: OsString,
    /// The index of the step that confines this one.
    limit: Option<usize>,
    /// The name of the limit in errors, if this step is a limit.
    title: String,
}

/// Walks over directories, one component at a time, up to a symlink that must be confined or the last component.
struct Walk<'a> {
    fences: &'a [Fence],
    steps: Vec<Step>,
}

impl<'a> Walk<'a> {
    fn begin(absolute: bool, fences: &'a [Fence]) -> Result<Self> {
        let start = if absolute { "/" } else { "." };
        let dir = rustix::fs::openat(CWD, start, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut walk = Self { fences, steps: Vec::new() };
        walk.enter(dir, OsString::new())?;
        if !absolute {
            walk.steps[0].limit = Some(0);
            walk.steps[0].title = "the current directory".into();
        }
        Ok(walk)
    }

    fn go(mut self, mut ahead: Vec<OsString>, last: LastLink) -> Result<HostPath> {
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            if name == ".." {
                self.up()?;
                continue;
            }
            let is_last = ahead.is_empty();
            let here = self.top();
            // Open it as a directory first: only then does the kernel mount automounts.
            match rustix::fs::openat(&here.dir, &name, LOOK | OFlags::DIRECTORY, Mode::empty()) {
                Ok(dir) => {
                    self.enter(dir, name)?;
                    continue;
                }
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                // Whoever opens the path gets the error, or creates the file.
                Err(_) if is_last => return Ok(self.stop(&name, ahead, LastLink::Keep)),
                Err(error) => return Err(error.into()),
            }
            let found = rustix::fs::openat(&here.dir, &name, LOOK, Mode::empty())?;
            match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
                FileType::Symlink if is_last && last == LastLink::Keep => return Ok(self.stop(&name, ahead, last)),
                FileType::Symlink if here.limit.is_some() => return Ok(self.stop(&name, ahead, LastLink::Follow)),
                // This may be a magic link, whose text has no meaning.
                FileType::Symlink if is_proc(&here.dir) => {
                    if is_last {
                        return Ok(self.stop(&name, ahead, LastLink::Follow));
                    }
                    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                    let dir = rustix::fs::openat(&here.dir, &name, flags, Mode::empty())?;
                    self.enter(dir, name)?;
                }
                FileType::Symlink => {
                    links += 1;
                    if links > LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let text = rustix::fs::readlinkat(&found, "", Vec::new())?.into_bytes();
                    if text.starts_with(b"/") {
                        self.steps.truncate(1);
                    }
                    put_ahead(&mut ahead, &OsString::from_vec(text));
                }
                _ if is_last => return Ok(self.stop(&name, ahead, LastLink::Keep)),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        Ok(self.stop(OsStr::new("."), ahead, LastLink::Follow))
    }

    fn top(&self) -> &Step {
        self.steps.last().expect("a walk has a first step")
    }

    fn enter(&mut self, dir: OwnedFd, name: OsString) -> Result<()> {
        let stat = rustix::fs::fstat(&dir)?;
        let fence = self.fences.iter().find(|fence| (fence.device, fence.inode) == (stat.st_dev, stat.st_ino));
        let (limit, title) = match fence {
            Some(fence) => (Some(self.steps.len()), fence.path.display().to_string()),
            None => (self.steps.last().and_then(|step| step.limit), String::new()),
        };
        self.steps.push(Step { dir, name, limit, title });
        Ok(())
    }

    /// Goes up one directory as the user typed it. Within a limit, only typed components get here: symlinks are left to
    /// the kernel.
    fn up(&mut self) -> Result<()> {
        if self.steps.len() > 1 {
            self.steps.pop();
        } else if let first = &mut self.steps[0]
            && first.limit.is_some()
            && !first.title.is_empty()
        {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            first.dir = rustix::fs::openat(&first.dir, "..", flags, Mode::empty())?;
            first.title = "the directory that its leading .. lead to".into();
        }
        Ok(())
    }

    /// Ends the walk before `name`. The kernel opens the rest.
    fn stop(mut self, name: &OsStr, mut ahead: Vec<OsString>, last: LastLink) -> HostPath {
        ahead.reverse();
        let (from, limit) = match self.top().limit {
            Some(at) => (at, Some(std::mem::take(&mut self.steps[at].title))),
            None => (self.steps.len() - 1, None),
        };
        let mut rest: PathBuf = self.steps[from + 1..].iter().map(|step| step.name.as_os_str()).collect();
        rest.push(name);
        rest.extend(ahead);
        HostPath { base: self.steps.swap_remove(from).dir, rest, limit, last }
    }
}

fn is_proc(dir: &OwnedFd) -> bool {
    rustix::fs::fstatfs(dir).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    /// Creates a workspace with symlinks within it and out of it, and a directory that must not be reached.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for made in ["victim/sub", "ws/sub"] {
            std::fs::create_dir_all(root.join(made)).unwrap();
        }
        std::fs::write(root.join("victim/secret"), "secret").unwrap();
        std::fs::write(root.join("ws/file"), "file").unwrap();
        symlink("../victim", root.join("ws/up")).unwrap();
        symlink(root.join("victim/secret"), root.join("ws/out")).unwrap();
        symlink("../file", root.join("ws/sub/within")).unwrap();
        symlink("/proc/self/root", root.join("ws/magic")).unwrap();
        symlink(root.join("ws"), root.join("mine")).unwrap();
        (dir, root)
    }

    fn read(path: &Path, fences: &[Fence]) -> Result<String> {
        let mut text = String::new();
        open_regular_file(path, fences)?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn a_fence_holds_for_every_path_into_it() {
        let (_dir, root) = tree();
        let fences = [Fence::around(&root.join("ws")).unwrap()];
        for way in ["ws", "mine", "mine/sub/..", "victim/../ws"] {
            let way = root.join(way);
            assert_eq!(read(&way.join("file"), &fences).unwrap(), "file", "{way:?}");
            assert_eq!(read(&way.join("sub/within"), &fences).unwrap(), "file", "{way:?}");
            for out in ["out", "up/secret", "sub/../out", "magic/etc/hostname"] {
                let error = read(&way.join(out), &fences).unwrap_err();
                assert!(error.kind() == ErrorKind::PermissionDenied || out.starts_with("magic"), "{error}");
            }
        }
        // The control: without a fence the same symlinks lead out.
        assert_eq!(read(&root.join("ws/out"), &[]).unwrap(), "secret");
        assert_eq!(read(&root.join("mine/up/secret"), &[]).unwrap(), "secret");
        // What the user typed may leave a fence; a symlink may not.
        assert_eq!(read(&root.join("ws/../victim/secret"), &fences).unwrap(), "secret");
        assert_eq!(read(&root.join("ws/sub/../../victim/secret"), &fences).unwrap(), "secret");
        assert!(read(&root.join("ws/up/../victim/secret"), &fences).is_err());
    }

    #[test]
    fn the_parent_of_a_new_file_is_within_the_fence() {
        let (_dir, root) = tree();
        let fences = [Fence::around(&root.join("ws")).unwrap()];
        let place = |path: &str| HostPath::resolve(&root.join(path), &fences, LastLink::Keep)?.parent();
        let same = |dir: &OwnedFd, path: &str| {
            rustix::fs::fstat(dir).unwrap().st_ino == rustix::fs::stat(root.join(path)).unwrap().st_ino
        };
        for (path, dir, name) in
            [("ws/new", "ws", "new"), ("mine/sub/new", "ws/sub", "new"), ("ws/out", "ws", "out"), ("new", ".", "new")]
        {
            let found = place(path).unwrap();
            assert!(same(&found.0, dir) && found.1 == name, "{path}");
        }
        assert!(place("ws/up/new").is_err());
        assert!(place("ws/missing/new").is_err());
        assert!(place("..").is_err());
    }

    #[test]
    fn special_files_are_refused_without_blocking() {
        let (_dir, root) = tree();
        rustix::fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for path in ["fifo", "ws"] {
            assert_eq!(read(&root.join(path), &[]).unwrap_err().kind(), ErrorKind::InvalidInput, "{path}");
        }
        assert_eq!(read(Path::new("/dev/null"), &[]).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(read(Path::new(""), &[]).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(read(&root.join("ws/file/x"), &[]).unwrap_err().kind(), ErrorKind::NotADirectory);
        // A magic link is the user's own where nothing confines it.
        let open = File::open(root.join("ws/file")).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&open);
        assert_eq!(read(Path::new(&format!("/proc/self/fd/{fd}")), &[]).unwrap(), "file");
        assert!(open_regular_file_beneath(&root.join("ws"), Path::new("file")).is_ok());
        for out in ["out", "up/secret", "../victim/secret"] {
            assert!(open_regular_file_beneath(&root.join("ws"), Path::new(out)).is_err(), "{out}");
        }
    }

    #[test]
    fn symlink_loops_are_an_error_on_the_host() {
        let (_dir, root) = tree();
        symlink(root.join("b"), root.join("a")).unwrap();
        symlink(root.join("a"), root.join("b")).unwrap();
        assert!(read(&root.join("a"), &[]).is_err());
    }
}
