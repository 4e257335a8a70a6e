//! The data of tasks: their input, their output from the pipes through the ring buffers to the readers, and their end.

use crate::keeper::{CHANNELS, Keeper, Token};
use crate::report::Report;
use crate::requests::running;
use crate::stats;
use crate::task::{End, Task, TaskKind};
use kennel_proto::{Body, Channel, Failure, FailureKind, Reply, caps};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::time::Instant;

/// What a command may have in its ring buffer when all buffers together are at their cap. It is enough to continue, and
/// small enough to be bounded.
const LEAST: usize = 4096;
/// How much output is kept for a command without a reader.
const UNREAD: usize = 256 * 1024;
/// The maximum number of pipes of ended commands to which processes still write.
const SINKS: usize = 256;

/// How a task lost its reader.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The host closed the stream.
    Closed,
    /// The connection ended.
    Connection,
}

impl Keeper {
    /// The reader is gone: a detached command continues, and so does one that lingers after its connection was lost.
    /// Everything else ends.
    pub(crate) fn lose_viewer(&mut self, id: u64, loss: Loss) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.viewer = None;
        if self.lose_socket(id) {
            return;
        }
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.is_detached() || (loss == Loss::Connection && task.start_to_linger()) {
            return self.pump(id);
        }
        self.abandon(id);
    }

    /// Ends a task that nobody will read, and everything it started.
    fn abandon(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.give_up();
        if task.end.is_none() {
            task.stdin.discard();
            task.end_tree();
        }
        self.pump(id);
    }

    /// Ends the commands whose linger time is over.
    pub(crate) fn end_lingering(&mut self, now: Instant) {
        let over = |task: &&Task| task.lingers_until.is_some_and(|at| at <= now);
        let ids: Vec<u64> = self.tasks.values().filter(over).map(|task| task.id).collect();
        for id in ids {
            self.abandon(id);
        }
    }

    /// Passes input to the task, and reports to the host how much was consumed.
    pub(crate) fn feed(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let polled = task.stdin.polled;
        // Remove it from epoll before it may be closed.
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
        self.settle_input(id);
    }

    /// Moves output from the task's pipes to its ring buffers and on to the reader, as far as windows and memory allow.
    pub(crate) fn pump(&mut self, id: u64) {
        for index in 0..2 {
            while self.read_output(id, index) {
                self.send_output(id, index);
            }
            self.send_output(id, index);
        }
        self.finish(id);
    }

    /// Reads one piece, and returns whether another attempt may read more.
    pub(crate) fn read_output(&mut self, id: u64, index: usize) -> bool {
        let is_main = self.main == Some(id);
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        let (ended, viewed) = (task.end.is_some(), task.viewer.is_some());
        let waits = viewed || task.hold;
        let output = &mut task.outputs[index];
        let Some(pipe) = &output.pipe else { return false };
        let room = if is_main && !self.log.has_room() {
            0
        } else if !waits {
            self.scratch.len()
        } else if self.held + LEAST <= caps::RINGS {
            let most = if viewed { caps::WINDOW as usize } else { UNREAD };
            most.saturating_sub(output.ring.len()).min(caps::RINGS - self.held)
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
            Ok((bytes, _)) if !bytes.is_empty() => {
                let (bytes, count) = (&*bytes, bytes.len());
                if is_main {
                    self.log.write(CHANNELS[index], bytes);
                }
                output.ring.push(bytes);
                self.held += count;
                if !waits {
                    // There is no reader: keep the newest bytes, within the cap for all commands.
                    let over = self.held.saturating_sub(caps::RINGS) as u64;
                    let keep = (UNREAD as u64).min((output.ring.len() as u64).saturating_sub(over)).max(LEAST as u64);
                    self.held -= output.ring.forget_before(output.ring.end().saturating_sub(keep));
                }
                // Without a reader to slow it down, read one piece at a time, so that a flood of output blocks nobody
                // else.
                let again = ended || (viewed && count == most);
                // The next output wakes this task, also if the pipe was not polled while there was no room.
                if !again && !output.polled {
                    let token = Token::Output(id, index).data();
                    output.polled = epoll::add(&self.epoll, pipe, token, epoll::EventFlags::IN).is_ok();
                }
                again
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) if !ended => {
                if !output.polled {
                    let token = Token::Output(id, index).data();
                    output.polled = epoll::add(&self.epoll, pipe, token, epoll::EventFlags::IN).is_ok();
                }
                false
            }
            // The command has ended and its output was read. Its remaining processes may continue to print, but nobody
            // reads that.
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
            // End of file, or a terminal whose last user is gone.
            end => {
                if let (Err(error), TaskKind::Stream { failed }) = (end, &mut task.kind) {
                    *failed = Some(error);
                }
                if std::mem::replace(&mut output.polled, false) {
                    let _ = epoll::delete(&self.epoll, pipe);
                }
                output.eof = true;
                output.pipe = None;
                false
            }
        }
    }

    pub(crate) fn send_output(&mut self, id: u64, index: usize) {
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
            let eof = Body::Eof(CHANNELS[index]);
            match task.kind {
                // Its exit usually follows, and means the same.
                TaskKind::Command { .. } => connection.send_soon(stream, eof),
                _ => connection.send(stream, eof),
            }
        }
    }

    /// Sends the result of a task that has ended and whose output was sent, and removes the task.
    pub(crate) fn finish(&mut self, id: u64) {
        self.settle_stream(id);
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let Some(end) = &task.end else { return };
        let sent = task.viewer.is_none() || task.outputs.iter().all(|output| output.sent == output.ring.end());
        // A reader of held output gets the result when it has consumed everything.
        if !sent || !task.outputs.iter().all(|output| output.eof) || task.holds_output() {
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
        if task.last {
            self.exit.get_or_insert(0);
        }
        if self.main == Some(id) {
            self.exit.get_or_insert(match end {
                End::Exited(report) => report.code.unwrap_or_else(|| 128 + report.signal.unwrap_or(0)),
                End::Failed(failure) => start_failure_code(failure),
                End::Done(_) => 0,
            });
        }
        let has_result = matches!(end, End::Exited(_));
        if has_result && (task.is_detached() || task.start_to_linger()) {
            let over = |task: &&Task| task.end.is_some() && task.viewer.is_none() && !task.holds_output();
            let ended: Vec<u64> = self.tasks.values().filter(over).map(|task| task.id).collect();
            for id in ended.iter().take(ended.len().saturating_sub(caps::ENDED)) {
                self.forget(*id);
            }
        } else {
            self.forget(id);
        }
        self.feed_the_starved();
    }

    pub(crate) fn forget(&mut self, id: u64) {
        if let Some(task) = self.tasks.remove(&id) {
            self.held -= task.outputs.iter().map(|output| output.ring.len()).sum::<usize>();
        }
    }

    /// Memory was freed: tasks that could not read because of the cap try again.
    pub(crate) fn feed_the_starved(&mut self) {
        if self.starved && self.held + caps::WINDOW as usize <= caps::RINGS {
            self.starved = false;
            let ids: Vec<u64> = self.tasks.keys().copied().collect();
            for id in ids {
                self.pump(id);
            }
        }
    }

    pub(crate) fn take_reports(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let (mut listen, mut unmade, mut opened) = (false, None, None);
        for report in task.read_reports() {
            match report {
                Report::Ready | Report::ReadySparse if !task.ready => {
                    task.ready = true;
                    let stdin_window = task.stdin.window;
                    let reply = match (&task.kind, report) {
                        (TaskKind::Command { .. }, _) => running(task),
                        (_, Report::ReadySparse) => Reply::ReadySparse { stdin_window },
                        (_, _) => Reply::Ready { stdin_window },
                    };
                    if let Some((connection, stream)) = task.viewer
                        && let Some(connection) = self.connections.get_mut(&connection)
                    {
                        connection.send(stream, Body::Reply(reply));
                    }
                    listen = self.main == Some(id);
                }
                Report::Ready | Report::ReadySparse | Report::Listening => {}
                Report::Opened { inode } => opened = task.listener.take().map(|socket| (socket, inode)),
                Report::Exited(mut exit) => {
                    let oom_after = stats::oom_kills(self.oom_fd.as_ref(), self.config.inherit_env);
                    exit.timed_out = task.timed_out;
                    exit.oom_killed = oom_after > task.oom_before;
                    task.end = Some(End::Exited(exit));
                    self.released.extend(task.status.take());
                }
                Report::Done(outcome) => task.end = Some(End::Done(outcome)),
                Report::Failed(failure) => {
                    if let (true, TaskKind::Command { description, .. }) = (self.main == Some(id), &task.kind) {
                        let program = String::from_utf8_lossy(&description.program).into_owned();
                        unmade = Some((program, failure.clone()));
                    }
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
        if let Some(listener) = task.listener.take() {
            self.listen_to(listener);
        }
        if listen {
            self.listen();
        }
        if let Some((program, failure)) = unmade {
            self.explain(&program, &failure);
        }
        if let Some((socket, inode)) = opened {
            return self.take_socket(id, socket, inode);
        }
        self.pump(id);
    }

    /// Continues to read the output of processes that outlived their command. Closing the pipe would end them.
    pub(crate) fn sink(&mut self, pipe: OwnedFd) {
        if self.sinks.len() < SINKS {
            self.last_id += 1;
            let id = self.last_id;
            if epoll::add(&self.epoll, &pipe, Token::Sink(id).data(), epoll::EventFlags::IN).is_ok() {
                self.sinks.insert(id, pipe);
            }
        }
    }

    pub(crate) fn drain_sink(&mut self, id: u64) {
        let Some(pipe) = self.sinks.get(&id) else { return };
        match rustix::io::read(pipe, &mut self.scratch[..]) {
            Ok(([_, ..], _)) | Err(Errno::AGAIN | Errno::INTR) => {}
            _ => drop(self.sinks.remove(&id)),
        }
    }
}

/// The keeper's exit code if its main process could not be started.
pub(crate) fn start_failure_code(failure: &Failure) -> i32 {
    match failure.kind {
        FailureKind::NotFound => 127,
        FailureKind::NotExecutable => 126,
        _ => 125,
    }
}
