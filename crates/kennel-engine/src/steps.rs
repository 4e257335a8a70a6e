//! The one way in which the engine holds a provider. Every call that changes a sandbox is a step with a name before
//! and after it (see [`Failpoints`]), so that no code above can forget one.

use crate::Failpoints;
use async_trait::async_trait;
use kennel_core::{
    Dialed, EventStream, ImageBuild, LogOptions, LogStream, Provider, PullProgress, RemoveOptions, Result, Sweep,
    VolumeOptions,
};
use kennel_types::{Availability, Leftover, Mode, Pull, SandboxId, SandboxInfo, SandboxSpec, Stats, VolumeInfo};
use std::sync::Arc;
use std::time::Duration;

/// A provider with named steps around each effect.
pub struct Steps {
    provider: Arc<dyn Provider>,
    failpoints: Failpoints,
}

impl Steps {
    /// Wraps a provider.
    pub fn new(provider: Arc<dyn Provider>, failpoints: Failpoints) -> Arc<Self> {
        Arc::new(Self { provider, failpoints })
    }

    /// Carries out a call between two steps. The second is reached also if the call fails: it may have had its effect.
    async fn between<T>(&self, [before, after]: [&'static str; 2], call: impl Future<Output = Result<T>>) -> Result<T> {
        self.failpoints.reach(before);
        let done = call.await;
        self.failpoints.reach(after);
        done
    }
}

#[async_trait]
impl Provider for Steps {
    fn name(&self) -> &'static str {
        self.provider.name()
    }

    fn mode(&self) -> &'static Mode {
        self.provider.mode()
    }

    fn modes(&self) -> Vec<&'static Mode> {
        self.provider.modes()
    }

    async fn probe(&self) -> Availability {
        self.provider.probe().await
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        self.between(["create: before", "create: after"], self.provider.create(id, spec)).await
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        self.between(["start: before", "start: after"], self.provider.start(id)).await
    }

    async fn launch(&self, id: &SandboxId) -> Result<Dialed> {
        self.between(["launch: before", "launch: after"], self.provider.launch(id)).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        self.between(["stop: before", "stop: after"], self.provider.stop(id, grace)).await
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        self.between(["remove: before", "remove: after"], self.provider.remove(id, options)).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        self.between(["pause: before", "pause: after"], self.provider.pause(id)).await
    }

    async fn unpause(&self, id: &SandboxId) -> Result<()> {
        self.between(["unpause: before", "unpause: after"], self.provider.unpause(id)).await
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.between(["rename: before", "rename: after"], self.provider.rename(id, name)).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        self.provider.get(id_or_name).await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        self.provider.list().await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        self.provider.dial(id).await
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream> {
        self.provider.logs(id, options).await
    }

    async fn watch(&self) -> Result<EventStream> {
        self.provider.watch().await
    }

    async fn stats(&self, id: &SandboxId) -> Result<Option<Stats>> {
        self.provider.stats(id).await
    }

    async fn pull(&self, image: &str, when: Pull, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        self.between(["pull: before", "pull: after"], self.provider.pull(image, when, tell)).await
    }

    async fn image_id(&self, image: &str) -> Result<Option<String>> {
        self.provider.image_id(image).await
    }

    async fn sweep(&self, action: Sweep) -> Result<Vec<Leftover>> {
        self.between(["sweep: before", "sweep: after"], self.provider.sweep(action)).await
    }

    async fn volumes(&self, options: VolumeOptions) -> Result<Vec<VolumeInfo>> {
        self.provider.volumes(options).await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        self.between(["remove volume: before", "remove volume: after"], self.provider.remove_volume(name)).await
    }

    async fn build_image(&self, build: &ImageBuild, tell: &(dyn Fn(String) + Sync)) -> Result<()> {
        self.between(["build: before", "build: after"], self.provider.build_image(build, tell)).await
    }
}
