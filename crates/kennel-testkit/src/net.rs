//! A private network for one test: a simulated host without any interface of this machine, and a simulated internet.
//!
//! The thread that creates it moves into its network namespace, with everything that it starts later. The network is
//! gone when they end.

use crate::within_blocking;
use rustix::fd::AsFd;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The private network of this thread.
pub struct Net {
    /// A process in the network namespace of the simulated internet.
    internet: Option<Child>,
    /// The interface to a simulated internet on this machine's own network, with the lock for it. There is one at a
    /// time.
    added: Option<(File, String)>,
}

impl Net {
    /// The host's address towards the internet.
    pub const HOST: &str = "203.0.113.1";
    /// The address of the nearest machine on the internet.
    pub const NEAR: &str = "203.0.113.2";
    /// The address of a machine on the internet behind [`Self::NEAR`].
    pub const FAR: &str = "198.51.100.9";
    /// The host's address in a second network, which does not lead to the internet.
    pub const HOST_SECOND: &str = "192.0.2.1";
    /// The address of another machine in the second network.
    pub const SECOND: &str = "192.0.2.2";

    /// Moves this thread into a new network namespace that has only loopback.
    pub fn alone() -> Self {
        move_out(UnshareFlags::NEWNET);
        ip(&["link", "set", "lo", "up"]);
        Self { internet: None, added: None }
    }

    /// Moves this thread into a new network namespace that is connected to a simulated internet and to a second
    /// network.
    pub fn with_internet() -> Self {
        let mut net = Self::alone();
        net.connect_internet("up0");
        net.connect("lan0", "lan", Self::HOST_SECOND, Self::SECOND);
        // The address of a cloud's metadata service.
        net.add_address("169.254.169.254");
        net
    }

    /// Connects a simulated internet to this thread's current network namespace, at an interface of this name.
    pub fn in_current_namespace(interface: &str) -> Self {
        let mut net = Self { internet: None, added: Some((crate::docker::lock("net"), interface.to_owned())) };
        net.connect_internet(interface);
        net
    }

    fn connect_internet(&mut self, interface: &str) {
        // The process ends when its standard input is closed, because an ordinary user could not kill it.
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().expect("start a process in another network");
        let pid = child.id();
        self.internet = Some(child);
        let network = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).ok();
        let moved = || network(&pid.to_string()) != network("thread-self");
        assert!(within_blocking(Duration::from_mins(1), moved), "a process moves into a network of its own");
        self.connect(interface, "wan", Self::HOST, Self::NEAR);
        ip(&["route", "add", "198.51.100.0/24", "via", Self::NEAR, "dev", interface]);
        self.there(|| {
            ip(&["link", "set", "lo", "up"]);
            ip(&["address", "add", &format!("{}/32", Self::FAR), "dev", "lo"]);
        });
    }

    /// Connects the host to the simulated internet by a pair of interfaces with one address each.
    fn connect(&self, interface: &str, peer: &str, here: &str, there: &str) {
        let pid = self.internet.as_ref().expect("there is an internet").id().to_string();
        ip(&["link", "add", interface, "type", "veth", "peer", "name", peer, "netns", &pid]);
        ip(&["address", "add", &format!("{here}/24"), "dev", interface]);
        ip(&["link", "set", interface, "up"]);
        self.there(|| {
            ip(&["address", "add", &format!("{there}/24"), "dev", peer]);
            ip(&["link", "set", peer, "up"]);
        });
    }

    /// Runs `work` in the simulated internet. Sockets that it creates stay there.
    pub fn there<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let pid = self.internet.as_ref().expect("there is an internet").id();
        let network = File::open(format!("/proc/{pid}/ns/net")).expect("open the internet's network");
        let move_and_work = || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("move to the internet");
            work()
        };
        std::thread::scope(|scope| scope.spawn(move_and_work).join().expect("work on the internet"))
    }

    /// Adds an address to the simulated internet, and a route to it on the host.
    pub fn add_address(&self, address: &str) {
        ip(&["route", "replace", &format!("{address}/32"), "via", Self::NEAR]);
        self.there(|| ip(&["address", "replace", &format!("{address}/32"), "dev", "lo"]));
    }

    /// Creates a private network with an internet for tests that switch to an ordinary user. It has a `tun` device that
    /// the user can open. The machine's own device is not changed.
    pub fn for_users() -> Self {
        let net = Self::with_internet();
        ip(&["route", "add", "default", "via", Self::NEAR]);
        move_out(UnshareFlags::NEWNS);
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("make mounts private");
        program("mount", &["-t", "tmpfs", "none", "/dev/net"]);
        program("mknod", &["-m", "666", "/dev/net/tun", "c", "10", "200"]);
        net
    }

    /// Replaces a file by another, for this thread and everything that it starts.
    pub fn replace_file(&self, path: &Path, by: &Path) {
        move_out(UnshareFlags::NEWNS);
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("make mounts private");
        mount_bind(by, path).expect("put one file in place of another");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Some(child) = &mut self.internet {
            drop(child.stdin.take());
            let _ = child.wait();
        }
        if let Some((_, interface)) = &self.added {
            // It is removed with the internet, but the next one must not wait for that.
            let _ = Command::new("ip").args(["link", "delete", interface]).stderr(Stdio::null()).status();
        }
    }
}

fn move_out(of: UnshareFlags) {
    #[allow(deprecated)] // its successor is `unsafe`, because it can unshare descriptors
    rustix::thread::unshare(of).expect("a namespace of its own, which needs root");
}

/// Runs `ip`, which must succeed.
#[track_caller]
pub fn ip(words: &[&str]) {
    program("ip", words);
}

/// Runs a program, which must succeed, and returns its output.
#[track_caller]
pub fn program(name: &str, words: &[&str]) -> String {
    let output = Command::new(name).args(words).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("run {name}: {error}"));
    assert!(output.status.success(), "{name} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the addresses of this thread's network namespace, except loopback and link-local ones.
pub fn host_addresses() -> Vec<IpAddr> {
    let table = program("ip", &["-oneline", "address", "show"]);
    let words = table.lines().filter_map(|line| line.split_whitespace().nth(3));
    let addresses = words.filter_map(|word| word.split('/').next()?.parse().ok());
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    addresses.filter(usable).collect()
}

/// Replies to all TCP connections and UDP datagrams at this address of this thread's network namespace. Returns the
/// address: the given port may be 0.
pub fn answer_at(place: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(place).unwrap_or_else(|error| panic!("listen at {place}: {error}"));
    let place = listener.local_addr().expect("where it listens");
    let datagrams = UdpSocket::bind(place).unwrap_or_else(|error| panic!("take datagrams at {place}: {error}"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((count, from)) = datagrams.recv_from(&mut buffer) {
            let _ = datagrams.send_to(&buffer[..count], from);
        }
    });
    place
}

/// Whether this address replies to TCP connections and UDP datagrams from this thread's network namespace.
pub fn answers(place: SocketAddr) -> bool {
    const PATIENCE: Duration = Duration::from_mins(1);
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&place, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"hello")?;
        stream.read_exact(&mut [0; 5])?;
        let any = if place.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let datagrams = UdpSocket::bind(any)?;
        datagrams.set_read_timeout(Some(PATIENCE))?;
        datagrams.connect(place)?;
        datagrams.send(b"hello")?;
        datagrams.recv(&mut [0; 5]).map(drop)
    };
    let asked: std::io::Result<()> = ask();
    asked.is_ok()
}

/// Returns the interfaces of sandboxes in this thread's network namespace.
pub fn sandbox_interfaces() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").expect("read the interfaces");
    let names = table.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned());
    names.filter(|name| name.starts_with("kennel")).collect()
}
