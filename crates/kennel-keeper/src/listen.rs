//! Sockets on which the keeper listens inside for a host: TCP ports on loopback, Unix sockets and UDP ports.
//!
//! The host is told about each connection and accepts it as a stream. A connection that is not accepted in time is
//! closed, and so is one that arrives while too many are waiting. Datagrams are sent on the listen stream itself.

mod bind;

pub(crate) use bind::at_path;

use crate::files::put_item;
use crate::keeper::{Keeper, Token};
use crate::report::Inode;
use crate::requests::{check_path, invalid};
use crate::task::{Task, TaskKind};
use crate::{sys, worker};
use bind::{SocketPath, on_loopback};
use kennel_proto::{Body, Failure, FailureKind, Limit, ListenAddress, ListenItem, Reply, Request, caps};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// The delay before connections are accepted again after a failure.
const AGAIN: Duration = Duration::from_millis(100);
/// The number of connections or datagrams that are taken at once, before other work is done.
const AT_ONCE: usize = 64;
/// How long the keeper waits at its end until the paths of its sockets are removed.
const REMOVAL: Duration = Duration::from_secs(1);
/// More than the bytes of any message with a datagram.
const LONGEST: usize = caps::DATAGRAM + 64;

/// A listening socket, and what waits at it.
#[derive(Default)]
pub(crate) struct Listening {
    sockets: Vec<Socket>,
    /// Connections that no host has accepted yet, and when they are closed.
    pending: BTreeMap<u64, (OwnedFd, Instant)>,
    /// The path of a Unix socket.
    path: Option<SocketPath>,
    /// When the sockets are polled again, after a failure.
    again_at: Option<Instant>,
    /// The latest peers of a UDP socket: their numbers, sockets and addresses.
    peers: VecDeque<(u64, usize, SocketAddr)>,
    last_peer: u64,
    /// The beginning of a message of the host.
    unread: Vec<u8>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
    Udp(UdpSocket),
}

impl Socket {
    fn fd(&self) -> &dyn rustix::fd::AsFd {
        match self {
            Self::Tcp(socket) => socket,
            Self::Unix(socket) => socket,
            Self::Udp(socket) => socket,
        }
    }
}

impl Listening {
    pub(crate) fn takes_datagrams(&self) -> bool {
        matches!(self.sockets[..], [Socket::Udp(_), ..])
    }

    /// Whether a connection waits for a host to accept it.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The time of the next [`Keeper::check_listeners`].
    pub(crate) fn due(&self) -> Option<Instant> {
        let oldest = self.pending.values().map(|(_, until)| *until).min();
        self.again_at.into_iter().chain(oldest).min()
    }

    /// Takes what has arrived at a socket. Returns `None` if it was dropped.
    fn take(&mut self, index: usize, id: u64, room: bool) -> std::io::Result<Option<ListenItem>> {
        let (socket, destination, peer) = match self.sockets.get(index) {
            Some(Socket::Tcp(listener)) => {
                let (stream, peer) = listener.accept()?;
                let _ = stream.set_nodelay(true);
                let original = sys::inet::original_destination(&stream, peer.is_ipv6());
                let destination = original.or_else(|| stream.local_addr().ok());
                (OwnedFd::from(stream), destination, Some(peer))
            }
            Some(Socket::Unix(listener)) => (listener.accept()?.0.into(), None, None),
            Some(Socket::Udp(socket)) => {
                // One byte more than allowed, to notice longer ones.
                let mut buffer = [0; caps::DATAGRAM + 1];
                let (count, from) = socket.recv_from(&mut buffer)?;
                if count > caps::DATAGRAM || !room {
                    return Ok(None);
                }
                let peer = self.peer(index, from);
                return Ok(Some(ListenItem::Datagram { peer, bytes: buffer[..count].to_vec().into() }));
            }
            None => return Err(ErrorKind::WouldBlock.into()),
        };
        if !room || self.pending.len() >= caps::PENDING {
            return Ok(None);
        }
        self.pending.insert(id, (socket, Instant::now() + Duration::from_millis(caps::PENDING_MS)));
        Ok(Some(ListenItem::Connection { connection: id, destination, peer }))
    }

    /// Closes connections that nobody has accepted in time.
    fn expire(&mut self, now: Instant) {
        self.pending.retain(|_, (_, until)| *until > now);
    }

    /// Returns the number of a peer.
    fn peer(&mut self, index: usize, address: SocketAddr) -> u64 {
        if let Some((number, ..)) = self.peers.iter().find(|(_, at, known)| (*at, *known) == (index, address)) {
            return *number;
        }
        if self.peers.len() >= caps::PEERS {
            self.peers.pop_front();
        }
        self.last_peer += 1;
        self.peers.push_back((self.last_peer, index, address));
        self.last_peer
    }

    /// Sends the datagrams in bytes of the host. Returns `Err` if the bytes are not valid.
    fn reply(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.unread.extend_from_slice(bytes);
        while let Some((head, rest)) = self.unread.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*head) as usize;
            if length > LONGEST {
                return Err(());
            }
            let Some(message) = rest.get(..length) else { break };
            let Ok(ListenItem::Datagram { peer, bytes }) = minicbor::decode(message) else { return Err(()) };
            if bytes.len() > caps::DATAGRAM {
                return Err(());
            }
            // Like any datagram, it may get lost: if the peer is forgotten, or if there is no room.
            if let Some((_, index, address)) = self.peers.iter().find(|(number, ..)| *number == peer)
                && let Some(Socket::Udp(socket)) = self.sockets.get(*index)
            {
                let _ = socket.send_to(&bytes, address);
            }
            self.unread.drain(..4 + length);
        }
        Ok(())
    }
}

impl Keeper {
    pub(crate) fn start_listening(
        &mut self,
        id: u64,
        stream: u32,
        request: &Request,
        address: &ListenAddress,
    ) -> Result<(), Failure> {
        let listening = |task: &&Task| matches!(task.kind, TaskKind::Listener(_));
        if self.tasks.values().filter(listening).count() >= caps::LISTENERS {
            return Err(Failure::limit(Limit::Number, "the keeper listens on too many sockets"));
        }
        let (sockets, port) = match address {
            ListenAddress::Unix { path, mode } => {
                check_path(path)?;
                if mode & !0o777 != 0 {
                    return Err(invalid("a socket has no other permission bits than 0777"));
                }
                let path = SocketPath { path: path.to_vec(), user: request.user().map(Into::into), inode: None };
                let kind = TaskKind::Listener(Box::new(Listening { path: Some(path), ..Listening::default() }));
                return self.start_socket_worker(id, stream, request, kind);
            }
            ListenAddress::Tcp { port } => {
                self.check_network()?;
                on_loopback(*port, TcpListener::bind, TcpListener::local_addr, |socket| {
                    socket.set_nonblocking(true).map(|()| Socket::Tcp(socket))
                })
            }
            ListenAddress::Udp { port } => {
                self.check_network()?;
                on_loopback(*port, UdpSocket::bind, UdpSocket::local_addr, |socket| {
                    socket.set_nonblocking(true).map(|()| Socket::Udp(socket))
                })
            }
        }?;
        self.check_count()?;
        self.last_id += 1;
        let kind = TaskKind::Listener(Box::new(Listening { sockets, ..Listening::default() }));
        let mut task = Task::without_process(self.last_id, kind);
        task.viewer = Some((id, stream));
        let id = task.id;
        self.add_task(task)?;
        self.announce(id, port);
        Ok(())
    }

    /// A worker has created a Unix socket.
    pub(crate) fn start_unix_listener(&mut self, id: u64, socket: OwnedFd, inode: Option<Inode>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let (gone, TaskKind::Listener(listening)) = (task.viewer.is_none(), &mut task.kind) else { return };
        if let Some(path) = &mut listening.path {
            path.inode = inode;
        }
        let _ = rustix::io::ioctl_fionbio(&socket, true);
        listening.sockets = vec![Socket::Unix(socket.into())];
        if gone { self.stop_listening(id) } else { self.announce(id, 0) }
    }

    /// Tells the host that the keeper listens, and starts to accept.
    fn announce(&mut self, id: u64, port: u16) {
        self.poll_listener(id);
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let TaskKind::Listener(listening) = &task.kind else { return };
        task.stdin.window = if listening.takes_datagrams() { caps::STDIN_WINDOW } else { 0 };
        task.ready = true;
        if let Some((connection, stream)) = task.viewer
            && let Some(connection) = self.connections.get_mut(&connection)
        {
            let stdin_window = task.stdin.window;
            connection.send(stream, Body::Reply(Reply::Listening { port, stdin_window }));
        }
    }

    fn poll_listener(&mut self, id: u64) {
        let Some(TaskKind::Listener(listening)) = self.tasks.get_mut(&id).map(|task| &mut task.kind) else { return };
        listening.again_at = None;
        for (index, socket) in listening.sockets.iter().enumerate() {
            let token = Token::Arrival(id, index).data();
            if epoll::add(&self.epoll, socket.fd(), token, epoll::EventFlags::IN)
                .is_err_and(|error| error != Errno::EXIST)
            {
                listening.again_at = Some(Instant::now() + AGAIN);
            }
        }
    }

    /// Takes connections or datagrams that have arrived.
    pub(crate) fn take_arrivals(&mut self, id: u64, index: usize) {
        for _ in 0..AT_ONCE {
            let Some(task) = self.tasks.get_mut(&id) else { return };
            let TaskKind::Listener(listening) = &mut task.kind else { return };
            let ring = &mut task.outputs[0].ring;
            let room = ring.len() + LONGEST <= caps::LISTEN_QUEUE;
            self.last_id += 1;
            match listening.take(index, self.last_id, room) {
                Ok(Some(item)) => {
                    let mut bytes = Vec::new();
                    put_item(&item, &mut bytes);
                    ring.push(&bytes);
                    self.held += bytes.len();
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(_) => {
                    // There is no descriptor or no memory for it. Trying again at once would use up a CPU.
                    for socket in &listening.sockets {
                        let _ = epoll::delete(&self.epoll, socket.fd());
                    }
                    listening.again_at = Some(Instant::now() + AGAIN);
                    break;
                }
            }
        }
        self.pump(id);
    }

    /// Passes datagrams of the host on. Returns `Err` if the bytes are not valid.
    pub(crate) fn send_datagrams(&mut self, id: u64, bytes: &[u8]) -> Result<(), ()> {
        match self.tasks.get_mut(&id).map(|task| &mut task.kind) {
            Some(TaskKind::Listener(listening)) => listening.reply(bytes),
            _ => Ok(()),
        }
    }

    /// Makes a stream of a connection that has arrived.
    pub(crate) fn accept_pending(&mut self, id: u64, stream: u32, connection: u64) -> Result<(), Failure> {
        let found = self.tasks.values_mut().find_map(|task| match &mut task.kind {
            TaskKind::Listener(listening) => listening.pending.remove(&connection),
            _ => None,
        });
        let (socket, _) = found.ok_or_else(|| {
            let message = format!("there is no connection {connection}: it was not accepted in time");
            Failure::new(FailureKind::NotFound, message)
        })?;
        self.add_stream(id, stream, &socket)
    }

    /// Closes connections that nobody has accepted in time, and accepts again after a failure.
    pub(crate) fn check_listeners(&mut self, now: Instant) {
        let mut again = Vec::new();
        for task in self.tasks.values_mut() {
            if let TaskKind::Listener(listening) = &mut task.kind {
                listening.expire(now);
                if listening.again_at.is_some_and(|at| at <= now) {
                    again.push(task.id);
                }
            }
        }
        for id in again {
            self.poll_listener(id);
        }
    }

    /// Closes a listening socket with its connections, and removes its path.
    pub(crate) fn stop_listening(&mut self, id: u64) {
        if let Some(TaskKind::Listener(listening)) = self.tasks.get(&id).map(|task| &task.kind) {
            for socket in &listening.sockets {
                let _ = epoll::delete(&self.epoll, socket.fd());
            }
            if let Some(path) = listening.path.clone() {
                self.remove_path(&path);
            }
        }
        self.forget(id);
    }

    /// Removes the path of a socket, in a fork that acts as the user who created it.
    fn remove_path(&mut self, path: &SocketPath) {
        match sys::fork() {
            Ok(sys::Fork::Child) => {
                sys::close_all_but(&[]);
                if worker::act_as(&self.config, path.user.as_deref()).is_ok() {
                    path.remove(&self.config);
                }
                sys::exit_now(0)
            }
            Ok(sys::Fork::Parent(pid)) => drop(self.removing.insert(pid)),
            Err(_) => {}
        }
    }

    /// Removes the paths of all sockets, at the end of the keeper.
    pub(crate) fn remove_all_paths(&mut self) {
        let listening = |task: &&Task| matches!(task.kind, TaskKind::Listener(_));
        let ids: Vec<u64> = self.tasks.values().filter(listening).map(|task| task.id).collect();
        for id in ids {
            self.stop_listening(id);
        }
        wait_for(&mut self.removing);
    }
}

/// Waits a moment until these children have ended.
#[expect(clippy::disallowed_methods, reason = "a backoff: there is no wait with a deadline for several children")]
fn wait_for(children: &mut HashSet<i32>) {
    let until = Instant::now() + REMOVAL;
    loop {
        children.retain(|pid| {
            let pid = rustix::process::Pid::from_raw(*pid);
            matches!(rustix::process::waitpid(pid, rustix::process::WaitOptions::NOHANG), Ok(None))
        });
        if children.is_empty() || Instant::now() > until {
            return;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::LOOPBACK;
    use std::io::Read;

    fn item(item: &ListenItem) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_item(item, &mut bytes);
        bytes
    }

    #[test]
    fn replies_must_be_datagrams() {
        let datagram = |length| item(&ListenItem::Datagram { peer: 1, bytes: vec![7; length].into() });
        let mut listening = Listening::default();
        for byte in datagram(caps::DATAGRAM) {
            listening.reply(&[byte]).unwrap();
        }
        assert!(listening.unread.is_empty());
        let connection = item(&ListenItem::Connection { connection: 1, destination: None, peer: None });
        for wrong in [datagram(caps::DATAGRAM + 1), connection, vec![0xff; 8], vec![0; 4]] {
            assert!(Listening::default().reply(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn replies_are_sent_to_peers_until_they_are_forgotten() {
        let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        far.set_nonblocking(true).unwrap();
        let mut listening = Listening { sockets: vec![Socket::Udp(near)], ..Listening::default() };
        let peer = listening.peer(0, far.local_addr().unwrap());
        assert_eq!(listening.peer(0, far.local_addr().unwrap()), peer);
        let answer = item(&ListenItem::Datagram { peer, bytes: b"answer".to_vec().into() });
        listening.reply(&answer).unwrap();
        assert_eq!(far.recv(&mut [0; 100]).unwrap(), 6);
        for port in 1..=caps::PEERS as u16 {
            listening.peer(0, SocketAddr::new(LOOPBACK[0], port));
        }
        assert_eq!(listening.peers.len(), caps::PEERS);
        listening.reply(&answer).unwrap();
        assert_eq!(far.recv(&mut [0; 100]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn connections_are_kept_for_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut listening = Listening { sockets: vec![Socket::Tcp(listener)], ..Listening::default() };
        assert!(matches!(listening.take(0, 5, true).unwrap(), Some(ListenItem::Connection { connection: 5, .. })));
        let due = listening.due().unwrap();
        listening.expire(due.checked_sub(Duration::from_millis(1)).unwrap());
        assert_eq!(listening.pending.len(), 1);
        listening.expire(due);
        assert!(listening.pending.is_empty() && listening.due().is_none());
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "it is closed");
    }
}
