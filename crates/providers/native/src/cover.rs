//! What lies over the host's root in every sandbox, so that what is private outside is not there inside.
//!
//! A directory that is covered looks empty or is not there; what is written to it goes to the sandbox's own layer.

use kennel_jail::{Cover, CoverKind};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

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
    ("workspace", 0o755),
];

/// What is not there inside, though it may come to be on the host while a sandbox runs.
const ABSENT: &[&str] =
    &["lost+found", "etc/kubernetes", "var/lib/docker", "var/lib/containerd", "var/lib/containers", "var/lib/kubelet"];

/// Files that root outside keeps from everyone, and that root inside would otherwise read.
const SECRETS: &[&str] = &["etc/shadow-", "etc/gshadow-", "etc/sudoers", "etc/krb5.keytab", "etc/machine-id"];

/// The cover, parents first. `ours` are the directories in which Kennel keeps things of its own.
pub(crate) fn of(ours: &[&Path]) -> Vec<Cover> {
    let mut covers = BTreeMap::new();
    for (dir, mode) in PRIVATE {
        covers.insert(PathBuf::from(dir), CoverKind::Empty(*mode));
    }
    covers.extend(ABSENT.iter().map(|dir| (PathBuf::from(dir), CoverKind::Nothing)));
    for dir in ours {
        let inside = dir.strip_prefix("/").unwrap_or(dir);
        covers.insert(inside.to_owned(), CoverKind::Empty(0o700));
    }
    for file in SECRETS.iter().map(PathBuf::from).chain(host_keys()) {
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

/// The keys by which this machine proves to others who it is.
fn host_keys() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/etc/ssh").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).filter_map(|name| {
        let name = name.to_str()?;
        (name.starts_with("ssh_host_") && !name.contains(".pub")).then(|| Path::new("etc/ssh").join(name))
    })
}

/// Adds the directories above each, as they are on the host: what lies on top decides how they look. What is below one
/// that is empty or absent is covered already.
fn with_parents(covers: &BTreeMap<PathBuf, CoverKind>) -> Vec<Cover> {
    let mut all = BTreeMap::new();
    for (path, kind) in covers {
        let above: Vec<&Path> = path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
        if above.iter().any(|dir| matches!(covers.get(*dir), Some(CoverKind::Empty(_) | CoverKind::Nothing))) {
            continue;
        }
        for dir in above {
            let mode = fs::metadata(Path::new("/").join(dir)).map_or(0o755, |meta| meta.permissions().mode() & 0o7777);
            all.entry(dir.to_owned()).or_insert(CoverKind::Through(mode));
        }
        all.insert(path.clone(), kind.clone());
    }
    let text = |path: PathBuf| path.to_str().map(ToOwned::to_owned);
    all.into_iter().filter_map(|(path, kind)| Some(Cover { path: text(path)?, kind })).collect()
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
    fn parents_come_first_and_nothing_is_covered_twice() {
        let covers = of(&[Path::new("/root/.local/state/kennel"), Path::new("/opt/kennel/state")]);
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
