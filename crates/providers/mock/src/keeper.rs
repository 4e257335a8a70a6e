//! The keeper of a mock sandbox: its commands and connections.
//!
//! For each connection, one task reads frames and starts one task per stream, and another writes. The task of a stream
//! ends with its connection, and ends a tied command with it.

use crate::log::Log;
use crate::process::Process;
use crate::script::{Fault, SharedScript};
use crate::streams::answer;
use crate::tree::{Tree, fail};
use crate::usage::Usage;
use crate::{shell, tree};
use kennel_proto::{
    Body, Decoder, ExitReport, Failure, FailureKind, Features, Frame, GENERATION, Limit, ProcessInfo, Request, Spawn,
    StatsReport, Welcome, caps, encode,
};
use kennel_provider::keeper_server;
use kennel_types::SandboxSpec;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};

pub(crate) struct Keeper {
    pub(crate) tree: Arc<Tree>,
    script: SharedScript,
    env: BTreeMap<Vec<u8>, Vec<u8>>,
    cwd: String,
    tied: bool,
    processes: Mutex<Processes>,
    over: watch::Sender<Option<End>>,
    pub(crate) usage: Usage,
    connections: Usage,
}

#[derive(Default)]
struct Processes {
    known: BTreeMap<u64, Arc<Process>>,
    last: u64,
    main: Option<u64>,
}

/// Its files have no symlinks.
const FEATURES: Features = Features::CHMOD
    .union(Features::IDLE)
    .union(Features::COMMANDS)
    .union(Features::WRITE_AT)
    .union(Features::LIST_DEPTH)
    .union(Features::TIE);
/// How long the last frames may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why a keeper ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was stopped.
    Stopped,
    /// Its idle time was over.
    Idle,
    /// The main process ended.
    Main(i32),
    /// The owner of a tied sandbox disconnected.
    OwnerGone,
}

impl Keeper {
    /// Starts the main process, if there is one, and the idle timer.
    pub(crate) fn start(
        spec: &SandboxSpec,
        cwd: &str,
        tree: Arc<Tree>,
        log: Arc<Log>,
        script: SharedScript,
    ) -> Result<Arc<Self>, Failure> {
        let mut env = BTreeMap::from([(b"PATH".to_vec(), b"/bin".to_vec()), (b"HOME".to_vec(), b"/root".to_vec())]);
        env.extend(spec.env.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())));
        let keeper = Arc::new(Self {
            tree,
            script,
            env,
            cwd: cwd.to_owned(),
            tied: spec.tied,
            processes: Mutex::default(),
            over: watch::Sender::new(None),
            usage: Usage::default(),
            connections: Usage::default(),
        });
        if let Some(argv) = &spec.command {
            let spawn = Spawn::main(argv);
            let process = keeper.spawn(&spawn, Some(log))?;
            keeper.lock().main = Some(process.id);
        }
        if let Some(seconds) = spec.idle_seconds {
            tokio::spawn(keeper.clone().idle(Duration::from_secs(seconds)));
        }
        Ok(keeper)
    }

    fn lock(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends everything in the sandbox.
    pub(crate) fn shut_down(&self, end: End) {
        for process in self.lock().known.values() {
            process.signal(15);
        }
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert(end);
            first
        });
    }

    pub(crate) async fn ended(&self) -> End {
        let mut over = self.over.subscribe();
        // The sender is in `self`, so the wait cannot fail.
        over.wait_for(Option::is_some).await.ok().and_then(|end| *end).unwrap_or(End::Stopped)
    }

    async fn idle(self: Arc<Self>, after: Duration) {
        tokio::select! {
            _ = self.ended() => {}
            () = self.usage.unused_for(after) => self.shut_down(End::Idle),
        }
    }

    /// Starts a command. `main` is the log, for the main process.
    pub(crate) fn spawn(self: &Arc<Self>, spawn: &Spawn, main: Option<Arc<Log>>) -> Result<Arc<Process>, Failure> {
        if spawn.tag.as_ref().is_some_and(|tag| tag.len() > caps::TAG) {
            return Err(Failure::limit(Limit::Size, "the tag is too long"));
        }
        let argv = shell::argv(spawn)?;
        let scripted = self.script.answer(&argv);
        let program = shell::find(argv, scripted, spawn, &self.env, &self.tree, &self.cwd)?;
        let is_main = main.is_some();
        let process = {
            let mut processes = self.lock();
            processes.make_room()?;
            processes.last += 1;
            let process = Arc::new(Process::new(processes.last, program.argv.clone(), spawn, main));
            processes.known.insert(process.id, process.clone());
            process
        };
        let busy = self.usage.begin();
        let (keeper, running) = (self.clone(), process.clone());
        let limit = spawn.timeout_ms.map_or(Duration::MAX, Duration::from_millis);
        tokio::spawn(async move {
            let report = tokio::select! {
                report = program.run(&running) => report,
                signal = running.fatal_signal() => ExitReport { signal: Some(signal), ..ExitReport::default() },
                () = elapsed(limit) => ExitReport { signal: Some(15), timed_out: true, ..ExitReport::default() },
            };
            running.end(report);
            if is_main {
                let code = report.code.or(report.signal.map(|signal| 128 + signal)).unwrap_or(0);
                keeper.shut_down(End::Main(code));
            }
            running.output_is_released().await;
            drop(busy);
        });
        Ok(process)
    }

    pub(crate) fn process(&self, id: u64) -> Result<Arc<Process>, Failure> {
        self.lock().known.get(&id).cloned().ok_or_else(|| fail(FailureKind::NotFound, format!("no command {id}")))
    }

    pub(crate) fn list(&self) -> Vec<ProcessInfo> {
        let processes = self.lock();
        let argv = ProcessInfo::longest_argv(processes.known.len());
        processes.known.values().map(|process| process.info(argv)).collect()
    }

    pub(crate) fn stats(&self) -> StatsReport {
        let pids = self.lock().known.values().filter(|process| process.is_running()).count() as u64;
        StatsReport { memory_bytes: self.tree.size(), pids, ..StatsReport::default() }
    }

    /// Serves one connection until it ends.
    pub(crate) async fn serve(self: Arc<Self>, stream: DuplexStream, fault: Option<Fault>) {
        let _connected = self.connections.begin();
        if self.connections.count() > caps::CONNECTIONS {
            return;
        }
        let (mut reader, writer) = tokio::io::split(stream);
        let mut decoder = Decoder::new();
        let hello = tokio::select! {
            hello = keeper_server::read_hello(&mut reader, &mut decoder) => hello,
            _ = self.ended() => None,
        };
        let Some(hello) = hello else { return };
        if fault == Some(Fault::NeverAnswers) {
            return drain(reader).await;
        }
        let (out, frames) = mpsc::channel(64);
        let welcome = Welcome {
            generation: GENERATION.min(hello.generation.max(1)),
            version: "mock".into(),
            main: self.lock().main,
            features: FEATURES,
        };
        let welcome = Frame { stream: 0, body: Body::Welcome(welcome) };
        let ties = AtomicBool::new(false);
        let mut reading = Box::pin(self.read(reader, decoder, out, &ties));
        let mut writing = Box::pin(write(writer, welcome, frames, fault));
        tokio::select! {
            () = &mut reading => {}
            () = &mut writing => {}
            _ = self.ended() => {
                // Frames that were sent before the end still arrive.
                drop(reading);
                let _ = tokio::time::timeout(LAST_WORDS, writing).await;
            }
        }
        if ties.load(Ordering::Relaxed) || (hello.owner && self.tied) {
            self.shut_down(End::OwnerGone);
        }
    }

    async fn read(
        self: &Arc<Self>,
        mut reader: ReadHalf<DuplexStream>,
        mut decoder: Decoder,
        out: mpsc::Sender<Frame>,
        ties: &AtomicBool,
    ) {
        let answer = |request, link| {
            if let Request::Tie { tied } = request {
                ties.store(tied, Ordering::Relaxed);
            }
            answer(self.clone(), request, link)
        };
        keeper_server::serve(&mut reader, &mut decoder, &out, answer).await;
    }
}

impl Processes {
    /// Removes the oldest ended commands. Fails if too many are running.
    fn make_room(&mut self) -> Result<(), Failure> {
        let ended: Vec<u64> =
            self.known.values().filter(|it| !it.is_running() && !it.holds_output()).map(|it| it.id).collect();
        if self.known.len() - ended.len() >= caps::PROCESSES {
            return Err(Failure::limit(Limit::Number, "too many commands at once"));
        }
        for id in ended.iter().take(ended.len().saturating_sub(caps::ENDED)) {
            self.known.remove(id);
        }
        Ok(())
    }
}

pub(crate) async fn elapsed(limit: Duration) {
    let _ = tokio::time::timeout(limit, std::future::pending::<()>()).await;
}

async fn drain(mut reader: ReadHalf<DuplexStream>) {
    let mut buffer = [0; 4096];
    while matches!(reader.read(&mut buffer).await, Ok(1..)) {}
}

/// Writes frames until the connection ends or the fault has happened.
async fn write(
    mut writer: WriteHalf<DuplexStream>,
    welcome: Frame,
    mut frames: mpsc::Receiver<Frame>,
    fault: Option<Fault>,
) {
    let mut left = match &fault {
        Some(Fault::HangUpAfter(frames)) => *frames,
        _ => usize::MAX,
    };
    let mut next = Some(welcome);
    let mut bytes = Vec::new();
    while let Some(frame) = next {
        if left == 0 {
            return;
        }
        left -= 1;
        bytes.clear();
        encode(&frame, &mut bytes);
        if let Some(Fault::Garbage(garbage)) = &fault {
            bytes.extend_from_slice(garbage);
        }
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
        if matches!(fault, Some(Fault::Garbage(_))) {
            return std::future::pending().await;
        }
        next = if left == 0 { None } else { frames.recv().await };
    }
}

pub(crate) fn created_ms() -> u64 {
    tree::now_ms().max(0) as u64
}
