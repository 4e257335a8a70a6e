//! The location of a directory that must be hidden, and the symlinks on the way to it.

use kennel_core::{Error, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// The number of symlinks that the kernel follows in one path.
const MOST_LINKS: usize = 40;

/// A directory that must be hidden, which may not exist.
#[derive(Debug)]
pub(crate) struct HiddenDir {
    /// The path as it was given.
    pub(crate) named: PathBuf,
    /// The path without symlinks, as far as it exists.
    pub(crate) real: PathBuf,
    /// The symlinks on the way, each by its real path.
    pub(crate) links: Vec<PathBuf>,
}

impl HiddenDir {
    /// Resolves the path.
    pub(crate) fn resolve(named: &Path) -> Self {
        // Most paths exist and contain no symlink, which the kernel finds out at once.
        if named.is_absolute() && !named.components().any(|part| part == Component::ParentDir) {
            let (flags, by) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_SYMLINKS);
            if rustix::fs::openat2(CWD, named, flags, Mode::empty(), by).is_ok() {
                return Self { named: named.to_owned(), real: named.components().collect(), links: Vec::new() };
            }
        }
        Self::by_component(named)
    }

    /// Resolves the path, one component at a time.
    fn by_component(named: &Path) -> Self {
        let names =
            |path: &Path| -> VecDeque<OsString> { path.components().map(|part| part.as_os_str().to_owned()).collect() };
        let mut rest = names(named);
        let mut real = PathBuf::from("/");
        let mut links = Vec::new();
        while let Some(name) = rest.pop_front() {
            match Path::new(&name).components().next() {
                Some(Component::Normal(_)) => {}
                Some(Component::RootDir) => {
                    real = PathBuf::from("/");
                    continue;
                }
                Some(Component::ParentDir) => {
                    real.pop();
                    continue;
                }
                _ => continue,
            }
            real.push(&name);
            match std::fs::read_link(&real) {
                Ok(target) if links.len() < MOST_LINKS => {
                    links.push(real.clone());
                    real.pop();
                    let mut target = names(&target);
                    target.append(&mut rest);
                    rest = target;
                }
                _ => {}
            }
        }
        Self { named: named.to_owned(), real, links }
    }
}

/// Returns whether a directory exists at this real path. A missing one is created, unless it is below a read-only
/// mount: otherwise a sandbox could create it. It gets the owner of its parent directory.
pub(crate) fn is_there(dir: &Path, read_only: bool) -> Result<bool> {
    if dir.symlink_metadata().is_ok() {
        return Ok(true);
    }
    if read_only {
        return Ok(false);
    }
    match make(dir) {
        Ok(()) => Ok(true),
        // A sandbox cannot create it either.
        Err(Errno::ROFS) => Ok(false),
        Err(error) => Err(Error::io(format!("make {}, which a sandbox must not make", dir.display()), error)
            .advise("make it yourself, or mount a directory further down")),
    }
}

fn make(dir: &Path) -> std::result::Result<(), Errno> {
    let (flags, by) = (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, ResolveFlags::NO_SYMLINKS);
    let there = dir.ancestors().find(|above| above.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    let mut parent = rustix::fs::openat2(CWD, there, flags, Mode::empty(), by)?;
    let is_root = rustix::process::geteuid().is_root();
    for name in dir.strip_prefix(there).unwrap_or(dir) {
        match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700)) {
            Ok(()) if is_root => {
                let owner = rustix::fs::fstat(&parent)?;
                let (user, group) = (rustix::fs::Uid::from_raw(owner.st_uid), rustix::fs::Gid::from_raw(owner.st_gid));
                rustix::fs::chownat(&parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        parent = rustix::fs::openat2(&parent, name, flags, Mode::empty(), by)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symlink_on_the_way_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join("dots/config")).unwrap();
        std::os::unix::fs::symlink("./dots/../dots/config", home.join(".config")).unwrap();
        std::os::unix::fs::symlink(&home, home.join("me")).unwrap();
        let dir = HiddenDir::resolve(&home.join("me/.config/kennel/new"));
        assert_eq!(dir.real, home.join("dots/config/kennel/new"));
        assert_eq!(dir.links, [home.join("me"), home.join(".config")]);
        std::os::unix::fs::symlink("loop", home.join("loop")).unwrap();
        assert_eq!(HiddenDir::resolve(&home.join("loop/x")).links.len(), MOST_LINKS);
    }
}
