//! Requests of a host: checks them against the caps, and starts them.

use crate::keeper::{Keeper, Token};
use crate::shim::Order;
use crate::stats;
use crate::task::{Task, TaskKind};
use kennel_proto::{
    Attach, Body, Failure, FailureKind, Limit, Outcome, ProcessInfo, Reply, Request, Spawn, SpawnCommand, caps, ending,
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
                let outcome = Outcome::Processes(self.tasks.values().filter_map(describe).collect());
                self.done(id, stream, outcome);
            }
            Request::Kill { process, signal } => {
                let task = self.tasks.get_mut(process).filter(|task| matches!(task.kind, TaskKind::Command { .. }));
                let task = task.ok_or_else(|| no_process(*process))?;
                match signal {
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

    pub(crate) fn check_count(&self) -> Result<(), Failure> {
        if self.tasks.values().filter(|task| task.end.is_none()).count() >= caps::PROCESSES {
            return Err(Failure::limit(Limit::Number, "too many commands are running"));
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
        let status = task.status.as_ref().ok_or_else(|| invalid("the task has no socket for reports"))?;
        if epoll::add(&self.epoll, status, Token::Status(task.id).data(), epoll::EventFlags::IN).is_err() {
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
            output.sent = from.max(output.ring.base());
            output.eof_sent = false;
        }
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
    let TaskKind::Command { program, detached, terminal, .. } = &task.kind else { return None };
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
        return Err(Failure::limit(Limit::Size, "too many arguments or environment entries"));
    }
    if spawn.cwd.as_ref().is_some_and(|cwd| cwd.len() >= caps::PATH) {
        return Err(Failure::limit(Limit::Size, "the working directory's path is too long"));
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
    for path in paths {
        if path.is_empty() || path.len() >= caps::PATH || path.contains(&0) {
            return Err(invalid("invalid path: it must not be empty, be too long or contain a zero byte"));
        }
    }
    Ok(())
}

fn no_process(process: u64) -> Failure {
    Failure::new(FailureKind::NotFound, format!("there is no command {process}"))
}

pub(crate) fn invalid(message: &str) -> Failure {
    Failure::new(FailureKind::Invalid, message)
}
