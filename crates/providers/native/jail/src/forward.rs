//! Copies bytes between the host's network and a sandbox's. This is a separate process for each sandbox that needs it,
//! and lives as long as the sandbox.
//!
//! *In*: it listens on the host and connects inside. It runs in the sandbox's network namespace, so it cannot connect
//! to anything else. *Out*: it listens inside for DNS queries, and forwards them to the host's resolver. It knows only
//! its rules, runs as nobody, and can make few system calls.

use crate::{network, sys};
use kennel_keeper::StartError;
use kennel_keeper::sandbox_dir;
use minicbor::{Decode, Encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

/// The instructions for a forwarder.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Order {
    /// A process in the sandbox's network namespace.
    #[n(0)]
    pub(crate) pid: i32,
    #[n(1)]
    pub(crate) direction: Direction,
    #[n(2)]
    pub(crate) rules: Vec<Rule>,
}

/// The direction in which connections are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) enum Direction {
    /// From the host into the sandbox.
    #[n(0)]
    In,
    /// From the sandbox to the host.
    #[n(1)]
    Out,
}

/// Forwards from one address to another.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Rule {
    /// Whether the rule is for UDP instead of TCP.
    #[n(0)]
    pub(crate) udp: bool,
    #[n(1)]
    pub(crate) listen: String,
    /// The targets. A connection goes to the first that accepts it. Datagrams go to the first.
    #[n(2)]
    pub(crate) to: Vec<String>,
}

/// The number of connections at the same time. Further ones wait to be accepted.
const CONNECTIONS: usize = 256;
/// The number of remembered UDP senders. A new one replaces the one that was silent the longest.
const SENDERS: usize = 256;
/// How long a UDP sender is remembered.
const SILENT: Duration = Duration::from_mins(1);
/// Bytes in transit in one direction of a connection.
const BUFFER: usize = 32 * 1024;

/// The main function of this process. Never returns.
pub(crate) fn serve() -> ! {
    match set_up() {
        Ok((listeners, places)) => {
            let places: Vec<String> = places.iter().map(ToString::to_string).collect();
            sandbox_dir::write_all(rustix::stdio::stdin(), format!("ok {}", places.join(" ")).as_bytes());
            kennel_keeper::sys::forget_standard_streams();
            // From here on it has no privileges.
            if sys::load_filter(false).is_ok() {
                Exchange { listeners, connections: Vec::new() }.run();
            }
        }
        Err(why) => sandbox_dir::write_all(rustix::stdio::stdin(), format!("error {why}").as_bytes()),
    }
    kennel_keeper::sys::exit_now(125)
}

/// Listens in one network namespace, and stays in the one in which it connects.
fn set_up() -> Result<(Vec<Listener>, Vec<SocketAddr>), StartError> {
    let parent = rustix::process::getppid();
    let order: Order = minicbor::decode(&sandbox_dir::read_instructions()?)
        .map_err(|error| format!("read the forwarding rules: {error}"))?;
    kennel_keeper::sys::close_all_but(&[]);
    kennel_keeper::sys::ignore_signal(libc::SIGPIPE);
    let open =
        |of: &str| rustix::fs::open(format!("/proc/{of}/ns/net"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let failed = |error: Errno| format!("enter the sandbox's network namespace: {error}");
    let (host, inside) = (open("self").map_err(failed)?, open(&order.pid.to_string()).map_err(failed)?);
    if order.direction == Direction::Out {
        network::enter(&inside).map_err(failed)?;
        // The sandbox itself may not have done this yet.
        sys::loopback_up().map_err(failed)?;
    }
    let mut listeners = Vec::new();
    for rule in &order.rules {
        listeners.push(Listener::open(rule)?);
    }
    network::enter(if order.direction == Direction::In { &inside } else { &host }).map_err(failed)?;
    drop((host, inside));
    give_up_rights().map_err(|error| format!("drop privileges: {error}"))?;
    if rustix::process::getppid() != parent {
        return Err("the parent process has ended".into());
    }
    let places = listeners.iter().map(Listener::place).collect::<Result<Vec<_>, _>>();
    Ok((listeners, places.map_err(|error| format!("read the listening addresses: {error}"))?))
}

#[expect(clippy::disallowed_methods, reason = "this process is separate, and must not keep a directory in use")]
fn give_up_rights() -> Result<(), Errno> {
    const NOBODY: u32 = 65_534;
    rustix::process::chdir("/")?;
    kennel_keeper::sys::limit_bounding_set(0)?;
    kennel_keeper::sys::become_user(NOBODY, NOBODY, &[])?;
    kennel_keeper::sys::no_new_privileges()?;
    kennel_keeper::sys::not_dumpable()?;
    // Switching the user has reset this.
    sys::die_with_parent();
    Ok(())
}

/// An address that accepts connections or datagrams.
enum Listener {
    Stream(TcpListener, Vec<SocketAddr>),
    Datagram(Datagrams),
}

/// A UDP socket, and the senders of its datagrams.
struct Datagrams {
    socket: UdpSocket,
    to: SocketAddr,
    senders: HashMap<SocketAddr, Sender>,
}

/// A sender, with a socket for the replies to it.
struct Sender {
    socket: UdpSocket,
    last: Instant,
}

impl Listener {
    fn open(rule: &Rule) -> Result<Self, StartError> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AddrInUse => format!("publish a port at {}: the port is in use", rule.listen),
            _ => format!("listen at {}: {error}", rule.listen),
        };
        let read = |text: &String| {
            text.parse().map_err(|_| format!("invalid address {text}: expected an IP address and a port"))
        };
        let listen: SocketAddr = read(&rule.listen)?;
        let to = rule.to.iter().map(read).collect::<Result<Vec<SocketAddr>, _>>()?;
        if rule.udp {
            let socket = UdpSocket::bind(listen).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            let to = *to.first().ok_or_else(|| format!("forward {}: the rule has no target", rule.listen))?;
            return Ok(Self::Datagram(Datagrams { socket, to, senders: HashMap::new() }));
        }
        let socket = TcpListener::bind(listen).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self::Stream(socket, to))
    }

    fn place(&self) -> std::io::Result<SocketAddr> {
        match self {
            Self::Stream(socket, _) => socket.local_addr(),
            Self::Datagram(datagrams) => datagrams.socket.local_addr(),
        }
    }
}

/// The state of the forwarder.
struct Exchange {
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
}

impl Exchange {
    /// Copies bytes until the process is killed.
    fn run(mut self) {
        loop {
            let Ok(ready) = self.wait() else { return };
            self.connections.retain_mut(|connection| !connection.is_ready(&ready) || connection.go_on());
            let room = CONNECTIONS.saturating_sub(self.connections.len());
            for listener in &mut self.listeners {
                match listener {
                    Listener::Stream(socket, to) if ready.contains(&socket.as_raw_fd()) && room > 0 => {
                        // Accept one at a time. The others are still there in the next round.
                        if let Ok((client, _)) = socket.accept()
                            && let Some(connection) = Connection::begin(client.into(), to)
                        {
                            self.connections.push(connection);
                        }
                    }
                    Listener::Datagram(datagrams) => datagrams.go_on(&ready),
                    Listener::Stream(..) => {}
                }
            }
        }
    }

    /// Waits until something is ready, and returns the ready descriptors.
    fn wait(&self) -> Result<Vec<i32>, Errno> {
        let mut polled = Vec::new();
        let mut wakes = false;
        for listener in &self.listeners {
            match listener {
                Listener::Stream(socket, _) if self.connections.len() < CONNECTIONS => {
                    polled.push(PollFd::new(socket, PollFlags::IN));
                }
                Listener::Stream(..) => {}
                Listener::Datagram(datagrams) => {
                    wakes |= !datagrams.senders.is_empty();
                    polled.push(PollFd::new(&datagrams.socket, PollFlags::IN));
                    polled.extend(datagrams.senders.values().map(|sender| PollFd::new(&sender.socket, PollFlags::IN)));
                }
            }
        }
        for connection in &self.connections {
            polled.extend(connection.interests());
        }
        let timeout = Timespec { tv_sec: SILENT.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut polled, wakes.then_some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let ready = polled.iter().filter(|polled| !polled.revents().is_empty());
        Ok(ready.map(|polled| polled.as_fd().as_raw_fd()).collect())
    }
}

/// Two ends of a connection, and the bytes between them.
struct Connection {
    ends: [OwnedFd; 2],
    /// From the first end to the second, and back.
    flows: [Flow; 2],
    /// Set until the second end is connected: the addresses to try next.
    trying: Option<Vec<SocketAddr>>,
}

/// The bytes on their way from one end to the other.
#[derive(Default)]
struct Flow {
    bytes: Vec<u8>,
    /// Whether there is no more data.
    ended: bool,
    /// Whether the other end was told that there is no more data.
    told: bool,
}

impl Connection {
    fn begin(client: OwnedFd, to: &[SocketAddr]) -> Option<Self> {
        rustix::io::ioctl_fionbio(&client, true).ok()?;
        let _ = sockopt::set_tcp_nodelay(&client, true);
        let mut next = to.to_vec();
        let second = connect(&mut next)?;
        Some(Self { ends: [client, second], flows: Default::default(), trying: Some(next) })
    }

    /// The events to wait for: only those that can be handled now.
    fn interests(&self) -> Vec<PollFd<'_>> {
        let mut interests = Vec::new();
        for (at, end) in self.ends.iter().enumerate() {
            let mut flags = PollFlags::empty();
            if self.trying.is_some() {
                if at == 1 {
                    flags |= PollFlags::OUT;
                }
            } else {
                if self.flows[at].bytes.is_empty() && !self.flows[at].ended {
                    flags |= PollFlags::IN;
                }
                if !self.flows[1 - at].bytes.is_empty() {
                    flags |= PollFlags::OUT;
                }
            }
            // A descriptor without flags would still wake the loop again and again when the other side is gone.
            if !flags.is_empty() {
                interests.push(PollFd::new(end, flags));
            }
        }
        interests
    }

    fn is_ready(&self, ready: &[i32]) -> bool {
        self.ends.iter().any(|end| ready.contains(&end.as_raw_fd()))
    }

    /// Does what is possible now, and returns whether the connection continues.
    fn go_on(&mut self) -> bool {
        if let Some(next) = &mut self.trying {
            if !matches!(sockopt::socket_error(&self.ends[1]), Ok(Ok(()))) {
                let Some(other) = connect(next) else { return false };
                self.ends[1] = other;
                return true;
            }
            self.trying = None;
        }
        let passed = [0, 1].into_iter().all(|at| self.pass_on(at).is_ok());
        passed && !self.flows.iter().all(|flow| flow.told)
    }

    fn pass_on(&mut self, at: usize) -> Result<(), Errno> {
        let (from, to) = (&self.ends[at], &self.ends[1 - at]);
        let flow = &mut self.flows[at];
        if flow.bytes.is_empty() && !flow.ended {
            let mut bytes = vec![0; BUFFER];
            match rustix::io::read(from, &mut bytes[..]) {
                Ok(0) => flow.ended = true,
                Ok(count) => {
                    bytes.truncate(count);
                    flow.bytes = bytes;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if !flow.bytes.is_empty() {
            match rustix::io::write(to, &flow.bytes) {
                Ok(count) => drop(flow.bytes.drain(..count)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            if flow.bytes.is_empty() {
                flow.bytes = Vec::new(); // A connection that waits for long holds no memory.
            }
        }
        if flow.bytes.is_empty() && flow.ended && !flow.told {
            flow.told = true;
            let _ = rustix::net::shutdown(to, Shutdown::Write);
        }
        Ok(())
    }
}

/// Starts to connect to the first address that can be tried, and leaves the others in the list.
fn connect(places: &mut Vec<SocketAddr>) -> Option<OwnedFd> {
    while !places.is_empty() {
        let place = places.remove(0);
        let family = if place.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).ok()?;
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        match rustix::net::connect(&socket, &place) {
            Ok(()) | Err(Errno::INPROGRESS) => return Some(socket),
            Err(_) => {}
        }
    }
    None
}

impl Datagrams {
    fn go_on(&mut self, ready: &[i32]) {
        let mut buffer = vec![0; 65_536];
        self.senders.retain(|from, sender| {
            if ready.contains(&sender.socket.as_raw_fd()) {
                // An error refers to an earlier datagram that was not accepted. A lost datagram is normal.
                while let Ok(count) = sender.socket.recv(&mut buffer) {
                    let _ = self.socket.send_to(&buffer[..count], from);
                    sender.last = Instant::now();
                }
            }
            sender.last.elapsed() < SILENT
        });
        if !ready.contains(&self.socket.as_raw_fd()) {
            return;
        }
        // Only a few at a time, so that others get their turn.
        for _ in 0..32 {
            let Ok((count, from)) = self.socket.recv_from(&mut buffer) else { return };
            if let Some(sender) = self.sender(from) {
                let _ = sender.socket.send(&buffer[..count]);
                sender.last = Instant::now();
            }
        }
    }

    fn sender(&mut self, from: SocketAddr) -> Option<&mut Sender> {
        if !self.senders.contains_key(&from) {
            if self.senders.len() >= SENDERS {
                let oldest = *self.senders.iter().min_by_key(|(_, sender)| sender.last)?.0;
                self.senders.remove(&oldest);
            }
            let any: SocketAddr = if self.to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = UdpSocket::bind(any).ok()?;
            socket.connect(self.to).ok()?;
            socket.set_nonblocking(true).ok()?;
            self.senders.insert(from, Sender { socket, last: Instant::now() });
        }
        self.senders.get_mut(&from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn exchange(udp: bool, to: &[SocketAddr]) -> SocketAddr {
        let to = to.iter().map(ToString::to_string).collect();
        let listener = Listener::open(&Rule { udp, listen: "127.0.0.1:0".into(), to }).unwrap();
        let place = listener.place().unwrap();
        std::thread::spawn(|| Exchange { listeners: vec![listener], connections: Vec::new() }.run());
        place
    }

    #[test]
    fn bytes_and_ends_are_passed_on_in_both_directions() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        // Nobody listens at the first address, so it refuses connections.
        let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let place = exchange(false, &[refusing, server.local_addr().unwrap()]);
        let echo = std::thread::spawn(move || {
            let (mut peer, _) = server.accept().unwrap();
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            peer.write_all(&all).unwrap();
        });
        let sent: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
        let mut client = TcpStream::connect(place).unwrap();
        client.write_all(&sent).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap();
        assert!(back == sent, "{} of {} bytes", back.len(), sent.len());
        echo.join().unwrap();
    }

    #[test]
    fn a_connection_to_a_closed_port_is_closed() {
        let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut client = TcpStream::connect(exchange(false, &[refusing])).unwrap();
        assert!(!matches!(client.read(&mut [0]), Ok(1..)));
    }

    #[test]
    fn connections_above_the_limit_wait() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = exchange(false, &[server.local_addr().unwrap()]);
        std::thread::spawn(move || {
            for peer in server.incoming() {
                std::thread::spawn(move || {
                    let mut peer = peer.unwrap();
                    let mut byte = [0];
                    while peer.read(&mut byte).unwrap_or(0) > 0 {
                        peer.write_all(&byte).unwrap();
                    }
                });
            }
        });
        let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| TcpStream::connect(place).unwrap()).collect();
        let mut byte = [0];
        for client in &mut clients {
            client.write_all(b"x").unwrap();
            client.read_exact(&mut byte).unwrap();
        }
        let mut late = TcpStream::connect(place).unwrap();
        late.write_all(b"y").unwrap();
        drop(clients);
        late.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"y");
    }

    #[test]
    fn datagram_replies_return_to_their_sender() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let place = exchange(true, &[server.local_addr().unwrap()]);
        let clients = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut buffer = [0; 100];
        for (number, client) in clients.iter().enumerate() {
            client.send_to(&[number as u8], place).unwrap();
            let (count, from) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..count], from).unwrap();
        }
        for (number, client) in clients.iter().enumerate() {
            assert_eq!(client.recv(&mut buffer).unwrap(), 1);
            assert_eq!(buffer[0], number as u8);
        }
    }
}
