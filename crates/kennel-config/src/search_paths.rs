//! The paths where settings files are searched for.

use crate::{KeyPath, Location, Problem, SettingsLayer, Source, What};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The program that a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Kennel: every key in the file must be known.
    Kennel,
    /// Another program: only one section of the file is read, if it exists.
    Other {
        /// The name of the section.
        section: &'static str,
    },
}

/// A path where a settings file is searched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchPath {
    /// The path.
    pub path: PathBuf,
    /// The layer of the file.
    pub layer: SettingsLayer,
    /// The program that the file belongs to.
    pub owner: Owner,
    /// Whether the file exists.
    pub exists: bool,
}

const EXTENSIONS: [&str; 4] = ["toml", "yaml", "yml", "json"];

/// Files of other programs, and the section that each may contain. No other section is read: the same name may have
/// another meaning in a file that is not Kennel's.
const OTHERS: [(&str, &str); 4] = [
    (".openagents/project.json", "sandbox"),
    ("opencode.json", "container"),
    ("config.yaml", "agent"),
    ("config.yml", "agent"),
];

/// Returns all paths, weakest first: the user's file, files of other programs in the project, the project's own files.
///
/// The project's directory is the nearest one, from `project` upwards, that contains a file of Kennel; otherwise the
/// nearest with a `.git`; otherwise `project` itself. The search ends at a `.git`. It does not continue into a
/// directory that everyone can write to, such as `/tmp`. It also does not continue into a directory that belongs to
/// anyone but the calling user (one of `users`), root, or the owner of `project`, who could put a file there anyway.
/// Both paths must be absolute.
pub fn paths(project: &Path, user: Option<&Path>, users: &[u32]) -> Vec<SearchPath> {
    let mut search_paths: Vec<_> = user.into_iter().flat_map(|dir| own(dir, "config", SettingsLayer::User)).collect();
    let mut looked = Vec::new();
    let mut root = project;
    for dir in project.ancestors() {
        if dir != project && is_strangers(dir, project, users) {
            break;
        }
        let mut here = own(dir, "kennel", SettingsLayer::Project);
        here.extend(own(&dir.join(".kennel"), "config", SettingsLayer::Project));
        let found = here.iter().any(|search_path| search_path.exists);
        looked.splice(0..0, here);
        let ends = is_there(&dir.join(".git"));
        if found || ends {
            root = dir;
            break;
        }
    }
    search_paths.extend(
        OTHERS
            .iter()
            .map(|(name, section)| search_path(root.join(name), SettingsLayer::Project, Owner::Other { section })),
    );
    search_paths.extend(looked);
    search_paths
}

impl SearchPath {
    /// The user's own settings file, at this path. It may be a symlink.
    pub fn of_user(path: &Path) -> Self {
        search_path(path.to_owned(), SettingsLayer::User, Owner::Kennel)
    }

    /// A file that the user named. Its name tells which program it belongs to. But `config.yaml` counts as Kennel's,
    /// because it may be the user's own.
    pub fn named(path: &Path) -> Self {
        let other = OTHERS.iter().find(|(name, _)| path.ends_with(name) && !name.starts_with("config."));
        let owner = other.map_or(Owner::Kennel, |(_, section)| Owner::Other { section });
        search_path(path.to_owned(), SettingsLayer::Project, owner)
    }
}

/// Whether any program may have a file of that name.
pub(crate) fn has_common_name(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| stem == "config")
}

/// Finds two files of Kennel in one directory, because it is ambiguous which one applies.
pub(crate) fn doubles(search_paths: &[SearchPath]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for layer in [SettingsLayer::User, SettingsLayer::Project] {
        let mut ours = search_paths.iter().filter(|search_path| {
            search_path.exists && search_path.layer == layer && search_path.owner == Owner::Kennel
        });
        let Some(first) = ours.next() else { continue };
        for second in ours {
            let what = What::TwoFiles { other: first.path.to_string_lossy().into_owned() };
            let at = Location::whole(Source::File(second.path.clone()));
            problems.push(Problem { at, key: KeyPath::default(), what });
        }
    }
    problems
}

fn own(dir: &Path, stem: &str, layer: SettingsLayer) -> Vec<SearchPath> {
    EXTENSIONS
        .iter()
        .map(|extension| search_path(dir.join(format!("{stem}.{extension}")), layer, Owner::Kennel))
        .collect()
}

fn search_path(path: PathBuf, layer: SettingsLayer, owner: Owner) -> SearchPath {
    let exists = is_there(&path);
    SearchPath { path, layer, owner, exists }
}

/// A path that cannot be checked counts as existing: reading it then reports the reason. So does a dangling symlink.
fn is_there(path: &Path) -> bool {
    match std::fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}

/// Whether anyone but the calling user and root controls a directory above the project's.
#[cfg(unix)]
fn is_strangers(dir: &Path, project: &Path, users: &[u32]) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = std::fs::metadata(dir) else { return true };
    let anyone_writes = meta.mode() & 0o002 != 0;
    let owner = meta.uid();
    let known = owner == 0 || users.contains(&owner) || std::fs::metadata(project).is_ok_and(|it| it.uid() == owner);
    anyone_writes || !known
}

#[cfg(not(unix))]
fn is_strangers(_: &Path, _: &Path, _: &[u32]) -> bool {
    false
}
