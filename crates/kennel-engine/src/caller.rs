//! What a front end knows about its caller: environment variables, directories and user ids. The engine reads none of
//! this itself.

use kennel_types::Owner;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Moves all of Kennel's files: configuration, data and state.
pub const KENNEL_HOME: &str = "KENNEL_HOME";
/// The user's home directory.
pub const HOME: &str = "HOME";
/// The directory in which programs keep their state; `~/.local/state` if not set.
pub const XDG_STATE_HOME: &str = "XDG_STATE_HOME";
/// The directory in which programs keep their settings; `~/.config` if not set.
pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// The directory in which programs keep their data; `~/.local/share` if not set.
pub const XDG_DATA_HOME: &str = "XDG_DATA_HOME";
/// The directory in which engines of ordinary users have their sockets.
pub const XDG_RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";
/// Docker's endpoint.
pub const DOCKER_HOST: &str = "DOCKER_HOST";
/// The directory of Docker's settings and logins; `~/.docker` if not set.
pub const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
/// Podman's file of registry logins.
pub const REGISTRY_AUTH_FILE: &str = "REGISTRY_AUTH_FILE";
/// The proxy for registries without TLS. The name may also be in lower case.
pub const HTTP_PROXY: &str = "HTTP_PROXY";
/// The proxy for registries with TLS. The name may also be in lower case.
pub const HTTPS_PROXY: &str = "HTTPS_PROXY";
/// Hosts that need no proxy. The name may also be in lower case.
pub const NO_PROXY: &str = "NO_PROXY";
/// The Docker context to use.
pub const DOCKER_CONTEXT: &str = "DOCKER_CONTEXT";
/// Whether a Docker engine at a TCP port must have a valid certificate.
pub const DOCKER_TLS_VERIFY: &str = "DOCKER_TLS_VERIFY";
/// TLS whose certificates are not verified, which Kennel refuses.
pub const DOCKER_TLS: &str = "DOCKER_TLS";
/// The directory of the certificates for Docker.
pub const DOCKER_CERT_PATH: &str = "DOCKER_CERT_PATH";
/// Podman's endpoint.
pub const CONTAINER_HOST: &str = "CONTAINER_HOST";
/// Directories of programs.
pub const PATH: &str = "PATH";
/// The user who called `sudo`, who becomes the owner of files created in a workspace.
pub const SUDO_UID: &str = "SUDO_UID";
/// The group of the user who called `sudo`.
pub const SUDO_GID: &str = "SUDO_GID";

/// Whoever calls the engine. A program without a user, such as a server, leaves out what does not apply to it.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The environment variables.
    pub variables: BTreeMap<OsString, OsString>,
    /// The current directory. Relative paths start there, and it is the default workspace.
    pub current_dir: PathBuf,
    /// The effective user id.
    pub uid: u32,
}

impl Caller {
    /// Returns all variables that a settings file can refer to. Those that are not UTF-8 are left out.
    pub fn environment(&self) -> kennel_config::Environment {
        let text = |value: &OsString| value.to_str().map(ToOwned::to_owned);
        self.variables.iter().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
    }

    /// Returns the home directory.
    pub fn home(&self) -> Option<PathBuf> {
        self.path(HOME)
    }

    /// Returns the directories in which programs are found.
    pub fn program_dirs(&self) -> Vec<PathBuf> {
        let path = self.variables.get(OsStr::new(PATH));
        path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default()
    }

    /// Returns the directory in which engines of this user have their sockets.
    pub(crate) fn runtime_dir(&self) -> Option<PathBuf> {
        self.absolute(XDG_RUNTIME_DIR)
    }

    /// Returns the directory of Docker's settings.
    pub(crate) fn docker_config(&self) -> Option<PathBuf> {
        self.path(DOCKER_CONFIG).or_else(|| self.home().map(|home| home.join(".docker")))
    }

    /// Returns the user who called `sudo`. The variables count only if the caller is root.
    pub fn sudo_owner(&self) -> Option<Owner> {
        if self.uid != 0 {
            return None;
        }
        let number = |name| self.text(name)?.parse::<u32>().ok();
        Some(Owner { uid: number(SUDO_UID)?, gid: number(SUDO_GID)? })
    }

    /// Returns the ids of the calling user: the effective one and, with `sudo`, that of the user who called it.
    pub fn users(&self) -> Vec<u32> {
        std::iter::once(self.uid).chain(self.sudo_owner().map(|owner| owner.uid)).collect()
    }

    /// Returns the home directory of the calling user; with `sudo`, of the user who called it.
    pub(crate) fn home_of_user(&self) -> Option<PathBuf> {
        let Some(Owner { uid, .. }) = self.sudo_owner() else { return self.home() };
        let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
        let mut fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let own = fields.find(|fields| fields.get(2).and_then(|field| field.parse().ok()) == Some(uid))?;
        own.get(5).map(PathBuf::from)
    }

    /// Returns the logins for registries.
    pub fn logins(&self) -> kennel_image::Credentials {
        let docker = self.docker_config();
        let podman = self.absolute(XDG_CONFIG_HOME).or_else(|| self.home().map(|home| home.join(".config")));
        // Highest precedence first. The files need not exist.
        let files = [
            self.path(REGISTRY_AUTH_FILE),
            docker.map(|dir| dir.join("config.json")),
            self.runtime_dir().map(|dir| dir.join("containers/auth.json")),
            podman.map(|dir| dir.join("containers/auth.json")),
        ];
        kennel_image::Credentials { files: files.into_iter().flatten().collect(), programs: self.program_dirs() }
    }

    /// Returns the proxies for registries.
    pub(crate) fn proxies(&self) -> kennel_image::Proxies {
        let said = |name: &str| self.text(&name.to_lowercase()).or_else(|| self.text(name));
        kennel_image::Proxies { http: said(HTTP_PROXY), https: said(HTTPS_PROXY), none: said(NO_PROXY) }
    }

    /// Returns the value of a variable that contains text. An empty variable counts as not set.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let value = self.variables.get(OsStr::new(name))?.to_str()?;
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// Returns the value of a variable that contains a path. An empty variable counts as not set.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.variables.get(OsStr::new(name)).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// Returns the value of a variable that contains an absolute path. A relative path counts as not set.
    pub(crate) fn absolute(&self, name: &str) -> Option<PathBuf> {
        self.path(name).filter(|path| path.is_absolute())
    }
}
