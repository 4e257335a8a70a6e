//! The base layer: what lies over the host's root in every sandbox, so that what is private there is not there inside.
//!
//! Made once per installation and shared by all its sandboxes, read-only. An opaque directory in it hides the host's
//! and looks empty; writing to it goes to the sandbox's own layer.

use crate::plan::FIRST_ID;
use kennel_core::{Error, Result};
use rustix::fs::{Gid, Mode, Uid, XattrFlags};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
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
    ("lost+found", 0o700),
    ("var/lib/docker", 0o700),
    ("var/lib/containerd", 0o700),
    ("var/lib/containers", 0o700),
    ("var/lib/kubelet", 0o700),
    ("etc/kubernetes", 0o700),
    ("etc/ssl/private", 0o700),
    ("etc/sudoers.d", 0o750),
    ("workspace", 0o755),
];

/// Files that root outside keeps from everyone, and that root inside would otherwise read.
const SECRETS: &[&str] = &["etc/shadow-", "etc/gshadow-", "etc/sudoers", "etc/krb5.keytab", "etc/machine-id"];

/// The base layer below `state`, made if it is not there.
pub(crate) fn layer(state: &Path, programs: &Path) -> Result<PathBuf> {
    let path = state.join(concat!("base-", env!("CARGO_PKG_VERSION")));
    if path.exists() {
        return Ok(path);
    }
    let failed = |error: std::io::Error| Error::io(format!("make the base layer {}", path.display()), error);
    let partial = state.join(format!(".base-{}", std::process::id()));
    let _ = fs::remove_dir_all(&partial);
    build(&partial, &[state, programs]).map_err(failed)?;
    match fs::rename(&partial, &path) {
        Ok(()) => Ok(path),
        // Someone else was faster.
        Err(_) if path.exists() => {
            let _ = fs::remove_dir_all(&partial);
            Ok(path)
        }
        Err(error) => Err(failed(error)),
    }
}

fn build(layer: &Path, ours: &[&Path]) -> std::io::Result<()> {
    make_dir(layer, 0o755)?;
    for (dir, mode) in PRIVATE {
        hide_dir(layer, Path::new(dir), *mode)?;
    }
    for dir in ours {
        // What is below a hidden directory is hidden with it; another may hold Kennel's own files.
        let inside = dir.strip_prefix("/").unwrap_or(dir);
        if !PRIVATE.iter().any(|(hidden, _)| inside.starts_with(hidden)) {
            hide_dir(layer, inside, 0o700)?;
        }
    }
    for file in SECRETS {
        if Path::new("/").join(file).symlink_metadata().is_ok() {
            hide_file(layer, Path::new(file))?;
        }
    }
    if let Ok(entries) = fs::read_dir("/etc/ssh") {
        for name in entries.flatten().map(|entry| entry.file_name()) {
            if name.to_str().is_some_and(|name| name.starts_with("ssh_host_") && !name.contains(".pub")) {
                hide_file(layer, &Path::new("etc/ssh").join(name))?;
            }
        }
    }
    for file in ["etc/shadow", "etc/gshadow"] {
        if let Ok(text) = fs::read_to_string(Path::new("/").join(file)) {
            let path = layer.join(file);
            make_parents(layer, Path::new(file))?;
            fs::write(&path, without_passwords(&text))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640))?;
            give_away(&path)?;
        }
    }
    Ok(())
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

/// A directory that hides the one below it.
fn hide_dir(layer: &Path, dir: &Path, mode: u32) -> std::io::Result<()> {
    make_parents(layer, dir)?;
    let path = layer.join(dir);
    make_dir(&path, mode)?;
    rustix::fs::setxattr(&path, "trusted.overlay.opaque", b"y", XattrFlags::empty())?;
    Ok(())
}

/// A mark that makes the overlay show nothing where the host has a file.
fn hide_file(layer: &Path, file: &Path) -> std::io::Result<()> {
    make_parents(layer, file)?;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        layer.join(file),
        rustix::fs::FileType::CharacterDevice,
        Mode::empty(),
        rustix::fs::makedev(0, 0),
    )?;
    Ok(())
}

/// The directories above, as they are on the host: the topmost layer's permissions are what is seen.
fn make_parents(layer: &Path, path: &Path) -> std::io::Result<()> {
    let mut parents: Vec<&Path> = path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
    parents.reverse();
    for dir in parents {
        if !layer.join(dir).exists() {
            let mode = fs::metadata(Path::new("/").join(dir)).map_or(0o755, |meta| meta.permissions().mode() & 0o7777);
            make_dir(&layer.join(dir), mode)?;
        }
    }
    Ok(())
}

fn make_dir(path: &Path, mode: u32) -> std::io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    give_away(path)
}

fn give_away(path: &Path) -> std::io::Result<()> {
    rustix::fs::chown(path, Some(Uid::from_raw(FIRST_ID)), Some(Gid::from_raw(FIRST_ID)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::without_passwords;

    #[test]
    fn no_hash_is_left() {
        let text = "root:$y$j9T$abc:19000:0:99999:7:::\nann:!:1::::::\n";
        assert_eq!(without_passwords(text), "root:*:19000:0:99999:7:::\nann:*:1::::::\n");
    }
}
