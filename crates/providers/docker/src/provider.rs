//! The provider trait, implemented on top of the engine.

use crate::engine::{Engine, EngineKind, ended_in_setup, status};
use crate::engine_mode::is_rootless;
use crate::info::Container;
use crate::keeper::{NotConnected, SocketMark, back_off, greet_starting, shut_down, socket_mark};
use crate::{Docker, create, mounts, plan, streams, watch};
use bollard::query_parameters::{
    RemoveContainerOptionsBuilder, RenameContainerOptionsBuilder, StopContainerOptionsBuilder,
    WaitContainerOptionsBuilder,
};
use futures_util::future::FusedFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use kennel_core::{
    ByteStream, Dialed, Error, EventStream, ImageBuild, LogOptions, LogStream, Provider, PullProgress, RemoveOptions,
    Result, Sweep, VolumeOptions, check_name,
};
use kennel_netlink::{Prefix, Ranges};
use kennel_types::{
    Availability, ErrorCode, Feature, Leftover, Limits, Mode, NextStep, Operation, Pull, SandboxId, SandboxInfo,
    SandboxSpec, Status, Support, VolumeInfo,
};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How long it may take to reach a keeper that must stop. After that, the engine stops the container without it.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How much longer than the grace period an end may take before the engine is asked to force it.
const SLACK: Duration = Duration::from_secs(3);
/// How often a start is attempted if the container's first process ends while the engine sets it up.
const START_ATTEMPTS: u32 = 3;
/// How long an engine may take to remove a container that it still cleans up. A busy machine needs seconds.
const REMOVED_WITHIN: Duration = Duration::from_secs(15);
/// The longest pause between two attempts to remove it.
const AFTER_BUSY: Duration = Duration::from_millis(500);
/// The number of last log lines in the error for an early end.
const LAST_LINES: usize = 50;
/// The number of containers that are inspected at the same time.
const AT_ONCE: usize = 8;

#[async_trait::async_trait]
impl Provider for Docker {
    fn mode(&self) -> &'static Mode {
        self.row()
    }

    async fn probe(&self) -> Availability {
        match self.probed().await {
            Ok(detail) => Availability { available: true, detail, next_step: None },
            Err(error) => {
                let kind = self.engine.kind();
                let next_step = match error.code() {
                    ErrorCode::NotAvailable if !self.engine.dialer().is_here() => error.next_step().cloned(),
                    ErrorCode::NotAvailable if is_installed(kind) => Some(NextStep::run_on_host(match kind {
                        EngineKind::Docker => "sudo systemctl start docker",
                        EngineKind::Podman if rustix::process::geteuid().is_root() => "systemctl start podman.socket",
                        EngineKind::Podman => "systemctl --user start podman.socket",
                    })),
                    ErrorCode::NotAvailable => Some(NextStep::advice(match kind {
                        EngineKind::Docker => "install Docker: https://docs.docker.com/engine/install/",
                        EngineKind::Podman => "install Podman: https://podman.io/docs/installation",
                    })),
                    _ => error.next_step().cloned(),
                };
                Availability { available: false, detail: error.to_string(), next_step }
            }
        }
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        Box::pin(self.make(id, spec)).await
    }

    async fn pull(&self, image: &str, when: Pull, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        self.fetch(image, when, tell).await
    }

    async fn image_id(&self, image: &str) -> Result<Option<String>> {
        self.id_of_image(image).await
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        let container = self.existing(id).await?;
        container.permit(Operation::Start)?;
        let before = mark(&container);
        // If the engine removes the container when it ends, its exit code cannot be queried later.
        let goes = container.auto_remove && container.main && !container.is_running();
        let exit = goes.then(|| tokio::spawn(next_exit(self.engine.clone(), container.engine_id.clone())));
        let mut begun = pin!(self.begin(&container).fuse());
        let up = async {
            begun.as_mut().await?;
            self.confirm(&container, before).await
        };
        if let Ok(done) = tokio::time::timeout(container.startup, up).await {
            let Some(exit) = exit else { return done };
            done?;
            return self.confirm_exit(&container, exit).await;
        }
        if !container.is_running() {
            // Half started does not count as started. If the engine is still starting it, wait for that, because only a
            // running container can be stopped. If it cannot be stopped now, it is listed and can be stopped by name.
            if !begun.is_terminated() {
                let _ = tokio::time::timeout(SLACK, begun).await;
            }
            let query = StopContainerOptionsBuilder::default().t(0).build();
            let stop = self.engine.api().await?.stop_container(&container.engine_id, Some(query));
            let _ = tokio::time::timeout(SLACK, stop).await;
        }
        Err(Error::too_slow(format!("start sandbox {}", container.info.name), container.startup))
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        let container = self.existing(id).await?;
        if !container.permit(Operation::Stop)? {
            return Ok(());
        }
        self.run_dirs.note_stop(id)?;
        if container.info.status == Status::Paused {
            // Frozen processes cannot end on request.
            self.unpause(id).await?;
        }
        let by_keeper = async {
            if container.plain {
                return false;
            }
            match self.reach(&container, ANSWER_WITHIN).await {
                Ok((stream, _)) => shut_down(stream, grace).await.is_ok(),
                Err(NotConnected::Ended(_)) => true,
                Err(NotConnected::Failed(_)) => false,
            }
        };
        let asked = tokio::time::timeout(grace + SLACK, by_keeper).await;
        if asked == Ok(true) && self.ended(&container, SLACK).await? {
            return Ok(());
        }
        // A keeper that had its grace period gets no more. One that could not be asked gets it from the engine.
        let seconds = if asked == Ok(false) { grace.as_secs_f64().ceil() as i32 } else { 0 };
        let query = StopContainerOptionsBuilder::default().t(seconds).build();
        let api = self.engine.api().await?;
        let patient = api.clone().with_timeout(api.timeout() + grace);
        match patient.stop_container(&container.engine_id, Some(query)).await {
            Err(error) if status(&error) != Some(404) => {
                Err(self.engine.error(format!("stop sandbox {}", container.info.name), error))
            }
            _ => self.ended(&container, SLACK).await.map(drop),
        }
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        let Some(container) = self.by_id(id).await? else {
            // The engine removes a tied sandbox itself. Remove the rest here.
            return if self.run_dirs.remove(id)? { Ok(()) } else { Err(Error::no_sandbox(id)) };
        };
        container.permit(options.operation())?;
        self.take_away(&container, options.force).await?;
        if let (true, Some(volume)) = (options.volumes, &container.data) {
            self.remove_data(volume).await?;
        }
        self.seen().remove(id);
        self.run_dirs.remove(id).map(drop)
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let container = self.existing(id).await?;
        self.check_pauses(&container)?;
        if !container.permit(Operation::Pause)? {
            return Ok(());
        }
        let done = self.engine.api().await?.pause_container(&container.engine_id).await;
        done.map_err(|error| self.engine.error(format!("pause sandbox {}", container.info.name), error))
    }

    async fn unpause(&self, id: &SandboxId) -> Result<()> {
        let container = self.existing(id).await?;
        self.check_pauses(&container)?;
        if !container.permit(Operation::Unpause)? {
            return Ok(());
        }
        let Err(error) = self.engine.api().await?.unpause_container(&container.engine_id).await else { return Ok(()) };
        // It may have ended, or been resumed, since it was looked at. The engine may notice that later than its runtime.
        if !self.existing(id).await?.permit(Operation::Unpause)? {
            return Ok(());
        }
        let error = self.engine.error(format!("resume sandbox {}", container.info.name), error);
        let has_ended = error.to_string().contains("cannot resume a stopped container");
        Err(if has_ended { Error::stopped(&container.info.name) } else { error })
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        check_name(name)?;
        let container = self.existing(id).await?;
        container.permit(Operation::Rename)?;
        if container.info.name == name {
            return Ok(());
        }
        let _free = self.free_name(name).await?;
        let new = container.prefix.container(name);
        let query = RenameContainerOptionsBuilder::default().name(&new).build();
        match self.engine.api().await?.rename_container(&container.engine_id, query).await {
            Err(error) if create::is_taken(&error) => Err(create::taken(name, &new)),
            done => done.map_err(|error| self.engine.error(format!("rename sandbox {}", container.info.name), error)),
        }
    }

    async fn change_limits(&self, id: &SandboxId, limits: Limits) -> Result<()> {
        self.change_limits_of(id, limits).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        let none = || Error::no_sandbox(id_or_name);
        let id = SandboxId::new(id_or_name).map_err(|_| none())?;
        // One without a name is called by its id, so nearly always the first question finds it.
        let known = self.seen().contains_key(&id);
        let mut found = if known { self.by_id(&id).await? } else { self.by_default_prefix(id_or_name).await? };
        if found.is_none() && !known {
            found = self.by_id(&id).await?;
        }
        if found.is_none() {
            found = self.by_name(id_or_name).await?;
        }
        // One that was never completed is no sandbox. `sweep` removes it.
        let container = found.filter(|found| found.tied || !self.is_orphan(found)).ok_or_else(none)?;
        let info = container.info.clone();
        *self.recent.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), container));
        Ok(info)
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        Ok(self.all().await?.0.into_iter().map(|container| container.info).collect())
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        const RECENT: Duration = Duration::from_millis(50);
        let recent = self.take_recent().filter(|(when, found)| when.elapsed() < RECENT && found.id() == id);
        let usable = recent.filter(|(_, found)| found.is_running() && !found.plain && found.run_dir.is_some());
        if let Some((_, container)) = usable
            && let Ok((stream, container)) = self.reach_from(Some(container), Duration::ZERO).await
        {
            return Ok(self.dialed(stream, &container));
        }
        let container = self.existing(id).await?;
        container.permit(Operation::Connect)?;
        if container.plain {
            return Ok(Dialed { stream: self.stand_in(&container), token: None, owner: false });
        }
        let (name, startup) = (container.info.name.clone(), container.startup);
        match self.reach_from(Some(container), startup).await {
            Ok((stream, container)) => Ok(self.dialed(stream, &container)),
            Err(NotConnected::Failed(error)) => Err(error),
            Err(NotConnected::Ended(Some(container))) => Err(Error::stopped(&container.info.name)),
            Err(NotConnected::Ended(None)) => Err(Error::no_sandbox(name)),
        }
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream> {
        let container = self.existing(id).await?;
        let what = format!("read the log of sandbox {}", container.info.name);
        let engine = self.engine.clone();
        let log = streams::log(self.engine.api().await?, &container.engine_id, options);
        Ok(Box::pin(log.map_err(move |error| engine.error(&what, error))))
    }

    async fn build_image(&self, build: &ImageBuild, tell: &(dyn Fn(String) + Sync)) -> Result<()> {
        Box::pin(self.build(build, tell)).await
    }

    async fn watch(&self) -> Result<EventStream> {
        watch::watch(self.engine.clone(), &self.installation, self.run_dirs.clone()).await
    }

    async fn sweep(&self, action: Sweep) -> Result<Vec<Leftover>> {
        self.sweep_leftovers(action).await
    }

    async fn volumes(&self, options: VolumeOptions) -> Result<Vec<VolumeInfo>> {
        self.list_volumes(options).await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        self.take_away_volume(name).await
    }
}

impl Docker {
    /// Returns the engine's name, if sandboxes are possible on it.
    async fn probed(&self) -> Result<String> {
        let version = self.engine.version().await?;
        self.engine_mode().await?.check()?;
        let number = version.version.as_deref().unwrap_or_default();
        let number = number.split('+').next().unwrap_or_default();
        let api = version.api_version.as_deref().unwrap_or_default();
        Ok(format!("{} {number} (API {api})", self.engine.kind().title()))
    }

    /// A connection to the keeper of a container.
    fn dialed(&self, stream: Box<dyn ByteStream>, container: &Container) -> Dialed {
        let made_here = self.seen().get(container.id()).is_some_and(|seen| seen.made_here);
        Dialed { stream, token: None, owner: container.tied && made_here }
    }

    /// Refuses to pause if the engine does not support it.
    fn check_pauses(&self, container: &Container) -> Result<()> {
        match container.mode.pause {
            Support::Given => Ok(()),
            Support::Refused => Err(Error::unsupported(self.name(), "pausing")
                .suggest(NextStep::ExplainFeature { feature: Feature::Pause })),
        }
    }

    /// Lets the engine start a container, unless it is running.
    async fn begin(&self, container: &Container) -> Result<()> {
        if container.is_running() {
            return Ok(());
        }
        if self.engine.dialer().is_here() {
            mounts::unchanged(&container.host_paths, &container.info.name)?;
        }
        self.run_dirs.make(container.id())?;
        self.run_dirs.forget_stop(container.id());
        if container.filter {
            self.run_dirs.put(container.id(), plan::FIREWALL_FILE, &unreachable(container)?.to_string())?;
        }
        if container.copied {
            self.put_keeper(container).await?;
        }
        let mut attempts = 1;
        loop {
            match self.engine.api().await?.start_container(&container.engine_id, None).await {
                Ok(()) => return Ok(()),
                Err(error) if ended_in_setup(&error) && attempts < START_ATTEMPTS => attempts += 1,
                Err(error) => return Err(self.start_error(container, error).await),
            }
        }
    }

    /// Waits until the keeper of a new container has replied. `before` identifies the socket of an earlier run.
    async fn confirm(&self, container: &Container, before: Option<SocketMark>) -> Result<()> {
        if container.plain {
            // The engine has started it. A waiting process must still be there; a main process may have ended already.
            let now = self.inspect(&container.engine_id).await?;
            let up = container.main || now.as_ref().is_some_and(Container::is_running);
            return if up { Ok(()) } else { Err(self.ended_early(container, now.as_ref()).await) };
        }
        let missed = match self.reach(container, container.startup).await {
            Ok((stream, _)) => match greet_starting(stream, container.startup).await {
                Ok(_) => return Ok(()),
                // It closed the connection. The engine knows whether it has ended.
                Err(_) if self.ended(container, container.startup).await? => {
                    NotConnected::Ended(self.inspect(&container.engine_id).await?.map(Box::new))
                }
                Err(error) => NotConnected::Failed(error),
            },
            Err(missed) => missed,
        };
        match missed {
            NotConnected::Failed(error) => Err(error),
            // The keeper listens before it starts the main process. So a container that ended before it could be asked
            // did run.
            NotConnected::Ended(now)
                if container.main
                    && (container.run_dir.is_none() || mark(container) != before)
                    && self.ran(container, now.as_deref()).await =>
            {
                Ok(())
            }
            NotConnected::Ended(now) => Err(self.ended_early(container, now.as_deref()).await),
        }
    }

    /// Refuses the start of a container that the engine has removed already, if its main process was not run.
    async fn confirm_exit(&self, container: &Container, exit: JoinHandle<Option<i64>>) -> Result<()> {
        if self.inspect(&container.engine_id).await?.is_some_and(|now| now.is_running()) {
            exit.abort();
            return Ok(());
        }
        match tokio::time::timeout(SLACK, exit).await {
            Ok(Ok(Some(code @ 125..=127))) => {
                let reason = format!("its main process ended with exit code {code}");
                Err(Error::not_started(&container.info.name, reason).exit_code(code as i32))
            }
            _ => Ok(()),
        }
    }

    /// Lets the engine remove a container.
    async fn take_away(&self, container: &Container, force: bool) -> Result<()> {
        let api = self.engine.api().await?;
        let until = Instant::now() + REMOVED_WITHIN;
        let mut pause = Duration::from_millis(20);
        loop {
            // `v` removes only anonymous volumes, which nobody could find again.
            let query = RemoveContainerOptionsBuilder::default().force(force).v(true).build();
            let error = match api.remove_container(&container.engine_id, Some(query)).await {
                Err(error) if status(&error) != Some(404) => error,
                _ => return Ok(()),
            };
            // It may end or be removed by itself at this moment, which makes engines fail. Podman also fails during its
            // own cleanup after an `exec`.
            let busy = status(&error) == Some(500) && error.to_string().contains("resource busy");
            let crossed = busy || status(&error) == Some(409) || (status(&error) == Some(500) && force);
            if !crossed || Instant::now() >= until {
                return Err(self.engine.error(format!("remove sandbox {}", container.info.name), error));
            }
            if container.auto_remove && self.wait(container, "removed", SLACK).await? {
                return Ok(());
            }
            back_off(pause).await;
            pause = (pause * 2).min(AFTER_BUSY);
        }
    }

    /// Returns all our containers, and those that are leftovers.
    pub(crate) async fn all(&self) -> Result<(Vec<Container>, Vec<Container>)> {
        let ids = self.listed(None).await?;
        let looks = stream::iter(ids).map(async |id: String| self.inspect(&id).await).buffered(AT_ONCE);
        let found: Vec<Option<Container>> = looks.try_collect().await?;
        Ok(found.into_iter().flatten().partition(|found| !self.is_orphan(found)))
    }

    /// Finds containers whose creator was killed before it started them, and run directories of removed containers.
    /// Removes or only reports them.
    pub(crate) async fn sweep_leftovers(&self, action: Sweep) -> Result<Vec<Leftover>> {
        // First the directories: a container that is not in a later listing is gone.
        let settled = self.run_dirs.settled();
        let (found, orphans) = self.all().await?;
        let alive = found.iter().chain(&orphans).map(Container::id).collect();
        let mut swept: Vec<Leftover> =
            self.run_dirs.sweep(settled, &alive, action).into_iter().map(|id| Leftover::RunDirectory { id }).collect();
        for orphan in &orphans {
            if action == Sweep::Report || self.remove_orphan(orphan).await? {
                swept.push(Leftover::Sandbox { id: orphan.id().clone() });
            }
        }
        Ok(swept)
    }

    /// Removes a container that is a leftover. Returns whether it is gone: what cannot be removed now stays for the next
    /// time.
    pub(crate) async fn remove_orphan(&self, orphan: &Container) -> Result<bool> {
        let query = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = self.engine.api().await?.remove_container(&orphan.engine_id, Some(query)).await;
        let is_gone = removed.is_ok() || removed.is_err_and(|error| status(&error) == Some(404));
        Ok(is_gone && self.run_dirs.remove(orphan.id()).is_ok())
    }

    /// Whether its creator was killed before the sandbox was complete; if it is tied, before it could start it. Nobody has
    /// checked what the engine made.
    pub(crate) fn is_orphan(&self, container: &Container) -> bool {
        if container.info.status != Status::Created {
            return false;
        }
        let made_here = self.seen().get(container.id()).is_some_and(|seen| seen.made_here);
        let was_left = container.tied || self.run_dirs.is_incomplete(container.id());
        was_left && !made_here && !self.run_dirs.is_held(container.id())
    }

    /// Waits at most that long for the container to end, and for one that the engine removes also to be removed.
    async fn ended(&self, container: &Container, within: Duration) -> Result<bool> {
        self.wait(container, if container.auto_remove { "removed" } else { "not-running" }, within).await
    }

    /// Waits at most that long until the engine reports that the condition holds.
    async fn wait(&self, container: &Container, condition: &str, within: Duration) -> Result<bool> {
        let query = WaitContainerOptionsBuilder::default().condition(condition).build();
        let mut answers = Box::pin(self.engine.api().await?.wait_container(&container.engine_id, Some(query)));
        use bollard::errors::Error::DockerContainerWaitError;
        match tokio::time::timeout(within, answers.next()).await {
            Err(_) => Ok(false),
            // An exit code other than 0 is an error for the client library, but a normal end here.
            Ok(None | Some(Ok(_) | Err(DockerContainerWaitError { .. }))) => Ok(true),
            Ok(Some(Err(error))) if status(&error) == Some(404) => Ok(true),
            Ok(Some(Err(error))) => {
                Err(self.engine.error(format!("wait for the end of sandbox {}", container.info.name), error))
            }
        }
    }

    async fn start_error(&self, container: &Container, error: bollard::errors::Error) -> Error {
        let what = format!("start sandbox {}", container.info.name);
        match status(&error) {
            // This is also the status for a missing program, so check the container.
            Some(404) if matches!(self.inspect(&container.engine_id).await, Ok(None)) => {
                Error::no_sandbox(&container.info.name)
            }
            Some(_) => {
                let message = self.engine.error(what, error).to_string();
                let taken =
                    ["port is already allocated", "address already in use"].iter().any(|it| message.contains(it));
                let step = if taken {
                    NextStep::PublishAtFreePort { port: None }
                } else {
                    NextStep::InspectSandbox { name: container.info.name.clone() }
                };
                Error::new(ErrorCode::StartFailed, message).suggest(step)
            }
            None => self.engine.error(what, error),
        }
    }

    /// Whether the main process of an ended container was started at all. If the keeper failed, or could not start the
    /// program, the exit code is one that shells use for the same. In that case the last entry of the log contains the
    /// reason.
    async fn ran(&self, container: &Container, now: Option<&Container>) -> bool {
        match now.and_then(|now| now.info.exit_code) {
            Some(126 | 127) => {
                let Ok(api) = self.engine.api().await else { return false };
                let last = streams::last_lines(api, &container.engine_id, 1).await;
                !last.starts_with(kennel_proto::log::NOTE)
            }
            code => code != Some(125),
        }
    }

    /// The error for a container that ended before its keeper replied.
    async fn ended_early(&self, container: &Container, now: Option<&Container>) -> Error {
        let name = &container.info.name;
        let code = now.and_then(|now| now.info.exit_code);
        let mut message = match code {
            Some(code) => format!("sandbox {name} ended with exit code {code} before its keeper answered"),
            None => format!("sandbox {name} ended before its keeper answered"),
        };
        if let Ok(api) = self.engine.api().await {
            let lines = streams::last_lines(api, &container.engine_id, LAST_LINES).await;
            if !lines.is_empty() {
                message = format!("{message}; the last lines of its log:\n{lines}");
            }
        }
        let error = Error::of_lines(ErrorCode::StartFailed, message.lines())
            .suggest(NextStep::ReadLogs { name: name.to_owned() });
        match code {
            Some(code) if container.main => error.exit_code(code),
            _ => error,
        }
    }
}

/// The exit code of a container when it ends the next time.
async fn next_exit(engine: Arc<Engine>, engine_id: String) -> Option<i64> {
    use bollard::errors::Error::DockerContainerWaitError;
    let query = WaitContainerOptionsBuilder::default().condition("next-exit").build();
    let mut ended = Box::pin(engine.api().await.ok()?.wait_container(&engine_id, Some(query)));
    match ended.next().await? {
        Ok(response) => Some(response.status_code),
        Err(DockerContainerWaitError { code, .. }) => Some(code),
        Err(_) => None,
    }
}

/// Returns the addresses that a container must not connect to, from the current networks of this machine.
fn unreachable(container: &Container) -> Result<Ranges> {
    let networks = kennel_netlink::host_networks();
    let mut networks = networks.map_err(|error| Error::io("look at this machine's networks", error))?;
    if is_rootless(container.mode) {
        // The network between a rootless engine and this machine (slirp4netns): its own end, and this machine's
        // loopback.
        networks.add(Prefix::v4([10, 0, 2, 0], 24));
    }
    Ok(networks)
}

/// Identifies the current socket of a container's keeper, from this or an earlier run.
fn mark(container: &Container) -> Option<SocketMark> {
    socket_mark(&container.run_dir.as_ref()?.join(plan::SOCKET))
}

/// Whether an engine is installed on this machine, running or not.
fn is_installed(kind: EngineKind) -> bool {
    let program = match kind {
        EngineKind::Docker => "dockerd",
        EngineKind::Podman => "podman",
    };
    ["/usr/bin", "/usr/sbin", "/usr/local/bin"].iter().any(|dir| Path::new(dir).join(program).exists())
}
