//! The handle of a sandbox: everything that can be done with it, on any provider.

use crate::fan_out::WeakFanOut;
use crate::{
    Datagrams, Error, Exec, FanOut, FanOutOptions, Files, Keeper, ListenAt, Listener, LogOptions, LogStream, Output,
    Position, Provider, RemoveOptions, Result, SandboxStream, Target, has_ended_idle,
};
use kennel_proto::{Outcome, ProcessInfo, Request};
use kennel_types::{
    ErrorCode, ExecSpec, IsolationLayer, Limits, STARTUP, SandboxId, SandboxInfo, SandboxSpec, Stats, Status, TermSize,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::{Instrument, Span};

/// How long a keeper may take to complete the figures of its provider.
const KEEPER_STATS_WITHIN: Duration = Duration::from_millis(500);

/// How often a command is sent again if the sandbox stops at the same moment because it was idle.
const IDLE_ENDS: u32 = 5;

/// How long a sandbox may take to end after its keeper has closed the connection.
const END_WITHIN: Duration = Duration::from_millis(500);

/// A sandbox. Cheap to clone; all clones share one connection to its keeper.
#[derive(Clone)]
pub struct Sandbox {
    provider: Arc<dyn Provider>,
    info: Arc<SandboxInfo>,
    /// The time limit of a launch.
    startup: Duration,
    keeper: Arc<tokio::sync::Mutex<Option<Keeper>>>,
    /// The fan-outs in use, by command.
    fan_outs: Arc<tokio::sync::Mutex<HashMap<u64, WeakFanOut>>>,
}

/// For how long a sandbox has not been used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTime {
    /// Whether a command runs or a stream is open. An open connection is not use, and neither are processes that a
    /// finished command has left behind.
    pub in_use: bool,
    /// The time since the last use; zero while the sandbox is in use. Time in which the sandbox was paused does not count.
    pub idle: Duration,
}

/// The span of a provider's call, for whoever collects spans. `sandbox` is an id or a name.
fn span(provider: &dyn Provider, call: &'static str, sandbox: &str) -> Span {
    tracing::debug_span!("provider", provider = provider.name(), call, sandbox)
}

impl Sandbox {
    /// The span of a provider's call on this sandbox.
    fn span(&self, call: &'static str) -> Span {
        span(&*self.provider, call, self.id().as_str())
    }

    fn new(provider: Arc<dyn Provider>, info: SandboxInfo, startup: Duration) -> Self {
        Self { provider, info: Arc::new(info), startup, keeper: Arc::default(), fan_outs: Arc::default() }
    }

    /// Creates a sandbox with a new id. It does not run yet.
    pub async fn create(provider: Arc<dyn Provider>, spec: &SandboxSpec) -> Result<Self> {
        Self::create_with_id(provider, &crate::new_id()?, spec).await
    }

    /// Creates a sandbox with an id that the caller has chosen, and may have recorded before. It does not run yet.
    pub async fn create_with_id(provider: Arc<dyn Provider>, id: &SandboxId, spec: &SandboxSpec) -> Result<Self> {
        let info = provider.create(id, spec).instrument(span(&*provider, "create", id.as_str())).await?;
        Ok(Self::new(provider, info, spec.startup()))
    }

    /// Finds a sandbox by its id or name.
    pub async fn find(provider: Arc<dyn Provider>, id_or_name: &str) -> Result<Self> {
        let info = provider.get(id_or_name).instrument(span(&*provider, "get", id_or_name)).await?;
        Ok(Self::new(provider, info, STARTUP))
    }

    /// The id.
    pub fn id(&self) -> &SandboxId {
        &self.info.id
    }

    /// The description from the time when this handle was created. [`Self::inspect`] returns the current one.
    pub fn info(&self) -> &SandboxInfo {
        &self.info
    }

    /// The provider.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    /// Returns the current description.
    pub async fn inspect(&self) -> Result<SandboxInfo> {
        self.provider.get(self.id().as_str()).instrument(self.span("get")).await
    }

    /// Starts the sandbox.
    pub async fn start(&self) -> Result<()> {
        let mut keeper = self.keeper.lock().await;
        // The keeper of the last run has closed the connection, even if this side has not noticed yet.
        if keeper.is_some() && self.inspect().await?.status != Status::Running {
            *keeper = None;
        }
        self.provider.start(self.id()).instrument(self.span("start")).await
    }

    /// Starts the sandbox and connects to its keeper, without waiting for either if possible: a command can be sent at
    /// once. An error shows at the first use. This is the fastest way to use a new sandbox.
    pub async fn launch(&self) -> Result<Keeper> {
        let mut keeper = self.keeper.lock().await;
        let dialed = self.provider.launch(self.id()).instrument(self.span("launch")).await?;
        let gate = self.provider.gate(self.id());
        Ok(keeper.insert(Keeper::greet_starting_through(gate, dialed, self.startup)).clone())
    }

    /// Ends all processes in the sandbox.
    pub async fn stop(&self, grace: Duration) -> Result<()> {
        self.keeper.lock().await.take();
        self.provider.stop(self.id(), grace).instrument(self.span("stop")).await
    }

    /// Pauses all processes in the sandbox.
    pub async fn pause(&self) -> Result<()> {
        self.provider.pause(self.id()).instrument(self.span("pause")).await
    }

    /// Resumes a paused sandbox.
    pub async fn unpause(&self) -> Result<()> {
        self.provider.unpause(self.id()).instrument(self.span("unpause")).await
    }

    /// Renames the sandbox.
    pub async fn rename(&self, name: &str) -> Result<()> {
        self.provider.rename(self.id(), name).instrument(self.span("rename")).await
    }

    /// Changes limits. Those that are `None` stay as they are.
    pub async fn change_limits(&self, limits: Limits) -> Result<()> {
        self.provider.change_limits(self.id(), limits).instrument(self.span("change limits")).await
    }

    /// Removes the sandbox.
    pub async fn remove(&self, options: RemoveOptions) -> Result<()> {
        let keeper = self.keeper.lock().await.take();
        let ended = match &keeper {
            // The connection is already open: use it to end everything inside.
            Some(keeper) if options.force => keeper.shut_down(Duration::ZERO).await.is_ok(),
            _ => false,
        };
        match self.provider.remove(self.id(), options).instrument(self.span("remove")).await {
            // A tied sandbox may be removed by the process that kept it alive, once it has ended.
            Err(error) if ended && error.code() == ErrorCode::NotFound => Ok(()),
            done => done,
        }
    }

    /// Returns the connection to the keeper. It is opened on first use, and again after it was lost.
    pub async fn keeper(&self) -> Result<Keeper> {
        let mut keeper = self.keeper.lock().await;
        match &*keeper {
            Some(live) if !live.is_closed() => Ok(live.clone()),
            _ => {
                let dialed = self.provider.dial(self.id()).instrument(self.span("dial")).await?;
                Ok(keeper.insert(Keeper::greet_through(self.provider.gate(self.id()), dialed)).clone())
            }
        }
    }

    /// Closes the connection to the keeper. A tied command ends with it, a detached one continues.
    pub async fn hang_up(&self) {
        self.keeper.lock().await.take();
    }

    /// Starts a command and streams its events. If the sandbox stops at the same moment because it was idle, it is started
    /// again.
    pub async fn exec(&self, spec: &ExecSpec) -> Result<Exec> {
        let mut attempts = 1..=IDLE_ENDS;
        loop {
            let started = match self.keeper().await {
                Ok(keeper) => Exec::spawn(&keeper, spec).await,
                Err(error) => Err(error),
            };
            match started {
                // An idle sandbox runs no command, so this one was not started.
                Err(error)
                    if error.code() == ErrorCode::Stopped
                        && attempts.next().is_some()
                        && self.has_ended_idle().await => {}
                started => return started,
            }
        }
    }

    /// Whether the sandbox has stopped because it was idle. The connection to its keeper is closed then.
    async fn has_ended_idle(&self) -> bool {
        let ended = has_ended_idle(&*self.provider, self.id(), END_WITHIN).await;
        if ended {
            self.hang_up().await;
        }
        ended
    }

    /// Runs a command to its end and collects `cap` bytes of each output stream.
    pub async fn run(&self, spec: &ExecSpec, stdin: Option<&[u8]>, cap: usize) -> Result<Output> {
        let spec = ExecSpec { stdin: stdin.is_some(), ..spec.clone() };
        let exec = self.exec(&spec).await?;
        let Some(bytes) = stdin else { return exec.collect(cap).await };
        let writer = exec.stdin();
        let feed = async {
            // It is no error if a command ends without reading all its input.
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

    /// Attaches to the output and input of a command, starting at a position.
    pub async fn attach(&self, process: u64, from: Position, size: Option<TermSize>) -> Result<Exec> {
        Exec::attach(&self.keeper().await?, process, from, size).await
    }

    /// Connects to something that listens inside, as one of the sandbox's users; defaults to the sandbox's own user. Works
    /// with every network but the host's. Fails with `not_found` if nothing listens there, and with `unsupported` where the
    /// connection would reach the host itself.
    pub async fn connect(&self, target: &Target, user: Option<&str>) -> Result<SandboxStream> {
        self.check_own(&target.to_string(), target.layer())?;
        self.keeper().await?.connect_inside(target, user).await
    }

    /// Listens inside, and serves each connection from here. The user creates a Unix socket; it defaults to the sandbox's
    /// own. The keeper listens until the listener is dropped.
    pub async fn listen(&self, at: &ListenAt, user: Option<&str>) -> Result<Listener> {
        self.check_own(&at.to_string(), at.layer())?;
        self.keeper().await?.listen_inside(at, user).await
    }

    /// Receives the datagrams that arrive at a UDP port on loopback inside, until the handle is dropped.
    pub async fn listen_datagrams(&self, port: u16) -> Result<Datagrams> {
        self.check_own(&format!("UDP port {port}"), IsolationLayer::NetNamespace)?;
        self.keeper().await?.listen_datagrams(port).await
    }

    /// Checks that a socket inside is not one of the host's.
    fn check_own(&self, socket: &str, layer: IsolationLayer) -> Result<()> {
        if self.info.enforcement.layers.contains(&layer) {
            return Ok(());
        }
        let what = if layer == IsolationLayer::NetNamespace { "network" } else { "files" };
        let message =
            format!("{socket} inside: this sandbox shares the {what} of the host, so it would be the host's own");
        Err(Error::new(ErrorCode::Unsupported, message))
    }

    /// Returns the fan-out of a command, through which any number of subscribers read it. All clones of this handle
    /// share one fan-out per command. If there is none yet, it attaches to the command at the oldest output that the
    /// keeper has; `options` are those of the first call.
    pub async fn fan_out(&self, process: u64, options: FanOutOptions) -> Result<FanOut> {
        let mut fan_outs = self.fan_outs.lock().await;
        if let Some(fan_out) = fan_outs.get(&process).and_then(WeakFanOut::upgrade) {
            return Ok(fan_out);
        }
        fan_outs.retain(|_, fan_out| fan_out.upgrade().is_some());
        let exec = self.attach(process, Position::default(), None).await?;
        let fan_out = FanOut::new(exec, options);
        let printed = self.processes().await?.into_iter().find(|info| info.process == process);
        if let Some(ProcessInfo { stdout: Some(stdout), stderr: Some(stderr), .. }) = printed {
            fan_out.has_printed(Position { stdout: stdout.produced, stderr: stderr.produced });
        }
        fan_outs.insert(process, fan_out.downgrade());
        Ok(fan_out)
    }

    /// Starts a command and returns its fan-out, which all clones of this handle share. A tied command ends when the last
    /// handle of the fan-out is dropped.
    pub async fn exec_shared(&self, spec: &ExecSpec, options: FanOutOptions) -> Result<FanOut> {
        let exec = self.exec(spec).await?;
        let (process, fan_out) = (exec.process(), FanOut::new(exec, options));
        let mut fan_outs = self.fan_outs.lock().await;
        fan_outs.retain(|_, fan_out| fan_out.upgrade().is_some());
        fan_outs.insert(process, fan_out.downgrade());
        Ok(fan_out)
    }

    /// Returns the commands that the keeper manages.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        match self.keeper().await?.call(Request::Processes).await? {
            Outcome::Processes(processes) => Ok(processes),
            _ => Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: no list of commands")),
        }
    }

    /// Sends a signal to a command's whole process tree. Signal 0 ends it (TERM, grace period, KILL).
    pub async fn kill(&self, process: u64, signal: i32) -> Result<()> {
        self.keeper().await?.call(Request::Kill { process, signal }).await.map(drop)
    }

    /// The id of the main process, if there is one.
    pub async fn main_process(&self) -> Result<Option<u64>> {
        Ok(self.keeper().await?.welcome().await?.main)
    }

    /// Access to the sandbox's files as one of its users; defaults to the sandbox's own user.
    pub async fn files(&self, user: Option<&str>) -> Result<Files> {
        Ok(Files::new(self.keeper().await?, user.map(ToOwned::to_owned)))
    }

    /// Returns the log of the main process.
    pub async fn logs(&self, options: LogOptions) -> Result<LogStream> {
        self.provider.logs(self.id(), options).instrument(self.span("logs")).await
    }

    /// Returns the resource usage.
    pub async fn stats(&self) -> Result<Stats> {
        let seen = self.provider.stats(self.id()).instrument(self.span("stats")).await?;
        match seen {
            Some(seen) if seen.read_bytes.is_some() && seen.written_bytes.is_some() => Ok(seen),
            // Nobody wakes a sandbox to measure it.
            Some(seen) if self.provider.gate(self.id()).is_some_and(|gate| gate.is_asleep()) => Ok(seen),
            // The keeper knows what the provider cannot see from outside. One that is paused does not respond.
            Some(seen) => Ok(match tokio::time::timeout(KEEPER_STATS_WITHIN, self.stats_of_keeper()).await {
                Ok(Ok(stats)) => Stats { read_bytes: stats.read_bytes, written_bytes: stats.written_bytes, ..seen },
                _ => seen,
            }),
            None => self.stats_of_keeper().await,
        }
    }

    /// Returns for how long the sandbox has not been used. This call is not use. Fails with `Unsupported` if the sandbox
    /// was started by an older Kennel.
    pub async fn idle(&self) -> Result<IdleTime> {
        self.idle_request(false).await
    }

    /// Starts the idle time again at 0, and returns whether the sandbox is in use. A program that resumes a sandbox calls
    /// this, so that the sandbox is not idle at once.
    pub async fn reset_idle(&self) -> Result<IdleTime> {
        self.idle_request(true).await
    }

    async fn idle_request(&self, reset: bool) -> Result<IdleTime> {
        self.keeper().await?.idle(reset).await
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
