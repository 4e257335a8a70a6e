//! The local provider: plain processes of the calling user, for development. It isolates nothing, says so, and refuses
//! what it cannot enforce.
//!
//! The keeper is an ordinary process that outlives its parent. There is no pid namespace to tell inside from outside,
//! so every connection must send a token that only the user can read.

use async_trait::async_trait;
use kennel_core::{Dialed, Error, EventStream, LogOptions, LogStream, Provider, RemoveOptions, Result, Sweep};
use kennel_keeper_bin::KEEPER;
use kennel_proto::{KeeperConfig, Spawn};
use kennel_provider::{
    Helper, InstructedHelper, NewRecord, Record, Records, blocking, connect_socket, follow_log, is_sweep_due, permit,
    require, watch_records,
};
use kennel_types::{
    Availability, Enforcement, ErrorCode, Leftover, Mode, NetworkMode, Operation, Owner, ProviderKind, SandboxId,
    SandboxInfo, SandboxSpec,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// The local provider.
pub struct Local {
    records: Records,
    programs: PathBuf,
}

impl Local {
    /// Keeps its sandboxes below `state` and the keeper program in `programs`.
    pub fn new(state: PathBuf, programs: PathBuf) -> Self {
        Self { records: Records::new("local", state), programs }
    }

    /// Does something with the records. It may block on files.
    async fn records<T: Send + 'static>(&self, work: impl FnOnce(&Records) -> Result<T> + Send + 'static) -> Result<T> {
        let records = self.records.clone();
        blocking(move || work(&records)).await
    }

    /// Returns the record and the current state of a sandbox.
    async fn find(&self, id_or_name: &str) -> Result<(Record, SandboxInfo)> {
        let name = id_or_name.to_owned();
        self.records(move |records| {
            let record = records.find(&name)?;
            let info = records.info(&record);
            Ok((record, info))
        })
        .await
    }

    fn token_path(&self, id: &SandboxId) -> PathBuf {
        self.records.dir(id).join("token")
    }

    /// Connects to the keeper, if it listens.
    async fn line(&self, id: &SandboxId) -> Result<Dialed> {
        let path = self.token_path(id);
        let token = std::fs::read(&path).map_err(|error| Error::io(format!("read {}", path.display()), error))?;
        let stream = connect_socket(&self.records.dir(id).join("sock"), None).await?;
        Ok(Dialed { stream: Box::new(stream), token: Some(token), owner: self.records.is_owned(id) })
    }

    /// Creates a new secret for each start.
    fn new_token(&self, id: &SandboxId) -> Result<Vec<u8>> {
        let mut token = [0; 32];
        getrandom::fill(&mut token)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("read random bytes for a token: {error}")))?;
        let path = self.token_path(id);
        let what = || format!("write {}", path.display());
        let _ = std::fs::remove_file(&path);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| Error::io(what(), error))?;
        std::io::Write::write_all(&mut file, &token).map_err(|error| Error::io(what(), error))?;
        Ok(token.to_vec())
    }

    /// Starts the keeper and sends its configuration. Also returns its token. With `goes_on`, the socket stays open for
    /// the host.
    async fn begin(&self, record: &Record, goes_on: bool) -> Result<(InstructedHelper, Vec<u8>)> {
        let program = KEEPER
            .install(&self.programs)
            .map_err(|error| Error::io(format!("put the keeper into {}", self.programs.display()), error))?;
        let dir = self.records.dir(&record.id);
        let keeper = Helper::start(&program, &[OsStr::new("serve"), OsStr::new("--dir"), dir.as_os_str()])?;
        let token = self.new_token(&record.id)?;
        let mut config = self.keeper_config(record, token.clone());
        config.host_fd = goes_on.then_some(0);
        let config = minicbor::to_vec(&config)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("write the keeper's settings: {error}")))?;
        Ok((keeper.instruct(&config).await?, token))
    }

    fn keeper_config(&self, record: &Record, token: Vec<u8>) -> KeeperConfig {
        let bytes = |text: &str| text.as_bytes().to_vec().into();
        let spec = &record.spec;
        KeeperConfig {
            token: Some(token.into()),
            tied: spec.tied,
            owner_within_ms: Some(10_000),
            idle_ms: spec.idle_seconds.map(|seconds| seconds.saturating_mul(1000)),
            env: spec.env.iter().map(|(key, value)| (bytes(key), bytes(value))).collect(),
            cwd: Some(bytes(&record.workdir)),
            main: spec.command.as_ref().map(|argv| Spawn::main(argv)),
            sweep: (spec.tied || spec.auto_remove)
                .then(|| self.records.dir(&record.id).as_os_str().as_bytes().to_vec().into()),
            one_user: true,
            shares_network: true,
            ..KeeperConfig::default()
        }
    }
}

fn me() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

#[async_trait]
impl Provider for Local {
    fn mode(&self) -> &'static Mode {
        Mode::first_of(ProviderKind::Local)
    }

    async fn probe(&self) -> Availability {
        Availability { available: true, detail: "plain processes; isolates nothing".into(), next_step: None }
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        let mode = self.mode();
        let network = require(mode, spec)?;
        if spec.owner.is_some_and(|owner| owner != me()) {
            return Err(Error::unsupported("local", "files of another user"));
        }
        // Nothing can be mounted, so the workspace keeps its own path.
        let workspace = spec.workspace.as_ref().and_then(|path| path.to_str()).map(ToOwned::to_owned);
        let workdir = spec.workdir.clone().or(workspace).unwrap_or_else(|| "/".into());
        let enforcement =
            Enforcement { mode: mode.name(), layers: mode.layers_with(NetworkMode::Host), limits: spec.limits };
        let new = NewRecord { workdir, network, enforcement, image: None, first_id: None };
        let (id, spec) = (id.clone(), spec.clone());
        self.records(move |records| {
            let record = records.create(&id, &spec, new)?;
            if is_sweep_due(records.root()) {
                // Leftovers of other sandboxes do not prevent this one.
                let _ = records.sweep(Sweep::Remove);
            }
            Ok(records.info(&record))
        })
        .await
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        let (record, _) = self.find(id.as_str()).await?;
        let _only_me = self.records.starting(&record).await?;
        let (record, info) = self.find(id.as_str()).await?;
        if !permit(&record.name, info.status, record.spec.tied, Operation::Start)? {
            return Ok(());
        }
        self.records.forget_end(id);
        let (keeper, _) = self.begin(&record, false).await?;
        self.records.confirm(&record, keeper, self.line(id)).await
    }

    async fn launch(&self, id: &SandboxId) -> Result<Dialed> {
        let record = self.records.find(id.as_str())?;
        let _only_me = self.records.starting(&record).await?;
        if self.records.is_running(id) {
            return self.dial(id).await;
        }
        if !record.spec.tied {
            self.records.forget_end(id);
        }
        let (keeper, token) = self.begin(&record, true).await?;
        Ok(Dialed { stream: Box::new(keeper.into_line()), token: Some(token), owner: self.records.is_owned(id) })
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        let (record, info) = self.find(id.as_str()).await?;
        if permit(&record.name, info.status, record.spec.tied, Operation::Stop)? {
            self.records.note_stop(id)?;
            self.records.end(id, self.dial(id).await, grace).await?;
        }
        Ok(())
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        let (record, info) = self.find(id.as_str()).await?;
        if options.force && self.records.is_owned(id) && self.records.end_owned(id, self.line(id).await).await? {
            return Ok(());
        }
        permit(&record.name, info.status, record.spec.tied, options.operation())?;
        if info.status.is_up() {
            self.stop(id, Duration::ZERO).await?;
        }
        self.records(move |records| records.remove(&record)).await
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        let (record, info) = self.find(id.as_str()).await?;
        permit(&record.name, info.status, record.spec.tied, Operation::Rename)?;
        let only_me = self.records.starting(&record).await?;
        let name = name.to_owned();
        self.records(move |records| records.rename(&record, &name, &only_me)).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        Ok(self.find(id_or_name).await?.1)
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        self.records(|records| Ok(records.list()?.iter().map(|record| records.info(record)).collect())).await
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
        let records = self.records.clone();
        watch_records(self.records.clone(), move |record| records.info(record))
    }

    async fn sweep(&self, action: Sweep) -> Result<Vec<Leftover>> {
        let swept = self.records(move |records| records.sweep(action)).await?;
        Ok(swept.into_iter().map(|id| Leftover::Sandbox { id }).collect())
    }
}
