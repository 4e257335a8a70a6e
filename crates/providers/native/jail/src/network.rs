//! Connects a sandbox's network namespace to the host.
//!
//! The sandbox gets a pair of interfaces that it shares with nobody: packets that enter one end leave the other. The
//! host's end has no address, and both ends have static entries for each other. The host's firewall, which the provider
//! has set up, decides what may pass. Everything is removed with the sandbox's network namespace.

use crate::forward::{Direction, Order, Rule};
use crate::guard::Guard;
use crate::netlink::{Mac, Netlink};
use crate::pasta::Pasta;
use crate::sys;
use crate::{FORWARD, Ids, Link, NAMES, PORTS, PREFIX, Publish};
use kennel_keeper::StartError;
use kennel_keeper::sandbox_dir;
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

/// How many addresses are tried before giving up.
const TRIES: u16 = 10_000;

/// A process outside that a sandbox's network needs. It ends when this is dropped, and with the jail.
#[allow(dead_code)] // never read: it is held as long as the sandbox runs
pub(crate) enum Helper {
    Forwarder(Forwarder),
    Pasta(Pasta),
}

/// What a sandbox's network needs as long as the sandbox lives.
#[derive(Default)]
pub(crate) struct Joined {
    pub(crate) helpers: Vec<Helper>,
    /// Blocks the host, if the host's own firewall does not.
    pub(crate) guard: Option<Guard>,
}

/// A `pasta` process that was started early, and the ports that it publishes.
pub(crate) struct Started {
    pasta: Pasta,
    ports: Vec<Publish>,
}

/// Starts `pasta` for the sandbox whose first process is `pid`, if an ordinary user creates the sandbox. It takes longer
/// to start than everything else, and does not need the sandbox's ids. Call [`join`] afterwards.
pub(crate) fn start(link: &Link, pid: i32) -> Result<Option<Started>, StartError> {
    let Some(program) = &link.pasta else { return Ok(None) };
    let ports = choose(&link.ports)?;
    let pasta = Pasta::start(program, pid, &ports, !link.names.is_empty())?;
    Ok(Some(Started { pasta, ports }))
}

/// Connects the sandbox whose first process is `pid` to the outside. The working directory must be the sandbox's.
/// `firewall` is a socket for the sandbox's own firewall, for the sandbox of an ordinary user.
pub(crate) fn join(
    link: &Link,
    started: Option<Started>,
    pid: i32,
    ids: &Ids,
    firewall: Option<FirewallSocket>,
) -> Result<Joined, StartError> {
    if let (Some(program), Some(Started { pasta, ports })) = (&link.pasta, started) {
        // Load the rules while `pasta` starts.
        let firewall =
            firewall.ok_or("network bridge: the process inside sent no socket for the sandbox's firewall")?;
        let guard = Guard::put_up(firewall, &link.resolvers)?;
        pasta.wait(program, pid)?;
        let places: Vec<SocketAddr> = ports.iter().map(|port| (Ipv4Addr::LOCALHOST, port.host).into()).collect();
        write_down(&ports, &places)?;
        return Ok(Joined { helpers: vec![Helper::Pasta(pasta)], guard: Some(guard) });
    }
    let own = namespace("self").map_err(|error| format!("open the host's network namespace: {error}"))?;
    let inside =
        namespace(&pid.to_string()).map_err(|error| format!("open the sandbox's network namespace: {error}"))?;
    let address = wire(link, &own, &inside, ids).map_err(|(what, error)| format!("network bridge: {what}: {error}"))?;
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

/// Creates the interfaces and configures both ends. Returns the sandbox's address.
fn wire(link: &Link, own: &OwnedFd, inside: &OwnedFd, ids: &Ids) -> Result<Ipv4Addr, (&'static str, Errno)> {
    const NAME: &str = "eth0";
    let step = |what: &'static str| move |error: Errno| (what, error);
    let here = Netlink::open().map_err(step("open a netlink socket"))?;
    let open = || {
        let _ = let_ping(ids); // If this fails, `ping` does not work inside.
        Netlink::open()
    };
    let there =
        in_namespace(own, inside, open).map_err(step("open a netlink socket in the sandbox's network namespace"))?;
    let (number, name) = take_number(link, &here, inside).map_err(step("create a pair of interfaces"))?;
    let range = u32::from(Ipv4Addr::from(link.range));
    let (gateway, address) = (Ipv4Addr::from(range + 1), Ipv4Addr::from(range + u32::from(number)));

    let index = here.index(&name).map_err(step("find the host's interface"))?;
    here.turn_on(index).map_err(step("turn on the host's interface"))?;
    here.add_route(index, address).map_err(step("add the route to the sandbox"))?;
    here.add_neighbour(index, address, mac(number, Side::Inside))
        .map_err(step("add a neighbour entry for the sandbox"))?;

    let index = there.index(NAME).map_err(step("find the sandbox's interface"))?;
    there.add_address(index, address).map_err(step("give the sandbox its address"))?;
    there.turn_on(index).map_err(step("turn on the sandbox's interface"))?;
    there.add_way_out(index, gateway).map_err(step("add the sandbox's default route"))?;
    there.add_neighbour(index, gateway, mac(number, Side::Host)).map_err(step("add a neighbour entry for the host"))?;
    return Ok(address);

    /// Takes a free number. An interface name can exist only once, and so can its address.
    fn take_number(link: &Link, here: &Netlink, inside: &OwnedFd) -> Result<(u16, String), Errno> {
        let mut number = link.first;
        for _ in 0..TRIES {
            // Skip the range's first address, the gateway, and the last address.
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

/// A locally administered MAC address.
fn mac(number: u16, side: Side) -> Mac {
    let [high, low] = number.to_be_bytes();
    [0x0a, 0x6b, 0x65, side as u8, high, low]
}

/// Allows `ping` for the users inside. It needs no capability, but this setting.
fn let_ping(ids: &Ids) -> std::io::Result<()> {
    let Some(groups) = ids.groups.first() else { return Ok(()) };
    let last = groups.outside.saturating_add(groups.count.saturating_sub(1));
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{} {last}", groups.outside))
}

/// Runs a function in another network namespace, and returns. This process has one thread.
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

/// Publishes the ports, and writes their addresses to a file.
fn publish(link: &Link, address: Ipv4Addr, pid: i32) -> Result<Forwarder, StartError> {
    let rule = |port: &crate::Publish| Rule {
        udp: port.udp,
        listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port.host).to_string(),
        // A server that listens on all addresses accepts on the first, and one that listens on loopback accepts on the
        // second.
        to: [address, Ipv4Addr::LOCALHOST].map(|address| SocketAddrV4::new(address, port.inside).to_string()).into(),
    };
    let order = Order { pid, direction: Direction::In, rules: link.ports.iter().map(rule).collect() };
    let (forwarder, places) = Forwarder::start(&link.program, &order)?;
    write_down(&link.ports, &places)?;
    Ok(forwarder)
}

/// Writes the addresses of published ports to a file.
fn write_down(ports: &[Publish], places: &[SocketAddr]) -> Result<(), StartError> {
    if ports.is_empty() {
        return Ok(());
    }
    let lines = ports.iter().zip(places).map(|(port, place)| {
        let protocol = if port.udp { "udp" } else { "tcp" };
        format!("{place}->{}/{protocol}\n", port.inside)
    });
    std::fs::write(PORTS, lines.collect::<String>()).map_err(|error| format!("write {PORTS}: {error}").into())
}

/// Chooses a free port for those without one. If another process takes it first, the start fails.
fn choose(ports: &[Publish]) -> Result<Vec<Publish>, StartError> {
    let mut held = Vec::new();
    let mut free = |port: &Publish| {
        let place = (Ipv4Addr::LOCALHOST, port.host);
        let socket: OwnedFd = if port.udp { UdpSocket::bind(place)?.into() } else { TcpListener::bind(place)?.into() };
        let place = rustix::net::getsockname(&socket)?;
        held.push(socket);
        let place = SocketAddrV4::try_from(place)?;
        Ok::<_, std::io::Error>(Publish { host: place.port(), ..*port })
    };
    let failed = |port: &Publish, error| format!("publish port {}: {error}", port.inside).into();
    ports.iter().map(|port| free(port).map_err(|error| failed(port, error))).collect()
}

/// Forwards DNS queries from inside to resolvers that only the host can reach.
fn answer_names(link: &Link, pid: i32) -> Result<Forwarder, StartError> {
    let mut rules = Vec::new();
    for (at, server) in link.names.iter().enumerate() {
        let [a, b, c, d] = NAMES;
        let listen = SocketAddrV4::new(Ipv4Addr::new(a, b, c, d + at as u8), 53).to_string();
        let rule = |udp| Rule { udp, listen: listen.clone(), to: vec![server.clone()] };
        rules.extend([rule(true), rule(false)]);
    }
    let (forwarder, _) = Forwarder::start(&link.program, &Order { pid, direction: Direction::Out, rules })?;
    Ok(forwarder)
}

/// A process that copies bytes between the two networks. It ends when this is dropped, and with its parent.
pub(crate) struct Forwarder(i32);

impl Forwarder {
    /// Starts a forwarder and waits until it listens. Returns the addresses. It is a separate program, so its memory
    /// contains nothing of the plan.
    fn start(program: &str, order: &Order) -> Result<(Self, Vec<SocketAddr>), StartError> {
        let failed = |error: &dyn std::fmt::Display| {
            StartError::from(format!("start the process that forwards ports and DNS: {error}"))
        };
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|error| failed(&error))?;
        let program = CString::new(program).map_err(|error| failed(&error))?;
        let arguments =
            [CString::from(c"kennel-jail"), CString::new(FORWARD).expect("the argument contains no zero byte")];
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
        sandbox_dir::write_all(&ours, &(told.len() as u32).to_le_bytes());
        sandbox_dir::write_all(&ours, &told);
        let _ = rustix::net::shutdown(&ours, Shutdown::Write);
        let mut answer = String::new();
        let read = std::fs::File::from(ours).take(64 * 1024).read_to_string(&mut answer);
        read.map_err(|error| failed(&error))?;
        let Some(places) = answer.strip_prefix("ok ") else {
            return Err(match answer.strip_prefix("error ") {
                Some(why) => why.into(),
                None => failed(&"it ended without a reply"),
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
