//! The host: its user, its package manager and its installed programs.

use crate::environment;
use rustix::fs::{Access, access};
use std::fs;
use std::path::{Path, PathBuf};

/// The facts about the host that decide how something missing is installed.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// The package manager; `None` if the distribution is not known.
    pub(super) manager: Option<Manager>,
    pub(super) root: bool,
    /// Whether systemd runs. It starts services, and delegates cgroups.
    pub(super) systemd: bool,
}

/// A package manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manager {
    /// Debian, Ubuntu and their derivatives. `lists` means that the package lists exist.
    Apt { lists: bool },
    /// Fedora and its derivatives. `fedora` means that it is Fedora itself.
    Dnf { fedora: bool },
    /// Arch and its derivatives.
    Pacman,
}

/// A program that a provider needs or can make use of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// `pasta`, which provides the network for sandboxes of ordinary users.
    Pasta,
    /// `newuidmap`, which allows more than one user in a sandbox of an ordinary user.
    Newuidmap,
    /// `nft`, which sets firewall rules for sandboxes with their own network.
    Nft,
    /// The Docker engine.
    Docker,
    /// Podman, an engine that ordinary users can run, too.
    Podman,
}

impl Program {
    /// Returns what the user should do if the package is not known.
    pub(super) fn by_hand(self) -> &'static str {
        match self {
            Self::Pasta => "install passt: https://passt.top",
            Self::Newuidmap => "install newuidmap and newgidmap, of shadow: https://github.com/shadow-maint/shadow",
            Self::Nft => "install nftables: https://netfilter.org/projects/nftables",
            Self::Docker => "install Docker: https://docs.docker.com/engine/install/",
            Self::Podman => "install Podman: https://podman.io/docs/installation",
        }
    }

    /// Returns the path of the program, if it is installed.
    pub(super) fn find(self) -> Option<PathBuf> {
        match self {
            Self::Pasta => in_path("pasta"),
            Self::Newuidmap => in_path("newuidmap"),
            Self::Nft => in_path("nft"),
            Self::Podman => in_path("podman"),
            Self::Docker => in_path("dockerd").or_else(|| in_path("docker")),
        }
    }
}

impl Host {
    /// Returns the facts about this host.
    pub(super) fn here() -> Self {
        let released = fs::read_to_string("/etc/os-release").or_else(|_| fs::read_to_string("/usr/lib/os-release"));
        let mut manager = released.ok().and_then(|text| Manager::from_os_release(&text));
        if let Some(Manager::Apt { lists }) = &mut manager {
            *lists = has_lists(Path::new("/var/lib/apt/lists"));
        }
        Self { manager, root: rustix::process::geteuid().is_root(), systemd: Path::new("/run/systemd/system").is_dir() }
    }

    /// Returns the package that contains a program, if it is known.
    pub(super) fn package(&self, program: Program) -> Option<&'static str> {
        Some(match (program, self.manager?) {
            (Program::Pasta, _) => "passt",
            (Program::Nft, _) => "nftables",
            (Program::Newuidmap, Manager::Apt { .. }) => "uidmap",
            (Program::Newuidmap, Manager::Dnf { .. }) => "shadow-utils",
            (Program::Newuidmap, Manager::Pacman) => "shadow",
            (Program::Podman, _) => "podman",
            (Program::Docker, Manager::Apt { .. }) => "docker.io",
            (Program::Docker, Manager::Dnf { fedora: true }) => "moby-engine",
            // Each derivative of Fedora has a different package, or none.
            (Program::Docker, Manager::Dnf { fedora: false }) => return None,
            (Program::Docker, Manager::Pacman) => "docker",
        })
    }
}

impl Manager {
    /// Returns the package manager of the distribution that an `os-release` file describes.
    pub(super) fn from_os_release(os_release: &str) -> Option<Self> {
        let said = |key: &str| {
            let value = os_release.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
            value.unwrap_or_default().trim_matches(['"', '\''])
        };
        let id = said("ID");
        std::iter::once(id).chain(said("ID_LIKE").split_whitespace()).find_map(|like| match like {
            "debian" | "ubuntu" => Some(Self::Apt { lists: true }),
            "fedora" | "rhel" | "centos" => Some(Self::Dnf { fedora: id == "fedora" }),
            "arch" => Some(Self::Pacman),
            _ => None,
        })
    }
}

fn has_lists(dir: &Path) -> bool {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().contains("_Packages"))
}

/// Finds a program in `PATH`, or in the directories of root's programs, which are not in an ordinary user's `PATH`.
fn in_path(program: &str) -> Option<PathBuf> {
    let sbin = |dir: &PathBuf| dir.ends_with("bin").then(|| dir.with_file_name("sbin"));
    let dirs = environment::program_dirs();
    let dirs = dirs.iter().cloned().chain(dirs.iter().filter_map(sbin));
    dirs.map(|dir| dir.join(program)).find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())
}

/// Returns the name of this user, if it is in `/etc/passwd`.
pub(super) fn user() -> Option<String> {
    let uid = rustix::process::getuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    entries.find(|entry| entry.get(2) == Some(&&*uid)).and_then(|entry| entry.first().map(ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_recognised_by_id_or_id_like() {
        let apt = Some(Manager::Apt { lists: true });
        for (text, manager) in [
            ("PRETTY_NAME=\"Debian GNU/Linux 12\"\nVERSION_ID=\"12\"\nID=debian\n", apt),
            ("ID=ubuntu\nID_LIKE=debian\n", apt),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", apt),
            ("ID=fedora\nID_LIKE=\n", Some(Manager::Dnf { fedora: true })),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Some(Manager::Dnf { fedora: false })),
            ("ID='arch'\n", Some(Manager::Pacman)),
            ("ID_LIKE=arch\nID=endeavouros\n", Some(Manager::Pacman)),
            ("ID=nixos\n", None),
            ("", None),
        ] {
            assert_eq!(Manager::from_os_release(text), manager, "{text}");
        }
    }

    #[test]
    fn missing_package_lists_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_lists(&dir.path().join("missing")));
        std::fs::create_dir(dir.path().join("partial")).unwrap();
        std::fs::write(dir.path().join("lock"), "").unwrap();
        assert!(!has_lists(dir.path()));
        std::fs::write(dir.path().join("deb.debian.org_dists_bookworm_main_binary-amd64_Packages.lz4"), "").unwrap();
        assert!(has_lists(dir.path()));
    }
}
