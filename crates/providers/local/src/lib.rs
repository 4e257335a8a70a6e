//! The local provider: plain processes of the calling user, for development. It isolates nothing, says so, and refuses
//! what it cannot enforce.
//!
//! The keeper is an ordinary process that outlives its parent. There is no pid namespace to tell inside from outside,
//! so every connection must send a token that only the user can read.

use async_trait::async_trait;
use kennel_core::{
    Dialed, Error, EventStream, Helper, LogOptions, LogStream, Provider, Record, Records, RemoveOptions, Result, Told,
    connect_socket, follow_log, require, watch_records,
};
use kennel_keeper_bin::KEEPER;
use kennel_proto::{KeeperConfig, Spawn};
use kennel_types::{
    Availability, Enforcement, ErrorCode, Mode, NetworkMode, Owner, ProviderKind, SandboxId, SandboxInfo, SandboxSpec,
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
    async fn begin(&self, record: &Record, goes_on: bool) -> Result<(Told, Vec<u8>)> {
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
        Ok((keeper.tell(&config).await?, token))
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
        Availability { available: true, detail: "plain processes; isolates nothing".into(), fix: None }
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxInfo> {
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
        let record = self.records.create(spec, workdir, network, enforcement, None, None)?;
        Ok(self.records.info(&record))
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        let record = self.records.find(id.as_str())?;
        let _only_me = self.records.starting(&record).await?;
        if self.records.is_running(id) {
            return Ok(());
        }
        let (keeper, _) = self.begin(&record, false).await?;
        self.records.confirm(&record, keeper, self.line(id)).await
    }

    async fn launch(&self, id: &SandboxId) -> Result<Dialed> {
        let record = self.records.find(id.as_str())?;
        let _only_me = self.records.starting(&record).await?;
        if self.records.is_running(id) {
            return self.dial(id).await;
        }
        let (keeper, token) = self.begin(&record, true).await?;
        Ok(Dialed { stream: Box::new(keeper.into_line()), token: Some(token), owner: self.records.is_owned(id) })
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        self.records.find(id.as_str())?;
        if self.records.is_running(id) {
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
        self.records.remove(&record)
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        let record = self.records.find(id.as_str())?;
        let only_me = self.records.starting(&record).await?;
        self.records.rename(&record, name, &only_me)
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        Ok(self.records.info(&self.records.find(id_or_name)?))
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        Ok(self.records.list()?.iter().map(|record| self.records.info(record)).collect())
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        let record = self.records.find(id.as_str())?;
        if !self.records.is_running(id) {
            return Err(Error::stopped(&record.name));
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
}
