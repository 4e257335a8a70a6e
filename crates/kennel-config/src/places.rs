//! The paths where settings files are searched for.

use crate::{KeyPath, Layer, Location, Problem, Source, What};
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
pub struct Place {
    /// The path.
    pub path: PathBuf,
    /// The layer of the file.
    pub layer: Layer,
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
pub fn paths(project: &Path, user: Option<&Path>, users: &[u32]) -> Vec<Place> {
    let mut places: Vec<_> = user.into_iter().flat_map(|dir| own(dir, "config", Layer::User)).collect();
    let mut looked = Vec::new();
    let mut root = project;
    for dir in project.ancestors() {
        if dir != project && is_strangers(dir, project, users) {
            break;
        }
        let mut here = own(dir, "kennel", Layer::Project);
        here.extend(own(&dir.join(".kennel"), "config", Layer::Project));
        let found = here.iter().any(|place| place.exists);
        looked.splice(0..0, here);
        let ends = is_there(&dir.join(".git"));
        if found || ends {
            root = dir;
            break;
        }
    }
    places
        .extend(OTHERS.iter().map(|(name, section)| place(root.join(name), Layer::Project, Owner::Other { section })));
    places.extend(looked);
    places
}

impl Place {
    /// The user's own settings file, at this path. It may be a symlink.
    pub fn of_user(path: &Path) -> Self {
        place(path.to_owned(), Layer::User, Owner::Kennel)
    }

    /// A file that the user named. Its name tells which program it belongs to. But `config.yaml` counts as Kennel's,
    /// because it may be the user's own.
    pub fn named(path: &Path) -> Self {
        let other = OTHERS.iter().find(|(name, _)| path.ends_with(name) && !name.starts_with("config."));
        let owner = other.map_or(Owner::Kennel, |(_, section)| Owner::Other { section });
        place(path.to_owned(), Layer::Project, owner)
    }
}

/// Whether any program may have a file of that name.
pub(crate) fn has_common_name(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| stem == "config")
}

/// Finds two files of Kennel in one directory, because it is ambiguous which one applies.
pub(crate) fn doubles(places: &[Place]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for layer in [Layer::User, Layer::Project] {
        let mut ours =
            places.iter().filter(|place| place.exists && place.layer == layer && place.owner == Owner::Kennel);
        let Some(first) = ours.next() else { continue };
        for second in ours {
            let what = What::TwoFiles { other: first.path.to_string_lossy().into_owned() };
            let at = Location::whole(Source::File(second.path.clone()));
            problems.push(Problem { at, key: KeyPath::default(), what });
        }
    }
    problems
}

fn own(dir: &Path, stem: &str, layer: Layer) -> Vec<Place> {
    EXTENSIONS.iter().map(|extension| place(dir.join(format!("{stem}.{extension}")), layer, Owner::Kennel)).collect()
}

fn place(path: PathBuf, layer: Layer, owner: Owner) -> Place {
    let exists = is_there(&path);
    Place { path, layer, owner, exists }
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
