//! Socket bridges of sandboxes that stay: a small process for each of these sandboxes passes connections on to the host.
//!
//! A sandbox with bridges has a file in the directory `bridges` of the state directory. The file names the sockets. It is
//! written when the sandbox is created, and nothing on an engine can add to it. The process that serves the sandbox holds
//! a lock on the file. It ends when its connection to the keeper is lost, so it never outlives a run of its sandbox. It is
//! started with the sandbox, and again by the next use if it was killed.

mod process;

pub use process::serve_bridges;

use crate::lock_file;
use kennel_core::{Error, HostSocket, Result};
use kennel_provider::{Helper, refuse_engine};
use kennel_types::{ErrorCode, ProviderKind, SandboxId, SocketBridge};
use process::Instructions;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// How long another process may take to start a sandbox, and the process of an earlier run to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a new process may take until the sockets inside exist.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The suffix of the file that is locked while a sandbox is being started.
const STARTING: &str = ".starting";

/// A program that calls [`serve_bridges`] with its standard input.
#[derive(Clone, Debug)]
pub struct BridgeProgram {
    /// Its path.
    pub path: PathBuf,
    /// Its arguments, which the id of the sandbox follows.
    pub arguments: Vec<OsString>,
}

/// The directory of sandboxes with bridges.
#[derive(Clone, Debug)]
pub(crate) struct BridgesDir {
    pub(crate) dir: PathBuf,
    /// The program that serves them. `None` if the caller of the engine has not named one.
    pub(crate) program: Option<BridgeProgram>,
    /// What the program needs to find the sandbox.
    pub(crate) directories: crate::Directories,
    pub(crate) variables: BTreeMap<OsString, OsString>,
    /// Sockets of engines, which are refused.
    pub(crate) engines: Vec<PathBuf>,
}

/// What the file of a sandbox holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) provider: ProviderKind,
    pub(crate) sockets: Vec<SocketBridge>,
}

/// A lock that only one process holds while it starts a sandbox.
pub(crate) struct Starting {
    _file: File,
}

impl BridgesDir {
    fn path(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(id.as_str())
    }

    fn starting(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(format!("{id}{STARTING}"))
    }

    /// Notes the bridges of a sandbox that will be created. Returns a lock that is held until it exists.
    pub(crate) async fn add(&self, id: &SandboxId, entry: &Entry) -> Result<Starting> {
        if self.program.is_none() {
            return Err(no_program());
        }
        let failed = |error: std::io::Error| Error::io(format!("note the sockets of sandbox {id}"), error);
        let text = serde_json::to_string(entry).map_err(|error| failed(error.into()))?;
        lock_file::create_dir(&self.dir).map_err(failed)?;
        let starting = self.lock(id).await?;
        let file = File::options().write(true).create_new(true).mode(0o600).open(self.path(id));
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)?;
        Ok(starting)
    }

    /// Removes the files of a sandbox.
    pub(crate) fn remove(&self, id: &SandboxId) {
        for path in [self.starting(id), self.path(id)] {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Returns the ids of all sandboxes here.
    pub(crate) fn list(&self) -> Result<Vec<SandboxId>> {
        let failed = |error| Error::io(format!("list {}", self.dir.display()), error);
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let names = entries.map(|entry| entry.map(|entry| entry.file_name()).map_err(failed));
        let names: Vec<_> = names.collect::<Result<_>>()?;
        let ids = names.iter().filter_map(|name| name.to_str().filter(|name| !name.ends_with(STARTING)));
        Ok(ids.filter_map(|name| SandboxId::new(name).ok()).collect())
    }

    /// Returns the bridges of a sandbox, if it has any.
    pub(crate) fn entry(&self, id: &SandboxId) -> Result<Option<Entry>> {
        let failed = |error: std::io::Error| Error::io(format!("read the sockets of sandbox {id}"), error);
        match std::fs::read(self.path(id)) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether the sandbox has bridges.
    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.path(id).exists()
    }

    /// Whether a process serves the sandbox.
    pub(crate) fn is_served(&self, id: &SandboxId) -> Result<bool> {
        lock_file::is_locked(&self.path(id)).map_err(|error| Error::io(format!("look at sandbox {id}"), error))
    }

    /// Excludes other processes that start the sandbox.
    pub(crate) async fn lock(&self, id: &SandboxId) -> Result<Starting> {
        let failed = |error| Error::io(format!("lock the start of sandbox {id}"), error);
        let file = lock_file::open(&self.starting(id)).map_err(failed)?;
        let began = Instant::now();
        while !lock_file::try_lock(&file).map_err(failed)? {
            wait(began, || format!("another process starts sandbox {id}")).await?;
        }
        Ok(Starting { _file: file })
    }

    /// Checks that all sockets of the host can be opened, and that none is an engine's.
    pub(crate) async fn check(&self, entry: &Entry) -> Result<()> {
        open_sockets(&entry.sockets, &self.engines).await.map(drop)
    }

    /// Waits until the process of an earlier run has ended.
    pub(crate) async fn wait_for_end(&self, id: &SandboxId, _starting: &Starting) -> Result<()> {
        let began = Instant::now();
        while self.is_served(id)? {
            wait(began, || format!("the sockets of sandbox {id} are still served for its last run")).await?;
        }
        Ok(())
    }

    /// Starts the process that serves a running sandbox, and waits until the sockets inside exist.
    pub(crate) async fn begin(&self, id: &SandboxId, _starting: &Starting) -> Result<()> {
        let Some(program) = &self.program else { return Ok(()) };
        // The id is there for whoever lists processes.
        let arguments = program.arguments.iter().map(OsString::as_os_str).chain([OsStr::new(id.as_str())]);
        let arguments: Vec<&OsStr> = arguments.collect();
        let helper = Helper::start_with(&program.path, &arguments, &self.variables)?;
        let instructions = Instructions::write(id, &self.directories)?;
        let helper = helper.instruct(&instructions).await?;
        let said = tokio::time::timeout(READY_WITHIN, helper.reply()).await;
        let said = said.map_err(|_| Error::new(ErrorCode::Timeout, "the process that serves sockets did not reply"))?;
        said?.map_err(|reason| Error::new(ErrorCode::StartFailed, reason))
    }
}

/// The error for a sandbox that stays and has sockets, if nobody would serve them.
pub(crate) fn no_program() -> Error {
    let message = "this program has no process that serves the sockets of a sandbox that stays";
    Error::new(ErrorCode::Unsupported, message)
}

/// Opens sockets of the host. Refuses those of engines.
pub(crate) async fn open_sockets(sockets: &[SocketBridge], engines: &[PathBuf]) -> Result<Vec<(HostSocket, String)>> {
    let mut open = Vec::new();
    for SocketBridge { host, target } in sockets {
        let socket = HostSocket::open(host)?;
        refuse_engine(&socket, engines).await?;
        open.push((socket, target.clone()));
    }
    Ok(open)
}

async fn wait(began: Instant, what: impl Fn() -> String) -> Result<()> {
    if began.elapsed() > PATIENCE {
        return Err(Error::new(ErrorCode::Timeout, format!("{} for more than {PATIENCE:?}", what())));
    }
    #[expect(clippy::disallowed_methods, reason = "the backoff between two attempts to lock")]
    tokio::time::sleep(Duration::from_millis(2)).await;
    Ok(())
}
