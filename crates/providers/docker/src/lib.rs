//! Sandboxes as containers on a Docker or Podman engine.
//!
//! The engine creates, lists and removes containers, and its labels are the only state. Everything inside goes through
//! the keeper, which is the container's first process. If the engine is on this machine, the keeper is bind-mounted,
//! and creates its socket in a run directory that is mounted too. On another machine, and in a container with its own
//! user namespace, the keeper is copied in, and reached through the engine. Where it cannot run at all, the engine
//! itself runs commands, and everything else is refused. Containers have no terminal of the engine, and the engine's
//! socket is never visible in a container.

mod build;
mod change_limits;
mod create;
mod dialer;
mod dockerfile;
mod engine;
mod engine_mode;
mod exec_dial;
mod info;
mod keeper;
mod labels;
mod logins;
mod mounts;
mod names;
mod plain;
mod plan;
mod provider;
mod pull;
mod rundir;
mod seccomp;
mod streams;
mod volumes;
mod watch;

pub use dialer::{Dialer, TcpDialer, Tls, UnixDialer};
pub use engine::EngineKind;
pub use names::NamePrefix;

use crate::engine::{Engine, is_gone};
use crate::engine_mode::EngineMode;
use crate::info::{Container, Seen as Inspected};
use crate::rundir::RunDirs;
use kennel_core::{Error, Result};
use kennel_image::Credentials;
use kennel_types::{EndCause, SandboxId};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Options of the provider.
#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// The directory for the run directories of sandboxes. It must outlive the containers, even across a reboot.
    pub state_dir: PathBuf,
    /// The directory for the keeper program.
    pub program_dir: PathBuf,
    /// The assumed kind of engine, until it has replied.
    pub expected: EngineKind,
    /// The id of this installation. Sandboxes of other installations on the same engine are neither listed nor changed.
    pub installation: String,
    /// The prefix for the names of new containers. Containers with another prefix are found too.
    pub name_prefix: NamePrefix,
}

/// The provider for Docker and Podman.
pub struct Docker {
    engine: Arc<Engine>,
    run_dirs: Arc<RunDirs>,
    state_dir: PathBuf,
    program_dir: PathBuf,
    installation: String,
    prefix: NamePrefix,
    /// Directories of the caller that no sandbox may see.
    hidden: Vec<PathBuf>,
    /// Sockets of other engines that the caller knows.
    engines: Vec<PathBuf>,
    /// Logins for registries.
    logins: Credentials,
    /// The mode of the engine, once it was queried.
    engine_mode: tokio::sync::OnceCell<EngineMode>,
    /// Sandboxes seen before. The engine never reuses an id, so an entry can be out of date but not wrong.
    seen: Mutex<HashMap<SandboxId, Seen>>,
    /// The container that `get` has just inspected, for the `dial` that follows at once. Any other operation on a sandbox
    /// clears it.
    recent: Mutex<Option<(Instant, Container)>>,
}

/// What does not change about a sandbox.
#[derive(Clone)]
struct Seen {
    engine_id: String,
    /// Whether this process created it. A tied sandbox lives as long as its creator is connected.
    made_here: bool,
    /// Whether its run directory is mounted inside.
    shown: bool,
    /// The lock on the run directory of a tied sandbox, held as long as its creator lives.
    held: Option<Arc<std::fs::File>>,
}

/// An entry of a container list.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    #[serde(default)]
    labels: Option<HashMap<String, String>>,
    #[serde(default)]
    state: String,
}

impl Docker {
    /// Creates a provider for the engine that the dialer connects to.
    pub fn new(options: DockerOptions, dialer: Arc<dyn Dialer>) -> Self {
        // Sandboxes of another engine have their directories elsewhere. So a sandbox that is missing on this engine is
        // really gone.
        let run_dirs = Arc::new(RunDirs::new(options.state_dir.join(rundir::part_of(&dialer.address()))));
        Self {
            engine: Arc::new(Engine::new(dialer, options.expected)),
            run_dirs,
            state_dir: options.state_dir,
            program_dir: options.program_dir,
            installation: options.installation,
            prefix: options.name_prefix,
            hidden: Vec::new(),
            engines: Vec::new(),
            logins: Credentials::default(),
            engine_mode: tokio::sync::OnceCell::new(),
            seen: Mutex::default(),
            recent: Mutex::default(),
        }
    }

    /// Uses these logins for registries. The engine gets a login only when it pulls from its registry.
    #[must_use]
    pub fn with_logins(self, logins: Credentials) -> Self {
        Self { logins, ..self }
    }

    /// Hides these directories from every sandbox, whether they exist yet or not: below a mount they are masked, and
    /// mounting one of them is refused.
    #[must_use]
    pub fn hiding(self, dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { hidden: dirs.into_iter().collect(), ..self }
    }

    /// Hides these sockets of container engines from every sandbox, in addition to the well-known ones and this
    /// engine's own.
    #[must_use]
    pub fn hiding_sockets(self, sockets: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { engines: sockets.into_iter().collect(), ..self }
    }

    /// Returns the current state of a container, by the engine's id.
    async fn inspect(&self, engine_id: &str) -> Result<Option<Container>> {
        let path = format!("/containers/{engine_id}/json");
        let asked = async {
            // Podman reports the actual capabilities only through its own API.
            if self.engine.known_kind() == Some(EngineKind::Podman) {
                let (inspected, own) = tokio::join!(self.engine.ask(&path), self.engine.ask_podman(&path));
                return Ok((inspected?, Some(own?)));
            }
            let inspected = self.engine.ask(&path).await?;
            // If that was the first reply, the kind is known only now.
            let own = match self.engine.kind() {
                EngineKind::Docker => None,
                EngineKind::Podman => Some(self.engine.ask_podman(&path).await?),
            };
            Ok((inspected, own))
        };
        match asked.await {
            Ok((inspected, own)) => {
                let seen = Inspected { inspected, own, kind: self.engine.kind() };
                let mut found = Container::read(seen, &self.installation);
                if let Some(container) = &mut found
                    && container.info.end_cause.is_some()
                    && self.run_dirs.was_stopped(container.id())
                {
                    container.info.end_cause = Some(EndCause::Requested);
                }
                Ok(found)
            }
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(self.engine.error("inspect a sandbox", error)),
        }
    }

    /// Returns the engine's ids of our containers with this label, or of all our containers.
    async fn listed(&self, label: Option<(&str, &str)>) -> Result<Vec<String>> {
        Ok(self.summaries(label).await?.into_iter().map(|summary| summary.id).collect())
    }

    /// Returns the list entries of our containers with this label, or of all our containers.
    async fn summaries(&self, label: Option<(&str, &str)>) -> Result<Vec<Listed>> {
        summaries(&self.engine, &self.installation, label).await
    }

    /// Returns the sandbox with this id.
    async fn by_id(&self, id: &SandboxId) -> Result<Option<Container>> {
        self.take_recent();
        let seen = self.seen().get(id).cloned();
        if let Some(seen) = seen
            && let Some(container) = self.inspect(&seen.engine_id).await?
        {
            return Ok(Some(container));
        }
        let gone = self.seen().remove(id);
        for engine_id in self.listed(Some((labels::ID, id.as_str()))).await? {
            if let Some(container) = self.inspect(&engine_id).await? {
                self.seen()
                    .insert(container.id().clone(), Seen { engine_id, made_here: false, shown: true, held: None });
                return Ok(Some(container));
            }
        }
        if gone.is_some_and(|seen| seen.made_here && !seen.shown) {
            // It never had a keeper. The directory only showed that its creator lives.
            let _ = self.run_dirs.remove(id);
        }
        Ok(None)
    }

    /// What `get` inspected last, and when.
    fn take_recent(&self) -> Option<(Instant, Container)> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sandbox with this id, or an error if there is none.
    async fn existing(&self, id: &SandboxId) -> Result<Container> {
        self.by_id(id).await?.ok_or_else(|| Error::no_sandbox(id))
    }
}

/// Returns an installation's containers with this label, or all of them.
async fn summaries(engine: &Engine, installation: &str, label: Option<(&str, &str)>) -> Result<Vec<Listed>> {
    let mut wanted = vec![format!("{}={installation}", labels::INSTALLATION)];
    wanted.extend(label.map(|(key, value)| format!("{key}={value}")));
    let filters = serde_json::json!({ "label": wanted }).to_string();
    let query: String = form_urlencoded::byte_serialize(filters.as_bytes()).collect();
    let found = engine.ask(&format!("/containers/json?all=true&filters={query}")).await;
    found.map_err(|error| engine.error("list the sandboxes", error))
}
