//! Sandboxes in memory that can be paused, and whose keepers can fall silent.

use kennel_core::{Dialed, EventStream, LogOptions, LogStream, Provider, RemoveOptions, Result};
use kennel_mock::Mock;
use kennel_types::{Availability, Mode, ProviderKind, SandboxId, SandboxInfo, SandboxSpec, Status};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A mock with the mode of another provider. A pause is only recorded: what runs goes on.
#[derive(Clone)]
pub(crate) struct Pausable {
    mock: Mock,
    mode: &'static Mode,
    paused: Arc<Mutex<HashSet<SandboxId>>>,
    silent: Arc<AtomicBool>,
}

impl Pausable {
    pub(crate) fn named(kind: ProviderKind) -> Self {
        Self { mock: Mock::new(), mode: Mode::first_of(kind), paused: Arc::default(), silent: Arc::default() }
    }

    pub(crate) fn mock(&self) -> &Mock {
        &self.mock
    }

    pub(crate) fn is_paused(&self, id: &SandboxId) -> bool {
        self.paused.lock().unwrap().contains(id)
    }

    /// Whether requests get lost on their way to the keepers.
    pub(crate) fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }

    fn seen(&self, mut info: SandboxInfo) -> SandboxInfo {
        if info.status == Status::Running && self.is_paused(&info.id) {
            info.status = Status::Paused;
        }
        info
    }
}

#[async_trait::async_trait]
impl Provider for Pausable {
    fn mode(&self) -> &'static Mode {
        self.mode
    }

    async fn probe(&self) -> Availability {
        self.mock.probe().await
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        // The idle time of a real keeper does not pass while it is paused. Here, only the resident process stops sandboxes.
        self.mock.create(id, &SandboxSpec { idle_seconds: None, ..spec.clone() }).await
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        self.mock.start(id).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        self.mock.stop(id, grace).await
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        self.mock.remove(id, options).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        self.paused.lock().unwrap().insert(id.clone());
        Ok(())
    }

    async fn unpause(&self, id: &SandboxId) -> Result<()> {
        self.paused.lock().unwrap().remove(id);
        Ok(())
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.mock.rename(id, name).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        self.mock.get(id_or_name).await.map(|info| self.seen(info))
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        Ok(self.mock.list().await?.into_iter().map(|info| self.seen(info)).collect())
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        let dialed = self.mock.dial(id).await?;
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (mut from_host, mut to_host) = tokio::io::split(theirs);
        let (mut from_keeper, mut to_keeper) = tokio::io::split(dialed.stream);
        let silent = self.silent.clone();
        tokio::spawn(async move {
            let requests = async {
                let mut bytes = vec![0; 4096];
                while let Ok(count @ 1..) = from_host.read(&mut bytes).await {
                    if !silent.load(Ordering::SeqCst) && to_keeper.write_all(&bytes[..count]).await.is_err() {
                        break;
                    }
                }
            };
            tokio::select! {
                () = requests => {}
                _ = tokio::io::copy(&mut from_keeper, &mut to_host) => {}
            }
        });
        Ok(Dialed { stream: Box::new(ours), ..dialed })
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream> {
        self.mock.logs(id, options).await
    }

    async fn watch(&self) -> Result<EventStream> {
        self.mock.watch().await
    }
}
