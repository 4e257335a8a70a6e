//! Trigger files: files of a workspace that programs on the host run, or take commands from, without asking the user.
//!
//! A sandbox may change them like any other file of the workspace, and Kennel reports those that it changed. It checks
//! a fixed list of names before the command and after it, and compares only metadata. It reads no content, walks no
//! tree, and follows no symlink, because processes in the sandbox can create symlinks anywhere in the workspace.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Trigger files at the top of the workspace.
const FILES: &[&str] = &[
    ".bazelrc",
    ".devcontainer.json",
    ".dir-locals.el",
    ".envrc",
    ".exrc",
    ".gitattributes",
    ".gitmodules",
    ".justfile",
    ".lefthook.yml",
    ".mcp.json",
    ".mise.toml",
    ".npmrc",
    ".nvim.lua",
    ".pnp.cjs",
    ".pnpmfile.cjs",
    ".pre-commit-config.yaml",
    ".tool-versions",
    ".vimrc",
    ".yarnrc",
    ".yarnrc.yml",
    "CMakeLists.txt",
    "Cargo.toml",
    "Dockerfile",
    "GNUmakefile",
    "Gemfile",
    "Justfile",
    "Makefile",
    "Rakefile",
    "Taskfile.yaml",
    "Taskfile.yml",
    "Vagrantfile",
    "build.gradle",
    "build.gradle.kts",
    "build.rs",
    "compose.yaml",
    "compose.yml",
    "config.yaml",
    "config.yml",
    "conftest.py",
    "docker-compose.yaml",
    "docker-compose.yml",
    "flake.nix",
    "gradlew",
    "justfile",
    "kennel.json",
    "kennel.toml",
    "kennel.yaml",
    "kennel.yml",
    "lefthook.yml",
    "makefile",
    "mise.toml",
    "mvnw",
    "noxfile.py",
    "opencode.json",
    "package.json",
    "pom.xml",
    "pyproject.toml",
    "rust-toolchain",
    "rust-toolchain.toml",
    "settings.gradle",
    "settings.gradle.kts",
    "setup.cfg",
    "setup.py",
    "shell.nix",
    "tox.ini",
];

/// A directory of the workspace that contains trigger files.
struct Dir {
    name: &'static str,
    /// The trigger files in it. They are reported as `name/file`.
    files: &'static [&'static str],
    /// The directories in it in which every entry is a trigger file; an empty name means the directory itself. Only
    /// the directory is reported, because the sandbox chooses the names of the entries.
    whole: &'static [&'static str],
}

const GIT: Dir = Dir { name: ".git", files: &["commondir", "config", "config.worktree"], whole: &["hooks"] };

const DIRS: &[Dir] = &[
    Dir { name: ".cargo", files: &["config", "config.toml"], whole: &[] },
    Dir { name: ".claude", files: &["settings.json", "settings.local.json"], whole: &["hooks"] },
    Dir { name: ".codex", files: &["config.toml"], whole: &[] },
    Dir { name: ".cursor", files: &["hooks.json", "mcp.json"], whole: &[] },
    Dir { name: ".devcontainer", files: &["devcontainer.json"], whole: &[] },
    Dir { name: ".gemini", files: &["settings.json"], whole: &[] },
    GIT,
    Dir { name: ".github", files: &[], whole: &["workflows"] },
    Dir { name: ".husky", files: &[], whole: &["", "_"] },
    Dir { name: ".idea", files: &["workspace.xml"], whole: &["runConfigurations"] },
    Dir { name: ".kennel", files: &["config.json", "config.toml", "config.yaml", "config.yml"], whole: &[] },
    Dir { name: ".openagents", files: &["project.json"], whole: &[] },
    Dir { name: ".vscode", files: &["launch.json", "settings.json", "tasks.json"], whole: &[] },
    Dir { name: ".zed", files: &["settings.json", "tasks.json"], whole: &[] },
];

/// The maximum number of entries of a directory that are checked. Of a larger directory, only its own metadata is
/// compared.
const MOST: usize = 256;

/// The states of a workspace's trigger files before a command.
pub(crate) struct Triggers {
    top: OwnedFd,
    hooks: bool,
    before: Vec<(Name, FileState)>,
}

impl Triggers {
    /// Records the states of the trigger files of a workspace. Returns `None` if the workspace cannot be opened.
    /// `hooks` includes git's hooks, which need no check if they are read-only in the sandbox.
    pub(crate) fn look(workspace: &Path, hooks: bool) -> Option<Self> {
        let top = rustix::fs::openat(CWD, workspace, DIRECTORY, Mode::empty()).ok()?;
        let before = look(top.as_fd(), hooks);
        Some(Self { top, hooks, before })
    }

    /// Returns the trigger files that have changed since. The names are from a fixed list, so they are safe to print.
    pub(crate) fn changed(&self) -> Vec<String> {
        let mut changed: Vec<Name> = Vec::new();
        for ((name, before), (_, now)) in self.before.iter().zip(look(self.top.as_fd(), self.hooks)) {
            // If the directory itself is new, its files are not reported as well.
            if *before != now && !changed.iter().any(|known| known.file.is_empty() && known.dir == name.dir) {
                changed.push(*name);
            }
        }
        changed.iter().map(ToString::to_string).collect()
    }
}

/// The name of a trigger file: a file in a directory, a file at the top (no `dir`), or a directory itself (no `file`).
#[derive(Clone, Copy)]
struct Name {
    dir: &'static str,
    file: &'static str,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { dir, file } = self;
        let slash = if dir.is_empty() || file.is_empty() { "" } else { "/" };
        write!(f, "{dir}{slash}{file}")
    }
}

/// The state of a file. Each write to the file changes the time `changed` (ctime), which no program can set.
#[derive(Clone, Copy, PartialEq)]
enum FileState {
    Missing,
    Unknown(Errno),
    There { device: u64, inode: u64, mode: u32, size: i64, modified: (i64, i64), changed: (i64, i64) },
    Entries(u64),
}

impl FileState {
    fn from_stat(found: Result<Stat, Errno>) -> Self {
        match found {
            Ok(stat) => Self::There {
                device: stat.st_dev,
                inode: stat.st_ino,
                mode: stat.st_mode,
                size: stat.st_size,
                modified: (stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
                changed: (stat.st_ctime, stat.st_ctime_nsec.cast_signed()),
            },
            Err(Errno::NOENT | Errno::NOTDIR) => Self::Missing,
            Err(error) => Self::Unknown(error),
        }
    }

    /// Keeps only what identifies a directory, so that changes to its entries do not count.
    fn from_dir_stat(found: Result<Stat, Errno>) -> Self {
        match Self::from_stat(found) {
            Self::There { device, inode, .. } => {
                Self::There { device, inode, mode: 0, size: 0, modified: (0, 0), changed: (0, 0) }
            }
            other => other,
        }
    }
}

/// Flags that open a directory as a path. They refuse a symlink as the last component.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Returns the state of every trigger file on the list, always in the same order.
fn look(top: BorrowedFd<'_>, hooks: bool) -> Vec<(Name, FileState)> {
    let mut seen = Vec::with_capacity(FILES.len() + 4 * DIRS.len());
    seen.extend(FILES.iter().map(|file| (Name { dir: "", file }, FileState::from_stat(at(top, file)))));
    for Dir { name: dir, files, whole } in DIRS {
        let opened = rustix::fs::openat(top, *dir, DIRECTORY, Mode::empty());
        // A symlink in place of the directory is a trigger file itself, and so is a file: a file `.git` refers to a
        // git directory elsewhere.
        let own = match &opened {
            Ok(opened) if *dir == GIT.name => FileState::from_dir_stat(rustix::fs::fstat(opened)),
            Ok(_) | Err(Errno::NOENT) => FileState::Missing,
            Err(_) => FileState::from_stat(at(top, dir)),
        };
        seen.push((Name { dir, file: "" }, own));
        let inner = opened.as_ref();
        let each = |file: &str| inner.map_or(FileState::Missing, |inner| FileState::from_stat(at(inner.as_fd(), file)));
        seen.extend(files.iter().map(|file| (Name { dir, file }, each(file))));
        for file in whole.iter().filter(|_| hooks || *dir != GIT.name) {
            let entries = inner.map_or(FileState::Missing, |inner| entries(inner.as_fd(), file));
            seen.push((Name { dir, file }, entries));
        }
    }
    seen
}

fn at(dir: BorrowedFd<'_>, name: &str) -> Result<Stat, Errno> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Returns the state of a directory's entries, one level deep.
fn entries(dir: BorrowedFd<'_>, name: &str) -> FileState {
    let path = if name.is_empty() { "." } else { name };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::openat(dir, path, flags, Mode::empty()) else {
        // For example, it is a symlink.
        return FileState::from_stat(at(dir, path));
    };
    let Ok(listed) = rustix::fs::Dir::read_from(&opened) else {
        return FileState::from_stat(rustix::fs::fstat(&opened));
    };
    let mut sum = 0u64;
    for (count, entry) in listed.flatten().enumerate() {
        if count == MOST {
            return FileState::from_stat(rustix::fs::fstat(&opened));
        }
        let (name, bytes) = (entry.file_name(), entry.file_name().to_bytes());
        if matches!(bytes, b"." | b"..") {
            continue;
        }
        let mut hash = DefaultHasher::new();
        bytes.hash(&mut hash);
        if let Ok(stat) = rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
            (stat.st_dev, stat.st_ino, stat.st_mode).hash(&mut hash);
            // The entries of a subdirectory do not count, and they change its size and times.
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec).hash(&mut hash);
            }
        }
        // A sum does not depend on the order of the entries.
        sum = sum.wrapping_add(hash.finish());
    }
    FileState::Entries(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn project() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for sub in [".git/hooks", ".vscode", ".husky/_", ".github/workflows"] {
            fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        for file in
            ["package.json", "README.md", ".git/config", ".git/index", ".vscode/tasks.json", ".husky/pre-commit"]
        {
            fs::write(dir.path().join(file), "before").unwrap();
        }
        dir
    }

    fn after(act: impl FnOnce(&Path)) -> Vec<String> {
        let dir = project();
        let before = Triggers::look(dir.path(), true).unwrap();
        assert_eq!(before.changed(), [""; 0]);
        act(dir.path());
        before.changed()
    }

    #[test]
    fn changes_to_listed_files_are_reported_and_others_are_not() {
        let write = |path: &'static str| after(|dir| fs::write(dir.join(path), "after!").unwrap());
        for path in ["package.json", ".git/config", ".vscode/tasks.json", "Makefile", ".git/commondir"] {
            assert_eq!(write(path), [path]);
        }
        for (path, told) in [
            (".git/hooks/pre-commit", ".git/hooks"),
            (".husky/pre-commit", ".husky"),
            (".husky/_/h", ".husky/_"),
            (".github/workflows/ci.yml", ".github/workflows"),
        ] {
            assert_eq!(write(path), [told]);
        }
        for path in ["README.md", ".git/index", ".vscode/other", "sub.json"] {
            assert_eq!(write(path), [""; 0], "{path}");
        }
    }

    #[test]
    fn every_kind_of_change_is_reported() {
        assert_eq!(after(|dir| fs::remove_file(dir.join("package.json")).unwrap()), ["package.json"]);
        let runs = fs::Permissions::from_mode(0o755);
        assert_eq!(after(|dir| fs::set_permissions(dir.join("package.json"), runs).unwrap()), ["package.json"]);
        let forged = after(|dir| {
            let file = dir.join("package.json");
            let modified = fs::metadata(&file).unwrap().modified().unwrap();
            fs::write(&file, "hidden").unwrap();
            fs::File::options().write(true).open(&file).unwrap().set_modified(modified).unwrap();
        });
        assert_eq!(forged, ["package.json"], "the same size, and the time set back");
        let replaced = after(|dir| {
            fs::write(dir.join("other"), "before").unwrap();
            fs::rename(dir.join("other"), dir.join("package.json")).unwrap();
        });
        assert_eq!(replaced, ["package.json"]);
    }

    #[test]
    fn symlinks_are_not_followed_in_triggers() {
        let elsewhere = project();
        let linked = |name: &'static str| {
            after(|dir| {
                fs::rename(dir.join(name), dir.join("away")).unwrap();
                symlink(elsewhere.path().join(name), dir.join(name)).unwrap();
            })
        };
        assert_eq!(linked(".git"), [".git"]);
        assert_eq!(linked(".vscode"), [".vscode"]);
        assert_eq!(linked("package.json"), ["package.json"]);
        assert_eq!(linked(".git/hooks"), [".git/hooks"]);
        // Changes to the target of a symlink do not count.
        let dir = tempfile::tempdir().unwrap();
        symlink(elsewhere.path().join(".vscode"), dir.path().join(".vscode")).unwrap();
        let before = Triggers::look(dir.path(), true).unwrap();
        fs::write(elsewhere.path().join(".vscode/tasks.json"), "after!").unwrap();
        assert_eq!(before.changed(), [""; 0]);
    }

    #[test]
    fn a_new_repository_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let before = Triggers::look(dir.path(), false).unwrap();
        fs::create_dir_all(dir.path().join(".git/hooks")).unwrap();
        fs::write(dir.path().join(".git/config"), "").unwrap();
        assert_eq!(before.changed(), [".git"]);
        assert!(Triggers::look(&dir.path().join("missing"), false).is_none());
    }

    #[test]
    fn protected_hooks_are_not_checked() {
        let dir = project();
        let before = Triggers::look(dir.path(), false).unwrap();
        fs::write(dir.path().join(".git/hooks/pre-commit"), "").unwrap();
        assert_eq!(before.changed(), [""; 0]);
    }

    #[test]
    fn kennels_settings_files_are_triggers() {
        let here = Path::new("/project");
        let names: Vec<String> = look(CWD, true).iter().map(|(name, _)| name.to_string()).collect();
        for search_path in kennel_config::paths(here, None, &[0]) {
            let Ok(name) = search_path.path.strip_prefix(here) else { continue };
            assert!(names.iter().any(|known| Path::new(known) == name), "{}", name.display());
        }
    }
}
