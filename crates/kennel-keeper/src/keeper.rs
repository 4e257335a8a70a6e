//! The event loop: one thread that connects hosts with tasks.
//!
//! It blocks only in `epoll_wait`. Files are handled in forked workers, commands run under forked shims, and a host
//! that does not read blocks only its own streams. Memory is bounded by the caps of the protocol.

use crate::connection::Connection;
use crate::log::Log;
use crate::notices::{Listener, UnderWay};
use crate::output::start_failure_code;
use crate::shim::Order;
use crate::task::{Task, TaskKind};
use crate::usage::Usage;
use crate::{sys, tree};
use kennel_proto::log::NOTE;
use kennel_proto::{Channel, Failure, IdleReport, KeeperConfig, caps, ending};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// How long the last output of the main process may wait for its reader.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often the keeper checks whether an owner that has not connected yet still lives.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) const CHANNELS: [Channel; 2] = [Channel::Stdout, Channel::Stderr];

pub(crate) struct Keeper {
    pub(crate) config: KeeperConfig,
    pub(crate) epoll: OwnedFd,
    pub(crate) listener: OwnedFd,
    pub(crate) signals: OwnedFd,
    pub(crate) oom_fd: Option<OwnedFd>,
    pub(crate) log: Log,
    pub(crate) log_polled: bool,
    pub(crate) connections: HashMap<u64, Connection>,
    pub(crate) tasks: BTreeMap<u64, Task>,
    /// The sockets of shims that have reported, until the reports are passed on.
    pub(crate) released: Vec<OwnedFd>,
    pub(crate) sinks: HashMap<u64, OwnedFd>,
    /// The descriptors on which calls for the keeper arrive.
    pub(crate) listeners: HashMap<u64, Listener>,
    /// The calls in progress, by the fork that carries them out.
    pub(crate) under_way: HashMap<i32, UnderWay>,
    /// The forks that remove the paths of sockets.
    pub(crate) removing: HashSet<i32>,
    /// When connections are accepted again, after a failure.
    pub(crate) accept_at: Option<Instant>,
    pub(crate) last_id: u64,
    pub(crate) main: Option<u64>,
    /// The number of bytes in all ring buffers.
    pub(crate) held: usize,
    /// Whether a task could not read because the ring buffers were full.
    pub(crate) starved: bool,
    /// The buffer for reads. Its pages are allocated when they are first used.
    pub(crate) scratch: Box<[MaybeUninit<u8>]>,
    /// Whether an owner has connected.
    pub(crate) owned: bool,
    /// The directory that the owner keeps locked while it lives.
    pub(crate) owners: Option<OwnedFd>,
    pub(crate) usage: Usage,
    pub(crate) started: Instant,
    /// When all remaining processes are killed and the keeper exits.
    pub(crate) stopping: Option<Instant>,
    pub(crate) exit: Option<i32>,
}

/// The receiver of an event.
#[derive(Clone, Copy)]
pub(crate) enum Token {
    Listener,
    Signals,
    Log,
    Connection(u64),
    Output(u64, usize),
    Input(u64),
    Status(u64),
    Sink(u64),
    Notices(u64),
    Arrival(u64, usize),
}

impl Token {
    pub(crate) fn data(self) -> epoll::EventData {
        let (kind, id) = match self {
            Self::Listener => (0, 0),
            Self::Signals => (1, 0),
            Self::Log => (2, 0),
            Self::Connection(id) => (3, id),
            Self::Output(id, index) => (4 + index as u64, id),
            Self::Input(id) => (6, id),
            Self::Status(id) => (7, id),
            Self::Sink(id) => (8, id),
            Self::Notices(id) => (9, id),
            Self::Arrival(id, index) => (10 + index as u64, id),
        };
        epoll::EventData::new_u64(kind << 56 | id)
    }

    fn from_data(data: epoll::EventData) -> Self {
        let id = data.u64() & ((1 << 56) - 1);
        match data.u64() >> 56 {
            0 => Self::Listener,
            1 => Self::Signals,
            2 => Self::Log,
            3 => Self::Connection(id),
            4 => Self::Output(id, 0),
            5 => Self::Output(id, 1),
            6 => Self::Input(id),
            7 => Self::Status(id),
            8 => Self::Sink(id),
            9 => Self::Notices(id),
            index => Self::Arrival(id, index as usize - 10),
        }
    }
}

impl Keeper {
    pub(crate) fn new(listener: OwnedFd, config: KeeperConfig) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let signals = sys::signal_fd(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT])?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        epoll::add(&epoll, &signals, Token::Signals.data(), epoll::EventFlags::IN)?;
        let oom_fd = config.oom_fd.and_then(sys::inherited);
        let owners = config.owner_holds.as_ref().and_then(|dir| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::open(&dir[..], flags, Mode::empty()).ok()
        });
        let first_host = config.host_fd.and_then(sys::inherited);
        let log = Log::open(config.log);
        let now = Instant::now();
        let mut keeper = Self {
            config,
            epoll,
            listener,
            signals,
            oom_fd,
            log,
            log_polled: false,
            connections: HashMap::new(),
            tasks: BTreeMap::new(),
            released: Vec::new(),
            sinks: HashMap::new(),
            listeners: HashMap::new(),
            under_way: HashMap::new(),
            removing: HashSet::new(),
            accept_at: None,
            last_id: 0,
            main: None,
            held: 0,
            starved: false,
            scratch: Box::new_uninit_slice(caps::DATA),
            owned: false,
            owners,
            usage: Usage::new(now),
            started: now,
            stopping: None,
            exit: None,
        };
        if let Some(socket) = first_host {
            rustix::io::ioctl_fionbio(&socket, true)?;
            keeper.meet(socket);
        }
        Ok(keeper)
    }

    /// Runs until there is a reason to end, and returns the exit code.
    pub(crate) fn serve(&mut self) -> i32 {
        if let Some(main) = self.config.main.take() {
            // Set this before the start, so that its first output goes to the log.
            self.main = Some(self.last_id + 1);
            if let Err(failure) = self.start_command(&main, None) {
                self.explain("the main process", &failure);
                return start_failure_code(&failure);
            }
        } else {
            self.listen();
        }
        let mut events = Vec::with_capacity(64);
        while self.exit.is_none() || self.has_last_words() {
            events.clear();
            let timeout = self.timeout();
            self.usage.sleep();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) => self.usage.wake(),
                // The keeper has no signal handler that could interrupt the wait. So it was frozen or stopped.
                Err(Errno::INTR) => self.usage.resume(),
                Err(_) => return 125,
            }
            for event in &events {
                // Copied out, because the event is a packed struct.
                let (data, flags) = (event.data, event.flags);
                self.handle(Token::from_data(data), flags);
            }
            self.update_usage();
            self.check_time();
            self.flush_all();
            self.update_usage();
            // The reports were passed on, so these shims may end.
            self.released.clear();
        }
        self.exit.unwrap_or(0)
    }

    /// Starts to accept connections. This happens after the main process was started, so a connected host knows that it
    /// runs.
    pub(crate) fn listen(&mut self) {
        if epoll::add(&self.epoll, &self.listener, Token::Listener.data(), epoll::EventFlags::IN).is_err() {
            self.exit.get_or_insert(125);
        }
    }

    /// Writes to the log why there is no main process.
    pub(crate) fn explain(&mut self, program: &str, failure: &Failure) {
        self.log.write(Channel::Stderr, format!("{NOTE}run {program}: {}\n", failure.message).as_bytes());
    }

    fn handle(&mut self, token: Token, flags: epoll::EventFlags) {
        match token {
            Token::Listener => self.accept(),
            Token::Signals => self.take_signals(),
            Token::Log => self.log.flush(),
            Token::Connection(id) => self.read_connection(id, flags),
            Token::Output(id, _) => self.pump(id),
            Token::Input(id) => self.feed(id),
            Token::Status(id) => self.take_reports(id),
            Token::Sink(id) => self.drain_sink(id),
            Token::Notices(id) => self.take_notices(id, flags),
            Token::Arrival(id, index) => self.take_arrivals(id, index),
        }
    }

    fn take_signals(&mut self) {
        for signal in sys::read_signals(&self.signals) {
            if signal == libc::SIGTERM || signal == libc::SIGINT {
                self.shut_down(Duration::from_secs(8));
            }
        }
        // This reaps orphans and shims. A shim reports the result of its command on its pipe.
        loop {
            match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
                Ok(Some((pid, _))) => {
                    self.removing.remove(&pid.as_raw_nonzero().get());
                    self.end_notice(pid.as_raw_nonzero().get());
                }
                Ok(None) => break,
                Err(_) => {
                    if self.stopping.is_some() {
                        self.exit.get_or_insert(0);
                    }
                    break;
                }
            }
        }
    }

    pub(crate) fn shut_down(&mut self, grace: Duration) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(Instant::now() + grace);
        if tree::has_no_children() {
            self.exit.get_or_insert(0);
            return;
        }
        let me = rustix::process::getpid().as_raw_nonzero().get();
        let mut all = tree::descendants(me);
        for task in self.tasks.values_mut() {
            if task.end.is_none() && task.status.is_some() {
                // Its shim sends the signal, and knows which one.
                let told = tree::descendants(task.pid);
                all.retain(|pid| !told.contains(pid));
                task.ending = true;
                task.order(Order::Kill(grace.as_millis().try_into().unwrap_or(u32::MAX)));
            }
        }
        for pid in &all {
            // Shims ignore it; orphans get it here.
            sys::kill(*pid, libc::SIGTERM);
        }
        if all.is_empty() {
            self.exit.get_or_insert(0);
        }
    }

    /// Whether a command runs or holds output, or a stream is open. A socket on which the keeper listens is use only while
    /// a connection waits there.
    fn in_use(&self) -> bool {
        self.tasks.values().any(|task| match &task.kind {
            TaskKind::Listener(listening) => listening.has_waiting(),
            _ => task.end.is_none() || task.viewer.is_some() || task.holds_output(),
        })
    }

    fn update_usage(&mut self) {
        let in_use = self.in_use();
        self.usage.update(in_use);
    }

    /// Returns for how long the sandbox has not been used.
    pub(crate) fn idle(&mut self, reset: bool) -> IdleReport {
        if reset {
            self.usage.resume();
        }
        self.update_usage();
        let in_use = self.in_use();
        let idle = self.usage.idle_since().elapsed();
        IdleReport { in_use, idle_ms: if in_use { 0 } else { idle.as_millis().try_into().unwrap_or(u64::MAX) } }
    }

    /// When the sandbox ends because it was not used.
    fn idle_deadline(&self) -> Option<Instant> {
        let after = self.config.idle_ms.filter(|_| !self.in_use())?;
        // A time too far in the future is no deadline.
        self.usage.idle_since().checked_add(Duration::from_millis(after))
    }

    /// Returns the time until the next deadline.
    fn timeout(&self) -> Option<Timespec> {
        let mut due: Option<Instant> = None;
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                due = Some(due.map_or(at, |due| due.min(at)));
            }
        };
        for task in self.tasks.values().filter(|task| !task.timed_out) {
            consider(task.deadline);
        }
        for task in self.tasks.values() {
            if let TaskKind::Listener(listening) = &task.kind {
                consider(listening.due());
            }
            consider(task.lingers_until);
        }
        for connection in self.connections.values() {
            consider(connection.held_until());
        }
        consider(self.stopping);
        consider(self.accept_at);
        consider(self.idle_deadline());
        if self.config.tied && !self.owned {
            consider(self.config.owner_within_ms.map(|ms| self.started + Duration::from_millis(ms)));
            consider(self.owners.is_some().then(|| Instant::now() + LOOK_EVERY));
        }
        if self.exit.is_some() {
            consider(self.stopping.or(Some(Instant::now() + LAST_WORDS)));
        }
        due.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            // Round up, or the loop would spin until the deadline.
            let left = left + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        })
    }

    fn check_time(&mut self) {
        let now = Instant::now();
        if self.accept_at.take_if(|at| *at <= now).is_some() {
            self.listen();
        }
        self.check_listeners(now);
        for task in self.tasks.values_mut() {
            if !task.timed_out && task.deadline.is_some_and(|at| at <= now) {
                task.timed_out = true;
                task.end_tree();
            }
        }
        self.end_lingering(now);
        let late = self.config.owner_within_ms.is_some_and(|ms| now >= self.started + Duration::from_millis(ms));
        let unclaimed = self.config.tied && !self.owned && (late || self.owner_is_gone());
        if self.stopping.is_some_and(|at| at <= now) {
            self.exit.get_or_insert(0);
        }
        if unclaimed {
            self.exit.get_or_insert(ending::OWNER_GONE);
        }
        if self.idle_deadline().is_some_and(|at| at <= now) {
            self.exit.get_or_insert(ending::IDLE);
        }
    }

    /// Whether the owner certainly no longer lives.
    fn owner_is_gone(&self) -> bool {
        self.owners.as_ref().is_some_and(|dir| {
            let free = rustix::fs::flock(dir, FlockOperation::NonBlockingLockShared).is_ok();
            let _ = rustix::fs::flock(dir, FlockOperation::Unlock);
            free
        })
    }

    /// Whether the keeper may delay its end a moment, because a host still reads the last output.
    fn has_last_words(&mut self) -> bool {
        let now = Instant::now();
        let until = *self.stopping.get_or_insert(now + LAST_WORDS);
        now < until && self.connections.values().any(Connection::has_outgoing)
    }
}

/// Runs the event loop, and then ends everything that is left. Connections are closed last: a host that sees the end of
/// its connection knows that nothing runs any more.
pub(crate) fn serve(listener: OwnedFd, config: KeeperConfig) -> i32 {
    match Keeper::new(listener, config) {
        Ok(mut keeper) => {
            let code = keeper.serve();
            keeper.remove_all_paths();
            tree::kill_all_below_me(Duration::from_secs(10));
            keeper.say_goodbye();
            code
        }
        Err(_) => 125,
    }
}
