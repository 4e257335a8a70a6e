//! Finds git repositories in writable mounts, and the paths in them that must be read-only inside.
//!
//! Git on the host executes the files in `.git/hooks` and programs that `.git/config` names. A read-only `hooks` alone
//! is not enough: whoever can rename `.git` can replace it. A mount point can neither be renamed nor removed. So a
//! provider mounts `.git` over itself, and then the read-only paths in it.
//!
//! This module follows no symlinks: an earlier command in a sandbox may have left one.

use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, GitProtection, NextStep, SandboxSpec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// A path in a mount that becomes a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The path, relative to the mount.
    pub path: PathBuf,
    /// Whether it is read-only inside.
    pub read_only: bool,
}

/// Returns what to mount over itself in a writable mount of `dir` at `target`, parents first. The result is empty if
/// `dir` has no `.git` and is not a git directory itself. Paths that another mount of the spec covers are left out. A
/// missing `hooks` directory is created, so that a sandbox cannot create it.
///
/// # Errors
///
/// `invalid_config` if one of the paths to protect is a symlink, or if the repository takes its content from elsewhere
/// (`commondir`).
pub fn pins(spec: &SandboxSpec, dir: &Path, target: &str) -> Result<Vec<Pin>> {
    let mut pins = in_dir(dir, spec.protect_git)?;
    let target = Path::new(target);
    let others = spec.mounts.iter().map(|mount| &mount.target).chain(spec.caches.iter().map(|cache| &cache.target));
    for other in others.map(Path::new).filter(|other| *other != target && other.starts_with(target)) {
        pins.retain(|pin| !target.join(&pin.path).starts_with(other));
    }
    Ok(pins)
}

fn in_dir(dir: &Path, protection: GitProtection) -> Result<Vec<Pin>> {
    if protection == GitProtection::None {
        return Ok(Vec::new());
    }
    let look = |error: Errno| Error::io(format!("look for a git repository in {}", dir.display()), error);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = match rustix::fs::open(dir, flags, Mode::empty()) {
        Ok(top) => top,
        // A single file, or something that the caller refuses.
        Err(Errno::NOTDIR | Errno::NOENT) => return Ok(Vec::new()),
        Err(error) => return Err(look(error)),
    };
    let git = dir.join(GIT);
    match kind(top.as_fd(), GIT).map_err(look)? {
        Some(FileType::Directory) => {
            let mut pins = vec![Pin { path: GIT.into(), read_only: false }];
            pins.extend(in_git_dir(&open_dir(top.as_fd(), GIT).map_err(look)?, &git, Path::new(GIT), protection)?);
            Ok(pins)
        }
        // The work tree of a submodule or of `git worktree`: the file contains the path of the git directory.
        Some(FileType::RegularFile) => Ok(vec![Pin { path: GIT.into(), read_only: true }]),
        Some(FileType::Symlink) => Err(symlink(&git)),
        None if is_git_dir(top.as_fd()).map_err(look)? => in_git_dir(&top, dir, Path::new(""), protection),
        // Git does not accept a device or a FIFO as a repository.
        Some(_) | None => Ok(Vec::new()),
    }
}

const GIT: &str = ".git";
const HOOKS: &str = "hooks";
const CONFIG: &str = "config";
/// Configuration of the main work tree, which git reads if `config` enables it.
const WORKTREE_CONFIG: &str = "config.worktree";
/// A file that makes git take hooks and configuration from the directory that it names.
const COMMON_DIR: &str = "commondir";

/// Returns what is read-only in a git directory. `path` is used in messages, and `below` is its path in the mount.
fn in_git_dir(git: &OwnedFd, path: &Path, below: &Path, protection: GitProtection) -> Result<Vec<Pin>> {
    let failed = |name: &str, error: Errno| Error::io(format!("protect {}", path.join(name).display()), error);
    let fixed = |name: &str| Pin { path: below.join(name), read_only: true };
    let kind = |name: &str| kind(git.as_fd(), name).map_err(|error| failed(name, error));
    if kind(COMMON_DIR)?.is_some() {
        let message = format!(
            "protect {}: git would read hooks and settings from another directory",
            path.join(COMMON_DIR).display()
        );
        return Err(unprotected(message, "remove the file if you did not make it"));
    }
    let mut pins = Vec::new();
    let wanted: &[&str] = match protection {
        GitProtection::None => &[],
        GitProtection::Hooks => &[HOOKS],
        GitProtection::Config => &[HOOKS, CONFIG, WORKTREE_CONFIG],
    };
    for name in wanted {
        match kind(name)? {
            Some(FileType::Symlink) => return Err(symlink(&path.join(name))),
            Some(_) => pins.push(fixed(name)),
            None if *name == WORKTREE_CONFIG
                && !names_worktree_config(git).map_err(|error| failed(CONFIG, error))? => {}
            None => match make(git, name) {
                // A process inside cannot create it either.
                Err(Errno::ROFS) => {}
                made => {
                    made.map_err(|error| failed(name, error).suggest(or_unprotected("make it yourself")))?;
                    pins.push(fixed(name));
                }
            },
        }
    }
    Ok(pins)
}

/// Creates an empty `hooks` directory, or an empty file, that belongs to the owner of the git directory.
fn make(git: &OwnedFd, name: &str) -> Result<(), Errno> {
    let owner = rustix::fs::fstat(git)?;
    if name != HOOKS {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        return give(&rustix::fs::openat(git, name, flags, Mode::from_raw_mode(0o644))?, &owner);
    }
    rustix::fs::mkdirat(git, name, Mode::from_raw_mode(0o755))?;
    let made = rustix::fs::openat2(
        git,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )?;
    // Another process may have replaced the directory meanwhile. Giving away an empty directory of our own does no
    // harm.
    let entries = rustix::fs::Dir::read_from(&made)?;
    let own = rustix::fs::fstat(&made)?.st_uid == rustix::process::geteuid().as_raw();
    let is_dots = |name: &std::ffi::CStr| matches!(name.to_bytes(), b"." | b"..");
    if !own || entries.flatten().any(|entry| !is_dots(entry.file_name())) {
        return Err(Errno::EXIST);
    }
    give(&made, &owner)
}

/// Sets the owner. Only root can do this, and only root needs to.
fn give(made: &OwnedFd, owner: &Stat) -> Result<(), Errno> {
    if !rustix::process::geteuid().is_root() || (owner.st_uid, owner.st_gid) == (0, 0) {
        return Ok(());
    }
    rustix::fs::fchown(made, Some(Uid::from_raw(owner.st_uid)), Some(Gid::from_raw(owner.st_gid)))
}

/// Whether git also reads `config.worktree`. Only `config` itself can enable this, not a file that it includes.
fn names_worktree_config(git: &OwnedFd) -> Result<bool, Errno> {
    const MOST: usize = 1 << 20;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = match rustix::fs::openat2(git, CONFIG, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT) => return Ok(false),
        opened => opened?,
    };
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::from(file), MOST as u64), &mut text)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    // A file that is too long to search may contain anything.
    Ok(text.len() == MOST || text.to_ascii_lowercase().windows(14).any(|word| word == b"worktreeconfig"))
}

/// Whether git would accept the directory as a bare repository.
fn is_git_dir(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(matches!(kind(dir, "HEAD")?, Some(FileType::RegularFile | FileType::Symlink))
        && kind(dir, "objects")? == Some(FileType::Directory)
        && kind(dir, "refs")? == Some(FileType::Directory))
}

/// Returns the kind of a directory entry, without following symlinks.
fn kind(dir: BorrowedFd<'_>, name: &str) -> Result<Option<FileType>, Errno> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn open_dir(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(dir, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn symlink(path: &Path) -> Error {
    let message = format!("protect {}: it is a symlink, which processes inside could change", path.display());
    unprotected(message, "replace it with what it points to")
}

fn unprotected(message: String, advice: &str) -> Error {
    Error::new(ErrorCode::InvalidConfig, message).suggest(or_unprotected(advice))
}

fn or_unprotected(advice: &str) -> NextStep {
    NextStep::either([NextStep::advice(advice), NextStep::LeaveGitUnprotected])
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_types::Mount;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// A repository as `git init` makes it, without hooks.
    fn repository() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        git_dir(&dir.path().join(".git"));
        dir
    }

    fn git_dir(git: &Path) {
        fs::create_dir_all(git.join("objects")).unwrap();
        fs::create_dir(git.join("refs")).unwrap();
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(git.join("config"), "[core]\n").unwrap();
    }

    fn shape(dir: &Path, protection: GitProtection) -> Vec<(String, bool)> {
        let found = in_dir(dir, protection).unwrap();
        found.into_iter().map(|pin| (pin.path.to_str().unwrap().to_owned(), pin.read_only)).collect()
    }

    fn fixed(paths: &[&str]) -> Vec<(String, bool)> {
        paths.iter().map(|path| ((*path).to_owned(), *path != ".git")).collect()
    }

    fn refused(dir: &Path, protection: GitProtection) -> String {
        let error = in_dir(dir, protection).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig);
        assert!(error.next_step().unwrap().options().contains(&NextStep::LeaveGitUnprotected));
        error.to_string()
    }

    #[test]
    fn hooks_are_protected_and_settings_on_request() {
        let dir = repository();
        let at = dir.path();
        assert_eq!(shape(at, GitProtection::None), []);
        assert!(!at.join(".git/hooks").exists(), "nothing is made that was not asked for");
        assert_eq!(shape(at, GitProtection::Hooks), fixed(&[".git", ".git/hooks"]));
        let (hooks, git) = (fs::metadata(at.join(".git/hooks")).unwrap(), fs::metadata(at.join(".git")).unwrap());
        assert_eq!((hooks.uid(), hooks.gid()), (git.uid(), git.gid()));
        assert_eq!(shape(at, GitProtection::Config), fixed(&[".git", ".git/hooks", ".git/config"]));
        fs::write(at.join(".git/config"), "[Extensions]\n\tworktreeConfig = true\n").unwrap();
        let all = fixed(&[".git", ".git/hooks", ".git/config", ".git/config.worktree"]);
        assert_eq!(shape(at, GitProtection::Config), all);
        assert_eq!(fs::read(at.join(".git/config.worktree")).unwrap(), b"");
    }

    #[test]
    fn created_files_belong_to_the_owner_of_the_repository() {
        let dir = repository();
        let git = dir.path().join(".git");
        fs::remove_file(git.join("config")).unwrap();
        let own = fs::metadata(&git).unwrap();
        // Only root can give files away.
        let root = rustix::process::geteuid().is_root();
        let owner = if root { (12345, 12346) } else { (own.uid(), own.gid()) };
        std::os::unix::fs::chown(&git, Some(owner.0), Some(owner.1)).unwrap();
        in_dir(dir.path(), GitProtection::Config).unwrap();
        for made in ["hooks", "config"] {
            let made = fs::metadata(git.join(made)).unwrap();
            assert_eq!((made.uid(), made.gid()), owner);
        }
    }

    #[test]
    fn bare_repositories_and_worktrees_are_protected() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(shape(dir.path(), GitProtection::Config), []);
        assert_eq!(shape(&dir.path().join("missing"), GitProtection::Config), []);
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(shape(&dir.path().join("file"), GitProtection::Config), []);
        git_dir(dir.path());
        assert_eq!(shape(dir.path(), GitProtection::Hooks), fixed(&["hooks"]));
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join(".git"), "gitdir: /elsewhere\n").unwrap();
        assert_eq!(shape(tree.path(), GitProtection::Config), [(".git".to_owned(), true)]);
    }

    #[test]
    fn a_mount_over_a_protected_path_replaces_the_protection() {
        let dir = repository();
        let with = |target: &str| {
            let mount = Mount { host: "/".into(), target: target.into(), read_only: false };
            let spec = SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() };
            pins(&spec, dir.path(), "/workspace").unwrap().len()
        };
        assert_eq!((with("/workspace"), with("/workspaces/.git"), with("/workspace/.git/x")), (2, 2, 2));
        assert_eq!((with("/workspace/.git/hooks/"), with("/workspace//.git")), (1, 0));
    }

    #[test]
    fn symlinks_and_git_directories_elsewhere_are_refused() {
        let elsewhere = repository();
        let dir = tempfile::tempdir().unwrap();
        symlink(elsewhere.path().join(".git"), dir.path().join(".git")).unwrap();
        assert!(refused(dir.path(), GitProtection::Hooks).contains(".git: it is a symlink"));
        assert_eq!(shape(dir.path(), GitProtection::None), []);
        let dir = repository();
        let git = dir.path().join(".git");
        symlink("/nowhere", git.join("hooks")).unwrap();
        assert!(refused(dir.path(), GitProtection::Hooks).contains("hooks: it is a symlink"));
        fs::remove_file(git.join("hooks")).unwrap();
        fs::rename(git.join("config"), dir.path().join("config")).unwrap();
        symlink("../config", git.join("config")).unwrap();
        assert!(refused(dir.path(), GitProtection::Config).contains("config: it is a symlink"));
        assert_eq!(shape(dir.path(), GitProtection::Hooks), fixed(&[".git", ".git/hooks"]));
        fs::write(git.join("commondir"), "../evil\n").unwrap();
        assert!(refused(dir.path(), GitProtection::Hooks).contains("commondir"));
    }
}
