//! Connections of hosts, and the frames that arrive on them. This module decides what a host may do.

use crate::connection::{Broken, Connection};
use crate::keeper::{Keeper, Token};
use crate::log::Log;
use crate::output::Loss;
use crate::shim::Order;
use crate::sys;
use kennel_proto::{
    Body, Channel, Failure, Features, Frame, GENERATION, Hello, Limit, Outcome, Reply, Welcome, caps, ending,
};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// The delay before a connection is accepted again after a failure.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

impl Keeper {
    pub(crate) fn accept(&mut self) {
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => self.meet(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => break,
            }
        }
        // There is no descriptor or no memory for it, and it stays in the queue. Trying again at once would use up a
        // CPU.
        let _ = epoll::delete(&self.epoll, &self.listener);
        self.accept_at = Some(Instant::now() + ACCEPT_AGAIN);
    }

    /// Accepts a connection if it is permitted. Otherwise it is closed.
    pub(crate) fn meet(&mut self, socket: OwnedFd) {
        if self.connections.len() >= caps::CONNECTIONS || !self.is_from_outside(&socket) {
            return;
        }
        self.last_id += 1;
        let id = self.last_id;
        if epoll::add(&self.epoll, &socket, Token::Connection(id).data(), epoll::EventFlags::IN).is_ok() {
            self.connections.insert(id, Connection::new(socket));
        }
    }

    /// Tells every host that everything has ended, and waits a moment until the owner has closed its side too. The
    /// teardown that follows keeps a CPU busy, so the host should have continued by then.
    pub(crate) fn say_goodbye(self) {
        const MOMENT: Duration = Duration::from_millis(100);
        let Self { connections, listener, .. } = self;
        drop(listener);
        let until = Instant::now() + MOMENT;
        for connection in connections.values() {
            let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Write);
        }
        for connection in connections.values().filter(|connection| connection.owner) {
            connection.wait_until_hung_up(until);
        }
    }

    /// Whether the peer is outside the sandbox. A process in the sandbox has a process id here, and one outside its pid
    /// namespace has none. Without a pid namespace, the hello must contain a token.
    pub(crate) fn is_from_outside(&self, socket: &OwnedFd) -> bool {
        if self.config.token.is_some() {
            return true;
        }
        match sys::peer(socket) {
            Some(peer) if peer.pid == 0 => true,
            Some(peer) => self.config.by_engine && peer.uid == 0 && was_put_in(peer.pid),
            None => false,
        }
    }

    pub(crate) fn read_connection(&mut self, id: u64, flags: epoll::EventFlags) {
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
        // `flush_all` writes when there is room.
    }

    /// Removes a connection and everything that is tied to it.
    pub(crate) fn hang_up(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        for task in connection.streams.values() {
            self.lose_viewer(*task, Loss::Connection);
        }
        if connection.ties || (connection.owner && self.config.tied) {
            self.exit.get_or_insert(ending::OWNER_GONE);
        }
    }

    pub(crate) fn take_frame(&mut self, id: u64, frame: Frame) -> Result<(), Broken> {
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
                self.fail(id, stream, Failure::limit(Limit::Requests, "too many requests are in progress"));
            } else if let Err(failure) = self.open(id, stream, &request) {
                self.fail(id, stream, failure);
            }
            return Ok(());
        }
        // Frames for a stream that has ended here may still arrive.
        let Some(&task_id) = connection.streams.get(&stream) else { return Ok(()) };
        let Some(task) = self.tasks.get_mut(&task_id) else { return Ok(()) };
        match body {
            Body::Data { channel: Channel::Stdin, offset, bytes } => {
                task.stdin.receive(offset, &bytes).map_err(|()| Broken)?;
                self.send_datagrams(task_id, &bytes).map_err(|()| Broken)?;
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
                output.consumed = output.consumed.max(offset);
                self.held -= output.ring.forget_before(offset);
                self.pump(task_id);
                self.feed_the_starved();
            }
            Body::Signal(signal @ 1..=64) => task.order(Order::Signal(signal)),
            Body::Resize(size) => task.resize(size),
            Body::Close => {
                connection.streams.remove(&stream);
                self.lose_viewer(task_id, Loss::Closed);
            }
            _ => return Err(Broken),
        }
        Ok(())
    }

    pub(crate) fn greet(&mut self, id: u64, hello: &Hello) -> Result<(), Broken> {
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
            features: Features::ALL,
        };
        connection.send_soon(0, Body::Welcome(welcome));
        Ok(())
    }

    pub(crate) fn fail(&mut self, id: u64, stream: u32, mut failure: Failure) {
        failure.message.truncate(failure.message.floor_char_boundary(8 * 1024));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.streams.remove(&stream);
            connection.send(stream, Body::Fail(failure));
        }
    }

    pub(crate) fn done(&mut self, id: u64, stream: u32, outcome: Outcome) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.send(stream, Body::Reply(Reply::Done(outcome)));
        }
    }

    /// Writes what can be written, and continues streams that waited for room.
    pub(crate) fn flush_all(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        let (now, is_ending) = (Instant::now(), self.exit.is_some());
        for id in ids {
            while let Some(connection) = self.connections.get_mut(&id) {
                if !is_ending && connection.held_until().is_some_and(|until| now < until) {
                    break;
                }
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
}

/// Whether a process was started in the sandbox from outside: its parent is not visible here. A process that was
/// started inside has a parent inside, and becomes a child of process 1 when that ends.
fn was_put_in(pid: i32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program is in parentheses and may contain any character.
    let rest = stat.iter().rposition(|byte| *byte == b')').map_or(&[][..], |end| &stat[end + 1..]);
    let parent = rest.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).nth(1);
    parent == Some(&b"0"[..])
}

/// Compares in constant time, so that the duration does not reveal where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}
