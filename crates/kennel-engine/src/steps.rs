//! The one way in which the engine holds a provider, so that no code above can forget what it adds to each call:
//!
//! - Every call that changes a sandbox is a step with a name before and after it (see [`Failpoints`]).
//! - A sandbox that sleeps because it was idle is woken by whoever uses it (see [`idle`](crate::idle)).
//! - A sandbox with socket bridges gets the process that serves them (see [`bridges`](crate::bridges)).

use crate::Failpoints;
use crate::amendments::Amendments;
use crate::bridges::{self, BridgesDir};
use crate::idle::{Entry, Exclusive, Idle, IdleGate, IdleTimes};
use crate::sessions::make_directory;
use async_trait::async_trait;
use kennel_core::{
    Dialed, Error, EventStream, Gate, ImageBuild, Keeper, LogOptions, LogStream, Prepared, Provider, PullProgress,
    RemoveOptions, Result, Sweep, VolumeOptions, has_ended_idle,
};
use kennel_types::{
    Availability, ErrorCode, Feature, Leftover, Limits, Mode, NextStep, Pull, SandboxId, SandboxInfo, SandboxSpec,
    Stats, Status, Support, VolumeInfo,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a sandbox may take to end after its keeper has ended.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A provider with named steps around each effect, whose sandboxes are woken when they are used.
pub struct Steps {
    provider: Arc<dyn Provider>,
    failpoints: Failpoints,
    /// The sandboxes that are paused while they are idle. `None` if there are none.
    idle: Option<Idle>,
    /// The sandboxes with bridges. `None` if there are none.
    bridges: Option<BridgesDir>,
    /// What was changed about sandboxes after their creation. `None` if nothing was.
    amendments: Option<Amendments>,
}

impl Steps {
    /// Wraps a provider whose sandboxes are never paused while they are idle, and have no bridges.
    pub fn new(provider: Arc<dyn Provider>, failpoints: Failpoints) -> Arc<Self> {
        Arc::new(Self { provider, failpoints, idle: None, bridges: None, amendments: None })
    }

    /// Wraps a provider.
    pub(crate) fn for_engine(
        provider: Arc<dyn Provider>,
        failpoints: Failpoints,
        idle: Idle,
        bridges: BridgesDir,
        amendments: Amendments,
    ) -> Arc<Self> {
        Arc::new(Self { provider, failpoints, idle: Some(idle), bridges: Some(bridges), amendments: Some(amendments) })
    }

    /// Notes the bridges of a sandbox that will be created. The creator of a tied sandbox serves it itself.
    /// Returns a lock that is held until the sandbox exists.
    async fn note_bridges(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Option<bridges::Starting>> {
        // If the provider has no sockets, it refuses the sandbox.
        if spec.sockets.is_empty() || spec.tied {
            return Ok(None);
        }
        let Some(bridges) = &self.bridges else { return Err(bridges::no_program()) };
        let provider = self.provider.mode().key.provider;
        bridges.add(id, &bridges::Entry { provider, sockets: spec.sockets.clone() }).await.map(Some)
    }

    fn forget_bridges(&self, id: &SandboxId) {
        if let Some(bridges) = &self.bridges {
            bridges.remove(id);
        }
    }

    /// Returns the directory of bridges, if this sandbox has some.
    fn bridges_of(&self, id: &SandboxId) -> Option<&BridgesDir> {
        self.bridges.as_ref().filter(|bridges| bridges.has(id))
    }

    /// Starts a sandbox, and the process that serves its bridges. If that fails, the sandbox is stopped again.
    async fn start_with_bridges(&self, id: &SandboxId) -> Result<()> {
        let start = || self.between(["start: before", "start: after"], self.provider.start(id));
        let Some(bridges) = self.bridges_of(id) else { return start().await };
        let starting = bridges.lock(id).await?;
        let Some(entry) = bridges.entry(id)? else {
            // It was removed meanwhile.
            bridges.remove(id);
            return start().await;
        };
        if self.provider.get(id.as_str()).await?.status.is_up() {
            start().await?;
            return self.restore_bridges(bridges, id, &starting).await;
        }
        bridges.check(&entry).await?;
        bridges.wait_for_end(id, &starting).await?;
        start().await?;
        let Err(error) = bridges.begin(id, &starting).await else { return Ok(()) };
        // Its main process may have ended already, and then nobody needs the bridges.
        if !self.provider.get(id.as_str()).await.is_ok_and(|info| info.status.is_up()) {
            return Ok(());
        }
        let _ = self.provider.stop(id, END_WITHIN).await;
        Err(error)
    }

    /// Starts the process that serves the bridges of a running sandbox again, if it was killed.
    async fn restore_bridges(&self, bridges: &BridgesDir, id: &SandboxId, starting: &bridges::Starting) -> Result<()> {
        let is_running = async || self.provider.get(id.as_str()).await.is_ok_and(|info| info.status == Status::Running);
        if bridges.is_served(id)? || !is_running().await {
            return Ok(());
        }
        bridges.begin(id, starting).await
    }

    /// Makes sure that the bridges of a sandbox are served, because it is used. If they cannot be, it is used without
    /// them, so that nobody is locked out of a sandbox whose socket is gone.
    async fn keep_bridges(&self, id: &SandboxId) {
        let Some(bridges) = self.bridges_of(id) else { return };
        let kept = async {
            if bridges.is_served(id)? {
                return Ok(());
            }
            let starting = bridges.lock(id).await?;
            self.restore_bridges(bridges, id, &starting).await
        };
        if let Err(error) = kept.await {
            tracing::warn!(sandbox = %id, %error, "the sockets of the sandbox are not served");
        }
    }

    /// Wakes a sandbox that the resident process has paused, and keeps it awake until the lock is dropped.
    async fn wake(&self, id: &SandboxId) -> Result<impl Send + Sync + use<>> {
        match &self.idle {
            Some(idle) => idle.wake(&*self.provider, id).await,
            None => Ok(None),
        }
    }

    /// Keeps the resident process from changing a sandbox, and leaves the sandbox as it is.
    async fn lock(&self, id: &SandboxId) -> Result<impl Send + Sync + use<>> {
        match &self.idle {
            Some(idle) => idle.lock_shared(id).await,
            None => Ok(None),
        }
    }

    /// Notes that it is not the resident process that has paused the sandbox.
    fn forget_pause(&self, id: &SandboxId) -> Result<()> {
        self.idle.as_ref().map_or(Ok(()), |idle| idle.forget_pause(id))
    }

    /// Notes the idle times of a sandbox that will be created, if it is to be paused.
    fn note_idle_times(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        let (Some(idle), Some(times)) = (&self.idle, IdleTimes::from_spec(spec)) else { return Ok(()) };
        if self.provider.mode().pause != Support::Given {
            return Err(Error::unsupported(self.name(), "pausing idle sandboxes")
                .suggest(NextStep::ExplainFeature { feature: Feature::Pause }));
        }
        idle.add(id, &Entry { provider: self.provider.mode().key.provider, times })
    }

    /// Opens a byte stream to the keeper of a sandbox, and does not wake the sandbox.
    pub(crate) async fn dial_asleep(&self, id: &SandboxId) -> Result<Dialed> {
        self.provider.dial(id).await
    }

    /// Pauses an idle sandbox, until its next use.
    pub(crate) async fn pause_idle(&self, id: &SandboxId, lock: &Exclusive) -> Result<()> {
        let Some(idle) = &self.idle else { return Ok(()) };
        idle.note_pause(id, lock)?;
        let paused = self.between(["idle pause: before", "idle pause: after"], self.provider.pause(id)).await;
        if paused.is_err() {
            idle.forget_pause(id)?;
        }
        paused
    }

    /// Stops a sandbox that was paused because it was idle. It is started again by its next use.
    pub(crate) async fn stop_idle(&self, id: &SandboxId, keeper: Keeper, _lock: &Exclusive) -> Result<()> {
        let stop = async {
            self.provider.unpause(id).await?;
            let ended = self.end_if_idle(id, keeper).await;
            // It is awake now, or has ended.
            self.forget_pause(id)?;
            ended
        };
        self.between(["idle stop: before", "idle stop: after"], stop).await
    }

    /// Asks the keeper to end if the sandbox is idle, and waits until the sandbox has ended.
    async fn end_if_idle(&self, id: &SandboxId, keeper: Keeper) -> Result<()> {
        // A hostile keeper may never reply, and nobody can use the sandbox meanwhile.
        let ended = tokio::time::timeout(END_WITHIN, keeper.end_if_idle()).await;
        let is_ending =
            ended.map_err(|_| Error::new(ErrorCode::Timeout, "the keeper of the idle sandbox did not reply"))??;
        // The keeper exits when its last connection is closed.
        drop(keeper);
        if is_ending {
            has_ended_idle(&*self.provider, id, END_WITHIN).await;
        }
        Ok(())
    }

    /// Ties a running sandbox to the connection of this keeper.
    pub(crate) async fn tie(&self, keeper: &Keeper) -> Result<()> {
        self.between(["tie: before", "tie: after"], keeper.tie(true)).await
    }

    /// Lets a sandbox live without the connection of this keeper.
    pub(crate) async fn untie(&self, keeper: &Keeper) -> Result<()> {
        self.between(["untie: before", "untie: after"], keeper.tie(false)).await
    }

    /// Makes the workspace of a member of a pool.
    pub(crate) async fn make_workspace(&self, dir: &Path, spec: &SandboxSpec) -> Result<()> {
        let make = async { make_directory(dir, spec) };
        self.between(["workspace: before", "workspace: after"], make).await
    }

    /// Resumes all sandboxes of this provider that a resident process has paused, and forgets those that do not exist any
    /// more. That process must have ended. Returns the sandboxes that were resumed.
    pub(crate) async fn wake_all(&self) -> Result<Vec<SandboxId>> {
        let mut woken = Vec::new();
        let Some(idle) = &self.idle else { return Ok(woken) };
        let kind = self.provider.mode().key.provider;
        for id in idle.list()?.into_iter().filter(|id| idle.entry(id).is_some_and(|entry| entry.provider == kind)) {
            match self.provider.get(id.as_str()).await {
                // Whoever creates it holds the lock until it exists.
                Err(error) if error.code() == ErrorCode::NotFound => {
                    if let Some(_lock) = idle.try_lock_exclusive(&id)? {
                        idle.remove(&id);
                    }
                }
                Err(error) => return Err(error),
                Ok(info) if !info.status.is_up() => idle.forget_pause(&id)?,
                Ok(_) if idle.is_paused(&id) => {
                    drop(idle.wake(&*self.provider, &id).await?);
                    woken.push(id);
                }
                Ok(_) => {}
            }
        }
        Ok(woken)
    }

    /// Forgets the bridges of sandboxes that do not exist any more.
    async fn forget_removed(&self) -> Result<()> {
        let Some(bridges) = &self.bridges else { return Ok(()) };
        let kind = self.provider.mode().key.provider;
        for id in bridges.list()? {
            // Whoever creates a sandbox holds this lock until it exists.
            let Ok(_starting) = bridges.lock(&id).await else { continue };
            let is_ours = bridges.entry(&id).is_ok_and(|entry| entry.is_some_and(|entry| entry.provider == kind));
            if is_ours && self.provider.get(id.as_str()).await.is_err_and(|error| error.code() == ErrorCode::NotFound) {
                bridges.remove(&id);
            }
        }
        Ok(())
    }

    fn forget_idle_times(&self, id: &SandboxId) {
        if let Some(idle) = &self.idle {
            idle.remove(id);
        }
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
        let _starting = self.note_bridges(id, spec).await?;
        let created = async {
            self.note_idle_times(id, spec)?;
            let _lock = self.lock(id).await?;
            self.between(["create: before", "create: after"], self.provider.create(id, spec)).await
        };
        let created = created.await;
        if created.is_err() {
            self.forget_idle_times(id);
            self.forget_bridges(id);
        }
        created
    }

    async fn prepare_part(&self, spec: &SandboxSpec) -> Result<Option<Prepared>> {
        self.provider.prepare_part(spec).await
    }

    fn use_part(&self, id: &SandboxId, spec: &SandboxSpec, part: Prepared) -> std::result::Result<(), String> {
        self.provider.use_part(id, spec, part)
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        let _awake = self.wake(id).await?;
        self.start_with_bridges(id).await
    }

    async fn launch(&self, id: &SandboxId) -> Result<Dialed> {
        let _awake = self.wake(id).await?;
        if self.bridges_of(id).is_some() {
            self.start_with_bridges(id).await?;
            return self.provider.dial(id).await;
        }
        self.between(["launch: before", "launch: after"], self.provider.launch(id)).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        let _lock = self.lock(id).await?;
        self.between(["stop: before", "stop: after"], self.provider.stop(id, grace)).await?;
        self.forget_pause(id)
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        let _lock = self.lock(id).await?;
        self.between(["remove: before", "remove: after"], self.provider.remove(id, options)).await?;
        self.forget_idle_times(id);
        self.forget_bridges(id);
        if let Some(amendments) = &self.amendments {
            amendments.remove(id);
        }
        Ok(())
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let _lock = self.lock(id).await?;
        self.between(["pause: before", "pause: after"], self.provider.pause(id)).await?;
        self.forget_pause(id)
    }

    async fn unpause(&self, id: &SandboxId) -> Result<()> {
        let _lock = self.lock(id).await?;
        self.between(["unpause: before", "unpause: after"], self.provider.unpause(id)).await?;
        self.forget_pause(id)
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.between(["rename: before", "rename: after"], self.provider.rename(id, name)).await
    }

    async fn change_limits(&self, id: &SandboxId, limits: Limits) -> Result<()> {
        // A paused sandbox may need its processes to give memory back.
        let _awake = self.wake(id).await?;
        let steps = ["change limits: before", "change limits: after"];
        self.between(steps, self.provider.change_limits(id, limits)).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        let mut info = self.provider.get(id_or_name).await?;
        if let Some(amendments) = &self.amendments {
            amendments.apply(&mut info);
        }
        Ok(info)
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        let mut found = self.provider.list().await?;
        if let Some(amendments) = &self.amendments {
            amendments.apply_all(&mut found);
        }
        Ok(found)
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        let _awake = self.wake(id).await?;
        match self.provider.dial(id).await {
            // It was not in use. Now it is.
            Err(error)
                if error.code() == ErrorCode::Stopped && has_ended_idle(&*self.provider, id, END_WITHIN).await =>
            {
                self.start_with_bridges(id).await?;
                self.provider.dial(id).await
            }
            Ok(dialed) => {
                self.keep_bridges(id).await;
                Ok(dialed)
            }
            failed => failed,
        }
    }

    fn gate(&self, id: &SandboxId) -> Option<Arc<dyn Gate>> {
        let idle = self.idle.as_ref().filter(|idle| idle.has(id))?.clone();
        Some(Arc::new(IdleGate { idle, provider: self.provider.clone(), id: id.clone() }))
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
        if action == Sweep::Remove {
            self.forget_removed().await?;
        }
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
