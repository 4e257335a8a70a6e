//! Requests of a host: checks them against the caps, and starts them.

use crate::keeper::{Keeper, Token};
use crate::shim::Order;
use crate::stats;
use crate::task::{End, Task, TaskKind};
use kennel_proto::{
    Attach, Body, Failure, FailureKind, Limit, Outcome, OutputOffsets, ProcessInfo, Reply, Request, Spawn,
    SpawnCommand, caps, ending,
};
use rustix::event::epoll;
use std::time::{Duration, Instant};

/// Whether a user, given by its ids, is the keeper's own.
fn is_myself(user: &str) -> bool {
    let (uid, gid) = user.split_once(':').map_or((user, None), |(uid, gid)| (uid, Some(gid)));
    uid.parse() == Ok(rustix::process::geteuid().as_raw())
        && gid.is_none_or(|gid| gid.parse() == Ok(rustix::process::getegid().as_raw()))
}

impl Keeper {
    pub(crate) fn open(&mut self, id: u64, stream: u32, request: &Request) -> Result<(), Failure> {
        if self.config.one_user && request.user().is_some_and(|user| !is_myself(user)) {
            let message = "this sandbox cannot act as another user";
            return Err(Failure::new(FailureKind::Unsupported, message));
        }
        match request {
            Request::Spawn(spawn) => {
                self.start_command(spawn, Some((id, stream)))?;
            }
            Request::Attach(attach) => self.attach(id, stream, attach)?,
            Request::Processes => {
                let argv = ProcessInfo::longest_argv(self.tasks.len());
                let processes = self.tasks.values().filter_map(|task| describe(task, argv)).collect();
                self.done(id, stream, Outcome::Processes(processes));
            }
            Request::Kill { process, signal } => {
                let task = self.tasks.get_mut(process).filter(|task| matches!(task.kind, TaskKind::Command { .. }));
                let task = task.ok_or_else(|| no_process(*process))?;
                match signal {
                    0 if task.end.is_some() => {
                        task.hold = false;
                        self.pump(*process);
                    }
                    0 => task.end_tree(),
                    1..=64 => task.order(Order::SignalTree(*signal)),
                    _ => return Err(invalid("unknown signal")),
                }
                self.done(id, stream, Outcome::Nothing);
            }
            Request::Stats => {
                let mut stats = stats::read(self.oom_fd.as_ref(), self.config.inherit_env);
                stats.memory_limit_bytes = stats.memory_limit_bytes.or(self.config.memory_limit);
                self.done(id, stream, Outcome::Stats(stats));
            }
            Request::Idle { reset } => {
                let report = self.idle(*reset);
                self.done(id, stream, Outcome::Idle(report));
            }
            Request::EndIfIdle => {
                let report = self.idle(false);
                self.done(id, stream, Outcome::Idle(report));
                if !report.in_use {
                    self.exit.get_or_insert(ending::IDLE);
                }
            }
            Request::Tie { tied } => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.ties = *tied;
                }
                self.done(id, stream, Outcome::Nothing);
            }
            Request::Shutdown { grace_ms } => {
                self.done(id, stream, Outcome::Nothing);
                self.shut_down(Duration::from_millis((*grace_ms).min(600_000)));
            }
            Request::Connect { .. } | Request::Listen { .. } | Request::Accept { .. } => {
                self.open_socket(id, stream, request)?;
            }
            _ => {
                check_paths(request)?;
                check_options(request)?;
                self.check_count()?;
                self.last_id += 1;
                let mut task = Task::worker(self.last_id, &self.config, request)?;
                task.viewer = Some((id, stream));
                self.add_task(task)?;
            }
        }
        Ok(())
    }

    pub(crate) fn check_count(&self) -> Result<(), Failure> {
        // Held output takes memory until it is read, so there is a limit for it too.
        let counts = |task: &&Task| task.end.is_none() || task.holds_output();
        if self.tasks.values().filter(counts).count() >= caps::PROCESSES {
            return Err(Failure::limit(Limit::Number, "too many commands are running, or hold output"));
        }
        if self.stopping.is_some() || self.exit.is_some() {
            return Err(Failure::new(FailureKind::Stopping, "the sandbox is stopping"));
        }
        Ok(())
    }

    pub(crate) fn start_command(&mut self, spawn: &Spawn, viewer: Option<(u64, u32)>) -> Result<u64, Failure> {
        check_spawn(spawn)?;
        self.check_count()?;
        self.last_id += 1;
        let id = self.last_id;
        let oom_before = stats::oom_kills(self.oom_fd.as_ref(), self.config.inherit_env);
        let mut task = Task::command(id, &self.config, spawn)?;
        task.viewer = viewer;
        task.oom_before = oom_before;
        task.last = spawn.last;
        // A time too far in the future is no deadline.
        task.deadline = spawn.timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        self.add_task(task)?;
        Ok(id)
    }

    pub(crate) fn add_task(&mut self, mut task: Task) -> Result<(), Failure> {
        if let Some(status) = &task.status
            && epoll::add(&self.epoll, status, Token::Status(task.id).data(), epoll::EventFlags::IN).is_err()
        {
            task.end_tree();
            return Err(Failure::limit(Limit::Number, "the kernel allows no more descriptors in the event loop"));
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

    pub(crate) fn attach(&mut self, id: u64, stream: u32, attach: &Attach) -> Result<(), Failure> {
        let task = self.tasks.get_mut(&attach.process).filter(|task| matches!(task.kind, TaskKind::Command { .. }));
        let task = task.ok_or_else(|| no_process(attach.process))?;
        for (output, from) in task.outputs.iter_mut().zip([attach.stdout, attach.stderr]) {
            if from > output.ring.end() {
                return Err(invalid("the requested position is after the end of the output"));
            }
            if task.hold {
                // The reader has everything before, also if its last message was lost.
                self.held -= output.ring.forget_before(from);
                output.consumed = output.consumed.max(from);
            }
            output.sent = from.max(output.ring.base());
            output.eof_sent = false;
        }
        task.lingers_until = None;
        if let Some(size) = attach.size {
            task.resize(size);
        }
        // A command that is still starting replies when it runs, as it would have to its first reader.
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
}

pub(crate) fn running(task: &Task) -> Reply {
    let (stdin, passed_on) = task.stdin_offsets();
    Reply::Running {
        process: task.id,
        stdout: task.outputs[0].sent,
        stderr: task.outputs[1].sent,
        stdin_window: task.stdin.open_window(),
        stdin,
        tty: task.is_tty(),
        stdin_passed_on: Some(passed_on),
    }
}

/// Describes a command, with up to `argv` bytes of its arguments.
fn describe(task: &Task, argv: usize) -> Option<ProcessInfo> {
    let TaskKind::Command { description, detached, terminal, .. } = &task.kind else { return None };
    let [stdout, stderr] = task.outputs.each_ref().map(|output| OutputOffsets {
        produced: output.ring.end(),
        consumed: output.consumed,
        kept: output.ring.base(),
    });
    let mut info = ProcessInfo {
        process: task.id,
        program: description.program.clone().into(),
        running: task.end.is_none(),
        tty: terminal.is_some(),
        attached: task.viewer.is_some(),
        detached: *detached,
        argv: Vec::new(),
        argv_is_cut: description.argv_is_cut,
        tag: description.tag.clone(),
        started_ms: Some(description.started_ms),
        exit: match &task.end {
            Some(End::Exited(report)) => Some(*report),
            _ => None,
        },
        stdout: Some(stdout),
        stderr: Some(stderr),
        stdin: Some(task.stdin_offsets().1),
    };
    info.set_argv(description.argv.iter().map(Vec::as_slice), argv);
    Some(info)
}

fn check_spawn(spawn: &Spawn) -> Result<(), Failure> {
    let arguments = if let SpawnCommand::Argv(argv) = &spawn.command { argv.len() } else { 0 };
    if arguments > caps::STRINGS || spawn.env.len() > caps::STRINGS {
        return Err(Failure::limit(Limit::Size, "too many arguments or environment entries"));
    }
    if spawn.cwd.as_ref().is_some_and(|cwd| cwd.len() >= caps::PATH) {
        return Err(Failure::limit(Limit::Size, "the working directory's path is too long"));
    }
    if spawn.tag.as_ref().is_some_and(|tag| tag.len() > caps::TAG) {
        return Err(Failure::limit(Limit::Size, format!("the tag is longer than {} bytes", caps::TAG)));
    }
    if spawn.linger_ms.is_some_and(|linger| linger > caps::LINGER_MS) {
        return Err(Failure::limit(Limit::Size, "the linger time is longer than seven days"));
    }
    if spawn.detached && spawn.linger_ms.is_some() {
        return Err(invalid("a detached command keeps running without its connection, so it has no linger time"));
    }
    Ok(())
}

fn check_paths(request: &Request) -> Result<(), Failure> {
    let paths: &[&[u8]] = match request {
        Request::Move { from, to, .. } => &[from, to],
        Request::Symlink { path, target, .. } => &[path, target],
        Request::Read { path, .. }
        | Request::Write { path, .. }
        | Request::List { path, .. }
        | Request::Stat { path, .. }
        | Request::Mkdir { path, .. }
        | Request::Remove { path, .. }
        | Request::Watch { path, .. }
        | Request::Chmod { path, .. } => &[path],
        _ => &[],
    };
    paths.iter().try_for_each(|path| check_path(path))
}

pub(crate) fn check_path(path: &[u8]) -> Result<(), Failure> {
    if path.is_empty() || path.len() >= caps::PATH || path.contains(&0) {
        return Err(invalid("invalid path: it must not be empty, be too long or contain a zero byte"));
    }
    Ok(())
}

/// Checks the options of file requests.
fn check_options(request: &Request) -> Result<(), Failure> {
    match request {
        Request::Write { sparse: Some(true), offset: Some(_), .. } => {
            Err(invalid("a write at an offset cannot be sparse"))
        }
        Request::List { depth: Some(depth), .. } if !(1..=caps::LIST_DEPTH).contains(depth) => {
            Err(invalid(&format!("invalid depth {depth}: expected 1 to {}", caps::LIST_DEPTH)))
        }
        _ => Ok(()),
    }
}

fn no_process(process: u64) -> Failure {
    Failure::new(FailureKind::NotFound, format!("there is no command {process}"))
}

pub(crate) fn invalid(message: &str) -> Failure {
    Failure::new(FailureKind::Invalid, message)
}
