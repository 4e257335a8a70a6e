//! Kennel's own directories. This module creates only the installation's id. The code that writes to a directory
//! creates it.

use crate::Caller;
use crate::caller::{KENNEL_HOME, XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME};
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NextStep};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The directories of this installation.
#[derive(Clone, Debug)]
pub struct Directories {
    state: PathBuf,
    data: PathBuf,
    config: Option<PathBuf>,
    workspaces: PathBuf,
}

impl Directories {
    /// Uses these directories. `config` is the directory of the user's settings, if there is one.
    pub fn new(state: impl Into<PathBuf>, data: impl Into<PathBuf>, config: Option<PathBuf>) -> Self {
        let data = data.into();
        Self { workspaces: data.with_file_name("kennel-workspaces"), state: state.into(), data, config }
    }

    /// Returns the directories that the caller's environment names: `KENNEL_HOME`, or else the XDG directories.
    pub fn find(caller: &Caller) -> Result<Self> {
        let config = Self::config_of(caller);
        if let Some(home) = caller.path(KENNEL_HOME) {
            let home = caller.current_dir.join(home);
            let workspaces = home.join("workspaces");
            return Ok(Self { state: home.join("state"), data: home.join("data"), config, workspaces });
        }
        let below_home = |part: &str| {
            caller.home().map(|home| home.join(part)).filter(|path| path.is_absolute()).ok_or_else(|| {
                Error::new(ErrorCode::InvalidConfig, "cannot find a directory for Kennel's files: HOME is not set")
                    .suggest(NextStep::advice("set HOME, or KENNEL_HOME to a directory for Kennel alone"))
            })
        };
        let or_below = |name, part| caller.absolute(name).map_or_else(|| below_home(part), Ok);
        let state = or_below(XDG_STATE_HOME, ".local/state")?.join("kennel");
        Ok(Self::new(state, or_below(XDG_DATA_HOME, ".local/share")?.join("kennel"), config))
    }

    /// Returns the directory of the user's settings. Returns `None` if the environment names no home directory.
    pub fn config_of(caller: &Caller) -> Option<PathBuf> {
        if let Some(home) = caller.path(KENNEL_HOME) {
            return Some(caller.current_dir.join(home).join("config"));
        }
        let below_home = || caller.home().map(|home| home.join(".config"));
        let dir = caller.absolute(XDG_CONFIG_HOME).or_else(below_home).filter(|path| path.is_absolute());
        dir.map(|path| path.join("kennel"))
    }

    /// Returns all of Kennel's own directories: sandboxes, trust records, programs, images, the user's settings. A
    /// sandbox must not see them, because a process that changes them decides what the next sandbox may do.
    pub fn all(&self) -> impl Iterator<Item = PathBuf> {
        [self.state.clone(), self.data.clone()].into_iter().chain(self.config.clone())
    }

    /// Returns the state directory of a provider.
    pub fn provider_state(&self, provider: &str) -> PathBuf {
        self.state.join(provider)
    }

    /// Returns the directory of the programs that run in sandboxes.
    pub fn programs(&self) -> PathBuf {
        self.data.join("programs")
    }

    /// Returns the directory of the image store.
    pub fn images(&self) -> PathBuf {
        self.data.join("images")
    }

    /// Returns the directory of the profiles.
    pub fn profiles(&self) -> PathBuf {
        self.data.join("profiles")
    }

    /// Returns the directory of the pools' definitions.
    pub fn pools(&self) -> PathBuf {
        self.data.join("pools")
    }

    /// Returns the socket of the resident process for claims.
    pub(crate) fn pool_socket(&self) -> PathBuf {
        self.state.join("pools")
    }

    /// Returns the lock of claims; see `pool/member`.
    pub(crate) fn pool_claims(&self) -> PathBuf {
        self.state.join("pool-claims")
    }

    /// Returns the directory of notes on workspaces of members; see `pool/workspaces`.
    pub(crate) fn pool_workspaces(&self) -> PathBuf {
        self.state.join("pool-workspaces")
    }

    /// Returns the directory of workspaces that belong to one session each. It is not among Kennel's own directories,
    /// because sandboxes see it.
    pub fn workspaces(&self) -> PathBuf {
        self.workspaces.clone()
    }

    /// Returns the file of the database.
    pub fn database(&self) -> PathBuf {
        self.state.join("kennel.db")
    }

    /// Returns the directory of the sandboxes that are paused while they are idle.
    pub fn idle(&self) -> PathBuf {
        self.state.join("idle")
    }

    /// Returns the directory of the sandboxes with bridges to sockets of the host.
    pub fn bridges(&self) -> PathBuf {
        self.state.join("bridges")
    }

    /// Returns the directory of what was changed about sandboxes after their creation.
    pub fn amendments(&self) -> PathBuf {
        self.state.join("amendments")
    }

    /// Returns the directories of state, data and settings, with which [`Self::new`] makes the same.
    pub(crate) fn parts(&self) -> (PathBuf, PathBuf, Option<PathBuf>) {
        (self.state.clone(), self.data.clone(), self.config.clone())
    }

    /// Returns the lock of the resident process.
    pub fn resident(&self) -> PathBuf {
        self.state.join("resident")
    }

    /// Returns the file that reserves the numbers of events.
    pub fn event_numbers(&self) -> PathBuf {
        self.state.join("events")
    }

    /// Returns the directory of build contexts that clients of the HTTP API send.
    pub fn builds(&self) -> PathBuf {
        self.state.join("builds")
    }

    /// Returns the unix socket at which the resident process serves the HTTP API.
    pub fn api_socket(&self) -> PathBuf {
        self.state.join("api.sock")
    }

    /// Returns the file with a token for the HTTP API, which only the user can read.
    pub fn token_file(&self) -> PathBuf {
        self.state.join("token")
    }

    /// Returns the directory of the certificate that the server has made for itself.
    pub fn certificate(&self) -> PathBuf {
        self.state.join("tls")
    }

    /// Returns the file in which a running server notes where it listens.
    pub fn server_note(&self) -> PathBuf {
        self.state.join("serve.json")
    }

    /// Returns the log of a server in the background.
    pub fn server_log(&self) -> PathBuf {
        self.state.join("serve.log")
    }

    /// Returns the directory of the trust records for settings files of projects.
    pub fn trusted(&self) -> PathBuf {
        self.state.join("trusted")
    }

    /// Returns the id of this installation, which is created on first use. Everything that Kennel creates on an engine
    /// is labelled with it, because others may use the engine as well.
    pub fn installation(&self) -> Result<String> {
        let path = self.state.join("installation");
        let what = |error| Error::io(format!("read or make the installation's id in {}", path.display()), error);
        match read_id(&path) {
            Ok(id) => return Ok(id),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(what(error)),
        }
        std::fs::create_dir_all(&self.state).map_err(what)?;
        let partial = self.state.join(format!(".installation-{}", std::process::id()));
        let made = make_id(&partial, &path);
        let _ = std::fs::remove_file(&partial);
        made.map_err(what)?;
        read_id(&path).map_err(what)
    }
}

fn read_id(path: &Path) -> std::io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    let id = text.trim_end();
    if id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(id.to_owned())
    } else {
        Err(std::io::Error::other("expected sixteen hexadecimal digits"))
    }
}

/// Writes the id to a partial file and links that to its final path. If two processes do this at the same time, one
/// wins, and both use its id.
fn make_id(partial: &Path, path: &Path) -> std::io::Result<()> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    let _ = std::fs::remove_file(partial);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(partial)?;
    writeln!(file, "{:016x}", u64::from_le_bytes(bytes))?;
    match std::fs::hard_link(partial, path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_keeps_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories::new(dir.path().join("a/state"), dir.path().join("a/data"), None);
        let id = directories.installation().unwrap();
        assert_eq!(id.len(), 16);
        assert_eq!(directories.installation().unwrap(), id);
        assert_eq!(std::fs::read_dir(dir.path().join("a/state")).unwrap().count(), 1, "no partial file stays");
        let other = Directories::new(dir.path().join("b"), dir.path().join("b"), None);
        assert_ne!(other.installation().unwrap(), id);
    }

    #[test]
    fn an_invalid_installation_id_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories::new(dir.path(), dir.path(), None);
        std::fs::write(dir.path().join("installation"), "half").unwrap();
        assert!(directories.installation().is_err());
    }
}
