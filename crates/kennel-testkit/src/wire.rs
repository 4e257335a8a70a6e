//! A provider whose connections can be cut, like those of a broken network or a killed program.

use kennel_core::{Dialed, EventStream, LogOptions, LogStream, Provider, PullProgress, RemoveOptions, Result};
use kennel_types::{Availability, Mode, Pull, SandboxId, SandboxInfo, SandboxSpec};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;

/// Forwards all calls to a provider, and can cut all connections that it has opened.
pub struct Wire {
    provider: Arc<dyn Provider>,
    connections: Mutex<Vec<AbortHandle>>,
}

impl Wire {
    /// Creates a wire to this provider.
    pub fn new(provider: Arc<dyn Provider>) -> Arc<Self> {
        Arc::new(Self { provider, connections: Mutex::default() })
    }

    /// Cuts all connections, without a message to either side.
    pub fn cut(&self) {
        for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            connection.abort();
        }
    }
}

#[async_trait::async_trait]
impl Provider for Wire {
    fn mode(&self) -> &'static Mode {
        self.provider.mode()
    }

    async fn probe(&self) -> Availability {
        self.provider.probe().await
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxInfo> {
        self.provider.create(spec).await
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        self.provider.start(id).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        self.provider.stop(id, grace).await
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        self.provider.remove(id, options).await
    }

    async fn pull(&self, image: &str, when: Pull, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        self.provider.pull(image, when, tell).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        self.provider.pause(id).await
    }

    async fn unpause(&self, id: &SandboxId) -> Result<()> {
        self.provider.unpause(id).await
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.provider.rename(id, name).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        self.provider.get(id_or_name).await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        self.provider.list().await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        let Dialed { mut stream, token, owner } = self.provider.dial(id).await?;
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        // Aborting this task drops both ends.
        let pump = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut theirs, &mut stream).await });
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).push(pump.abort_handle());
        Ok(Dialed { stream: Box::new(ours), token, owner })
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream> {
        self.provider.logs(id, options).await
    }

    async fn watch(&self) -> Result<EventStream> {
        self.provider.watch().await
    }
}
