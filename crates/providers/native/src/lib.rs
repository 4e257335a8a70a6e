//! The native provider: Linux namespaces, no daemon, no image. The embedded default.
//!
//! Here is what decides; what acts is the jail (`kennel-jail`), a small single-threaded program that is started with a
//! computed plan, because namespaces must not be made in a program with threads. The jail watches over its sandbox from
//! outside as long as it runs, and any later process finds it by its directory.
//!
//! So far: as root, on the host's own root file system (the row `native, root, host` of the mode table).

mod cover;
mod freeze;
mod limits;
mod network;
mod plan;
mod trial;

pub use kennel_jail::Trial;
pub use network::{Bridge, Docker};

use async_trait::async_trait;
use kennel_core::{
    Dialed, Error, EventStream, Helper, LogOptions, LogStream, Provider, Record, Records, RemoveOptions, Result, Told,
    connect_socket, follow_log, require, watch_records,
};
use kennel_jail::Network;
use kennel_keeper_bin::JAIL;
use kennel_types::{
    Availability, Enforcement, ErrorCode, Mode, NetworkMode, SandboxId, SandboxInfo, SandboxSpec, Stats, Status,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// Sandboxes of Linux namespaces.
pub struct Native {
    records: Records,
    programs: PathBuf,
    /// A jail that was started ahead, and the network that it has.
    ahead: Mutex<Option<(Network, Helper)>>,
}

impl Native {
    /// Keeps its sandboxes below `state` and the jail program in `programs`.
    pub fn new(state: PathBuf, programs: PathBuf) -> Self {
        Self { records: Records::new("native", state), programs, ahead: Mutex::new(None) }
    }

    /// Begins with what every sandbox needs, before it is known which: its namespaces are made while the caller goes on.
    /// The next sandbox that is started here with this network gets them; if there is none, they end with this provider.
    /// Needs no runtime. What goes wrong shows when a sandbox is started.
    pub fn prepare(&self, network: Option<NetworkMode>) {
        if missing().is_none() {
            let network = plan::network(network.unwrap_or(self.mode().default_network()));
            *self.ahead.lock().expect(NO_PANIC) = self.jail(network).ok().map(|jail| (network, jail));
        }
    }

    /// Where Kennel keeps what no sandbox may see: sandboxes and their sockets, and the programs.
    fn ours(&self) -> Vec<&Path> {
        vec![self.records.root(), &self.programs]
    }

    /// A jail that makes its namespaces and waits to be told the rest.
    fn jail(&self, network: Network) -> Result<Helper> {
        Helper::start(&self.program()?, &[OsStr::new(network.argument())])
    }

    /// The jail's program.
    fn program(&self) -> Result<PathBuf> {
        let put = |error| Error::io(format!("put the jail into {}", self.programs.display()), error);
        JAIL.install(&self.programs).map_err(put)
    }

    /// Starts the jail and tells it what to do. With `goes_on`, the line to it becomes one to the keeper.
    async fn begin(&self, record: &Record, goes_on: bool) -> Result<Told> {
        if !record.spec.tied {
            // What a killed jail left of an earlier life may be frozen, and hold on to the same group.
            limits::sweep(&record.id).await;
        }
        let network = plan::network(record.network);
        let ahead = self.ahead.lock().expect(NO_PANIC).take();
        let jail = match ahead.filter(|(has, _)| *has == network) {
            Some((_, jail)) => jail,
            None => self.jail(network)?,
        };
        let dir = self.records.dir(&record.id);
        make_layers(&dir)?;
        let mut plan = plan::of(record, &dir, &self.hidden(), cover::of(&self.ours()))?;
        if record.network == NetworkMode::Bridge {
            let (link, names) = network::link(&record.id, &record.spec).await?;
            plan.resolv_conf = Some(names.text.into_bytes().into());
            plan.link = Some(link);
        }
        plan.keeper.host_fd = goes_on.then_some(0);
        let plan = minicbor::to_vec(&plan)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("write the plan: {error}")))?;
        jail.tell(&plan).await
    }

    /// The sandbox as it is now.
    fn info(&self, record: &Record) -> SandboxInfo {
        let mut info = self.records.info(record);
        if info.status == Status::Running && freeze::is_frozen(&record.id) {
            info.status = Status::Paused;
        }
        if info.status.is_up() && !record.spec.ports.is_empty() {
            info.ports = network::published(&self.records.dir(&record.id));
        }
        info
    }

    /// The sandbox, if it can stand still, and the number of its jail.
    fn jail_of(&self, id: &SandboxId) -> Result<(Record, i32)> {
        let record = self.records.find(id.as_str())?;
        if record.spec.tied {
            return Err(Error::is_tied(&record.name));
        }
        let jail = self.records.holder(id).ok_or_else(|| Error::stopped(&record.name))?;
        Ok((record, jail.as_raw_nonzero().get()))
    }

    /// A line to the keeper, if anyone listens.
    async fn line(&self, id: &SandboxId) -> Result<Dialed> {
        // The socket has no path inside: nobody there can put anything in its place.
        let stream = connect_socket(&self.records.dir(id).join("sock"), None).await?;
        Ok(Dialed { stream: Box::new(stream), token: None, owner: self.records.is_owned(id) })
    }

    /// The same, with the directory in which other providers keep theirs beside ours.
    fn hidden(&self) -> Vec<&Path> {
        self.records.root().parent().into_iter().chain(self.ours()).collect()
    }
}

/// Nobody panics while holding a lock.
const NO_PANIC: &str = "a lock is held for a moment only";

/// The directories of the sandbox's own layer. Made here: the jail has enough to do meanwhile.
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

/// What is missing here, if anything.
fn missing() -> Option<(&'static str, &'static str)> {
    if let Some(missing) = not_allowed() {
        return Some(missing);
    }
    if !Path::new("/proc/self/ns/user").exists() {
        return Some(("this kernel has no user namespaces", "boot a kernel with CONFIG_USER_NS=y"));
    }
    None
}

fn not_allowed() -> Option<(&'static str, &'static str)> {
    let root = rustix::process::geteuid().is_root();
    (!root).then_some(("native sandboxes need root so far", "sudo kennel run -- COMMAND"))
}

#[async_trait]
impl Provider for Native {
    fn mode(&self) -> &'static Mode {
        Mode::named("native, root, host").expect("the table has a row for it")
    }

    async fn probe(&self) -> Availability {
        if let Some((what, fix)) = missing() {
            return Availability { available: false, detail: what.into(), fix: Some(fix.into()) };
        }
        let uname = rustix::system::uname();
        let detail = format!("Linux {}, {}", uname.release().to_string_lossy(), self.mode().name);
        Availability { available: true, detail, fix: None }
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxInfo> {
        let mode = self.mode();
        let mut network = require(mode, spec)?;
        if let Some((what, fix)) = not_allowed() {
            return Err(Error::new(ErrorCode::NotAvailable, what).hint(fix));
        }
        if network == NetworkMode::Bridge
            && let Err(error) = network::ready().await
        {
            if spec.network.is_some() || !spec.ports.is_empty() {
                return Err(error);
            }
            // Nobody asked for it. What the sandbox has instead is less, and can be seen in what is answered.
            network = NetworkMode::None;
        }
        plan::check(spec, &self.ours())?;
        let workdir = spec.workdir.clone().unwrap_or_else(|| plan::WORKSPACE.to_owned());
        let enforcement =
            Enforcement { mode: mode.name.to_owned(), layers: mode.layers_with(network), limits: spec.limits };
        let record = self.records.create(spec, workdir, network, enforcement)?;
        Ok(self.records.info(&record))
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        let record = self.records.find(id.as_str())?;
        let _only_me = self.records.starting(&record).await?;
        if self.records.is_running(id) {
            return if freeze::is_frozen(id) { Err(Error::paused(&record.name)) } else { Ok(()) };
        }
        let answer = self.begin(&record, false).await?.answer().await?;
        answer.map_err(|reason| Error::not_started(&record.name, reason))?;
        self.records.confirm_main(&record, self.line(id).await).await
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
            if freeze::is_frozen(id) {
                // What stands still cannot be asked to end.
                self.unpause(id).await?;
            }
            self.records.end(id, self.dial(id).await, grace).await?;
        }
        Ok(())
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        let record = self.records.find(id.as_str())?;
        if options.force && self.records.is_owned(id) && self.records.end_owned(id, self.line(id).await).await? {
            return Ok(());
        }
        if self.records.is_running(id) {
            if !options.force {
                return Err(Error::is_running(&record.name));
            }
            self.stop(id, Duration::ZERO).await?;
        }
        limits::sweep(id).await;
        self.records.remove(&record)
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let (record, jail) = self.jail_of(id)?;
        freeze::freeze(id, &record.name, jail).await
    }

    async fn unpause(&self, id: &SandboxId) -> Result<()> {
        let (record, jail) = self.jail_of(id)?;
        freeze::thaw(id, &record.name, jail).await
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
        Ok(self.records.list()?.iter().map(|record| self.info(record)).collect())
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        let record = self.records.find(id.as_str())?;
        if !self.records.is_running(id) {
            return Err(Error::stopped(&record.name));
        }
        if freeze::is_frozen(id) {
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

    async fn stats(&self, id: &SandboxId) -> Result<Option<Stats>> {
        let record = self.records.find(id.as_str())?;
        if !self.records.is_running(id) {
            return Err(Error::stopped(&record.name));
        }
        Ok(limits::stats(&record))
    }
}
