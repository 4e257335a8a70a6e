//! Streams between a host and a socket inside: to something that listens there, or from a connection that arrived at a
//! listening socket of the keeper.
//!
//! A worker connects as the requesting user, and passes the connected socket to the keeper. From then on the keeper
//! copies bytes, with the same windows as for commands.

use crate::keeper::Keeper;
use crate::paths::{self, failure, refused};
use crate::report::{Inode, Report};
use crate::requests::{check_path, invalid};
use crate::sys;
use crate::task::{End, Task, TaskKind, system};
use crate::worker::Pipes;
use kennel_proto::{Body, Channel, Failure, FailureKind, Outcome, Reply, Request, Target, caps};
use rustix::event::epoll;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub(crate) const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

impl Keeper {
    /// Starts a request about sockets.
    pub(crate) fn open_socket(&mut self, id: u64, stream: u32, request: &Request) -> Result<(), Failure> {
        match request {
            Request::Connect { target, .. } => {
                match target {
                    Target::Tcp { .. } => self.check_network()?,
                    Target::Unix { path } => check_path(path)?,
                }
                self.start_socket_worker(id, stream, request, TaskKind::Stream { failed: None })
            }
            Request::Listen { address, .. } => self.start_listening(id, stream, request, address),
            Request::Accept { connection } => self.accept_pending(id, stream, *connection),
            _ => Err(invalid("this is not a request about sockets")),
        }
    }

    /// Ports of a sandbox that has no network of its own are ports of the host.
    pub(crate) fn check_network(&self) -> Result<(), Failure> {
        if self.config.shares_network {
            let message = "this sandbox shares the host's network, so its ports are the host's own";
            return Err(Failure::new(FailureKind::Unsupported, message));
        }
        Ok(())
    }

    /// Starts the worker that opens a socket.
    pub(crate) fn start_socket_worker(
        &mut self,
        id: u64,
        stream: u32,
        request: &Request,
        kind: TaskKind,
    ) -> Result<(), Failure> {
        self.check_count()?;
        self.last_id += 1;
        let mut task = Task::worker(self.last_id, &self.config, request)?;
        task.kind = kind;
        // The socket takes the place of the pipe.
        task.outputs[0].pipe = None;
        task.stdin.window = caps::STDIN_WINDOW;
        task.viewer = Some((id, stream));
        self.add_task(task)
    }

    /// A worker has opened a socket, and its task is done.
    pub(crate) fn take_socket(&mut self, id: u64, socket: OwnedFd, inode: Option<Inode>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if let Some(status) = task.status.take() {
            let _ = epoll::delete(&self.epoll, &status);
        }
        match task.kind {
            // Its host was lost in the meantime.
            TaskKind::Stream { .. } if task.viewer.is_none() => self.forget(id),
            TaskKind::Stream { .. } => self.start_stream(id, &socket),
            TaskKind::Listener(_) => self.start_unix_listener(id, socket, inode),
            _ => {}
        }
    }

    /// Starts to copy bytes between a host and a connected socket.
    pub(crate) fn start_stream(&mut self, id: u64, socket: &OwnedFd) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let copy = || rustix::io::fcntl_dupfd_cloexec(socket, 3);
        let ends = rustix::io::ioctl_fionbio(socket, true).and_then(|()| Ok((copy()?, copy()?)));
        match ends {
            Ok((input, output)) => {
                task.stdin.pipe = Some(input);
                task.stdin.socket = true;
                task.outputs[0].pipe = Some(output);
                task.ready = true;
                let stdin_window = task.stdin.window;
                if let Some((connection, stream)) = task.viewer
                    && let Some(connection) = self.connections.get_mut(&connection)
                {
                    connection.send(stream, Body::Reply(Reply::Ready { stdin_window }));
                }
            }
            Err(error) => {
                task.outputs[0].eof = true;
                task.end = Some(End::Failed(system("use a connection", error)));
            }
        }
        self.pump(id);
    }

    /// Input was passed on to a socket. Tells the host if the peer reads no more.
    pub(crate) fn settle_input(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if !matches!(task.kind, TaskKind::Stream { .. }) {
            return;
        }
        if task.ready
            && task.stdin.is_refused()
            && let Some((connection, stream)) = task.viewer
            && let Some(connection) = self.connections.get_mut(&connection)
        {
            connection.send(stream, Body::Eof(Channel::Stdin));
        }
        self.finish(id);
    }

    /// Ends a stream when both of its directions are closed, or when it has failed.
    pub(crate) fn settle_stream(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let TaskKind::Stream { failed } = task.kind else { return };
        if !task.ready || task.end.is_some() || !task.outputs[0].eof {
            return;
        }
        let end = match failed {
            Some(error) => {
                let message = format!("the connection inside failed: {}", paths::reason(error));
                End::Failed(Failure::new(FailureKind::Other, message))
            }
            None if task.stdin.pipe.is_none() => End::Done(Outcome::Nothing),
            None => return,
        };
        if let (true, Some(pipe)) = (std::mem::take(&mut task.stdin.polled), &task.stdin.pipe) {
            let _ = epoll::delete(&self.epoll, pipe);
        }
        task.stdin.discard();
        task.end = Some(end);
    }

    /// The host has closed a stream or a listening socket. Returns whether the task is one of them.
    pub(crate) fn lose_socket(&mut self, id: u64) -> bool {
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        let at_work = task.status.is_some();
        match task.kind {
            TaskKind::Stream { .. } if at_work => sys::kill(task.pid, libc::SIGKILL),
            TaskKind::Stream { .. } => {
                let ends = [task.outputs[0].pipe.as_ref(), task.stdin.pipe.as_ref()];
                for (end, polled) in ends.into_iter().zip([task.outputs[0].polled, task.stdin.polled]) {
                    let Some(end) = end else { continue };
                    if polled {
                        let _ = epoll::delete(&self.epoll, end);
                    }
                    if !task.stdin.is_complete() {
                        // The peer must not take what it has received so far for everything.
                        let _ = rustix::net::sockopt::set_socket_linger(end, Some(Duration::ZERO));
                    }
                }
                self.forget(id);
            }
            // If the worker creates a path, it must report that, so that the path is removed.
            TaskKind::Listener(_) if at_work => {}
            TaskKind::Listener(_) => self.stop_listening(id),
            _ => return false,
        }
        true
    }

    /// Adds a stream for a connected socket that is already there.
    pub(crate) fn add_stream(&mut self, id: u64, stream: u32, socket: &OwnedFd) -> Result<(), Failure> {
        self.check_count()?;
        self.last_id += 1;
        let mut task = Task::without_process(self.last_id, TaskKind::Stream { failed: None });
        task.stdin.window = caps::STDIN_WINDOW;
        task.viewer = Some((id, stream));
        let id = task.id;
        self.add_task(task)?;
        self.start_stream(id, socket);
        Ok(())
    }
}

/// In a worker: passes a socket to the keeper, and exits.
pub(crate) fn hand_over(socket: &OwnedFd, inode: Option<Inode>, pipes: &Pipes) -> Result<Outcome, Failure> {
    use rustix::fd::AsFd;
    Report::Opened { inode }
        .send_with(&pipes.status, socket.as_fd())
        .map_err(|error| system("pass on a socket", error))?;
    sys::exit_now(0)
}

/// In a worker: connects to a port on loopback.
pub(crate) fn to_port(port: u16) -> Result<OwnedFd, Failure> {
    let mut first = None;
    for ip in LOOPBACK {
        match TcpStream::connect(SocketAddr::new(ip, port)) {
            // The kernel may choose the port itself as the local one, and connect the socket with itself.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {}
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream.into());
            }
            Err(error) => {
                first.get_or_insert(error);
            }
        }
    }
    let error = first.and_then(|error| Errno::from_io_error(&error)).unwrap_or(Errno::CONNREFUSED);
    Err(match error {
        Errno::CONNREFUSED => {
            Failure::new(FailureKind::NotFound, format!("nothing listens on TCP port {port} in the sandbox"))
        }
        error => {
            let message = format!("connect to TCP port {port} in the sandbox: {}", paths::reason(error));
            Failure::new(FailureKind::Other, message)
        }
    })
}

/// In a worker: connects to a Unix socket with a path.
pub(crate) fn to_path(path: &[u8]) -> Result<OwnedFd, Failure> {
    let failed = |error| failure(path, error);
    let found = paths::open(path, OFlags::PATH, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&found).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(refused(path, "it is not a socket"));
    }
    // The name in /proc refers to the same file, whatever happens to the path.
    enter(&paths::proc()?).map_err(failed)?;
    let connected = UnixStream::connect(format!("self/fd/{}", found.as_raw_fd()));
    connected.map(OwnedFd::from).map_err(|error| match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
        Errno::CONNREFUSED => {
            let message = format!("{}: nothing listens there", String::from_utf8_lossy(path));
            Failure::new(FailureKind::NotFound, message)
        }
        Errno::PROTOTYPE => refused(path, "it is not a stream socket"),
        error => failed(error),
    })
}

/// In a worker: changes to a directory. Relative paths of sockets then refer to entries of exactly this directory.
#[expect(clippy::disallowed_methods, reason = "a worker is a process of its own, which handles one request")]
pub(crate) fn enter(directory: &OwnedFd) -> Result<(), Errno> {
    rustix::process::fchdir(directory)
}
