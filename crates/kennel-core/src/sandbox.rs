//! A sandbox in hand: everything that can be done with it, on whichever provider it is.

use crate::{Error, Exec, Files, Keeper, LogOptions, LogStream, Output, Position, Provider, RemoveOptions, Result};
use kennel_proto::{Outcome, ProcessInfo, Request};
use kennel_types::{ErrorCode, ExecSpec, STARTUP, SandboxId, SandboxInfo, SandboxSpec, Stats, Status, TermSize};
use std::sync::Arc;
use std::time::Duration;

/// How long a keeper may take to complete the figures of its provider.
const KEEPER_STATS_WITHIN: Duration = Duration::from_millis(500);

/// A sandbox. Cheap to clone; clones share one connection to its keeper.
#[derive(Clone)]
pub struct Sandbox {
    provider: Arc<dyn Provider>,
    info: Arc<SandboxInfo>,
    /// How long a launch may take.
    startup: Duration,
    keeper: Arc<tokio::sync::Mutex<Option<Keeper>>>,
}

impl Sandbox {
    fn new(provider: Arc<dyn Provider>, info: SandboxInfo, startup: Duration) -> Self {
        Self { provider, info: Arc::new(info), startup, keeper: Arc::default() }
    }

    /// Makes a sandbox; it does not run yet.
    pub async fn create(provider: Arc<dyn Provider>, spec: &SandboxSpec) -> Result<Self> {
        let info = provider.create(spec).await?;
        Ok(Self::new(provider, info, spec.startup()))
    }

    /// The sandbox of that id or name.
    pub async fn find(provider: Arc<dyn Provider>, id_or_name: &str) -> Result<Self> {
        let info = provider.get(id_or_name).await?;
        Ok(Self::new(provider, info, STARTUP))
    }

    /// Its id.
    pub fn id(&self) -> &SandboxId {
        &self.info.id
    }

    /// What was known of it when this handle was made. [`Self::inspect`] tells what is true now.
    pub fn info(&self) -> &SandboxInfo {
        &self.info
    }

    /// Its provider.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    /// What is true of it now.
    pub async fn inspect(&self) -> Result<SandboxInfo> {
        self.provider.get(self.id().as_str()).await
    }

    /// Starts it.
    pub async fn start(&self) -> Result<()> {
        let mut keeper = self.keeper.lock().await;
        // The keeper of its last life has hung up, even if we have not heard that yet.
        if keeper.is_some() && self.inspect().await?.status != Status::Running {
            *keeper = None;
        }
        self.provider.start(self.id()).await
    }

    /// Starts it and connects to its keeper, without waiting for either where that can be: a command may be sent on its
    /// way at once. What went wrong shows at the first use. The quickest way into a sandbox that is used by its maker.
    pub async fn launch(&self) -> Result<Keeper> {
        let mut keeper = self.keeper.lock().await;
        let dialed = self.provider.launch(self.id()).await?;
        Ok(keeper.insert(Keeper::greet_starting(dialed, self.startup)).clone())
    }

    /// Ends everything in it.
    pub async fn stop(&self, grace: Duration) -> Result<()> {
        self.keeper.lock().await.take();
        self.provider.stop(self.id(), grace).await
    }

    /// Makes everything in it stand still.
    pub async fn pause(&self) -> Result<()> {
        self.provider.pause(self.id()).await
    }

    /// Lets it go on.
    pub async fn unpause(&self) -> Result<()> {
        self.provider.unpause(self.id()).await
    }

    /// Gives it another name.
    pub async fn rename(&self, name: &str) -> Result<()> {
        self.provider.rename(self.id(), name).await
    }

    /// Removes it.
    pub async fn remove(&self, options: RemoveOptions) -> Result<()> {
        let keeper = self.keeper.lock().await.take();
        let ended = match &keeper {
            // The connection is there already: end everything inside by it.
            Some(keeper) if options.force => keeper.shut_down(Duration::ZERO).await.is_ok(),
            _ => false,
        };
        match self.provider.remove(self.id(), options).await {
            // A tied one may be cleared away by whoever kept it alive, once it has ended.
            Err(error) if ended && error.code() == ErrorCode::NotFound => Ok(()),
            done => done,
        }
    }

    /// The connection to its keeper, made on first use and again when it was lost.
    pub async fn keeper(&self) -> Result<Keeper> {
        let mut keeper = self.keeper.lock().await;
        match &*keeper {
            Some(live) if !live.is_closed() => Ok(live.clone()),
            _ => Ok(keeper.insert(Keeper::greet(self.provider.dial(self.id()).await?)).clone()),
        }
    }

    /// Drops the connection to its keeper: a tied command ends with it, a detached one goes on.
    pub async fn hang_up(&self) {
        self.keeper.lock().await.take();
    }

    /// Starts a command and streams what it does.
    pub async fn exec(&self, spec: &ExecSpec) -> Result<Exec> {
        Exec::spawn(&self.keeper().await?, spec).await
    }

    /// Runs a command to its end and collects what it prints, `cap` bytes of each stream.
    pub async fn run(&self, spec: &ExecSpec, stdin: Option<&[u8]>, cap: usize) -> Result<Output> {
        let spec = ExecSpec { stdin: stdin.is_some(), ..spec.clone() };
        let exec = self.exec(&spec).await?;
        let Some(bytes) = stdin else { return exec.collect(cap).await };
        let writer = exec.stdin();
        let feed = async {
            // A command that ends without reading everything is no error.
            let _ = writer.write(bytes).await;
            writer.close();
        };
        let collect = exec.collect(cap);
        tokio::pin!(feed, collect);
        tokio::select! {
            output = &mut collect => output,
            () = &mut feed => collect.await,
        }
    }

    /// Takes over a command's output, and its input, from a position on.
    pub async fn attach(&self, process: u64, from: Position, size: Option<TermSize>) -> Result<Exec> {
        Exec::attach(&self.keeper().await?, process, from, size).await
    }

    /// The commands its keeper knows.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        match self.keeper().await?.call(Request::Processes).await? {
            Outcome::Processes(processes) => Ok(processes),
            _ => Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: no list of commands")),
        }
    }

    /// Ends a command's whole tree (signal 0: TERM, grace, KILL), or sends it a signal.
    pub async fn kill(&self, process: u64, signal: i32) -> Result<()> {
        self.keeper().await?.call(Request::Kill { process, signal }).await.map(drop)
    }

    /// The main process's id, if there is one.
    pub async fn main_process(&self) -> Result<Option<u64>> {
        Ok(self.keeper().await?.welcome().await?.main)
    }

    /// Its files, as one of its users; as the sandbox's own user if not given.
    pub async fn files(&self, user: Option<&str>) -> Result<Files> {
        Ok(Files::new(self.keeper().await?, user.map(ToOwned::to_owned)))
    }

    /// The main process's log.
    pub async fn logs(&self, options: LogOptions) -> Result<LogStream> {
        self.provider.logs(self.id(), options).await
    }

    /// What it uses.
    pub async fn stats(&self) -> Result<Stats> {
        let seen = self.provider.stats(self.id()).await?;
        match seen {
            Some(seen) if seen.read_bytes.is_some() && seen.written_bytes.is_some() => Ok(seen),
            // The keeper knows what the provider cannot see from outside. One that is paused does not respond.
            Some(seen) => Ok(match tokio::time::timeout(KEEPER_STATS_WITHIN, self.stats_of_keeper()).await {
                Ok(Ok(stats)) => Stats { read_bytes: stats.read_bytes, written_bytes: stats.written_bytes, ..seen },
                _ => seen,
            }),
            None => self.stats_of_keeper().await,
        }
    }

    async fn stats_of_keeper(&self) -> Result<Stats> {
        match self.keeper().await?.call(Request::Stats).await? {
            Outcome::Stats(stats) => Ok(Stats {
                cpu_micros: stats.cpu_micros,
                memory_bytes: stats.memory_bytes,
                memory_limit_bytes: stats.memory_limit_bytes,
                pids: stats.pids,
                read_bytes: stats.read_bytes,
                written_bytes: stats.written_bytes,
                oom_kills: stats.oom_kills,
            }),
            _ => Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: no stats")),
        }
    }
}
