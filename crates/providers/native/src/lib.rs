//! The native provider: Linux namespaces, without a daemon. It is the embedded default.
//!
//! This crate makes the decisions. The jail (`kennel-jail`) carries them out: it is a small single-threaded program
//! that is started with a computed plan, because namespaces must not be created in a multi-threaded program. The jail
//! stays outside its sandbox as long as that runs, and any later process finds the sandbox by its directory.
//!
//! It works with the rights of the calling user: the host's root, or an ordinary user (see `rights`).

mod ahead;
mod change_limits;
mod clear;
mod disk;
mod early;
mod freeze;
mod groups;
mod image;
mod limits;
mod mask_layer;
mod network;
mod plan;
mod probe_kernel;
mod range;
mod rights;
mod toolchains;
mod volumes;

pub use early::EarlyJail;
pub use kennel_jail::{ForkedJail, KernelSupport};
pub use network::{Bridge, DockerFirewall};

use ahead::Waiting;
use async_trait::async_trait;
use kennel_core::{
    Dialed, Error, EventStream, LogOptions, LogStream, Prepared, Provider, PullProgress, RemoveOptions, Result, Sweep,
    VolumeOptions,
};
use kennel_image::{PullOptions, Store};
use kennel_jail::{Base, EtcFile, Network, Rights};
use kennel_keeper_bin::JAIL;
use kennel_provider::{
    Guard, Helper, InstructedHelper, NewRecord, Record, Records, blocking, connect_socket, follow_log, is_sweep_due,
    permit, require, watch_records,
};
use kennel_types::{
    Availability, Enforcement, ErrorCode, Feature, IsolationLayer, Leftover, Limits, Mode, NetworkMode, NextStep,
    Operation, Pull, SandboxId, SandboxInfo, SandboxSpec, Stats, Status, Support, VolumeInfo,
};
use plan::Masks;
use range::{CLAIMS, Claim, Claims};
use rights::Maker;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use volumes::{Access, Volumes};

/// The native provider.
pub struct Native {
    records: Records,
    programs: PathBuf,
    maker: Arc<Maker>,
    volumes: Volumes,
    images: Option<(Store, Mutex<PullOptions>)>,
    claims: Claims,
    /// That `bridge` can be had, as it was found a moment ago.
    bridge: network::BridgeProbe,
    waiting: Mutex<Waiting>,
    /// Additional directories that no sandbox may see.
    more: Vec<PathBuf>,
    /// Sockets of engines that the caller knows.
    engines: Vec<PathBuf>,
    guard: OnceLock<Guard>,
}

impl Native {
    /// Keeps its sandboxes below `state` and the jail program in `programs`.
    pub fn new(state: PathBuf, programs: PathBuf) -> Self {
        let maker = Arc::new(Maker::myself());
        let (ids, jail) = (maker.ids.clone(), programs.clone());
        let records = Records::new("native", state).cleared_by(move |dir| clear::remove(dir, &jail, &ids));
        let volumes = Volumes::new(records.root().with_file_name("volumes"));
        let (images, waiting, claims) = (None, Mutex::default(), Claims::new(CLAIMS));
        let (more, engines) = (Vec::new(), Vec::new());
        let (bridge, guard) = (network::BridgeProbe::default(), OnceLock::new());
        Self { records, programs, maker, volumes, images, claims, bridge, waiting, more, engines, guard }
    }

    /// Hides these directories from every sandbox, whether they exist yet or not: below a mount they are masked, and
    /// mounting one of them is refused.
    #[must_use]
    pub fn hiding(self, dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { more: dirs.into_iter().collect(), guard: OnceLock::new(), ..self }
    }

    /// Hides these sockets of container engines from every sandbox, in addition to the well-known ones.
    #[must_use]
    pub fn hiding_sockets(self, sockets: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { engines: sockets.into_iter().collect(), guard: OnceLock::new(), ..self }
    }

    /// Claims host ids for a new sandbox. An ordinary user uses the delegated ids instead, and in a container with too
    /// few ids, sandboxes share them.
    fn claim(&self) -> Result<Option<Claim>> {
        (self.maker.rights == Rights::Root && range::are_mapped()).then(|| self.claims.take()).transpose()
    }

    /// The user that the namespaces of a sandbox with this range are charged to: its own root, if the host's root
    /// creates it.
    fn charged_to(&self, first_id: Option<u32>) -> Option<u32> {
        (self.maker.rights == Rights::Root).then(|| early::charged_to(first_id))
    }

    /// What no sandbox may see: sandboxes and their sockets, programs, volumes of others, directories that the caller
    /// hides, and sockets of engines.
    fn guard(&self) -> &Guard {
        self.guard.get_or_init(|| {
            let own = [self.records.root(), &self.programs, self.volumes.root()].into_iter();
            let claims = (self.maker.rights == Rights::Root).then_some(Path::new(CLAIMS));
            let guard = Guard::new(own.chain(claims).chain(self.more.iter().map(PathBuf::as_path)));
            let guard = guard.with_engines(self.engines.iter().cloned());
            // The directory that also contains the sandboxes of other providers.
            match self.records.root().parent() {
                Some(state) => guard.masking(state),
                None => guard,
            }
        })
    }

    /// The directories that are also masked at their own paths.
    fn ours(&self) -> Vec<PathBuf> {
        self.guard().refused().map(Path::to_owned).collect()
    }

    /// Starts a jail, which creates its namespaces and waits for the plan. With `ahead`, the jail of root waits for what
    /// it can prepare first.
    fn jail(&self, network: Network, first_id: Option<u32>, ahead: bool) -> Result<Helper> {
        let arguments = match self.maker.rights {
            Rights::Root => early::arguments_of_root(network, first_id, ahead),
            Rights::User => early::arguments_of_user(network, &self.maker.ids),
        };
        Helper::start(&self.program()?, &arguments.iter().map(OsStr::new).collect::<Vec<_>>())
    }

    /// The path of the jail program.
    fn program(&self) -> Result<PathBuf> {
        let put = |error| Error::io(format!("put the jail into {}", self.programs.display()), error);
        JAIL.install(&self.programs).map_err(put)
    }

    /// Stores a new sandbox.
    async fn make(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        let mode = self.maker.mode(spec.image.is_some());
        let mut network = require(mode, spec)?;
        if network == NetworkMode::Bridge
            && let Err(error) = self.bridge.check(self.maker.rights).await
        {
            if spec.network.is_some() || !spec.ports.is_empty() {
                return Err(error);
            }
            // `bridge` was not requested explicitly, so a weaker default is allowed. The result shows it.
            network = NetworkMode::None;
        }
        let held = spec.image.as_deref().map(|image| self.hold(image)).transpose()?;
        let image = held.as_ref().map(image::taken);
        plan::check(spec, image.as_ref(), &self.maker, self.guard()).await?;
        let workdir = spec.workdir.clone().unwrap_or_else(|| plan::WORKSPACE.to_owned());
        let mut layers = mode.layers_with(network);
        // Landlock would prevent sandboxes inside, and some kernels do not have it. It is listed where it is active.
        if !spec.nesting && kennel_jail::landlock_version().is_ok() {
            layers.push(IsolationLayer::Landlock);
        }
        let enforcement = Enforcement { mode: mode.name(), layers, limits: spec.limits };
        let claim = self.claim_ahead(id)?;
        let first_id = claim.as_ref().map(Claim::first);
        let new = NewRecord { workdir, network, enforcement, image, first_id };
        let (records, id, asked) = (self.records.clone(), id.clone(), spec.clone());
        let volumes = self.volumes.clone();
        let (record, mut made) = blocking(move || {
            let _held = volumes.hold_for(&asked)?;
            let record = records.create(&id, &asked, new)?;
            let dir = records.dir(&record.id);
            let mut made = claim.map_or(Ok(()), |claim| claim.give_to(&dir));
            if let (Ok(()), Some(held)) = (&made, held) {
                made = held.note(&dir);
            }
            Ok((record, made))
        })
        .await?;
        let dir = self.records.dir(&record.id);
        if let (Ok(()), Some(size)) = (&made, spec.limits.disk) {
            made = disk::make(&dir, size).await;
        }
        if let Err(error) = made {
            let _ = self.records.remove(&record);
            self.give_back(&record);
            return Err(error);
        }
        if is_sweep_due(self.records.root()) {
            // Leftovers of other sandboxes do not prevent this one.
            let _ = self.sweep(Sweep::Remove).await;
        }
        Ok(self.records.info(&record))
    }

    /// Starts the jail and sends the plan. With `goes_on`, the socket becomes a connection to the keeper.
    async fn begin(&self, record: &Record, goes_on: bool) -> Result<InstructedHelper> {
        if !record.spec.tied {
            // The leftovers of a killed jail may be frozen and in the same cgroup.
            limits::sweep(&self.maker.groups, &record.id).await;
            freeze::forget(&self.records.dir(&record.id));
            self.records.forget_end(&record.id);
        }
        let network = plan::network(record.network);
        let dir = self.records.dir(&record.id);
        // A tied sandbox of this process got its ids a moment ago.
        if let Some(first) = record.first_id.filter(|_| !self.records.is_owned(&record.id)) {
            self.claims.check(first, &dir)?;
        }
        let first_id = self.charged_to(record.first_id);
        let (jail, ahead) = match self.take_ahead(&record.id, network, first_id) {
            Some((jail, base)) => (jail, base),
            None => (self.jail(network, first_id, false)?, None),
        };
        let prepared = ahead.as_ref().filter(|_| record.image.is_none()).map(entries);
        let (ours, rights, image, layers) = (self.ours(), self.maker.rights, record.image.clone(), dir.clone());
        let base = blocking(move || {
            make_layers(&layers)?;
            Ok(match (rights, &image) {
                (_, Some(image)) => Base::Image(plan::layers(image)?),
                (Rights::Root, None) => ahead.unwrap_or_else(|| mask_layer::host(&ours)),
                (Rights::User, None) => Base::HostDirs(mask_layer::host_dirs(&ours)),
            })
        })
        .await?;
        let gone = |error: Error| Error::new(ErrorCode::StartFailed, format!("start the sandbox: {error}"));
        let screens = self.guard().screens(&record.spec).await.map_err(gone)?;
        let masks = Masks { hidden: self.guard().masked().map(Path::to_owned).collect(), screens };
        let mut plan = plan::for_sandbox(record, &self.maker, &dir, &masks, base, &self.volumes)?;
        if record.network == NetworkMode::Bridge {
            let range = self.bridge.take(self.maker.rights).await?;
            let (link, names) = network::link(&record.id, &record.spec, self.maker.rights, range, &self.program()?)?;
            plan.etc.push(EtcFile {
                name: "resolv.conf".into(),
                text: names.text.into_bytes().into(),
                if_empty: false,
            });
            plan.link = Some(link);
        }
        if let (Some(known), Base::Host { masks, .. }) = (prepared, &mut plan.base) {
            plan.base = Base::Ahead(masks.split_off(known));
        }
        plan.keeper.host_fd = goes_on.then_some(0);
        jail.instruct(&encoded(&plan)?).await
    }

    /// Releases its host ids.
    fn give_back(&self, record: &Record) {
        if let Some(first) = record.first_id {
            self.claims.free(first, &self.records.dir(&record.id));
        }
    }

    /// Returns the record and the current state of a sandbox.
    async fn find(&self, id_or_name: &str) -> Result<(Record, SandboxInfo)> {
        let (look, name) = (self.look(), id_or_name.to_owned());
        blocking(move || {
            let record = look.records.find(&name)?;
            let info = look.info(&record);
            Ok((record, info))
        })
        .await
    }

    /// Does work on volumes in another thread.
    async fn with_volumes<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Volumes, &Records, Access<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (volumes, look, programs) = (self.volumes.clone(), self.look(), self.programs.clone());
        blocking(move || work(&volumes, &look.records, Access { maker: &look.maker, programs: &programs })).await
    }

    /// What is needed to look at sandboxes from another thread.
    fn look(&self) -> Look {
        Look { records: self.records.clone(), maker: self.maker.clone() }
    }

    /// Checks that the sandbox can be paused or resumed. Returns its name and the process id of its jail, or `None` if
    /// there is nothing to do.
    async fn to_pause(&self, id: &SandboxId, operation: Operation) -> Result<Option<(String, i32)>> {
        if self.mode().pause == Support::Refused {
            let what = "pausing for an ordinary user without a delegated cgroup";
            return Err(
                Error::unsupported("native", what).suggest(NextStep::ExplainFeature { feature: Feature::Pause })
            );
        }
        let (record, info) = self.find(id.as_str()).await?;
        if !permit(&record.name, info.status, record.spec.tied, operation)? {
            return Ok(None);
        }
        let jail = self.records.holder(id).ok_or_else(|| Error::stopped(&record.name))?;
        Ok(Some((record.name, jail.as_raw_nonzero().get())))
    }

    /// Resumes a sandbox.
    async fn thaw(&self, id: &SandboxId, name: &str, jail: i32) -> Result<()> {
        freeze::thaw(&self.maker.groups, id, name, jail).await?;
        freeze::forget(&self.records.dir(id));
        Ok(())
    }

    /// Connects to the keeper, if it listens.
    async fn line(&self, id: &SandboxId) -> Result<Dialed> {
        // The socket has no path inside, so no process there can replace it.
        let stream = connect_socket(&self.records.dir(id).join("sock"), None).await?;
        Ok(Dialed { stream: Box::new(stream), token: None, owner: self.records.is_owned(id) })
    }
}

/// Sandboxes on disk and their cgroups, to be looked at from any thread.
struct Look {
    records: Records,
    maker: Arc<Maker>,
}

impl Look {
    /// Returns the current state of the sandbox.
    fn info(&self, record: &Record) -> SandboxInfo {
        let mut info = self.records.info(record);
        if info.status == Status::Running && freeze::is_frozen(&self.maker.groups, &record.id) {
            info.status = Status::Paused;
        }
        if info.status.is_up() && !record.spec.ports.is_empty() {
            info.ports = network::published(&self.records.dir(&record.id));
        }
        info
    }
}

/// No code panics while it holds a lock.
const NO_PANIC: &str = "a lock is held for a moment only";

/// Encodes a message to the jail.
fn encoded(message: &impl minicbor::Encode<()>) -> Result<Vec<u8>> {
    minicbor::to_vec(message).map_err(|error| Error::new(ErrorCode::Internal, format!("write the plan: {error}")))
}

/// The number of entries in the mask layer. A plan may add further ones.
fn entries(base: &Base) -> usize {
    if let Base::Host { masks, .. } = base { masks.len() } else { 0 }
}

/// Creates the directories of the upper layer. This is done here, while the jail does other work.
fn make_layers(dir: &Path) -> Result<()> {
    for layer in ["upper", "work"].map(|name| dir.join(name)) {
        match std::fs::create_dir(&layer) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::io(format!("make {}", layer.display()), error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns what is missing on this machine, if anything.
fn missing() -> Option<(&'static str, NextStep)> {
    if !Path::new("/proc/self/ns/user").exists() {
        return Some(("this kernel has no user namespaces", NextStep::advice("boot a kernel with CONFIG_USER_NS=y")));
    }
    None
}

#[async_trait]
impl Provider for Native {
    fn mode(&self) -> &'static Mode {
        self.maker.mode(false)
    }

    fn modes(&self) -> Vec<&'static Mode> {
        vec![self.maker.mode(false), self.maker.mode(true)]
    }

    async fn probe(&self) -> Availability {
        if let Some((what, next_step)) = missing() {
            return Availability { available: false, detail: what.into(), next_step: Some(next_step) };
        }
        if self.maker.rights == Rights::User
            && let Some(why) = self.refused()
        {
            let detail = format!("this kernel does not allow sandboxes for ordinary users: {why}");
            return Availability { available: false, detail, next_step: Some(NextStep::check_machine()) };
        }
        let uname = rustix::system::uname();
        let detail = format!("Linux {}, {}", uname.release().to_string_lossy(), self.maker.describe());
        Availability { available: true, detail, next_step: None }
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        let created = self.make(id, spec).await;
        if created.is_err() {
            self.drop_ahead(id);
        }
        created
    }

    async fn prepare_part(&self, spec: &SandboxSpec) -> Result<Option<Prepared>> {
        self.part(spec).map(Some)
    }

    fn use_part(&self, id: &SandboxId, spec: &SandboxSpec, part: Prepared) -> std::result::Result<(), String> {
        self.adopt(id, spec, part)
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        let (record, _) = self.find(id.as_str()).await?;
        let _only_me = self.records.starting(&record).await?;
        // It may have been started or renamed meanwhile.
        let (record, info) = self.find(id.as_str()).await?;
        if !permit(&record.name, info.status, record.spec.tied, Operation::Start)? {
            return Ok(());
        }
        let jail = self.begin(&record, false).await?;
        self.records.confirm(&record, jail, self.line(id)).await
    }

    async fn launch(&self, id: &SandboxId) -> Result<Dialed> {
        let record = self.records.find(id.as_str())?;
        let _only_me = self.records.starting(&record).await?;
        if self.records.is_running(id) {
            return self.dial(id).await;
        }
        let line = self.begin(&record, true).await?.into_line();
        Ok(Dialed { stream: Box::new(line), token: None, owner: self.records.is_owned(id) })
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        let (record, info) = self.find(id.as_str()).await?;
        if !permit(&record.name, info.status, record.spec.tied, Operation::Stop)? {
            return Ok(());
        }
        self.records.note_stop(id)?;
        if let (Status::Paused, Some(jail)) = (info.status, self.records.holder(id)) {
            // Frozen processes cannot end on request.
            self.thaw(id, &record.name, jail.as_raw_nonzero().get()).await?;
        }
        self.records.end(id, self.dial(id).await, grace).await
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        self.drop_ahead(id);
        // The usual end of `kennel run`. The state of the sandbox does not matter, so it is not read.
        let quickly = options.force && !options.volumes && self.records.is_owned(id);
        if quickly && self.records.end_owned(id, self.line(id).await).await? {
            return Ok(());
        }
        let (record, info) = self.find(id.as_str()).await?;
        permit(&record.name, info.status, record.spec.tied, options.operation())?;
        if info.status.is_up() {
            self.stop(id, Duration::ZERO).await?;
        }
        limits::sweep(&self.maker.groups, id).await;
        if options.volumes {
            let removed = record.clone();
            self.with_volumes(move |volumes, records, access| volumes.remove_own(&removed, records, access)).await?;
        }
        let (records, removed) = (self.records.clone(), record.clone());
        blocking(move || records.remove(&removed)).await?;
        self.give_back(&record);
        Ok(())
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let Some((name, jail)) = self.to_pause(id, Operation::Pause).await? else { return Ok(()) };
        freeze::freeze(&self.maker.groups, id, &name, jail).await?;
        freeze::note(&self.records.dir(id))
    }

    async fn unpause(&self, id: &SandboxId) -> Result<()> {
        match self.to_pause(id, Operation::Unpause).await? {
            Some((name, jail)) => self.thaw(id, &name, jail).await,
            None => Ok(()),
        }
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        let (record, info) = self.find(id.as_str()).await?;
        permit(&record.name, info.status, record.spec.tied, Operation::Rename)?;
        let only_me = self.records.starting(&record).await?;
        let (records, name) = (self.records.clone(), name.to_owned());
        blocking(move || records.rename(&record, &name, &only_me)).await
    }

    async fn change_limits(&self, id: &SandboxId, limits: Limits) -> Result<()> {
        self.change_limits_of(id, limits).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        Ok(self.find(id_or_name).await?.1)
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        let look = self.look();
        blocking(move || Ok(look.records.list()?.iter().map(|record| look.info(record)).collect())).await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        let (record, info) = self.find(id.as_str()).await?;
        permit(&record.name, info.status, record.spec.tied, Operation::Connect)?;
        self.line(id).await
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream> {
        let (record, _) = self.find(id.as_str()).await?;
        let (records, id) = (self.records.clone(), record.id);
        follow_log(self.records.dir(&id), options, move || !records.is_running(&id))
    }

    async fn watch(&self) -> Result<EventStream> {
        let look = self.look();
        watch_records(self.records.clone(), move |record| look.info(record))
    }

    async fn pull(&self, image: &str, when: Pull, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        self.fetch(image, when, tell).await
    }

    async fn image_id(&self, image: &str) -> Result<Option<String>> {
        let (Some((store, _)), Ok(reference)) = (&self.images, image.parse()) else { return Ok(None) };
        Ok(store.get(&reference)?.map(|image| image.id.to_string()))
    }

    async fn sweep(&self, action: Sweep) -> Result<Vec<Leftover>> {
        let records = self.records.clone();
        let gone = blocking(move || records.sweep(action)).await?;
        if action == Sweep::Remove {
            for id in &gone {
                limits::sweep(&self.maker.groups, id).await;
            }
        }
        let mut swept: Vec<Leftover> = gone.into_iter().map(|id| Leftover::Sandbox { id }).collect();
        let (look, claims, programs, program) =
            (self.look(), self.claims.clone(), self.programs.clone(), self.program()?);
        let rest = blocking(move || {
            let known: Vec<String> = look.records.list()?.iter().map(|record| record.id.to_string()).collect();
            let mut rest = limits::sweep_all(&look.maker.groups, &known, action);
            if action == Sweep::Remove {
                claims.sweep();
            }
            rest.extend(clear::old_programs(&programs, &program, action));
            Ok(rest)
        })
        .await?;
        swept.extend(rest);
        swept.extend(self.with_volumes(move |volumes, _, access| volumes.sweep(action, access)).await?);
        Ok(swept)
    }

    async fn volumes(&self, options: VolumeOptions) -> Result<Vec<VolumeInfo>> {
        let provider = self.name();
        self.with_volumes(move |volumes, records, access| volumes.list(records, options, access, provider)).await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.with_volumes(move |volumes, records, access| volumes.remove(&name, records, access)).await
    }

    async fn stats(&self, id: &SandboxId) -> Result<Option<Stats>> {
        let (record, info) = self.find(id.as_str()).await?;
        if !info.status.is_up() {
            return Err(Error::stopped(&record.name));
        }
        Ok(limits::stats(&self.maker.groups, &record))
    }
}
