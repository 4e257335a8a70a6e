//! Sandboxes as containers of a Docker or Podman engine.
//!
//! The engine makes, lists and removes containers; its own labels are all the state there is. Everything that happens
//! inside goes through the keeper, which is the container's first process. Where the engine is on this machine the keeper is
//! mounted, and puts its socket into a run directory that is mounted too; elsewhere, and in a user namespace of its own, it is copied in, and spoken to through
//! the engine. Where it cannot run at all, the engine itself runs commands, and what it cannot do is refused. No terminal of the engine's, and the engine's socket never gets into a container.

mod build;
mod create;
mod dialer;
mod dockerfile;
mod engine;
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
mod setup;
mod streams;
mod through;
mod volumes;
mod watch;

pub use dialer::{Dialer, TcpDialer, Tls, UnixDialer};
pub use engine::Kind;
pub use names::NamePrefix;

use crate::engine::{Engine, is_gone};
use crate::info::{Container, Seen as Inspected};
use crate::rundir::RunDirs;
use crate::setup::Setup;
use kennel_core::{Error, Result};
use kennel_image::Credentials;
use kennel_types::SandboxId;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Where the provider finds and keeps things.
#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// For a run directory per sandbox. It must outlive the containers, a reboot included.
    pub state_dir: PathBuf,
    /// For the keeper's program.
    pub program_dir: PathBuf,
    /// Which engine it is taken for until it has answered. Then it is what it says it is.
    pub expected: Kind,
    /// Whose sandboxes these are: those of other installations on the same engine are neither seen nor touched.
    pub installation: String,
    /// What the names of new containers begin with. Those that were made with another are found all the same.
    pub name_prefix: NamePrefix,
}

/// The provider.
pub struct Docker {
    engine: Arc<Engine>,
    run_dirs: RunDirs,
    state_dir: PathBuf,
    program_dir: PathBuf,
    installation: String,
    prefix: NamePrefix,
    /// Directories of the caller's that no sandbox may see.
    hidden: Vec<PathBuf>,
    /// Sockets of other engines that the caller knows of.
    engines: Vec<PathBuf>,
    /// Who we are to registries.
    logins: Credentials,
    /// How the engine is set up, once it was asked.
    setup: tokio::sync::OnceCell<Setup>,
    /// Sandboxes seen before. The engine never gives an id twice, so this can be out of date but not wrong.
    seen: Mutex<HashMap<SandboxId, Seen>>,
    /// The container that `get` has just inspected, for the `dial` that follows at once. Whatever else is done with a sandbox
    /// forgets it.
    recent: Mutex<Option<(Instant, Container)>>,
}

/// What is known for good of a sandbox.
#[derive(Clone)]
struct Seen {
    engine_id: String,
    /// A tied one lives as long as whoever made it is connected.
    made_here: bool,
    /// Whether its run directory is shown inside.
    shown: bool,
    /// The run directory of a tied one: held as long as its maker lives.
    held: Option<Arc<std::fs::File>>,
}

/// What a list tells of a container.
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
    /// On the engine that the dialer leads to.
    pub fn new(options: DockerOptions, dialer: Arc<dyn Dialer>) -> Self {
        // Another engine's sandboxes have their directories elsewhere: what is not on this one is not gone.
        let run_dirs = RunDirs::new(options.state_dir.join(rundir::part_of(&dialer.address())));
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
            setup: tokio::sync::OnceCell::new(),
            seen: Mutex::default(),
            recent: Mutex::default(),
        }
    }

    /// With logins for registries, which the engine is told where it pulls from one of them.
    #[must_use]
    pub fn with_logins(self, logins: Credentials) -> Self {
        Self { logins, ..self }
    }

    /// Keeps these directories of the caller's from every sandbox, whether they exist yet or not: below a mount they are
    /// masked, and a mount of one of them is refused.
    #[must_use]
    pub fn hiding(self, dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { hidden: dirs.into_iter().collect(), ..self }
    }

    /// Keeps these sockets of container engines from every sandbox, beside the well-known ones and this engine's own.
    #[must_use]
    pub fn beside_engines(self, sockets: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { engines: sockets.into_iter().collect(), ..self }
    }

    /// A container by the engine's id of it, as it is now.
    async fn inspect(&self, engine_id: &str) -> Result<Option<Container>> {
        self.engine.api().await?;
        let path = format!("/containers/{engine_id}/json");
        let asked = async {
            match self.engine.kind() {
                Kind::Docker => Ok((self.engine.ask(&path).await?, None)),
                // It tells which capabilities there are only in its own words.
                Kind::Podman => {
                    let (inspected, own) = tokio::join!(self.engine.ask(&path), self.engine.ask_podman(&path));
                    Ok((inspected?, Some(own?)))
                }
            }
        };
        match asked.await {
            Ok((inspected, own)) => {
                let seen = Inspected { inspected, own, kind: self.engine.kind() };
                Ok(Container::read(seen, &self.installation))
            }
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(self.engine.error("look at a sandbox", error)),
        }
    }

    /// The engine's ids of our containers that carry this label, or all of ours.
    async fn listed(&self, label: Option<(&str, &str)>) -> Result<Vec<String>> {
        Ok(self.summaries(label).await?.into_iter().map(|summary| summary.id).collect())
    }

    /// The same with all that a list tells of them.
    async fn summaries(&self, label: Option<(&str, &str)>) -> Result<Vec<Listed>> {
        summaries(&self.engine, &self.installation, label).await
    }

    /// The sandbox of that id.
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
            // No keeper has ever been in it: it only said that its maker lives.
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

    /// The sandbox of that id, or the error that there is none.
    async fn existing(&self, id: &SandboxId) -> Result<Container> {
        self.by_id(id).await?.ok_or_else(|| Error::no_sandbox(id))
    }
}

/// An installation's containers that carry this label, or all of them.
async fn summaries(engine: &Engine, installation: &str, label: Option<(&str, &str)>) -> Result<Vec<Listed>> {
    let mut wanted = vec![format!("{}={installation}", labels::INSTALLATION)];
    wanted.extend(label.map(|(key, value)| format!("{key}={value}")));
    let filters = serde_json::json!({ "label": wanted }).to_string();
    let query: String = form_urlencoded::byte_serialize(filters.as_bytes()).collect();
    engine.api().await?;
    let found = engine.ask(&format!("/containers/json?all=true&filters={query}")).await;
    found.map_err(|error| engine.error("list the sandboxes", error))
}
