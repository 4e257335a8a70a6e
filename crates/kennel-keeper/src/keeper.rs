//! The event loop: one thread that connects hosts with tasks.
//!
//! It never blocks but in `epoll_wait`: files are worked on in forked workers, commands run under forked shims, and a
//! host that does not read stops only its own streams. What it holds is bounded by the caps of the protocol.

use crate::connection::{Broken, Connection};
use crate::log::Log;
use crate::report::Report;
use crate::shim::Order;
use crate::task::{End, Kind, Task};
use crate::{stats, sys, tree};
use kennel_proto::{
    Attach, Body, Channel, Failure, FailureKind, Frame, GENERATION, Hello, KeeperConfig, Outcome, ProcessInfo, Reply,
    Request, Spawn, SpawnCommand, Welcome, caps,
};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// What a command may have in its ring when everything together is at its cap: enough to go on, little enough to bound.
const LEAST: usize = 4096;
/// What is kept of a command that nobody reads.
const UNREAD: usize = 256 * 1024;
/// How long the last output of the main process may wait for its reader.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Pipes of ended commands that something still writes to.
const SINKS: usize = 256;

const CHANNELS: [Channel; 2] = [Channel::Stdout, Channel::Stderr];

pub(crate) struct Keeper {
    config: KeeperConfig,
    epoll: OwnedFd,
    listener: OwnedFd,
    signals: OwnedFd,
    oom_fd: Option<OwnedFd>,
    log: Log,
    log_polled: bool,
    connections: HashMap<u64, Connection>,
    tasks: BTreeMap<u64, Task>,
    sinks: HashMap<u64, OwnedFd>,
    last_id: u64,
    main: Option<u64>,
    /// Bytes in all rings.
    held: usize,
    /// Someone could not read for lack of it.
    starved: bool,
    scratch: Box<[u8]>,
    /// An owner has been here.
    owned: bool,
    idle_since: Instant,
    started: Instant,
    /// When everything left is killed and the keeper ends.
    stopping: Option<Instant>,
    exit: Option<i32>,
}

/// Whom an event is for.
#[derive(Clone, Copy)]
enum Token {
    Listener,
    Signals,
    Log,
    Connection(u64),
    Output(u64, usize),
    Input(u64),
    Status(u64),
    Sink(u64),
}

impl Token {
    fn data(self) -> epoll::EventData {
        let (kind, id) = match self {
            Self::Listener => (0, 0),
            Self::Signals => (1, 0),
            Self::Log => (2, 0),
            Self::Connection(id) => (3, id),
            Self::Output(id, index) => (4 + index as u64, id),
            Self::Input(id) => (6, id),
            Self::Status(id) => (7, id),
            Self::Sink(id) => (8, id),
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
            _ => Self::Sink(id),
        }
    }
}

impl Keeper {
    pub(crate) fn new(listener: OwnedFd, config: KeeperConfig) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let signals = sys::signal_fd(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT])?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        epoll::add(&epoll, &listener, Token::Listener.data(), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &signals, Token::Signals.data(), epoll::EventFlags::IN)?;
        let oom_fd = config.oom_fd.and_then(sys::inherited);
        let log = Log::open(config.log);
        let now = Instant::now();
        Ok(Self {
            config,
            epoll,
            listener,
            signals,
            oom_fd,
            log,
            log_polled: false,
            connections: HashMap::new(),
            tasks: BTreeMap::new(),
            sinks: HashMap::new(),
            last_id: 0,
            main: None,
            held: 0,
            starved: false,
            scratch: vec![0; caps::DATA].into_boxed_slice(),
            owned: false,
            idle_since: now,
            started: now,
            stopping: None,
            exit: None,
        })
    }

    /// Serves until there is a reason to end; answers the exit code.
    pub(crate) fn serve(&mut self) -> i32 {
        if let Some(main) = self.config.main.take() {
            match self.start_command(&main, None) {
                Ok(id) => self.main = Some(id),
                Err(failure) => return start_failure_code(&failure),
            }
        }
        let mut events = Vec::with_capacity(64);
        while self.exit.is_none() || self.has_last_words() {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return 125,
            }
            for event in &events {
                // Copied out: the event is packed.
                let (data, flags) = (event.data, event.flags);
                self.handle(Token::from_data(data), flags);
            }
            self.check_time();
            self.flush_all();
        }
        self.exit.unwrap_or(0)
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
        }
    }

    // ---- connections -------------------------------------------------------------------------------------------

    fn accept(&mut self) {
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        while let Ok(socket) = rustix::net::accept_with(&self.listener, flags) {
            if self.connections.len() >= caps::CONNECTIONS || !self.is_from_outside(&socket) {
                continue; // dropped: it reads end of file
            }
            self.last_id += 1;
            let id = self.last_id;
            if epoll::add(&self.epoll, &socket, Token::Connection(id).data(), epoll::EventFlags::IN).is_ok() {
                self.connections.insert(id, Connection::new(socket));
            }
        }
    }

    /// A process in the sandbox shows its pid here; one outside its pid namespace shows none. Where there is no
    /// namespace, the hello must carry a token.
    fn is_from_outside(&self, socket: &OwnedFd) -> bool {
        self.config.token.is_some() || sys::peer_pid(socket) == Some(0)
    }

    fn read_connection(&mut self, id: u64, flags: epoll::EventFlags) {
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let frames = match connection.read(&mut self.scratch) {
                Ok(frames) => frames,
                Err(Broken) => return self.hang_up(id),
            };
            for frame in frames {
                if self.take_frame(id, frame).is_err() {
                    return self.hang_up(id);
                }
            }
        }
        // Room to write is used by `flush_all`.
    }

    /// Forgets a connection and everything that was tied to it.
    fn hang_up(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        for task in connection.streams.values() {
            self.lose_viewer(*task);
        }
        if connection.owner && self.config.tied {
            self.exit.get_or_insert(0);
        }
        self.idle_since = Instant::now();
    }

    fn take_frame(&mut self, id: u64, frame: Frame) -> Result<(), Broken> {
        let connection = self.connections.get_mut(&id).ok_or(Broken)?;
        if !connection.greeted {
            return match frame {
                Frame { stream: 0, body: Body::Hello(hello) } => self.greet(id, &hello),
                _ => Err(Broken),
            };
        }
        let Frame { stream, body } = frame;
        if stream == 0 {
            return match body {
                Body::Ping => {
                    connection.send(0, Body::Pong);
                    Ok(())
                }
                _ => Err(Broken),
            };
        }
        if let Body::Open(request) = body {
            if connection.streams.contains_key(&stream) {
                return Err(Broken);
            }
            if connection.streams.len() >= caps::STREAMS {
                self.fail(id, stream, limit("too many requests are under way"));
            } else if let Err(failure) = self.open(id, stream, &request) {
                self.fail(id, stream, failure);
            }
            return Ok(());
        }
        // A stream that has ended here may still have frames on the way from there.
        let Some(&task_id) = connection.streams.get(&stream) else { return Ok(()) };
        let Some(task) = self.tasks.get_mut(&task_id) else { return Ok(()) };
        match body {
            Body::Data { channel: Channel::Stdin, offset, bytes } => {
                task.stdin.receive(offset, &bytes).map_err(|()| Broken)?;
                self.feed(task_id);
            }
            Body::Eof(Channel::Stdin) => {
                task.stdin.receive_eof();
                self.feed(task_id);
            }
            Body::Consumed { channel: channel @ (Channel::Stdout | Channel::Stderr), offset } => {
                let output = &mut task.outputs[usize::from(channel == Channel::Stderr)];
                if offset > output.sent {
                    return Err(Broken);
                }
                self.held -= output.ring.forget_before(offset);
                self.pump(task_id);
                self.feed_the_starved();
            }
            Body::Signal(signal @ 1..=64) => task.order(Order::Signal(signal)),
            Body::Resize(size) => task.resize(size),
            Body::Close => {
                connection.streams.remove(&stream);
                self.lose_viewer(task_id);
            }
            _ => return Err(Broken),
        }
        Ok(())
    }

    fn greet(&mut self, id: u64, hello: &Hello) -> Result<(), Broken> {
        let connection = self.connections.get_mut(&id).ok_or(Broken)?;
        if let Some(token) = &self.config.token {
            let said = hello.token.as_ref().map_or(&[][..], |token| token);
            if !same(token, said) {
                return Err(Broken);
            }
        }
        if hello.generation == 0 {
            return Err(Broken);
        }
        connection.greeted = true;
        connection.owner = hello.owner;
        self.owned |= hello.owner;
        let welcome = Welcome {
            generation: GENERATION.min(hello.generation),
            version: env!("CARGO_PKG_VERSION").into(),
            main: self.main,
        };
        connection.send(0, Body::Welcome(welcome));
        Ok(())
    }

    fn fail(&mut self, id: u64, stream: u32, mut failure: Failure) {
        failure.message.truncate(failure.message.floor_char_boundary(8 * 1024));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.streams.remove(&stream);
            connection.send(stream, Body::Fail(failure));
        }
    }

    fn done(&mut self, id: u64, stream: u32, outcome: Outcome) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.send(stream, Body::Reply(Reply::Done(outcome)));
        }
    }

    /// Writes what can be written, and lets streams go on that waited for it.
    fn flush_all(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            while let Some(connection) = self.connections.get_mut(&id) {
                if connection.flush().is_err() {
                    self.hang_up(id);
                    break;
                }
                if !connection.has_room() || !std::mem::take(&mut connection.waits_for_room) {
                    let wants = connection.has_outgoing();
                    if wants != connection.waits_to_write {
                        connection.waits_to_write = wants;
                        let flags =
                            if wants { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
                        let _ = epoll::modify(&self.epoll, &connection.socket, Token::Connection(id).data(), flags);
                    }
                    break;
                }
                let tasks: Vec<u64> = connection.streams.values().copied().collect();
                for task in tasks {
                    self.pump(task);
                }
            }
        }
        self.log.flush();
        if let Log::Engine { out, .. } = &self.log {
            let waits = self.log.is_waiting();
            if waits != self.log_polled {
                for fd in out {
                    let _ = if waits {
                        epoll::add(&self.epoll, fd, Token::Log.data(), epoll::EventFlags::OUT)
                    } else {
                        epoll::delete(&self.epoll, fd)
                    };
                }
                self.log_polled = waits;
                if let (false, Some(main)) = (waits, self.main) {
                    self.pump(main);
                }
            }
        }
    }

    // ---- requests ----------------------------------------------------------------------------------------------

    fn open(&mut self, id: u64, stream: u32, request: &Request) -> Result<(), Failure> {
        if self.config.one_user && names_a_user(request) {
            let message = "this sandbox cannot run anything as another user".into();
            return Err(Failure { kind: FailureKind::Unsupported, message });
        }
        match request {
            Request::Spawn(spawn) => {
                self.start_command(spawn, Some((id, stream)))?;
            }
            Request::Attach(attach) => self.attach(id, stream, attach)?,
            Request::Processes => {
                let outcome = Outcome::Processes(self.tasks.values().filter_map(describe).collect());
                self.done(id, stream, outcome);
            }
            Request::Kill { process, signal } => {
                let task = self.tasks.get_mut(process).filter(|task| matches!(task.kind, Kind::Command { .. }));
                let task = task.ok_or_else(|| no_process(*process))?;
                match signal {
                    0 => task.end_tree(),
                    1..=64 => task.order(Order::SignalTree(*signal)),
                    _ => return Err(invalid("no such signal")),
                }
                self.done(id, stream, Outcome::Nothing);
            }
            Request::Stats => {
                let mut stats = stats::read(self.oom_fd.as_ref());
                stats.memory_limit_bytes = stats.memory_limit_bytes.or(self.config.memory_limit);
                self.done(id, stream, Outcome::Stats(stats));
            }
            Request::Shutdown { grace_ms } => {
                self.done(id, stream, Outcome::Nothing);
                self.shut_down(Duration::from_millis((*grace_ms).min(600_000)));
            }
            _ => {
                check_paths(request)?;
                self.check_count()?;
                self.last_id += 1;
                let mut task = Task::worker(self.last_id, &self.config, request)?;
                task.viewer = Some((id, stream));
                self.add_task(task)?;
            }
        }
        Ok(())
    }

    fn check_count(&self) -> Result<(), Failure> {
        if self.tasks.values().filter(|task| task.end.is_none()).count() >= caps::PROCESSES {
            return Err(limit("too many commands are running"));
        }
        if self.stopping.is_some() || self.exit.is_some() {
            return Err(Failure { kind: FailureKind::Denied, message: "the sandbox is stopping".into() });
        }
        Ok(())
    }

    fn start_command(&mut self, spawn: &Spawn, viewer: Option<(u64, u32)>) -> Result<u64, Failure> {
        check_spawn(spawn)?;
        self.check_count()?;
        self.last_id += 1;
        let id = self.last_id;
        let oom_before = stats::oom_kills(self.oom_fd.as_ref());
        let mut task = Task::command(id, &self.config, spawn)?;
        task.viewer = viewer;
        task.oom_before = oom_before;
        // A time too far to be a time is no deadline.
        task.deadline = spawn.timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        self.add_task(task)?;
        Ok(id)
    }

    fn add_task(&mut self, mut task: Task) -> Result<(), Failure> {
        let status = task.status.as_ref().ok_or_else(|| invalid("no status"))?;
        if epoll::add(&self.epoll, status, Token::Status(task.id).data(), epoll::EventFlags::IN).is_err() {
            task.end_tree();
            return Err(limit("the event loop is full"));
        }
        if let Some((connection, stream)) = task.viewer
            && let Some(connection) = self.connections.get_mut(&connection)
        {
            connection.streams.insert(stream, task.id);
        }
        let id = task.id;
        self.tasks.insert(id, task);
        self.pump(id);
        Ok(())
    }

    fn attach(&mut self, id: u64, stream: u32, attach: &Attach) -> Result<(), Failure> {
        let task = self.tasks.get_mut(&attach.process).filter(|task| matches!(task.kind, Kind::Command { .. }));
        let task = task.ok_or_else(|| no_process(attach.process))?;
        for (output, from) in task.outputs.iter_mut().zip([attach.stdout, attach.stderr]) {
            if from > output.ring.end() {
                return Err(invalid("output is not that far yet"));
            }
            output.sent = from.max(output.ring.base());
            output.eof_sent = false;
        }
        if let Some(size) = attach.size {
            task.resize(size);
        }
        // One that is still starting is answered when it runs, as its first viewer would have been.
        let reply = task.ready.then(|| running(task));
        let before = task.viewer.replace((id, stream));
        if let Some((connection, stream)) = before
            && let Some(connection) = self.connections.get_mut(&connection)
        {
            connection.streams.remove(&stream);
            connection.send(stream, Body::Close);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.streams.insert(stream, attach.process);
            if let Some(reply) = reply {
                connection.send(stream, Body::Reply(reply));
            }
        }
        self.pump(attach.process);
        Ok(())
    }

    // ---- tasks -------------------------------------------------------------------------------------------------

    /// Nobody reads it any more: a detached command goes on, everything else ends.
    fn lose_viewer(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.viewer = None;
        if !task.is_detached() && task.end.is_none() {
            task.stdin.discard();
            task.end_tree();
        }
        self.pump(id);
        self.idle_since = Instant::now();
    }

    /// Passes input on to the task and tells the host how much it took.
    fn feed(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let polled = task.stdin.polled;
        // Forget it before it may be closed.
        if let (true, Some(pipe)) = (polled, &task.stdin.pipe) {
            let _ = epoll::delete(&self.epoll, pipe);
        }
        task.stdin.polled = false;
        let moved = task.stdin.flush();
        task.commit_input();
        if let (true, Some(pipe)) = (task.stdin.is_waiting(), &task.stdin.pipe) {
            let added = epoll::add(&self.epoll, pipe, Token::Input(id).data(), epoll::EventFlags::OUT);
            task.stdin.polled = added.is_ok();
        }
        if let (true, Some((connection, stream))) = (moved, task.viewer)
            && let Some(connection) = self.connections.get_mut(&connection)
        {
            let offset = task.stdin.consumed;
            connection.send(stream, Body::Consumed { channel: Channel::Stdin, offset });
        }
    }

    /// Moves output from the task's pipes to its rings and on to the viewer, as far as windows and memory allow.
    fn pump(&mut self, id: u64) {
        for index in 0..2 {
            while self.read_output(id, index) {
                self.send_output(id, index);
            }
            self.send_output(id, index);
        }
        self.finish(id);
    }

    /// Reads one piece; answers whether it is worth trying again.
    fn read_output(&mut self, id: u64, index: usize) -> bool {
        let is_main = self.main == Some(id);
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        let (ended, viewed) = (task.end.is_some(), task.viewer.is_some());
        let output = &mut task.outputs[index];
        let Some(pipe) = &output.pipe else { return false };
        let room = if is_main && !self.log.has_room() {
            0
        } else if !viewed {
            self.scratch.len()
        } else if self.held + LEAST <= caps::RINGS {
            (caps::WINDOW as usize).saturating_sub(output.ring.len()).min(caps::RINGS - self.held)
        } else {
            self.starved = true;
            LEAST.saturating_sub(output.ring.len())
        };
        if room == 0 {
            if std::mem::replace(&mut output.polled, false) {
                let _ = epoll::delete(&self.epoll, pipe);
            }
            return false;
        }
        let most = room.min(self.scratch.len());
        match rustix::io::read(pipe, &mut self.scratch[..most]) {
            Ok(count @ 1..) => {
                let bytes = &self.scratch[..count];
                if is_main {
                    self.log.write(CHANNELS[index], bytes);
                }
                output.ring.push(bytes);
                self.held += count;
                if !viewed {
                    // Nobody waits for it: keep the newest, within what there is for all.
                    let over = self.held.saturating_sub(caps::RINGS) as u64;
                    let keep = (UNREAD as u64).min((output.ring.len() as u64).saturating_sub(over)).max(LEAST as u64);
                    self.held -= output.ring.forget_before(output.ring.end().saturating_sub(keep));
                }
                // One piece at a time where nobody slows it down, so that a flood stops nobody else.
                if viewed { count == most || ended } else { ended }
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) if !ended => {
                if !output.polled {
                    let token = Token::Output(id, index).data();
                    output.polled = epoll::add(&self.epoll, pipe, token, epoll::EventFlags::IN).is_ok();
                }
                false
            }
            // The command has ended: what it printed was read. What it left running may print on, to nobody.
            Err(Errno::AGAIN) => {
                if std::mem::replace(&mut output.polled, false) {
                    let _ = epoll::delete(&self.epoll, pipe);
                }
                output.eof = true;
                if let Some(pipe) = output.pipe.take() {
                    self.sink(pipe);
                }
                false
            }
            // End of file, or a terminal whose last user has gone.
            Ok(0) | Err(_) => {
                if std::mem::replace(&mut output.polled, false) {
                    let _ = epoll::delete(&self.epoll, pipe);
                }
                output.eof = true;
                output.pipe = None;
                false
            }
        }
    }

    fn send_output(&mut self, id: u64, index: usize) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let (Some((connection, stream)), true) = (task.viewer, task.ready) else { return };
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        let output = &mut task.outputs[index];
        while output.sent < output.ring.end() {
            if !connection.has_room() {
                connection.waits_for_room = true;
                return;
            }
            let piece = output.ring.piece(output.sent, caps::DATA);
            connection.send_data(stream, CHANNELS[index], output.sent, piece);
            output.sent += piece.len() as u64;
        }
        if output.eof && !std::mem::replace(&mut output.eof_sent, true) {
            connection.send(stream, Body::Eof(CHANNELS[index]));
        }
    }

    /// Says the last word of a task that has ended and whose output is all sent, and forgets it.
    fn finish(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let Some(end) = &task.end else { return };
        let sent = task.viewer.is_none() || task.outputs.iter().all(|output| output.sent == output.ring.end());
        if !sent || !task.outputs.iter().all(|output| output.eof) {
            return;
        }
        let body = match end {
            End::Exited(report) => Body::Exit(*report),
            End::Done(outcome) => Body::Reply(Reply::Done(outcome.clone())),
            End::Failed(failure) => Body::Fail(failure.clone()),
        };
        if let Some((connection, stream)) = task.viewer.take()
            && let Some(connection) = self.connections.get_mut(&connection)
        {
            connection.streams.remove(&stream);
            connection.send(stream, body);
        }
        let keep = task.is_detached() && matches!(end, End::Exited(_));
        if self.main == Some(id) {
            self.exit.get_or_insert(match end {
                End::Exited(report) => report.code.unwrap_or_else(|| 128 + report.signal.unwrap_or(0)),
                End::Failed(failure) => start_failure_code(failure),
                End::Done(_) => 0,
            });
        }
        if keep {
            let ended: Vec<u64> = self.tasks.values().filter(|task| task.end.is_some()).map(|task| task.id).collect();
            for id in ended.iter().take(ended.len().saturating_sub(caps::ENDED)) {
                self.forget(*id);
            }
        } else {
            self.forget(id);
        }
        self.idle_since = Instant::now();
        self.feed_the_starved();
    }

    fn forget(&mut self, id: u64) {
        if let Some(task) = self.tasks.remove(&id) {
            self.held -= task.outputs.iter().map(|output| output.ring.len()).sum::<usize>();
        }
    }

    /// Memory was freed: those who could not read for lack of it try again.
    fn feed_the_starved(&mut self) {
        if self.starved && self.held + caps::WINDOW as usize <= caps::RINGS {
            self.starved = false;
            let ids: Vec<u64> = self.tasks.keys().copied().collect();
            for id in ids {
                self.pump(id);
            }
        }
    }

    fn take_reports(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        for report in task.read_reports() {
            match report {
                Report::Ready if !task.ready => {
                    task.ready = true;
                    let reply = match task.kind {
                        Kind::Command { .. } => running(task),
                        Kind::Worker => Reply::Ready { stdin_window: task.stdin.window },
                    };
                    if let Some((connection, stream)) = task.viewer
                        && let Some(connection) = self.connections.get_mut(&connection)
                    {
                        connection.send(stream, Body::Reply(reply));
                    }
                }
                Report::Ready => {}
                Report::Exited(mut exit) => {
                    let oom_after = stats::oom_kills(self.oom_fd.as_ref());
                    exit.timed_out = task.timed_out;
                    exit.oom_killed = oom_after > task.oom_before;
                    task.end = Some(End::Exited(exit));
                }
                Report::Done(outcome) => task.end = Some(End::Done(outcome)),
                Report::Failed(failure) => {
                    task.end = Some(End::Failed(failure));
                    for output in &mut task.outputs {
                        output.pipe = None;
                        output.eof = true;
                    }
                }
            }
        }
        if task.end.is_some() {
            task.stdin.discard();
            task.deadline = None;
        }
        self.pump(id);
    }

    /// Goes on reading what processes print that outlived their command: closing the pipe would end them.
    fn sink(&mut self, pipe: OwnedFd) {
        if self.sinks.len() < SINKS {
            self.last_id += 1;
            let id = self.last_id;
            if epoll::add(&self.epoll, &pipe, Token::Sink(id).data(), epoll::EventFlags::IN).is_ok() {
                self.sinks.insert(id, pipe);
            }
        }
    }

    fn drain_sink(&mut self, id: u64) {
        let Some(pipe) = self.sinks.get(&id) else { return };
        if !matches!(rustix::io::read(pipe, &mut self.scratch[..]), Ok(1..) | Err(Errno::AGAIN | Errno::INTR)) {
            self.sinks.remove(&id);
        }
    }

    // ---- time and signals --------------------------------------------------------------------------------------

    fn take_signals(&mut self) {
        for signal in sys::read_signals(&self.signals) {
            if signal == libc::SIGTERM || signal == libc::SIGINT {
                self.shut_down(Duration::from_secs(8));
            }
        }
        // Orphans and shims alike. Shims say by their pipe how their command ended.
        loop {
            match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
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

    fn shut_down(&mut self, grace: Duration) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(Instant::now() + grace);
        let me = rustix::process::getpid().as_raw_nonzero().get();
        let all = tree::descendants(me);
        for task in self.tasks.values_mut() {
            if task.end.is_none() {
                task.ending = true;
                task.order(Order::Kill(grace.as_millis().try_into().unwrap_or(u32::MAX)));
            }
        }
        for pid in &all {
            // Shims do not mind; orphans are told here.
            sys::kill(*pid, libc::SIGTERM);
        }
        if all.is_empty() {
            self.exit.get_or_insert(0);
        }
    }

    fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.tasks.values().all(|task| task.end.is_some())
    }

    /// The next moment at which something is due.
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
        consider(self.stopping);
        if self.is_idle() {
            consider(self.config.idle_ms.map(|ms| self.idle_since + Duration::from_millis(ms)));
        }
        if self.config.tied && !self.owned {
            consider(self.config.owner_within_ms.map(|ms| self.started + Duration::from_millis(ms)));
        }
        if self.exit.is_some() {
            consider(self.stopping.or(Some(Instant::now() + LAST_WORDS)));
        }
        due.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            // Rounded up, or the loop would turn without anything being due yet.
            let left = left + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        })
    }

    fn check_time(&mut self) {
        let now = Instant::now();
        for task in self.tasks.values_mut() {
            if !task.timed_out && task.deadline.is_some_and(|at| at <= now) {
                task.timed_out = true;
                task.end_tree();
            }
        }
        let idle = self.config.idle_ms.is_some_and(|ms| now >= self.idle_since + Duration::from_millis(ms));
        let unclaimed = self.config.tied
            && !self.owned
            && self.config.owner_within_ms.is_some_and(|ms| now >= self.started + Duration::from_millis(ms));
        if self.stopping.is_some_and(|at| at <= now) || (idle && self.is_idle()) || unclaimed {
            self.exit.get_or_insert(0);
        }
    }

    /// Whether the keeper may wait a moment with its end, for someone who reads the last output.
    fn has_last_words(&mut self) -> bool {
        let now = Instant::now();
        let until = *self.stopping.get_or_insert(now + LAST_WORDS);
        now < until && self.connections.values().any(Connection::has_outgoing)
    }
}

/// Runs the keeper's loop, and ends everything that is left after it. Connections are closed last: whoever sees the end
/// of one knows that nothing runs any more.
pub(crate) fn serve(listener: OwnedFd, config: KeeperConfig) -> i32 {
    match Keeper::new(listener, config) {
        Ok(mut keeper) => {
            let code = keeper.serve();
            tree::kill_all_below_me(Duration::from_secs(10));
            code
        }
        Err(_) => 125,
    }
}

fn running(task: &Task) -> Reply {
    Reply::Running {
        process: task.id,
        stdout: task.outputs[0].sent,
        stderr: task.outputs[1].sent,
        stdin_window: task.stdin.window,
        stdin: task.stdin.consumed,
        tty: task.is_tty(),
    }
}

fn describe(task: &Task) -> Option<ProcessInfo> {
    let Kind::Command { program, detached, terminal, .. } = &task.kind else { return None };
    Some(ProcessInfo {
        process: task.id,
        program: program.clone().into(),
        running: task.end.is_none(),
        tty: terminal.is_some(),
        attached: task.viewer.is_some(),
        detached: *detached,
    })
}

fn check_spawn(spawn: &Spawn) -> Result<(), Failure> {
    let arguments = if let SpawnCommand::Argv(argv) = &spawn.command { argv.len() } else { 0 };
    if arguments > caps::STRINGS || spawn.env.len() > caps::STRINGS {
        return Err(limit("too many arguments or environment entries"));
    }
    if spawn.cwd.as_ref().is_some_and(|cwd| cwd.len() >= caps::PATH) {
        return Err(limit("the working directory's path is too long"));
    }
    Ok(())
}

fn names_a_user(request: &Request) -> bool {
    let user = match request {
        Request::Spawn(spawn) => &spawn.user,
        Request::Read { user, .. }
        | Request::Write { user, .. }
        | Request::List { user, .. }
        | Request::Stat { user, .. }
        | Request::Mkdir { user, .. }
        | Request::Move { user, .. }
        | Request::Remove { user, .. }
        | Request::Watch { user, .. } => user,
        _ => &None,
    };
    user.is_some()
}

fn check_paths(request: &Request) -> Result<(), Failure> {
    let paths: &[&[u8]] = match request {
        Request::Move { from, to, .. } => &[from, to],
        Request::Read { path, .. }
        | Request::Write { path, .. }
        | Request::List { path, .. }
        | Request::Stat { path, .. }
        | Request::Mkdir { path, .. }
        | Request::Remove { path, .. }
        | Request::Watch { path, .. } => &[path],
        _ => &[],
    };
    for path in paths {
        if path.is_empty() || path.len() >= caps::PATH || path.contains(&0) {
            return Err(invalid("a path must not be empty, too long or hold a zero byte"));
        }
    }
    Ok(())
}

fn start_failure_code(failure: &Failure) -> i32 {
    match failure.kind {
        FailureKind::NotFound => 127,
        FailureKind::NotExecutable => 126,
        _ => 125,
    }
}

/// Compares in a time that does not tell where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

fn no_process(process: u64) -> Failure {
    Failure { kind: FailureKind::NotFound, message: format!("there is no command {process}") }
}

fn limit(message: &str) -> Failure {
    Failure { kind: FailureKind::Limit, message: message.into() }
}

fn invalid(message: &str) -> Failure {
    Failure { kind: FailureKind::Invalid, message: message.into() }
}
