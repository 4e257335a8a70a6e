//! The native provider: Linux namespaces, without a daemon. It is the embedded default.
//!
//! This crate makes the decisions. The jail (`kennel-jail`) carries them out: it is a small single-threaded program
//! that is started with a computed plan, because namespaces must not be created in a multi-threaded program. The jail
//! stays outside its sandbox as long as that runs, and any later process finds the sandbox by its directory.
//!
//! It works with the rights of the calling user: the host's root, or an ordinary user (see `rights`).

mod clear;
mod cover;
mod disk;
mod freeze;
mod groups;
mod image;
mod limits;
mod network;
mod plan;
mod range;
mod rights;
mod toolchains;
mod trial;
mod volumes;

pub use kennel_jail::Trial;
pub use network::{Bridge, Docker};

use async_trait::async_trait;
use kennel_core::{
    Dialed, Error, EventStream, Guard, Helper, LogOptions, LogStream, Provider, PullProgress, Record, Records,
    RemoveOptions, Result, Told, connect_socket, follow_log, require, watch_records,
};
use kennel_image::{PullOptions, Store};
use kennel_jail::{Base, EtcFile, Network, Rights};
use kennel_keeper_bin::JAIL;
use kennel_types::{
    Availability, Enforcement, ErrorCode, Layer, Mode, NetworkMode, Pull, SandboxId, SandboxInfo, SandboxSpec, Stats,
    Status, Support,
};
use plan::Masks;
use range::{CLAIMS, Claim, Claims};
use rights::Maker;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use volumes::Volumes;

/// The native provider.
pub struct Native {
    records: Records,
    programs: PathBuf,
    maker: Maker,
    volumes: Volumes,
    images: Option<(Store, Mutex<PullOptions>)>,
    claims: Claims,
    /// That `bridge` can be had, as it was found a moment ago.
    bridge: network::Found,
    ahead: Mutex<Option<Ahead>>,
    /// Additional directories that no sandbox may see.
    more: Vec<PathBuf>,
    /// Sockets of engines that the caller knows.
    engines: Vec<PathBuf>,
    guard: OnceLock<Guard>,
}

/// A jail that was started early.
struct Ahead {
    network: Network,
    first_id: Option<u32>,
    /// The claim on its host ids, until a sandbox takes it.
    claim: Option<Claim>,
    jail: Helper,
}

impl Native {
    /// Keeps its sandboxes below `state` and the jail program in `programs`.
    pub fn new(state: PathBuf, programs: PathBuf) -> Self {
        let maker = Maker::myself();
        let (ids, jail) = (maker.ids.clone(), programs.clone());
        let records = Records::new("native", state).cleared_by(move |dir| clear::remove(dir, &jail, &ids));
        let volumes = Volumes::new(records.root().with_file_name("volumes"));
        let (images, ahead, claims) = (None, Mutex::new(None), Claims::new(CLAIMS));
        let (more, engines) = (Vec::new(), Vec::new());
        let (bridge, guard) = (network::Found::default(), OnceLock::new());
        Self { records, programs, maker, volumes, images, claims, bridge, ahead, more, engines, guard }
    }

    /// Hides these directories from every sandbox, whether they exist yet or not: below a mount they are masked, and
    /// mounting one of them is refused.
    #[must_use]
    pub fn hiding(self, dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { more: dirs.into_iter().collect(), guard: OnceLock::new(), ..self }
    }

    /// Hides these sockets of container engines from every sandbox, in addition to the well-known ones.
    #[must_use]
    pub fn beside_engines(self, sockets: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { engines: sockets.into_iter().collect(), guard: OnceLock::new(), ..self }
    }

    /// Starts a jail early, before the sandbox is known: it creates its namespaces while the caller continues. The next
    /// sandbox that is started with this network uses it. If there is none, the jail ends with this provider. This
    /// needs no async runtime. Errors are reported when a sandbox is started.
    pub fn prepare(&self, network: Option<NetworkMode>) {
        if missing().is_none() {
            let network = plan::network(network.unwrap_or(self.mode().default_network()));
            let ahead = || {
                let claim = self.claim()?;
                let first_id = self.charged_to(claim.as_ref().map(Claim::first));
                Ok::<_, Error>(Ahead { network, first_id, claim, jail: self.jail(network, first_id)? })
            };
            *self.ahead.lock().expect(NO_PANIC) = ahead().ok();
        }
    }

    /// Claims host ids for a new sandbox. An ordinary user uses the delegated ids instead, and in a container with too
    /// few ids, sandboxes share them.
    fn claim(&self) -> Result<Option<Claim>> {
        (self.maker.rights == Rights::Root && range::are_mapped()).then(|| self.claims.take()).transpose()
    }

    /// The user that the namespaces of a sandbox with this range are charged to: its own root, if the host's root
    /// creates it.
    fn charged_to(&self, first_id: Option<u32>) -> Option<u32> {
        (self.maker.rights == Rights::Root).then(|| first_id.unwrap_or(range::SHARED))
    }

    /// Claims host ids for a new sandbox, or takes those of the jail that was started early.
    fn claim_ahead(&self) -> Result<Option<Claim>> {
        let claim = self.ahead.lock().expect(NO_PANIC).as_mut().and_then(|ahead| ahead.claim.take());
        claim.map_or_else(|| self.claim(), |claim| Ok(Some(claim)))
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

    /// Starts a jail, which creates its namespaces and waits for the plan.
    fn jail(&self, network: Network, first_id: Option<u32>) -> Result<Helper> {
        let first_id = first_id.map(|id| id.to_string());
        let arguments = [Some(network.argument()), first_id.as_deref()].map(|argument| argument.map(OsStr::new));
        Helper::start(&self.program()?, &arguments.into_iter().flatten().collect::<Vec<_>>())
    }

    /// The path of the jail program.
    fn program(&self) -> Result<PathBuf> {
        let put = |error| Error::io(format!("put the jail into {}", self.programs.display()), error);
        JAIL.install(&self.programs).map_err(put)
    }

    /// Starts the jail and sends the plan. With `goes_on`, the socket becomes a connection to the keeper.
    async fn begin(&self, record: &Record, goes_on: bool) -> Result<Told> {
        if !record.spec.tied {
            // The leftovers of a killed jail may be frozen and in the same cgroup.
            limits::sweep(&self.maker.groups, &record.id).await;
        }
        let network = plan::network(record.network);
        let dir = self.records.dir(&record.id);
        // A tied sandbox of this process got its ids a moment ago.
        if let Some(first) = record.first_id.filter(|_| !self.records.is_owned(&record.id)) {
            self.claims.check(first, &dir)?;
        }
        let first_id = self.charged_to(record.first_id);
        let ahead = self.ahead.lock().expect(NO_PANIC).take();
        let fits = |has: Network| has == network || (has, network) == (Network::Joined, Network::None);
        let jail = match ahead.filter(|ahead| fits(ahead.network) && ahead.first_id == first_id) {
            Some(ahead) => ahead.jail,
            None => self.jail(network, first_id)?,
        };
        make_layers(&dir)?;
        let base = match (self.maker.rights, &record.image) {
            (_, Some(image)) => Base::Image(plan::layers(image)?),
            (Rights::Root, None) => cover::host(&self.ours()),
            (Rights::User, None) => Base::Parts(cover::parts(&self.ours())),
        };
        let gone = |error: Error| Error::new(ErrorCode::StartFailed, format!("start the sandbox: {error}"));
        let screens = self.guard().screens(&record.spec).await.map_err(gone)?;
        let masks = Masks { hidden: self.guard().masked().map(Path::to_owned).collect(), screens };
        let mut plan = plan::of(record, &self.maker, &dir, &masks, base, &self.volumes)?;
        if record.network == NetworkMode::Bridge {
            let range = self.bridge.take(self.maker.rights).await?;
            let (link, names) = network::link(&record.id, &record.spec, self.maker.rights, range)?;
            plan.etc.push(EtcFile {
                name: "resolv.conf".into(),
                text: names.text.into_bytes().into(),
                if_empty: false,
            });
            plan.link = Some(link);
        }
        plan.keeper.host_fd = goes_on.then_some(0);
        let plan = minicbor::to_vec(&plan)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("write the plan: {error}")))?;
        jail.tell(&plan).await
    }

    /// Releases its host ids.
    fn give_back(&self, record: &Record) {
        if let Some(first) = record.first_id {
            self.claims.free(first, &self.records.dir(&record.id));
        }
    }

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

    /// Returns the sandbox, if it can be paused, and the process id of its jail.
    fn jail_of(&self, id: &SandboxId) -> Result<(Record, i32)> {
        if self.mode().pause == Support::Refused {
            let what = "pausing for an ordinary user without a delegated cgroup";
            return Err(Error::unsupported("native", what).hint("kennel explain pause"));
        }
        let record = self.records.find(id.as_str())?;
        if record.spec.tied {
            return Err(Error::is_tied(&record.name));
        }
        let jail = self.records.holder(id).ok_or_else(|| Error::stopped(&record.name))?;
        Ok((record, jail.as_raw_nonzero().get()))
    }

    /// Connects to the keeper, if it listens.
    async fn line(&self, id: &SandboxId) -> Result<Dialed> {
        // The socket has no path inside, so no process there can replace it.
        let stream = connect_socket(&self.records.dir(id).join("sock"), None).await?;
        Ok(Dialed { stream: Box::new(stream), token: None, owner: self.records.is_owned(id) })
    }
}

/// No code panics while it holds a lock.
const NO_PANIC: &str = "a lock is held for a moment only";

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
fn missing() -> Option<(&'static str, &'static str)> {
    if !Path::new("/proc/self/ns/user").exists() {
        return Some(("this kernel has no user namespaces", "boot a kernel with CONFIG_USER_NS=y"));
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
        if let Some((what, fix)) = missing() {
            return Availability { available: false, detail: what.into(), fix: Some(fix.into()) };
        }
        if self.maker.rights == Rights::User
            && let Some(why) = self.refused()
        {
            let detail = format!("this kernel does not allow sandboxes for ordinary users: {why}");
            return Availability { available: false, detail, fix: Some("kennel doctor".into()) };
        }
        let uname = rustix::system::uname();
        let detail = format!("Linux {}, {}", uname.release().to_string_lossy(), self.maker.describe());
        Availability { available: true, detail, fix: None }
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxInfo> {
        let mode = self.maker.mode(spec.image.is_some());
        let mut network = require(mode, spec)?;
        if network == NetworkMode::Bridge
            && let Err(error) = self.bridge.look(self.maker.rights).await
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
            layers.push(Layer::Landlock);
        }
        let enforcement = Enforcement { mode: mode.name(), layers, limits: spec.limits };
        let claim = self.claim_ahead()?;
        let first_id = claim.as_ref().map(Claim::first);
        let record = self.records.create(spec, workdir, network, enforcement, image, first_id)?;
        let dir = self.records.dir(&record.id);
        let mut made = claim.map_or(Ok(()), |claim| claim.give_to(&dir));
        if let (Ok(()), Some(held)) = (&made, held) {
            made = held.note(&dir).map_err(image::from_image);
        }
        if let (Ok(()), Some(size)) = (&made, spec.limits.disk) {
            made = disk::make(&dir, size).await;
        }
        if let Err(error) = made {
            let _ = self.records.remove(&record);
            self.give_back(&record);
            return Err(error);
        }
        Ok(self.records.info(&record))
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        let record = self.records.find(id.as_str())?;
        let _only_me = self.records.starting(&record).await?;
        if self.records.is_running(id) {
            return if freeze::is_frozen(&self.maker.groups, id) { Err(Error::paused(&record.name)) } else { Ok(()) };
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
        self.records.find(id.as_str())?;
        if self.records.is_running(id) {
            if freeze::is_frozen(&self.maker.groups, id) {
                // Frozen processes cannot end on request.
                self.unpause(id).await?;
            }
            self.records.end(id, self.dial(id).await, grace).await?;
        }
        Ok(())
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        let record = self.records.find(id.as_str())?;
        if options.force
            && !(options.volumes && record.spec.data)
            && self.records.is_owned(id)
            && self.records.end_owned(id, self.line(id).await).await?
        {
            return Ok(());
        }
        if self.records.is_running(id) {
            if !options.force {
                return Err(Error::is_running(&record.name));
            }
            self.stop(id, Duration::ZERO).await?;
        }
        limits::sweep(&self.maker.groups, id).await;
        if options.volumes {
            self.volumes.remove_own(&record, &self.records.sort_out()?.0, &self.maker, &self.programs)?;
        }
        self.records.remove(&record)?;
        self.give_back(&record);
        Ok(())
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let (record, jail) = self.jail_of(id)?;
        freeze::freeze(&self.maker.groups, id, &record.name, jail).await
    }

    async fn unpause(&self, id: &SandboxId) -> Result<()> {
        let (record, jail) = self.jail_of(id)?;
        freeze::thaw(&self.maker.groups, id, &record.name, jail).await
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        let record = self.records.find(id.as_str())?;
        let only_me = self.records.starting(&record).await?;
        self.records.rename(&record, name, &only_me)
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        Ok(self.info(&self.records.find(id_or_name)?))
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        let (records, swept) = self.records.sort_out()?;
        for id in &swept {
            limits::sweep(&self.maker.groups, id).await;
        }
        Ok(records.iter().map(|record| self.info(record)).collect())
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        let record = self.records.find(id.as_str())?;
        if !self.records.is_running(id) {
            return Err(Error::stopped(&record.name));
        }
        if freeze::is_frozen(&self.maker.groups, id) {
            return Err(Error::paused(&record.name));
        }
        self.line(id).await
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream> {
        let record = self.records.find(id.as_str())?;
        let (records, id) = (self.records.clone(), record.id);
        follow_log(self.records.dir(&id), options, move || !records.is_running(&id))
    }

    async fn watch(&self) -> Result<EventStream> {
        watch_records(self.records.clone())
    }

    async fn pull(&self, image: &str, when: Pull, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        self.fetch(image, when, tell).await
    }

    async fn sweep(&self) -> Result<Vec<String>> {
        let (records, gone) = self.records.sort_out()?;
        for id in &gone {
            limits::sweep(&self.maker.groups, id).await;
        }
        let mut swept: Vec<String> = gone.iter().map(|id| format!("sandbox {id}")).collect();
        let known: Vec<String> = records.iter().map(|record| record.id.to_string()).collect();
        swept.extend(limits::sweep_all(&self.maker.groups, &known));
        self.claims.sweep();
        swept.extend(clear::old_programs(&self.programs, &self.program()?));
        Ok(swept)
    }

    async fn stats(&self, id: &SandboxId) -> Result<Option<Stats>> {
        let record = self.records.find(id.as_str())?;
        if !self.records.is_running(id) {
            return Err(Error::stopped(&record.name));
        }
        Ok(limits::stats(&self.maker.groups, &record))
    }
}
