//! The layer that masks host paths in a sandbox on the host's files, and the list of host filesystems that are shown.
//!
//! The kernel refuses access to what other users may not read (see the jail's `overlay`). This layer masks the rest:
//! private paths whatever their permissions are, and files that packages and tools inside must replace, which would
//! otherwise exist but be unreadable. A masked directory is empty or absent. Writes to it go to the sandbox's upper
//! layer.

use kennel_jail::{Base, HostDir, HostDirKind, MaskEntry, MaskEntryKind};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Directories that are empty inside, and their permissions.
const PRIVATE: &[(&str, u32)] = &[
    ("root", 0o700),
    ("home", 0o755),
    ("srv", 0o755),
    ("tmp", 0o1777),
    ("var/tmp", 0o1777),
    ("run", 0o755),
    ("mnt", 0o755),
    ("media", 0o755),
    ("boot", 0o700),
    ("etc/ssl/private", 0o700),
    ("etc/sudoers.d", 0o750),
    ("var/backups", 0o755),
    ("var/mail", 0o755),
    ("var/spool/cron/crontabs", 0o1730),
    ("workspace", 0o755),
];

/// Paths that are absent inside, even if they are created on the host while a sandbox runs.
const ABSENT: &[&str] =
    &["lost+found", "etc/kubernetes", "var/lib/docker", "var/lib/containerd", "var/lib/containers", "var/lib/kubelet"];

/// Entries of `/var/lib` that hold other containers, virtual machines and clusters, whoever owns them.
const STORES: &[&str] = &[
    "buildkit",
    "cni",
    "crio",
    "etcd",
    "incus",
    "k0s",
    "k3s",
    "libvirt",
    "lima",
    "lxc",
    "lxcfs",
    "lxd",
    "machines",
    "microsandbox",
    "minikube",
    "nerdctl",
    "nomad",
    "portables",
    "private",
    "qemu",
    "rancher",
    "vagrant",
    "vz",
    "waydroid",
];

/// Files that are absent inside although everyone may read them, because they identify the machine.
const SECRETS: &[&str] = &["etc/machine-id"];

/// Files that packages and tools inside write or replace, and that often only root may read on the host. Those that are
/// private are absent inside, and tools create their own. Files whose permissions dpkg was told to change are checked
/// too.
const REPLACED: &[&str] = &[
    "etc/.pwd.lock",
    "etc/gshadow-",
    "etc/ppp/chap-secrets",
    "etc/ppp/pap-secrets",
    "etc/shadow-",
    "etc/sudoers",
    "lib/apk/db/lock",
    "usr/bin/sudo",
    "usr/bin/sudoreplay",
    "var/cache/apt/archives/lock",
    "var/cache/apt/archives/partial",
    "var/cache/debconf/passwords.dat",
    "var/cache/ldconfig",
    "var/lib/apt/lists/lock",
    "var/lib/apt/lists/partial",
    "var/lib/dpkg/lock",
    "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/triggers/Lock",
    "var/log/apt/term.log",
    "var/log/btmp",
];

/// Host filesystems are shown in addition to the root if they are mounted at or below one of these directories.
const SHOWN: &[&str] = &["usr", "var", "opt"];

/// Filesystem types that hold files. Other types that may be mounted (proc, fuse, overlay) are not shown.
const STORAGE: &[&str] =
    &["bcachefs", "btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "jfs", "squashfs", "tmpfs", "xfs", "zfs"];

/// Returns the directories that are private or belong to Kennel, without the leading slash, with the permissions of the
/// empty directories that replace them. `ours` are Kennel's own directories.
fn private(ours: &[PathBuf]) -> BTreeMap<String, u32> {
    let mut all: BTreeMap<String, u32> = PRIVATE.iter().map(|(dir, mode)| ((*dir).to_owned(), *mode)).collect();
    all.extend(homes().into_iter().map(|home| (home, 0o755)));
    all.extend(ours.iter().filter_map(|dir| Some((below_root(dir)?, 0o700))));
    all
}

/// Returns a path without the leading slash and without `.` components.
pub(crate) fn below_root(path: &Path) -> Option<String> {
    let names = path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    let names: Option<Vec<&str>> = names.map(|part| part.as_os_str().to_str().filter(|name| *name != "..")).collect();
    names.map(|names| names.join("/"))
}

/// Returns the directories above a path, topmost first.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// Returns home directories that are in an unusual place.
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
        // A top-level directory is not the home directory of a single user.
        let own = home.contains('/') && !PRIVATE.iter().any(|(dir, _)| Path::new(&home).starts_with(dir));
        (own && Path::new("/").join(&home).is_dir()).then_some(home)
    });
    homes.collect()
}

/// Describes the host's root for sandboxes of root. `ours` are Kennel's own directories.
pub(crate) fn host(ours: &[PathBuf]) -> Base {
    let masks = masks(ours);
    // The mounts of this thread, which may be in another mount namespace than the main thread.
    let mounts = mountinfo().unwrap_or_default();
    let mut filesystems = filesystems(&mounts, &masks);
    // A single file can be a mount point, too. Then the file below is shown.
    filesystems.retain(|path| Path::new("/").join(path).is_dir());
    let masks = with_parents(&masks, &filesystems);
    Base::Host { filesystems, masks }
}

/// Reads the mounts of this thread.
fn mountinfo() -> std::io::Result<String> {
    // Files in /proc have no size. Without this capacity they would be read in many small pieces.
    let mut text = String::with_capacity(16 * 1024);
    fs::File::open("/proc/thread-self/mountinfo")?.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns what is masked, by path.
fn masks(ours: &[PathBuf]) -> BTreeMap<String, MaskEntryKind> {
    let mut masks: BTreeMap<String, MaskEntryKind> =
        private(ours).into_iter().map(|(dir, mode)| (dir, MaskEntryKind::Empty(mode))).collect();
    masks.extend(ABSENT.iter().map(|path| ((*path).to_owned(), MaskEntryKind::Nothing)));
    masks.extend(foreign_state().map(|(path, _)| (path, MaskEntryKind::Nothing)));
    let is_there = |path: &&&str| Path::new("/").join(path).symlink_metadata().is_ok();
    masks.extend(SECRETS.iter().filter(is_there).map(|path| ((*path).to_owned(), MaskEntryKind::Nothing)));
    let overridden = fs::read_to_string("/var/lib/dpkg/statoverride").unwrap_or_default();
    let overridden = overridden.lines().filter_map(|line| line.split(' ').nth(3)?.strip_prefix('/'));
    for path in REPLACED.iter().copied().chain(overridden).filter(|path| is_private(path)) {
        masks.entry(path.to_owned()).or_insert(MaskEntryKind::Nothing);
    }
    for file in ["etc/shadow", "etc/gshadow"] {
        if let Ok(text) = fs::read_to_string(Path::new("/").join(file)) {
            masks.insert(file.into(), MaskEntryKind::File(0o640, without_passwords(&text).into_bytes().into()));
        }
    }
    masks
}

/// Whether the path exists and other users may not read it or look into it.
fn is_private(path: &str) -> bool {
    Path::new("/").join(path).symlink_metadata().is_ok_and(|found| {
        let needed = if found.is_dir() { 0o005 } else { 0o004 };
        !found.is_symlink() && found.mode() & needed != needed
    })
}

/// Returns entries of `/var/lib` that are not part of the system: those that do not belong to root, or hold containers
/// and virtual machines. Each has its permissions.
fn foreign_state() -> impl Iterator<Item = (String, u32)> {
    const DIR: &str = "/var/lib";
    fs::read_dir(DIR).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let found = entry.metadata().ok()?;
        let foreign = found.uid() != 0 || STORES.contains(&&*name);
        foreign.then(|| (format!("{}/{name}", &DIR[1..]), found.mode()))
    })
}

/// Returns the mount points of other host filesystems that are shown, without a leading slash, parents first. Nothing
/// is shown below a masked path, or below a mount that is not shown.
fn filesystems(mountinfo: &str, masks: &BTreeMap<String, MaskEntryKind>) -> Vec<String> {
    let mut found: Vec<(String, bool)> = Vec::new();
    for line in mountinfo.lines() {
        let mut fields = line.split(' ');
        let at = fields.nth(4).and_then(|at| at.strip_prefix('/'));
        let Some(at) = at.filter(|at| SHOWN.iter().any(|top| is_at_or_below(at, top))) else { continue };
        let Some(kind) = fields.skip_while(|field| *field != "-").nth(1) else { continue };
        // Spaces and the like are written as `\040`: nobody mounts a system's files there.
        let storage = !at.contains('\\') && STORAGE.contains(&kind);
        // What is mounted over another hides it, and what is below that.
        found.retain(|(earlier, _)| !is_at_or_below(earlier, at));
        found.push((at.to_owned(), storage));
    }
    found.sort();
    let masked = |at: &str| {
        let hides = |path: &str| matches!(masks.get(path), Some(MaskEntryKind::Empty(_) | MaskEntryKind::Nothing));
        hides(at) || above(at).any(hides)
    };
    let is_shown = |at: &str| !found.iter().any(|(other, storage)| !storage && is_at_or_below(at, other));
    found.iter().filter(|(at, _)| is_shown(at) && !masked(at)).map(|(at, _)| at.clone()).collect()
}

fn is_at_or_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Adds the mount points that lie in an empty directory. This takes a fraction of the time of creating them in the
/// upper layer.
pub(crate) fn add_places<'a>(masks: &mut Vec<MaskEntry>, targets: impl Iterator<Item = &'a str>) {
    for target in targets.filter_map(|target| below_root(Path::new(target))) {
        let is_empty = |entry: &MaskEntry| {
            let below = target.strip_prefix(entry.path.as_str()).is_some_and(|rest| rest.starts_with('/'));
            below && matches!(entry.kind, MaskEntryKind::Empty(_))
        };
        let Some(top) = masks.iter().find(|entry| is_empty(entry)).map(|entry| entry.path.len()) else { continue };
        let ends = target.match_indices('/').map(|(at, _)| at).filter(|at| *at > top).chain([target.len()]);
        for dir in ends.map(|end| &target[..end]) {
            if !masks.iter().any(|entry| entry.path == dir) {
                masks.push(MaskEntry { path: dir.to_owned(), kind: MaskEntryKind::Through(0o755) });
            }
        }
    }
}

/// Lists the directories of the host's root, parents first, for a user who cannot use it as a whole. What that user
/// cannot read outside cannot be read inside either, so only readable paths are masked.
pub(crate) fn host_dirs(ours: &[PathBuf]) -> Vec<HostDir> {
    const KERNEL: [&str; 3] = ["dev", "proc", "sys"];
    let mut private = private(ours);
    // Only directories that the user could look into must be masked.
    private.extend(foreign_state().filter(|(_, mode)| mode & 0o5 == 0o5).map(|(path, _)| (path, 0o755)));
    let device = fs::metadata("/").map(|root| root.dev()).ok();
    let own = |path: &str| private.get(path).map(|mode| HostDirKind::Own(*mode));
    let mut dirs = BTreeMap::new();
    for entry in fs::read_dir("/").into_iter().flatten().flatten() {
        let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else { continue };
        if KERNEL.contains(&&*name) || ABSENT.contains(&&*name) {
            continue;
        }
        if kind.is_symlink() {
            if let Some(target) = fs::read_link(entry.path()).ok().and_then(|target| Some(target.to_str()?.to_owned()))
            {
                dirs.insert(name, HostDirKind::Link(target));
            }
        } else if kind.is_dir() {
            let found = entry.metadata().ok();
            let mode = found.as_ref().map_or(0o755, |found| found.mode() & 0o7777);
            // Other filesystems are not shown, except those that belong to the system.
            let elsewhere = found.is_some_and(|found| Some(found.dev()) != device) && !SHOWN.contains(&&*name);
            let dir = own(&name).unwrap_or(if elsewhere { HostDirKind::Own(0o755) } else { HostDirKind::Host(mode) });
            dirs.insert(name, dir);
        }
    }
    for (path, mode) in &private {
        let above = above(path).any(|dir| matches!(dirs.get(dir), Some(HostDirKind::Own(_))));
        let there = !path.contains('/') || Path::new("/").join(path).symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if !above && there {
            dirs.insert(path.clone(), HostDirKind::Own(*mode));
        }
    }
    dirs.into_iter().map(|(path, kind)| HostDir { path, kind }).collect()
}

/// Adds the directories above each entry, with the permissions they have on the host, because the topmost layer decides
/// them. Entries below an empty or absent directory are already masked. Each filesystem needs its directory, too.
fn with_parents(masks: &BTreeMap<String, MaskEntryKind>, filesystems: &[String]) -> Vec<MaskEntry> {
    let mut all = BTreeMap::new();
    let seen = |dir: &str| {
        let mode = fs::metadata(Path::new("/").join(dir)).map_or(0o755, |meta| meta.permissions().mode() & 0o7777);
        MaskEntryKind::Through(mode)
    };
    for path in filesystems {
        for dir in above(path).chain([&**path]) {
            all.entry(dir.to_owned()).or_insert_with(|| seen(dir));
        }
    }
    for (path, kind) in masks {
        if above(path).any(|dir| matches!(masks.get(dir), Some(MaskEntryKind::Empty(_) | MaskEntryKind::Nothing))) {
            continue;
        }
        for dir in above(path) {
            if !all.contains_key(dir) {
                // A directory that other users may not look into could not be merged with the host's.
                let kind = match seen(dir) {
                    MaskEntryKind::Through(mode) if mode & 0o005 != 0o005 => MaskEntryKind::Empty(mode),
                    kind => kind,
                };
                all.insert(dir.to_owned(), kind);
            }
        }
        all.insert(path.clone(), kind.clone());
    }
    all.into_iter().map(|(path, kind)| MaskEntry { path, kind }).collect()
}

/// Returns the same accounts with disabled passwords.
fn without_passwords(text: &str) -> String {
    let mut without = String::with_capacity(text.len());
    for line in text.lines() {
        let (name, rest) = line.split_once(':').unwrap_or((line, ""));
        without.push_str(name);
        if let Some((_, rest)) = rest.split_once(':') {
            without.push_str(":*:");
            without.push_str(rest);
        } else if name.len() < line.len() {
            without.push_str(":*");
        }
        without.push('\n');
    }
    without
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_hashes_are_removed() {
        let text = "root:$y$j9T$abc:19000:0:99999:7:::\nann:!:1::::::\n";
        assert_eq!(without_passwords(text), "root:*:19000:0:99999:7:::\nann:*:1::::::\n");
    }

    #[test]
    fn a_user_sees_the_system_and_no_home_directories() {
        let dirs = host_dirs(&["/usr/share".into()]);
        let kind = |path: &str| dirs.iter().find(|dir| dir.path == path).map(|dir| &dir.kind);
        assert!(matches!(kind("usr"), Some(HostDirKind::Host(_))));
        assert!(matches!(kind("home"), Some(HostDirKind::Own(_))));
        assert!(matches!(kind("usr/share"), Some(HostDirKind::Own(0o700))), "Kennel's own, if it were there");
        assert!(matches!(kind("var/tmp"), Some(HostDirKind::Own(0o1777))));
        assert_eq!(kind("proc"), None);
        assert!(!dirs.iter().any(|dir| dir.path.starts_with("home/")));
        let place = |path: &str| dirs.iter().position(|dir| dir.path == path);
        assert!(place("usr") < place("usr/share"));
    }

    #[test]
    fn paths_are_normalized_without_dot_dot() {
        let named = |path: &str| below_root(Path::new(path));
        assert_eq!(named("/./srv//ann/.").as_deref(), Some("srv/ann"));
        assert_eq!(named("/").as_deref(), Some(""));
        assert_eq!(named("/srv/../root"), None);
    }

    #[test]
    fn filesystems_of_the_system_are_visible() {
        let mounts = "\
            22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            23 22 8:2 / /usr rw,relatime shared:1 - ext4 /dev/sda2 rw\n\
            24 22 8:3 / /var rw - xfs /dev/sda3 rw\n\
            25 24 8:4 / /var/lib/docker rw - ext4 /dev/sda4 rw\n\
            26 24 0:30 / /var/lib/lxcfs rw - fuse.lxcfs lxcfs rw\n\
            27 26 8:9 / /var/lib/lxcfs/data rw - ext4 /dev/sda9 rw\n\
            28 22 8:5 / /data rw - ext4 /dev/sda5 rw\n\
            29 22 8:6 / /optional rw - ext4 /dev/sda6 rw\n\
            30 22 8:7 / /opt/hidden rw - ext4 /dev/sda7 rw\n\
            31 22 8:8 / /opt rw - btrfs /dev/sda8 rw\n";
        let masks = [("var/lib/docker".to_owned(), MaskEntryKind::Nothing)].into();
        assert_eq!(filesystems(mounts, &masks), ["opt", "usr", "var"]);
    }

    #[test]
    fn mount_points_are_created_in_empty_masks() {
        let empty = MaskEntry { path: "root".into(), kind: MaskEntryKind::Empty(0o700) };
        let mut masks = vec![empty, MaskEntry { path: "etc/shadow".into(), kind: MaskEntryKind::Nothing }];
        add_places(&mut masks, ["/root/.cargo/bin", "/root//.cargo/./registry/", "/opt/x", "/rooted/x"].into_iter());
        let paths: Vec<&str> = masks.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["root", "etc/shadow", "root/.cargo", "root/.cargo/bin", "root/.cargo/registry"]);
    }

    #[test]
    fn parents_are_masked_first_and_nothing_twice() {
        let Base::Host { masks, .. } = host(&["/root/.local/state/kennel".into(), "/opt/kennel/state".into()]) else {
            panic!("root is shown the host's root as a whole");
        };
        let paths: Vec<&str> = masks.iter().map(|entry| entry.path.as_str()).collect();
        assert!(!paths.iter().any(|path| path.starts_with("root/")));
        assert!(paths.contains(&"opt/kennel/state"));
        for (index, path) in paths.iter().enumerate() {
            if let Some((parent, _)) = path.rsplit_once('/') {
                assert!(paths[..index].contains(&parent), "{path} before {parent}");
            }
        }
    }
}
