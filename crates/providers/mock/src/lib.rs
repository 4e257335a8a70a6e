//! Sandboxes in memory: a provider for tests of everything above providers.
//!
//! It speaks the real protocol over an in-memory pipe, runs toy commands (`echo`, `cat`, `true`, `false`, `pwd`, `env`,
//! `printenv`, `sleep`, and strings of them), stores files, and does what a test scripts: replies and faults. It runs
//! no programs, isolates nothing and touches nothing outside this process.

mod keeper;
mod log;
mod process;
mod script;
mod shell;
mod streams;
mod tree;
mod usage;
mod volumes;

pub use script::{Answer, Call, Fault, Gate};

use keeper::{End, Keeper};
use kennel_core::{
    Dialed, Error, EventStream, LogOptions, LogStream, Provider, RemoveOptions, Result, VolumeOptions, check_name,
};
use kennel_provider::labels::own_labels;
use kennel_provider::{permit, require};
use kennel_types::{
    Availability, EndCause, Enforcement, ErrorCode, Event, EventKind, Mode, NetworkMode, NextStep, Operation, Owner,
    ProviderKind, SandboxId, SandboxInfo, SandboxSpec, Status, VolumeInfo,
};
use log::Log;
use script::SharedScript;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tree::Tree;
use volumes::Volumes;

/// Bytes in transit in each direction of a connection.
const PIPE: usize = 64 * 1024;

/// A provider in memory. Clones share their sandboxes, as two programs share an engine.
#[derive(Clone, Default)]
pub struct Mock {
    world: Arc<MockState>,
}

#[derive(Default)]
struct MockState {
    rooms: Mutex<BTreeMap<SandboxId, MockSandbox>>,
    /// Locked only while `rooms` is.
    volumes: Mutex<Volumes>,
    watchers: Mutex<Vec<mpsc::UnboundedSender<Event>>>,
    script: SharedScript,
}

/// A sandbox.
struct MockSandbox {
    spec: SandboxSpec,
    network: NetworkMode,
    created_ms: u64,
    status: Status,
    exit_code: Option<i32>,
    end_cause: Option<EndCause>,
    tree: Arc<Tree>,
    /// The names of its volumes.
    volumes: Vec<String>,
    log: Arc<Log>,
    keeper: Option<Arc<Keeper>>,
    /// Whether the first connection after a start, which is the creator's, was made.
    owner_came: bool,
}

impl Mock {
    /// Creates a provider without sandboxes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the answer to commands that begin with these words. The newest rule applies.
    pub fn on<S: Into<String>>(&self, words: impl IntoIterator<Item = S>, answer: Answer) {
        let words: Vec<String> = words.into_iter().map(Into::into).collect();
        self.script(move |argv| argv.starts_with(&words).then(|| answer.clone()));
    }

    /// Adds a rule that answers some commands. A string for the shell appears as `sh -c STRING`.
    pub fn script(&self, rule: impl Fn(&[String]) -> Option<Answer> + Send + Sync + 'static) {
        self.world.script.add(Box::new(rule));
    }

    /// Makes something fail, once.
    pub fn fault(&self, fault: Fault) {
        self.world.script.fault(fault);
    }

    /// Returns all commands that were requested, in order.
    pub fn ran(&self) -> Vec<Vec<String>> {
        self.world.script.ran()
    }

    /// Carries out a call, unless a fault prevents it, and returns its reply, unless a fault loses it.
    async fn unless_faulty<T>(&self, call: Call, act: impl Future<Output = Result<T>>) -> Result<T> {
        let script = &self.world.script;
        let told = |fault: &Fault| match fault {
            Fault::Fails(of, code) if *of == call => Some(*code),
            _ => None,
        };
        if let Some(code) = script.take(told) {
            return Err(Error::new(code, "the mock was told to fail"));
        }
        let done = act.await?;
        match script.take(|fault| (*fault == Fault::ReplyLost(call)).then_some(())) {
            Some(()) => Err(Error::new(ErrorCode::NotAvailable, "the mock was told to lose its reply")),
            None => Ok(done),
        }
    }

    fn room<T>(&self, id: &SandboxId, act: impl FnOnce(&mut MockSandbox) -> Result<T>) -> Result<T> {
        act(self.world.rooms().get_mut(id).ok_or_else(|| Error::no_sandbox(id))?)
    }
}

impl MockState {
    fn rooms(&self) -> MutexGuard<'_, BTreeMap<SandboxId, MockSandbox>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn volumes(&self) -> MutexGuard<'_, Volumes> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, sandbox: &SandboxId, kind: EventKind) {
        self.tell_all(&event(sandbox, kind));
    }

    fn tell_all(&self, event: &Event) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.send(event.clone()).is_ok());
    }

    /// Marks a sandbox as stopped, if it still has this keeper.
    fn stopped(&self, id: &SandboxId, keeper: &Arc<Keeper>, end: End) {
        let mut rooms = self.rooms();
        let Some(room) = rooms.get_mut(id) else { return };
        if !room.keeper.as_ref().is_some_and(|current| Arc::ptr_eq(current, keeper)) {
            return;
        }
        room.keeper = None;
        room.status = Status::Stopped;
        if let End::Main(code) = end {
            room.exit_code = Some(code);
        }
        room.end_cause = Some(match end {
            End::Main(_) => EndCause::Exited,
            End::Stopped => EndCause::Requested,
            End::OwnerGone => EndCause::OwnerGone,
            End::Idle => EndCause::Idle,
        });
        room.log.open(false);
        let stopped = event(id, EventKind::Stopped);
        self.tell_all(&Event { cause: room.end_cause, exit_code: room.exit_code, ..stopped });
        if (end == End::OwnerGone && room.spec.tied) || room.spec.auto_remove {
            rooms.remove(id);
            self.tell(id, EventKind::Removed);
        }
    }
}

fn event(sandbox: &SandboxId, kind: EventKind) -> Event {
    Event {
        time_ms: keeper::created_ms(),
        provider: Mode::first_of(ProviderKind::Mock).provider().to_owned(),
        sandbox: Some(sandbox.clone()),
        kind,
        name: None,
        cause: None,
        exit_code: None,
    }
}

/// Whether a sandbox other than `but` has this name.
fn is_taken(rooms: &BTreeMap<SandboxId, MockSandbox>, name: &str, but: Option<&SandboxId>) -> bool {
    let has = |id: &SandboxId, room: &MockSandbox| id.as_str() == name || room.spec.name.as_deref() == Some(name);
    rooms.iter().any(|(id, room)| Some(id) != but && has(id, room))
}

fn taken(name: &str) -> Error {
    let step = NextStep::RemoveSandbox { name: name.to_owned(), force: false, volumes: false };
    Error::new(ErrorCode::AlreadyExists, format!("there is a sandbox {name} already")).suggest(step)
}

impl MockSandbox {
    fn workdir(&self) -> &str {
        self.spec.workdir.as_deref().unwrap_or("/workspace")
    }

    fn name<'a>(&'a self, id: &'a SandboxId) -> &'a str {
        self.spec.name.as_deref().unwrap_or(id.as_str())
    }

    fn info(&self, id: &SandboxId, mode: &Mode) -> SandboxInfo {
        SandboxInfo {
            id: id.clone(),
            name: self.name(id).to_owned(),
            provider: mode.provider().to_owned(),
            status: self.status,
            created_ms: self.created_ms,
            exit_code: self.exit_code,
            end_cause: self.end_cause,
            image: None,
            image_command: None,
            workdir: self.workdir().to_owned(),
            workspace: self.spec.workspace.clone(),
            network: self.network,
            ports: Vec::new(),
            labels: {
                let mut labels = self.spec.labels.clone();
                labels.extend(own_labels(&self.spec, self.spec.owner.unwrap_or(Owner { uid: 0, gid: 0 })));
                labels
            },
            enforcement: Enforcement {
                mode: mode.name(),
                layers: mode.layers_with(self.network),
                limits: self.spec.limits,
            },
        }
    }
}

/// The calls without their faults.
impl Mock {
    fn create_now(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        let network = require(self.mode(), spec)?;
        if spec.owner.is_some() {
            return Err(Error::unsupported(self.name(), "files that belong to a user outside"));
        }
        let mut rooms = self.world.rooms();
        if is_taken(&rooms, id.as_str(), None) {
            return Err(taken(id.as_str()));
        }
        if let Some(name) = spec.name.as_ref().filter(|name| is_taken(&rooms, name, None)) {
            return Err(taken(name));
        }
        let mut room = MockSandbox {
            spec: spec.clone(),
            network,
            created_ms: keeper::created_ms(),
            status: Status::Created,
            exit_code: None,
            end_cause: None,
            tree: Arc::default(),
            volumes: Vec::new(),
            log: Arc::default(),
            keeper: None,
            owner_came: false,
        };
        let volumes = self.world.volumes().made_for(spec, room.name(id));
        let mounts = volumes.iter().map(|(_, target, tree)| (target.as_str(), tree.clone())).collect();
        room.tree = Arc::new(Tree::new(room.workdir(), mounts));
        room.volumes = volumes.into_iter().map(|(name, ..)| name).collect();
        let info = room.info(id, self.mode());
        rooms.insert(id.clone(), room);
        self.world.tell(id, EventKind::Created);
        Ok(info)
    }

    fn rename_now(&self, id: &SandboxId, name: &str) -> Result<()> {
        check_name(name)?;
        let mut rooms = self.world.rooms();
        let room = rooms.get(id).ok_or_else(|| Error::no_sandbox(id))?;
        permit(room.name(id), room.status, room.spec.tied, Operation::Rename)?;
        if room.name(id) == name {
            return Ok(());
        }
        if is_taken(&rooms, name, Some(id)) {
            return Err(taken(name));
        }
        rooms.get_mut(id).ok_or_else(|| Error::no_sandbox(id))?.spec.name = Some(name.to_owned());
        self.world.tell_all(&Event { name: Some(name.to_owned()), ..event(id, EventKind::Renamed) });
        Ok(())
    }

    fn start_now(&self, id: &SandboxId) -> Result<()> {
        let script = self.world.script.clone();
        let keeper = self.room(id, |room| {
            if !permit(room.name(id), room.status, room.spec.tied, Operation::Start)? {
                return Ok(None);
            }
            let start_failed = |why: &str| Error::new(ErrorCode::StartFailed, format!("start sandbox {id}: {why}"));
            room.log.open(true);
            let keeper = Keeper::start(&room.spec, room.workdir(), room.tree.clone(), room.log.clone(), script)
                .map_err(|failure| {
                    let program = room.spec.command.iter().flatten().next().cloned().unwrap_or_default();
                    start_failed(&format!("run {program}: {}", failure.message)).exit_code(127)
                })?;
            room.keeper = Some(keeper.clone());
            room.status = Status::Running;
            room.owner_came = false;
            (room.exit_code, room.end_cause) = (None, None);
            self.world.tell(id, EventKind::Started);
            Ok(Some(keeper))
        })?;
        if let Some(keeper) = keeper {
            let (world, id) = (Arc::downgrade(&self.world), id.clone());
            tokio::spawn(async move {
                let end = keeper.ended().await;
                if let Some(world) = world.upgrade() {
                    world.stopped(&id, &keeper, end);
                }
            });
        }
        Ok(())
    }

    async fn stop_now(&self, id: &SandboxId) -> Result<()> {
        if let Some(keeper) = self.room(id, |room| Ok(room.keeper.clone()))? {
            keeper.shut_down(End::Stopped);
            let end = keeper.ended().await;
            self.world.stopped(id, &keeper, end);
        }
        Ok(())
    }

    async fn remove_now(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        let up = self.room(id, |room| {
            permit(room.name(id), room.status, room.spec.tied, options.operation())?;
            Ok(room.status.is_up())
        })?;
        if up {
            self.stop_now(id).await?;
        }
        let mut rooms = self.world.rooms();
        if options.volumes {
            self.world.volumes().remove_own(id, &rooms)?;
        }
        if rooms.remove(id).is_some() {
            self.world.tell(id, EventKind::Removed);
        }
        Ok(())
    }

    fn volumes_now(&self, options: VolumeOptions) -> Vec<VolumeInfo> {
        let rooms = self.world.rooms();
        self.world.volumes().list(&rooms, options, self.name())
    }

    fn remove_volume_now(&self, name: &str) -> Result<()> {
        let rooms = self.world.rooms();
        self.world.volumes().remove(name, &rooms)
    }

    fn get_now(&self, id_or_name: &str) -> Result<SandboxInfo> {
        let rooms = self.world.rooms();
        let found =
            rooms.iter().find(|(id, room)| id.as_str() == id_or_name || room.spec.name.as_deref() == Some(id_or_name));
        found.map(|(id, room)| room.info(id, self.mode())).ok_or_else(|| Error::no_sandbox(id_or_name))
    }

    fn list_now(&self) -> Vec<SandboxInfo> {
        self.world.rooms().iter().map(|(id, room)| room.info(id, self.mode())).collect()
    }

    fn dial_now(&self, id: &SandboxId) -> Result<Dialed> {
        let (keeper, owner) = self.room(id, |room| {
            permit(room.name(id), room.status, room.spec.tied, Operation::Connect)?;
            let keeper = room.keeper.clone().ok_or_else(|| Error::stopped(id))?;
            Ok((keeper, room.spec.tied && !std::mem::replace(&mut room.owner_came, true)))
        })?;
        let fault = self.world.script.take(|fault| fault.is_of_a_connection().then(|| fault.clone()));
        let (ours, theirs) = tokio::io::duplex(PIPE);
        tokio::spawn(keeper.serve(theirs, fault));
        Ok(Dialed { stream: Box::new(ours), token: None, owner })
    }

    fn watch_now(&self) -> EventStream {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.world.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        Box::pin(futures_util::stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|event| (Ok(event), receiver))
        }))
    }
}

#[async_trait::async_trait]
impl Provider for Mock {
    fn mode(&self) -> &'static Mode {
        Mode::first_of(ProviderKind::Mock)
    }

    async fn probe(&self) -> Availability {
        Availability { available: true, detail: "in memory".into(), next_step: None }
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        self.unless_faulty(Call::Create, async { self.create_now(id, spec) }).await
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.unless_faulty(Call::Rename, async { self.rename_now(id, name) }).await
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        self.unless_faulty(Call::Start, async { self.start_now(id) }).await
    }

    async fn stop(&self, id: &SandboxId, _grace: Duration) -> Result<()> {
        self.unless_faulty(Call::Stop, self.stop_now(id)).await
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        self.unless_faulty(Call::Remove, self.remove_now(id, options)).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        self.unless_faulty(Call::Get, async { self.get_now(id_or_name) }).await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        self.unless_faulty(Call::List, async { Ok(self.list_now()) }).await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        self.unless_faulty(Call::Dial, async { self.dial_now(id) }).await
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream> {
        self.unless_faulty(Call::Logs, async { self.room(id, |room| Ok(room.log.read(options))) }).await
    }

    async fn watch(&self) -> Result<EventStream> {
        self.unless_faulty(Call::Watch, async { Ok(self.watch_now()) }).await
    }

    async fn volumes(&self, options: VolumeOptions) -> Result<Vec<VolumeInfo>> {
        self.unless_faulty(Call::Volumes, async { Ok(self.volumes_now(options)) }).await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        self.unless_faulty(Call::RemoveVolume, async { self.remove_volume_now(name) }).await
    }
}
