//! Sandboxes as containers of a Docker engine on this machine.
//!
//! The engine makes, lists and removes containers; its own labels are all the state there is. Everything that happens
//! inside goes through the keeper, which is the container's first process and puts its socket into a run directory that
//! is mounted in. No `docker exec`, no terminal of the engine's, and the engine's socket never gets into a container.

mod create;
mod engine;
mod info;
mod keeper;
mod labels;
mod mounts;
mod names;
mod plan;
mod provider;
mod pull;
mod rundir;
mod streams;

pub use engine::{Dialer, UnixDialer};
pub use names::NamePrefix;

use crate::engine::{Engine, status};
use crate::info::Container;
use crate::rundir::RunDirs;
use bollard::models::ContainerSummary;
use bollard::query_parameters::ListContainersOptionsBuilder;
use kennel_core::{Error, Result};
use kennel_types::{Mode, SandboxId};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the provider finds and keeps things.
#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// For a run directory per sandbox. It must outlive the containers, a reboot included.
    pub state_dir: PathBuf,
    /// For the keeper's program.
    pub program_dir: PathBuf,
    /// The engine's socket.
    pub socket: PathBuf,
    /// Whose sandboxes these are: those of other installations on the same engine are neither seen nor touched.
    pub installation: String,
    /// What the names of new containers begin with. Those that were made with another are found all the same.
    pub name_prefix: NamePrefix,
}

/// The provider.
pub struct Docker {
    engine: Arc<Engine>,
    run_dirs: RunDirs,
    program_dir: PathBuf,
    installation: String,
    prefix: NamePrefix,
    mode: &'static Mode,
    /// Sandboxes seen before. The engine never gives an id twice, so this can be out of date but not wrong.
    seen: Mutex<HashMap<SandboxId, Seen>>,
}

/// What is known for good of a sandbox.
#[derive(Clone)]
struct Seen {
    engine_id: String,
    /// A tied one lives as long as whoever made it is connected.
    made_here: bool,
    /// The run directory of a tied one: held as long as its maker lives.
    held: Option<Arc<std::fs::File>>,
}

impl Docker {
    /// On the engine behind a socket of this machine.
    pub fn new(options: DockerOptions) -> Self {
        let dialer = Arc::new(UnixDialer::new(options.socket.clone()));
        Self::with_dialer(options, dialer)
    }

    /// On an engine that is reached in another way. It must see this machine's files: mounts and run directories are
    /// paths of ours.
    pub fn with_dialer(options: DockerOptions, dialer: Arc<dyn Dialer>) -> Self {
        Self {
            engine: Arc::new(Engine::new(dialer)),
            run_dirs: RunDirs::new(options.state_dir),
            program_dir: options.program_dir,
            installation: options.installation,
            prefix: options.name_prefix,
            mode: Mode::named("docker, root").expect("the mode table has a row for Docker"),
            seen: Mutex::default(),
        }
    }

    /// A container by the engine's id of it, as it is now.
    async fn inspect(&self, engine_id: &str) -> Result<Option<Container>> {
        match self.engine.api().await?.inspect_container(engine_id, None).await {
            Ok(inspected) => Ok(Container::read(inspected, self.mode, &self.installation)),
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(self.engine.error("look at a sandbox", error)),
        }
    }

    /// The engine's ids of our containers that carry this label, or all of ours.
    async fn listed(&self, label: Option<(&str, &str)>) -> Result<Vec<String>> {
        Ok(self.summaries(label).await?.into_iter().filter_map(|summary| summary.id).collect())
    }

    /// The same with all that a list tells of them.
    async fn summaries(&self, label: Option<(&str, &str)>) -> Result<Vec<ContainerSummary>> {
        let mut wanted = vec![format!("{}={}", labels::INSTALLATION, self.installation)];
        wanted.extend(label.map(|(key, value)| format!("{key}={value}")));
        let filters = HashMap::from([("label", wanted)]);
        let query = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let found = self.engine.api().await?.list_containers(Some(query)).await;
        found.map_err(|error| self.engine.error("list the sandboxes", error))
    }

    /// The sandbox of that id.
    async fn by_id(&self, id: &SandboxId) -> Result<Option<Container>> {
        let seen = self.seen().get(id).cloned();
        if let Some(seen) = seen
            && let Some(container) = self.inspect(&seen.engine_id).await?
        {
            return Ok(Some(container));
        }
        self.seen().remove(id);
        for engine_id in self.listed(Some((labels::ID, id.as_str()))).await? {
            if let Some(container) = self.inspect(&engine_id).await? {
                self.seen().insert(container.id().clone(), Seen { engine_id, made_here: false, held: None });
                return Ok(Some(container));
            }
        }
        Ok(None)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox of that id, or the error that there is none.
    async fn existing(&self, id: &SandboxId) -> Result<Container> {
        self.by_id(id).await?.ok_or_else(|| Error::no_sandbox(id))
    }
}
