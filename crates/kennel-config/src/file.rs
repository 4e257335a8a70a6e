//! Opens and replaces settings files.
//!
//! Commands in a sandbox can write to the project, so the file at the path of a project's settings may be hostile: a
//! FIFO that never ends, or a symlink to another project's trusted file or to a secret. So only regular files are read,
//! nothing is waited for, and symlinks in the project are never followed.

use crate::{KeyPath, Location, MAX_BYTES, Problem, SearchPath, SettingsLayer, Source, What};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Directories of a project that contain settings files.
const HIDDEN: [&str; 2] = [".kennel", ".openagents"];

/// Returns the project that a settings file belongs to: its directory, or the parent if that directory is only for
/// settings.
pub(crate) fn project_of(file: &Path) -> Option<&Path> {
    let dir = file.parent()?;
    let hidden = dir.file_name().is_some_and(|name| HIDDEN.iter().any(|hidden| name == *hidden));
    if hidden { dir.parent() } else { Some(dir) }
}

/// Reads a settings file of bounded size.
pub(crate) fn read(search_path: &SearchPath) -> Result<String, Problem> {
    let fail = |why: String| problem(&search_path.path, "read", why);
    let mut bytes = Vec::new();
    let file =
        Found::at(search_path, Missing::Refused).and_then(|found| found.open()).map_err(|why| fail(why.to_string()))?;
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| fail(error.to_string()))?;
    if bytes.len() > MAX_BYTES {
        return Err(fail(format!("it is larger than {MAX_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        fail(format!("it is not UTF-8 on line {}", good.matches('\n').count() + 1))
    })
}

/// Replaces a settings file atomically, or creates it. It keeps its permissions. The symlinks that [`read`] refuses are
/// refused here too. If the user's own file is a symlink, it stays one.
pub(crate) fn replace(search_path: &SearchPath, text: &str) -> Result<(), Problem> {
    let fail = |why: Why| problem(&search_path.path, "write", why.to_string());
    let made = project_of(&search_path.path)
        .filter(|_| search_path.layer == SettingsLayer::Project)
        .or(search_path.path.parent());
    if let Some(dir) = made {
        std::fs::create_dir_all(dir).map_err(|error| fail(error.into()))?;
    }
    Found::at(search_path, Missing::Made).and_then(|found| found.replace(text)).map_err(fail)
}

/// The open directory of a settings file, and the file's name in it.
struct Found {
    dir: OwnedFd,
    name: std::ffi::OsString,
}

/// What to do if a directory of the project is missing.
#[derive(Clone, Copy, PartialEq)]
enum Missing {
    Refused,
    Made,
}

/// Why a settings file cannot be used.
#[derive(Debug, thiserror::Error)]
enum Why {
    #[error("{0}")]
    System(#[from] std::io::Error),
    #[error("{0}")]
    Errno(#[from] Errno),
    #[error("{} is a symlink, and those of a project's settings are not followed; put the file itself there", .0.display())]
    Symlink(PathBuf),
    #[error("it is {0}, not a regular file")]
    Kind(&'static str),
    #[error("it has no name")]
    NoName,
}

impl Found {
    /// Opens the directory. A symlink between the project's directory and a project's file is an error.
    fn at(search_path: &SearchPath, missing: Missing) -> Result<Self, Why> {
        // The user's own file may be a symlink, as dotfile managers create them.
        let real = match search_path.layer {
            SettingsLayer::User if search_path.path.is_symlink() => Some(search_path.path.canonicalize()?),
            _ => None,
        };
        let path = real.as_deref().unwrap_or(&search_path.path);
        let name = path.file_name().ok_or(Why::NoName)?.to_owned();
        let to_dir = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let project = project_of(path).filter(|_| search_path.layer == SettingsLayer::Project).unwrap_or(parent);
        let mut dir = rustix::fs::openat(CWD, project, to_dir, Mode::empty())?;
        for part in parent.strip_prefix(project).into_iter().flat_map(Path::components) {
            let part = part.as_os_str();
            dir = match rustix::fs::openat(&dir, part, to_dir | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(dir) => dir,
                Err(Errno::LOOP | Errno::NOTDIR) if kind(&dir, part)? == FileType::Symlink => {
                    return Err(Why::Symlink(parent.to_owned()));
                }
                Err(Errno::NOENT) if missing == Missing::Made => {
                    rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o777))?;
                    rustix::fs::openat(&dir, part, to_dir | OFlags::NOFOLLOW, Mode::empty())?
                }
                Err(error) => return Err(error.into()),
            };
        }
        match kind(&dir, &name) {
            Ok(FileType::Symlink) => Err(Why::Symlink(path.to_owned())),
            _ => Ok(Self { dir, name }),
        }
    }

    /// Opens the file for reading. Its type is checked before, because opening a device may have side effects, and
    /// after, because the file may have been replaced. If it has become a FIFO, the open does not wait.
    fn open(&self) -> Result<File, Why> {
        regular(kind(&self.dir, &self.name)?)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty())?;
        regular(FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode))?;
        Ok(file.into())
    }

    fn replace(&self, text: &str) -> Result<(), Why> {
        let old = match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                regular(FileType::from_raw_mode(stat.st_mode))?;
                Some(Mode::from_raw_mode(stat.st_mode & 0o777))
            }
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        let (temporary, mut file) = self.temporary()?;
        let written = (|| {
            file.write_all(text.as_bytes())?;
            if let Some(mode) = old {
                rustix::fs::fchmod(&file, mode)?;
            }
            file.sync_all()?;
            // If a symlink has replaced the file meanwhile, the symlink is replaced and not followed.
            rustix::fs::renameat(&self.dir, &temporary, &self.dir, &self.name)?;
            Ok(())
        })();
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.dir, &temporary, AtFlags::empty());
        }
        written
    }

    /// Creates a temporary file next to it. The umask applies, as for any new file.
    fn temporary(&self) -> Result<(String, File), Why> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for number in 0_u32..100 {
            let name = format!(".kennel-{}-{number}", std::process::id());
            match rustix::fs::openat(&self.dir, &name, flags, Mode::from_raw_mode(0o666)) {
                Ok(file) => return Ok((name, file.into())),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }
}

fn kind(dir: &OwnedFd, name: &OsStr) -> Result<FileType, Errno> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

fn regular(kind: FileType) -> Result<(), Why> {
    Err(Why::Kind(match kind {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Symlink => "a symlink",
        FileType::Unknown => "something else",
    }))
}

fn problem(file: &Path, doing: &'static str, why: String) -> Problem {
    let at = Location::whole(Source::File(file.to_owned()));
    Problem { at, key: KeyPath::default(), what: What::File { doing, why } }
}
