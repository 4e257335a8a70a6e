//! Joins a sandbox's own network to the host's.
//!
//! A pair of interfaces of the sandbox's own, with nobody else on it: what leaves one end arrives at the other. The host's
//! end has no address; where each of the two is, is said once and for all. What may pass is for the host's firewall to
//! say, which the provider has seen to. All of it goes with the sandbox's network namespace.

use crate::forward::{Direction, Order, Rule};
use crate::guard::Guard;
use crate::netlink::{Mac, Netlink};
use crate::pasta::Pasta;
use crate::sys;
use kennel_jail::{FORWARD, Ids, Link, NAMES, PORTS, PREFIX, Publish};
use kennel_keeper::place;
use kennel_netlink::FirewallSocket;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::CString;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};

/// How many addresses are tried before there is none.
const TRIES: u16 = 10_000;

/// A process that a sandbox's network needs outside. It ends with this, and with the jail.
#[allow(dead_code)] // held for as long as the sandbox runs, and that is all
pub(crate) enum Helper {
    Forwarder(Forwarder),
    Pasta(Pasta),
}

/// What a sandbox's network needs for as long as the sandbox lives.
#[derive(Default)]
pub(crate) struct Joined {
    pub(crate) helpers: Vec<Helper>,
    /// Keeps it away from the host, where the host's own firewall does not.
    pub(crate) guard: Option<Guard>,
}

/// Gives the sandbox whose first process is `pid` its way out. The working directory is the sandbox's. `firewall` is a
/// socket for the sandbox's own firewall, where the sandbox is an ordinary user's.
pub(crate) fn join(link: &Link, pid: i32, ids: &Ids, firewall: Option<FirewallSocket>) -> Result<Joined, String> {
    if let Some(program) = &link.pasta {
        let ports = choose(&link.ports)?;
        let pasta = Pasta::start(program, pid, &ports, !link.names.is_empty())?;
        // Meanwhile: it takes a while to come up.
        let firewall = firewall.ok_or("network bridge: no socket for the sandbox's firewall")?;
        let guard = Guard::put_up(firewall, &link.resolvers)?;
        pasta.wait(program, pid)?;
        let places: Vec<SocketAddr> = ports.iter().map(|port| (Ipv4Addr::LOCALHOST, port.host).into()).collect();
        write_down(&ports, &places)?;
        return Ok(Joined { helpers: vec![Helper::Pasta(pasta)], guard: Some(guard) });
    }
    let own = namespace("self").map_err(|error| format!("open the host's network: {error}"))?;
    let inside = namespace(&pid.to_string()).map_err(|error| format!("open the sandbox's network: {error}"))?;
    let address = wire(link, &own, &inside, ids).map_err(|(what, error)| format!("network: {what}: {error}"))?;
    let mut helpers = Vec::new();
    if !link.ports.is_empty() {
        helpers.push(Helper::Forwarder(publish(link, address, pid)?));
    }
    if !link.names.is_empty() {
        helpers.push(Helper::Forwarder(answer_names(link, pid)?));
    }
    Ok(Joined { helpers, guard: None })
}

fn namespace(of: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::open(format!("/proc/{of}/ns/net"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Makes the pair and tells each side of the other. Answers the sandbox's address.
fn wire(link: &Link, own: &OwnedFd, inside: &OwnedFd, ids: &Ids) -> Result<Ipv4Addr, (&'static str, Errno)> {
    const NAME: &str = "eth0";
    let step = |what: &'static str| move |error: Errno| (what, error);
    let here = Netlink::open().map_err(step("talk to the kernel"))?;
    let open = || {
        let _ = let_ping(ids); // a kernel that cannot is one where nobody inside can
        Netlink::open()
    };
    let there = in_namespace(own, inside, open).map_err(step("talk to the kernel about the sandbox"))?;
    let (number, name) = take_number(link, &here, inside).map_err(step("make a pair of interfaces"))?;
    let range = u32::from(Ipv4Addr::from(link.range));
    let (gateway, address) = (Ipv4Addr::from(range + 1), Ipv4Addr::from(range + u32::from(number)));

    let index = here.index(&name).map_err(step("find the host's interface"))?;
    here.turn_on(index).map_err(step("turn on the host's interface"))?;
    here.add_route(index, address).map_err(step("add the route to the sandbox"))?;
    here.add_neighbour(index, address, mac(number, Side::Inside)).map_err(step("say where the sandbox is"))?;

    let index = there.index(NAME).map_err(step("find the sandbox's interface"))?;
    there.add_address(index, address).map_err(step("give the sandbox its address"))?;
    there.turn_on(index).map_err(step("turn on the sandbox's interface"))?;
    there.add_way_out(index, gateway).map_err(step("add the sandbox's route"))?;
    there.add_neighbour(index, gateway, mac(number, Side::Host)).map_err(step("say where the host is"))?;
    return Ok(address);

    /// Two cannot have a name, and so not an address either.
    fn take_number(link: &Link, here: &Netlink, inside: &OwnedFd) -> Result<(u16, String), Errno> {
        let mut number = link.first;
        for _ in 0..TRIES {
            // Not the range's first, its way out, and its last.
            number = if (2..u16::MAX - 1).contains(&number) { number + 1 } else { 2 };
            let name = format!("{PREFIX}{number}");
            let (ours, theirs) = ((&*name, mac(number, Side::Host)), (NAME, mac(number, Side::Inside)));
            match here.add_pair(ours, theirs, inside) {
                Err(Errno::EXIST) => {}
                made => return made.map(|()| (number, name)),
            }
        }
        Err(Errno::ADDRNOTAVAIL)
    }
}

#[derive(Clone, Copy)]
enum Side {
    Host,
    Inside,
}

/// One of those that are nobody's.
fn mac(number: u16, side: Side) -> Mac {
    let [high, low] = number.to_be_bytes();
    [0x0a, 0x6b, 0x65, side as u8, high, low]
}

/// Lets the users inside ask whether an address answers: that needs no capability, but leave.
fn let_ping(ids: &Ids) -> std::io::Result<()> {
    let Some(groups) = ids.groups.first() else { return Ok(()) };
    let last = groups.outside.saturating_add(groups.count.saturating_sub(1));
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{} {last}", groups.outside))
}

/// Does something in another network namespace, and comes back. This process has one thread.
fn in_namespace<T>(own: &OwnedFd, other: &OwnedFd, what: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    enter(other)?;
    let done = what();
    enter(own)?;
    done
}

/// Moves this process into a network namespace.
pub(crate) fn enter(namespace: &OwnedFd) -> Result<(), Errno> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

/// Makes the ports reachable outside, and writes down where.
fn publish(link: &Link, address: Ipv4Addr, pid: i32) -> Result<Forwarder, String> {
    let rule = |port: &kennel_jail::Publish| Rule {
        udp: port.udp,
        listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port.host).to_string(),
        // What listens everywhere listens at the first; what is meant for this machine alone, at the second.
        to: [address, Ipv4Addr::LOCALHOST].map(|address| SocketAddrV4::new(address, port.inside).to_string()).into(),
    };
    let order = Order { pid, direction: Direction::In, rules: link.ports.iter().map(rule).collect() };
    let (forwarder, places) = Forwarder::start(&order)?;
    write_down(&link.ports, &places)?;
    Ok(forwarder)
}

/// Writes down where ports can be reached.
fn write_down(ports: &[Publish], places: &[SocketAddr]) -> Result<(), String> {
    if ports.is_empty() {
        return Ok(());
    }
    let lines = ports.iter().zip(places).map(|(port, place)| {
        let protocol = if port.udp { "udp" } else { "tcp" };
        format!("{place}->{}/{protocol}\n", port.inside)
    });
    std::fs::write(PORTS, lines.collect::<String>()).map_err(|error| format!("write {PORTS}: {error}"))
}

/// Gives a number to those that have none: one that is free now. Someone may be faster; then the start fails.
fn choose(ports: &[Publish]) -> Result<Vec<Publish>, String> {
    let mut held = Vec::new();
    let mut free = |port: &Publish| {
        let place = (Ipv4Addr::LOCALHOST, port.host);
        let socket: OwnedFd = if port.udp { UdpSocket::bind(place)?.into() } else { TcpListener::bind(place)?.into() };
        let place = rustix::net::getsockname(&socket)?;
        held.push(socket);
        let place = SocketAddrV4::try_from(place)?;
        Ok::<_, std::io::Error>(Publish { host: place.port(), ..*port })
    };
    ports.iter().map(|port| free(port).map_err(|error| format!("publish port {}: {error}", port.inside))).collect()
}

/// Lets names be asked for inside whose answers only the host gets.
fn answer_names(link: &Link, pid: i32) -> Result<Forwarder, String> {
    let mut rules = Vec::new();
    for (at, server) in link.names.iter().enumerate() {
        let [a, b, c, d] = NAMES;
        let listen = SocketAddrV4::new(Ipv4Addr::new(a, b, c, d + at as u8), 53).to_string();
        let rule = |udp| Rule { udp, listen: listen.clone(), to: vec![server.clone()] };
        rules.extend([rule(true), rule(false)]);
    }
    let (forwarder, _) = Forwarder::start(&Order { pid, direction: Direction::Out, rules })?;
    Ok(forwarder)
}

/// A process that passes bytes between the two networks. It ends with this, and with its parent.
pub(crate) struct Forwarder(i32);

impl Forwarder {
    /// Starts one and waits until it listens; answers where. A program of its own, in whose memory nothing of the plan is.
    fn start(order: &Order) -> Result<(Self, Vec<SocketAddr>), String> {
        let failed = |error: &dyn std::fmt::Display| format!("start what passes bytes on: {error}");
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|error| failed(&error))?;
        let program = CString::from(c"/proc/self/exe");
        let arguments = [CString::from(c"kennel-jail"), CString::new(FORWARD).expect("no zero is in it")];
        let child = kennel_keeper::sys::fork_until_exec(|| {
            sys::die_with_parent();
            if kennel_keeper::sys::put_at(&theirs, 0).is_ok() {
                kennel_keeper::sys::execve(&program, &arguments, &[]);
            }
            kennel_keeper::sys::exit_now(127)
        });
        let forwarder = Self(child.map_err(|error| failed(&error))?);
        drop(theirs);
        let told = minicbor::to_vec(order).map_err(|error| failed(&error))?;
        place::write_all(&ours, &(told.len() as u32).to_le_bytes());
        place::write_all(&ours, &told);
        let _ = rustix::net::shutdown(&ours, Shutdown::Write);
        let mut answer = String::new();
        let read = std::fs::File::from(ours).take(64 * 1024).read_to_string(&mut answer);
        read.map_err(|error| failed(&error))?;
        let Some(places) = answer.strip_prefix("ok ") else {
            return Err(match answer.strip_prefix("error ") {
                Some(why) => why.to_owned(),
                None => failed(&"it ended without a word"),
            });
        };
        let places = places.split_whitespace().map(str::parse).collect::<Result<Vec<SocketAddr>, _>>();
        Ok((forwarder, places.map_err(|error| failed(&error))?))
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        kennel_keeper::sys::kill(self.0, libc::SIGKILL);
        let _ = rustix::process::waitpid(Pid::from_raw(self.0), WaitOptions::empty());
    }
}
