//! What lies over the host's root in every sandbox, so that what is private outside is not there inside.
//!
//! A directory that is covered looks empty or is not there; what is written to it goes to the sandbox's own layer.

use kennel_jail::{Cover, CoverKind, Part, PartKind};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// Directories that are empty inside, and their permissions.
const PRIVATE: &[(&str, u32)] = &[
    ("root", 0o700),
    ("home", 0o755),
    ("tmp", 0o1777),
    ("var/tmp", 0o1777),
    ("run", 0o755),
    ("mnt", 0o755),
    ("media", 0o755),
    ("boot", 0o700),
    ("etc/ssl/private", 0o700),
    ("etc/sudoers.d", 0o750),
    ("var/mail", 0o755),
    ("workspace", 0o755),
];

/// What is not there inside, though it may come to be on the host while a sandbox runs.
const ABSENT: &[&str] =
    &["lost+found", "etc/kubernetes", "var/lib/docker", "var/lib/containerd", "var/lib/containers", "var/lib/kubelet"];

/// Files that root outside keeps from everyone, and that root inside would otherwise read.
const SECRETS: &[&str] = &["etc/shadow-", "etc/gshadow-", "etc/sudoers", "etc/krb5.keytab", "etc/machine-id"];

/// Directories that are another's or Kennel's own, without the leading slash, and the permissions of the empty ones that
/// are there instead. `ours` are those in which Kennel keeps things.
fn private(ours: &[PathBuf]) -> BTreeMap<String, u32> {
    let mut all: BTreeMap<String, u32> = PRIVATE.iter().map(|(dir, mode)| ((*dir).to_owned(), *mode)).collect();
    all.extend(homes().into_iter().map(|home| (home, 0o755)));
    all.extend(ours.iter().filter_map(|dir| Some((below_root(dir)?, 0o700))));
    all
}

/// A path as it is named here: without the leading slash, and nothing in it but names.
pub(crate) fn below_root(path: &Path) -> Option<String> {
    let names = path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    let names: Option<Vec<&str>> = names.map(|part| part.as_os_str().to_str().filter(|name| *name != "..")).collect();
    names.map(|names| names.join("/"))
}

/// The directories above a path, the topmost first.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// The homes of people that lie elsewhere than homes do.
fn homes() -> Vec<String> {
    const FIRST_PERSON: u32 = 1000;
    const NOBODY: u32 = 65534;
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let homes = accounts.lines().filter_map(|line| {
        let uid: u32 = line.split(':').nth(2)?.parse().ok()?;
        if !(FIRST_PERSON..NOBODY).contains(&uid) {
            return None;
        }
        let home = below_root(Path::new(line.split(':').nth(5)?))?;
        // One that is the top of something is no home of anyone's alone.
        let own = home.contains('/') && !PRIVATE.iter().any(|(dir, _)| Path::new(&home).starts_with(dir));
        (own && Path::new("/").join(&home).is_dir()).then_some(home)
    });
    homes.collect()
}

/// The cover, parents first. `ours` are the directories in which Kennel keeps things of its own.
pub(crate) fn of(ours: &[PathBuf]) -> Vec<Cover> {
    let mut covers: BTreeMap<String, CoverKind> =
        private(ours).into_iter().map(|(dir, mode)| (dir, CoverKind::Empty(mode))).collect();
    covers.extend(ABSENT.iter().map(|dir| ((*dir).to_owned(), CoverKind::Nothing)));
    for file in SECRETS.iter().map(|file| (*file).to_owned()).chain(host_keys()) {
        if Path::new("/").join(&file).symlink_metadata().is_ok() {
            covers.insert(file, CoverKind::Nothing);
        }
    }
    for file in ["etc/shadow", "etc/gshadow"] {
        if let Ok(text) = fs::read_to_string(Path::new("/").join(file)) {
            covers.insert(file.into(), CoverKind::File(0o640, without_passwords(&text).into_bytes().into()));
        }
    }
    with_parents(&covers)
}

/// Adds directories that something is mounted at in one that is empty: it takes a fraction of the time that making them
/// in the sandbox's own layer does.
pub(crate) fn add_places<'a>(covers: &mut Vec<Cover>, targets: impl Iterator<Item = &'a str>) {
    for target in targets.filter_map(|target| below_root(Path::new(target))) {
        let is_empty = |cover: &Cover| {
            let below = target.strip_prefix(cover.path.as_str()).is_some_and(|rest| rest.starts_with('/'));
            below && matches!(cover.kind, CoverKind::Empty(_))
        };
        let Some(top) = covers.iter().find(|cover| is_empty(cover)).map(|cover| cover.path.len()) else { continue };
        let ends = target.match_indices('/').map(|(at, _)| at).filter(|at| *at > top).chain([target.len()]);
        for dir in ends.map(|end| &target[..end]) {
            if !covers.iter().any(|cover| cover.path == dir) {
                covers.push(Cover { path: dir.to_owned(), kind: CoverKind::Through(0o755) });
            }
        }
    }
}

/// The host's root in parts, for a user who cannot have it as a whole, parents first. What that user cannot read it cannot
/// read inside either: only what it could is left out.
pub(crate) fn parts(ours: &[PathBuf]) -> Vec<Part> {
    const KERNEL: [&str; 3] = ["dev", "proc", "sys"];
    let private = private(ours);
    let own = |path: &str| private.get(path).map(|mode| PartKind::Own(*mode));
    let mut parts = BTreeMap::new();
    for entry in fs::read_dir("/").into_iter().flatten().flatten() {
        let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else { continue };
        if KERNEL.contains(&&*name) || ABSENT.contains(&&*name) {
            continue;
        }
        if kind.is_symlink() {
            if let Some(target) = fs::read_link(entry.path()).ok().and_then(|target| Some(target.to_str()?.to_owned()))
            {
                parts.insert(name, PartKind::Link(target));
            }
        } else if kind.is_dir() {
            let mode = entry.metadata().map_or(0o755, |meta| meta.permissions().mode() & 0o7777);
            let part = own(&name).unwrap_or(PartKind::Host(mode));
            parts.insert(name, part);
        }
    }
    for (path, mode) in &private {
        let above = above(path).any(|dir| matches!(parts.get(dir), Some(PartKind::Own(_))));
        let there = !path.contains('/') || Path::new("/").join(path).symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if !above && there {
            parts.insert(path.clone(), PartKind::Own(*mode));
        }
    }
    parts.into_iter().map(|(path, kind)| Part { path, kind }).collect()
}

/// The keys by which this machine proves to others who it is.
fn host_keys() -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/etc/ssh").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).filter_map(|name| {
        let name = name.to_str()?;
        (name.starts_with("ssh_host_") && !name.contains(".pub")).then(|| format!("etc/ssh/{name}"))
    })
}

/// Adds the directories above each, as they are on the host: what lies on top decides how they look. What is below one
/// that is empty or absent is covered already.
fn with_parents(covers: &BTreeMap<String, CoverKind>) -> Vec<Cover> {
    let mut all = BTreeMap::new();
    for (path, kind) in covers {
        if above(path).any(|dir| matches!(covers.get(dir), Some(CoverKind::Empty(_) | CoverKind::Nothing))) {
            continue;
        }
        for dir in above(path) {
            let meta = || fs::metadata(Path::new("/").join(dir));
            let mode = || meta().map_or(0o755, |meta| meta.permissions().mode() & 0o7777);
            all.entry(dir.to_owned()).or_insert_with(|| CoverKind::Through(mode()));
        }
        all.insert(path.clone(), kind.clone());
    }
    all.into_iter().map(|(path, kind)| Cover { path, kind }).collect()
}

/// The same accounts, none of which can log in.
fn without_passwords(text: &str) -> String {
    text.lines()
        .map(|line| {
            let mut fields: Vec<&str> = line.split(':').collect();
            if let Some(password) = fields.get_mut(1) {
                *password = "*";
            }
            fields.join(":") + "\n"
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hash_is_left() {
        let text = "root:$y$j9T$abc:19000:0:99999:7:::\nann:!:1::::::\n";
        assert_eq!(without_passwords(text), "root:*:19000:0:99999:7:::\nann:*:1::::::\n");
    }

    #[test]
    fn a_user_gets_the_system_and_no_homes() {
        let parts = parts(&["/usr/share".into()]);
        let kind = |path: &str| parts.iter().find(|part| part.path == path).map(|part| &part.kind);
        assert!(matches!(kind("usr"), Some(PartKind::Host(_))));
        assert!(matches!(kind("home"), Some(PartKind::Own(_))));
        assert!(matches!(kind("usr/share"), Some(PartKind::Own(0o700))), "Kennel's own, if it were there");
        assert!(matches!(kind("var/tmp"), Some(PartKind::Own(0o1777))));
        assert_eq!(kind("proc"), None);
        assert!(!parts.iter().any(|part| part.path.starts_with("home/")));
        let place = |path: &str| parts.iter().position(|part| part.path == path);
        assert!(place("usr") < place("usr/share"));
    }

    #[test]
    fn paths_are_told_by_names_alone() {
        let named = |path: &str| below_root(Path::new(path));
        assert_eq!(named("/./srv//ann/.").as_deref(), Some("srv/ann"));
        assert_eq!(named("/").as_deref(), Some(""));
        assert_eq!(named("/srv/../root"), None);
    }

    #[test]
    fn places_are_made_where_it_is_empty() {
        let empty = Cover { path: "root".into(), kind: CoverKind::Empty(0o700) };
        let mut covers = vec![empty, Cover { path: "etc/shadow".into(), kind: CoverKind::Nothing }];
        add_places(&mut covers, ["/root/.cargo/bin", "/root//.cargo/./registry/", "/opt/x", "/rooted/x"].into_iter());
        let paths: Vec<&str> = covers.iter().map(|cover| cover.path.as_str()).collect();
        assert_eq!(paths, ["root", "etc/shadow", "root/.cargo", "root/.cargo/bin", "root/.cargo/registry"]);
    }

    #[test]
    fn parents_come_first_and_nothing_is_covered_twice() {
        let covers = of(&["/root/.local/state/kennel".into(), "/opt/kennel/state".into()]);
        let paths: Vec<&str> = covers.iter().map(|cover| cover.path.as_str()).collect();
        assert!(!paths.iter().any(|path| path.starts_with("root/")));
        assert!(paths.contains(&"opt/kennel/state"));
        for (index, path) in paths.iter().enumerate() {
            if let Some((parent, _)) = path.rsplit_once('/') {
                assert!(paths[..index].contains(&parent), "{path} before {parent}");
            }
        }
    }
}
