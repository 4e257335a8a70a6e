//! The network `bridge`: what can be reached from inside and what cannot, published ports, and leftovers.
//!
//! Each test has its own simulated host and internet (`kennel_testkit::Net`), and changes no rule or interface of this
//! machine. The exception is the test next to a real Docker.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::net::{answers, program, sandbox_interfaces};
use kennel_testkit::{Home, NOBODYS_IDS, Net, become_ordinary_user, programs, within};
use kennel_types::{ErrorCode, ExecSpec, Field, NetworkMode, NextStep, Port, SandboxSpec};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);
const REMOVE: RemoveOptions = RemoveOptions { volumes: true, force: true };

/// A home with the program `reach`, and a provider.
struct Ground {
    home: Home,
    native: Arc<dyn Provider>,
}

impl Ground {
    fn new() -> Self {
        let home = Home::new();
        programs::compile(programs::REACH, &home.workspace().join("reach"));
        let native = Arc::new(Native::new(home.state(), home.programs()));
        Self { home, native }
    }

    fn spec(&self) -> SandboxSpec {
        let env = [("KENNEL_TEST_HOME".to_owned(), self.home.mark())].into();
        let workspace = Some(self.home.workspace());
        SandboxSpec { workspace, network: Some(NetworkMode::Bridge), env, ..SandboxSpec::default() }
    }

    async fn sandbox(&self, ports: &[&str]) -> Sandbox {
        let ports = ports.iter().map(|port| port.parse().unwrap()).collect();
        let spec = SandboxSpec { ports, ..self.spec() };
        let sandbox = Sandbox::create(self.native.clone(), &spec).await.unwrap();
        sandbox.start().await.unwrap();
        sandbox
    }
}

/// A failing test leaves no sandbox either.
impl Drop for Ground {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.home.state()).into_iter().flatten().flatten() {
            let holder = std::fs::read_to_string(entry.path().join("lock")).unwrap_or_default();
            if let Some(jail) = holder.trim().parse().ok().and_then(rustix::process::Pid::from_raw)
                && std::thread::panicking()
            {
                let _ = rustix::process::kill_process(jail, rustix::process::Signal::KILL);
            }
        }
    }
}

async fn inside(sandbox: &Sandbox, words: &str) -> String {
    let output = sandbox.run(&ExecSpec::shell(words), None, 1 << 16).await.unwrap();
    output.stdout_text().trim().to_owned()
}

async fn reach(sandbox: &Sandbox, how: &str, address: impl std::fmt::Display) -> String {
    inside(sandbox, &format!("/workspace/reach {how} {address}")).await
}

#[track_caller]
fn held(how: &str, outcome: &str) {
    assert!(outcome.starts_with("not reached"), "{how}: {outcome}");
}

/// Returns the sandbox's address.
async fn address(sandbox: &Sandbox) -> String {
    let trie = inside(sandbox, "cat /proc/net/fib_trie").await;
    let mut own = trie.lines().filter_map(|line| line.trim().strip_prefix("|-- "));
    own.find(|address| !address.starts_with("127.") && !address.starts_with("0.")).unwrap().to_owned()
}

/// Listens for connections and datagrams inside, at this address.
async fn serve(sandbox: &Sandbox, place: &str) {
    // The output of an earlier server must not count.
    let spec = format!("rm -f /tmp/served; /workspace/reach serve {place} > /tmp/served 2>&1 &");
    inside(sandbox, &spec).await;
    let ready = within(SOON, async || inside(sandbox, "cat /tmp/served").await == "ready").await;
    assert!(ready, "{}", inside(sandbox, "cat /tmp/served").await);
}

/// Replies to all connections and datagrams on a machine.
fn answer((listener, datagrams): (TcpListener, UdpSocket)) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
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
}

fn sockets(address: &str) -> (TcpListener, UdpSocket) {
    (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap())
}

/// Returns what an address of this host replies.
fn echo(to: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"hello")?;
    let mut back = [0; 5];
    stream.read_exact(&mut back)?;
    Ok(String::from_utf8_lossy(&back).into_owned())
}

#[tokio::test]
async fn the_internet_is_in_reach_and_the_host_is_not() {
    let net = Net::with_internet();
    for place in ["203.0.113.2:7000", "198.51.100.9:7000", "169.254.169.254:7000", "169.254.169.254:53"] {
        answer(net.there(|| sockets(place)));
    }
    for place in ["203.0.113.1:7000", "127.0.0.1:7001"] {
        answer(sockets(place));
    }
    let ground = Ground::new();
    let sandbox = ground.sandbox(&[]).await;
    for how in ["tcp", "udp", "icmp"] {
        for address in [Net::NEAR, Net::FAR] {
            assert_eq!(reach(&sandbox, how, format!("{address}:7000")).await, "reached", "{how} {address}");
        }
        // Its own gateway, the host's other addresses, and the metadata service of a cloud.
        for address in [Net::HOST, "10.207.0.1", "169.254.169.254"] {
            held(&format!("{how} {address}"), &reach(&sandbox, how, format!("{address}:7000")).await);
        }
    }
    for address in ["127.0.0.1:7001", "0.0.0.0:7001", "203.0.113.1:7001"] {
        held(address, &reach(&sandbox, "tcp", address).await);
        held(address, &reach(&sandbox, "udp", address).await);
    }
    // DNS is allowed there, because some clouds have no other DNS server.
    assert_eq!(reach(&sandbox, "udp", "169.254.169.254:53").await, "reached");
    // The control: on the host, all these addresses reply.
    assert_eq!(echo("203.0.113.1:7000".parse().unwrap()).unwrap(), "hello");
    assert_eq!(echo("169.254.169.254:7000".parse().unwrap()).unwrap(), "hello");
    // It has no IPv6 except its own loopback.
    assert_eq!(inside(&sandbox, "cut -d' ' -f1 /proc/net/if_inet6").await, "00000000000000000000000000000001");
    sandbox.remove(REMOVE).await.unwrap();
}

#[tokio::test]
async fn no_sandbox_reaches_another() {
    let _net = Net::with_internet();
    let ground = Ground::new();
    let (one, other) = (ground.sandbox(&[]).await, ground.sandbox(&[]).await);
    for sandbox in [&one, &other] {
        serve(sandbox, "0.0.0.0:7000").await;
    }
    for (from, to) in [(&one, &other), (&other, &one)] {
        let address = address(to).await;
        for how in ["tcp", "udp", "icmp"] {
            held(how, &reach(from, how, format!("{address}:7000")).await);
        }
        // The host can connect, and gets a reply.
        assert_eq!(echo(format!("{address}:7000").parse().unwrap()).unwrap(), "hello");
    }
    for sandbox in [one, other] {
        sandbox.remove(REMOVE).await.unwrap();
    }
}

#[tokio::test]
async fn no_other_machine_reaches_a_sandbox() {
    let net = Net::with_internet();
    let ground = Ground::new();
    let sandbox = ground.sandbox(&[]).await;
    serve(&sandbox, "0.0.0.0:7000").await;
    let address: SocketAddr = format!("{}:7000", address(&sandbox).await).parse().unwrap();
    // The internet has a route to it, which is unusual.
    net.there(|| kennel_testkit::net::ip(&["route", "add", "10.207.0.0/16", "via", Net::HOST]));
    let outcome = net.there(|| TcpStream::connect_timeout(&address, Duration::from_secs(2)).map(drop));
    assert!(outcome.is_err());
    sandbox.remove(REMOVE).await.unwrap();
}

#[tokio::test]
async fn dns_works_inside() {
    let net = Net::with_internet();
    let ground = Ground::new();
    let resolv = ground.home.path().join("resolv.conf");
    std::fs::write(&resolv, "nameserver 198.51.100.53\nsearch example.net\n").unwrap();
    net.replace_file(Path::new("/etc/resolv.conf"), &resolv);
    net.add_address("198.51.100.53");
    let server = net.there(|| UdpSocket::bind("198.51.100.53:53").unwrap());
    answer_names(server);
    let sandbox = ground.sandbox(&[]).await;
    assert_eq!(inside(&sandbox, "getent ahostsv4 kennel.test | head -1 | cut -d' ' -f1").await, "198.51.100.9");
    assert!(inside(&sandbox, "cat /etc/resolv.conf").await.contains("search example.net"));
    sandbox.remove(REMOVE).await.unwrap();
}

/// As with systemd-resolved or dnsmasq: the DNS server can be reached only on the host.
#[tokio::test]
async fn dns_works_with_a_resolver_on_the_hosts_loopback() {
    let net = Net::with_internet();
    let ground = Ground::new();
    let resolv = ground.home.path().join("resolv.conf");
    std::fs::write(&resolv, "nameserver 127.0.0.1\noptions timeout:1 attempts:5\n").unwrap();
    net.replace_file(Path::new("/etc/resolv.conf"), &resolv);
    answer_names(UdpSocket::bind("127.0.0.1:53").unwrap());
    answer(sockets("127.0.0.1:7001"));
    let sandbox = ground.sandbox(&[]).await;
    assert!(inside(&sandbox, "cat /etc/resolv.conf").await.starts_with("nameserver 127.0.0.11\n"));
    assert_eq!(inside(&sandbox, "getent ahostsv4 kennel.test | head -1 | cut -d' ' -f1").await, "198.51.100.9");
    // Nothing else of the host's loopback can be reached.
    held("loopback", &reach(&sandbox, "tcp", "127.0.0.1:7001").await);
    sandbox.remove(REMOVE).await.unwrap();
    let gone = within(SOON, async || kennel_testkit::host::processes(&ground.home.mark()).is_empty()).await;
    assert!(gone, "{:?}", kennel_testkit::host::processes(&ground.home.mark()));
}

/// The same for a sandbox of an ordinary user, with `pasta`.
#[tokio::test]
async fn dns_works_for_users_with_a_resolver_on_the_hosts_loopback() {
    programs::prepare();
    let net = Net::for_users();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "nameserver 127.0.0.1\noptions timeout:1 attempts:5\n").unwrap();
    std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    net.replace_file(Path::new("/etc/resolv.conf"), file.path());
    answer_names(UdpSocket::bind("127.0.0.1:53").unwrap());
    become_ordinary_user(NOBODYS_IDS);
    let home = Home::new();
    let native: Arc<dyn Provider> = Arc::new(Native::new(home.state(), home.path().join("programs")));
    let network = Some(NetworkMode::Bridge);
    let sandbox = Sandbox::create(native, &SandboxSpec { network, ..SandboxSpec::default() }).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(inside(&sandbox, "getent ahostsv4 kennel.test | head -1 | cut -d' ' -f1").await, "198.51.100.9");
    sandbox.remove(REMOVE).await.unwrap();
}

/// Rules in its own network namespace restrict the sandbox of an ordinary user. Otherwise it could reach, through
/// `pasta`, everything that the user can reach.
#[tokio::test]
async fn an_ordinary_users_sandbox_reaches_the_internet_and_not_the_host() {
    programs::prepare();
    let net = Net::for_users();
    for address in [Net::NEAR, Net::FAR, Net::SECOND, "169.254.169.254"] {
        answer(net.there(|| sockets(&format!("{address}:7000"))));
    }
    answer(net.there(|| sockets("169.254.169.254:53")));
    // On every address of the host, now or later.
    answer(sockets("0.0.0.0:7000"));
    // Only root can add an address to the host.
    let later = "read _; ip address add 198.18.0.1/24 dev lan0";
    let mut root = Command::new("sh").args(["-c", later]).stdin(Stdio::piped()).spawn().unwrap();
    become_ordinary_user(NOBODYS_IDS);
    let home = Home::new();
    programs::compile(programs::REACH, &home.workspace().join("reach"));
    let native: Arc<dyn Provider> = Arc::new(Native::new(home.state(), home.path().join("programs")));
    let spec =
        SandboxSpec { workspace: Some(home.workspace()), network: Some(NetworkMode::Bridge), ..SandboxSpec::default() };
    let sandbox = Sandbox::create(native, &spec).await.unwrap();
    sandbox.start().await.unwrap();
    for how in ["tcp", "udp"] {
        for address in [Net::NEAR, Net::FAR] {
            assert_eq!(reach(&sandbox, how, format!("{address}:7000")).await, "reached", "{how} {address}");
        }
        // The host, its second network, and the metadata service of a cloud.
        for address in [Net::HOST, Net::HOST_SECOND, Net::SECOND, "169.254.169.254"] {
            held(&format!("{how} {address}"), &reach(&sandbox, how, format!("{address}:7000")).await);
        }
        assert_eq!(reach(&sandbox, how, "169.254.169.254:53").await, "reached", "DNS is allowed there");
    }
    // On the host, all these addresses can be reached.
    for address in [Net::HOST, Net::HOST_SECOND, Net::SECOND, "169.254.169.254"] {
        assert!(answers(format!("{address}:7000").parse().unwrap()), "{address}");
    }
    // An address that the host gets later is blocked as soon as the kernel has reported it.
    root.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(root.wait().unwrap().success());
    assert!(answers("198.18.0.1:7000".parse().unwrap()));
    let follows = async || reach(&sandbox, "tcp", "198.18.0.1:7000").await.starts_with("not reached");
    assert!(within(SOON, follows).await, "the rules follow the host's addresses");
    held("an address that came later", &reach(&sandbox, "udp", "198.18.0.1:7000").await);
    assert_eq!(reach(&sandbox, "tcp", format!("{}:7000", Net::FAR)).await, "reached");
    // Root inside cannot remove the rules.
    let tried = inside(&sandbox, "nft flush ruleset 2>&1").await;
    assert!(tried.contains("Operation not permitted"), "{tried}");
    sandbox.remove(REMOVE).await.unwrap();
}

/// A DNS server that returns the same address for every name.
fn answer_names(socket: UdpSocket) {
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let question = &buffer[..count];
            let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_address = question[end - 4..end - 2] == [0, 1];
            let mut answer = question[..2].to_vec();
            answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
            answer.extend(&question[12..end]);
            if is_address {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 51, 100, 9]);
            }
            socket.send_to(&answer, from).unwrap();
        }
    });
}

#[tokio::test]
async fn published_ports_are_on_loopback_and_nowhere_else() {
    let net = Net::with_internet();
    let ground = Ground::new();
    let sandbox = ground.sandbox(&["7000", "3456:7001", "7000/udp"]).await;
    let ports = sandbox.inspect().await.unwrap().ports;
    assert_eq!(ports.len(), 3, "{ports:?}");
    assert!(ports.iter().all(|port| port.address.ip().to_string() == "127.0.0.1" && port.address.port() != 0));
    assert_eq!(ports[1].to_string(), "127.0.0.1:3456->7001/tcp");
    // Nobody listens yet.
    assert!(echo(ports[0].address).is_err());
    serve(&sandbox, "0.0.0.0:7000").await;
    // A server that listens only on loopback inside is published too.
    serve(&sandbox, "127.0.0.1:7001").await;
    assert_eq!(echo(ports[0].address).unwrap(), "hello");
    assert_eq!(echo(ports[1].address).unwrap(), "hello");
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    datagrams.set_read_timeout(Some(SOON)).unwrap();
    datagrams.send_to(b"hello", ports[2].address).unwrap();
    assert_eq!(datagrams.recv(&mut [0; 10]).unwrap(), 5);
    // Not on the host's other addresses, and not from other machines.
    let other = SocketAddr::new(Net::HOST.parse().unwrap(), ports[1].address.port());
    assert!(echo(other).is_err());
    assert!(net.there(|| TcpStream::connect_timeout(&other, Duration::from_secs(2)).is_err()));
    // Another sandbox has another address.
    let neighbour = ground.sandbox(&[]).await;
    held("a neighbour", &reach(&neighbour, "tcp", "127.0.0.1:3456").await);
    held("a neighbour", &reach(&neighbour, "tcp", other).await);
    neighbour.remove(REMOVE).await.unwrap();
    // Ports close with the sandbox, and open again with it.
    sandbox.stop(Duration::ZERO).await.unwrap();
    assert!(sandbox.inspect().await.unwrap().ports.is_empty());
    assert!(echo(ports[1].address).is_err());
    sandbox.start().await.unwrap();
    serve(&sandbox, "0.0.0.0:7001").await;
    assert_eq!(echo(ports[1].address).unwrap(), "hello");
    sandbox.remove(REMOVE).await.unwrap();
    TcpListener::bind("127.0.0.1:3456").expect("the port is free again");
}

#[tokio::test]
async fn a_port_that_is_taken_is_refused_and_nothing_is_left() {
    let _net = Net::alone();
    let ground = Ground::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let number = taken.local_addr().unwrap().port();
    let spec = SandboxSpec { ports: vec![format!("{number}:80").parse().unwrap()], ..ground.spec() };
    let sandbox = Sandbox::create(ground.native.clone(), &spec).await.unwrap();
    let error = sandbox.start().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::StartFailed);
    assert!(error.to_string().contains(&format!("127.0.0.1:{number} is taken")), "{error}");
    let free = NextStep::PublishAtFreePort { port: Some("80/tcp".parse().unwrap()) };
    assert!(error.next_step().unwrap().options().contains(&free), "{error:?}");
    assert_eq!(sandbox_interfaces(), [""; 0]);
    drop(taken);
    sandbox.start().await.unwrap();
    // Also if another sandbox uses it.
    let second = Sandbox::create(ground.native.clone(), &spec).await.unwrap();
    assert_eq!(second.start().await.unwrap_err().code(), ErrorCode::StartFailed);
    for sandbox in [sandbox, second] {
        sandbox.remove(REMOVE).await.unwrap();
    }
    let gone = within(SOON, async || sandbox_interfaces().is_empty()).await;
    assert!(gone, "{:?}", sandbox_interfaces());
}

#[tokio::test]
async fn ports_are_refused_without_bridge() {
    let _net = Net::alone();
    let ground = Ground::new();
    let with = |network, ports: &[&str]| SandboxSpec {
        network,
        ports: ports.iter().map(|port| port.parse::<Port>().unwrap()).collect(),
        ..ground.spec()
    };
    for network in [NetworkMode::None, NetworkMode::Host] {
        let error =
            ground.native.create(&kennel_core::new_id().unwrap(), &with(Some(network), &["80"])).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
        let bridge = NextStep::set_to(Field::Network, ["bridge"]);
        assert!(error.next_step().unwrap().options().contains(&bridge), "{error:?}");
    }
    let error =
        ground.native.create(&kennel_core::new_id().unwrap(), &with(None, &["3000:80", "3000:81"])).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
    assert!(ground.native.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn nothing_is_left_when_everything_is_killed() {
    let _net = Net::alone();
    let ground = Ground::new();
    let sandbox = ground.sandbox(&["7000", "7000/udp"]).await;
    let port = sandbox.inspect().await.unwrap().ports[0].address;
    assert_eq!(sandbox_interfaces().len(), 1);
    let mark = ground.home.mark();
    // The jail, the processes inside, and the port forwarder.
    let lock = ground.home.state().join(sandbox.id().as_str()).join("lock");
    let jail: u32 = std::fs::read_to_string(lock).unwrap().trim().parse().unwrap();
    // The process inside and the port forwarder. A third one maps ids until shortly after the start.
    let settled = within(SOON, async || children(jail).len() == 2);
    assert!(settled.await, "{:?}", children(jail));
    let others = children(jail);
    let jail = rustix::process::Pid::from_raw(i32::try_from(jail).unwrap()).unwrap();
    rustix::process::kill_process(jail, rustix::process::Signal::KILL).unwrap();
    let gone = within(SOON, async || {
        let living = others.iter().filter(|pid| !is_gone(**pid));
        living.count() == 0 && sandbox_interfaces().is_empty() && kennel_testkit::host::processes(&mark).is_empty()
    });
    assert!(gone.await, "{:?} {:?}", sandbox_interfaces(), kennel_testkit::host::processes(&mark));
    TcpListener::bind(port).expect("the port is free again");
    sandbox.remove(REMOVE).await.unwrap();
    // Only the shared rules are left, and they are unchanged.
    let tables = program("nft", &["list", "tables"]);
    assert_eq!(tables.trim(), "table inet kennel");
    let rules = program("nft", &["list", "ruleset"]);
    assert_eq!(rules.matches("10.207.").count(), 1, "no rule of a single sandbox is left: {rules}");
}

fn is_gone(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[tokio::test]
async fn twenty_sandboxes_have_twenty_addresses() {
    let net = Net::with_internet();
    answer(net.there(|| sockets("0.0.0.0:7000")));
    let ground = Ground::new();
    let made = (0..20).map(async |_| {
        // Each thread represents another program.
        let native = Arc::new(Native::new(ground.home.state(), ground.home.programs()));
        let sandbox = Sandbox::create(native, &ground.spec()).await.unwrap();
        sandbox.start().await.unwrap();
        sandbox
    });
    let sandboxes = futures_util::future::join_all(made).await;
    let mut addresses = std::collections::HashSet::new();
    for sandbox in &sandboxes {
        assert_eq!(reach(sandbox, "tcp", format!("{}:7000", Net::FAR)).await, "reached");
        addresses.insert(address(sandbox).await);
    }
    assert_eq!(addresses.len(), 20);
    assert_eq!(program("nft", &["list", "tables"]).lines().count(), 1);
    for sandbox in sandboxes {
        sandbox.remove(REMOVE).await.unwrap();
    }
    let gone = within(SOON, async || sandbox_interfaces().is_empty()).await;
    assert!(gone, "{:?}", sandbox_interfaces());
}

#[tokio::test]
async fn flushed_firewall_rules_are_restored() {
    let net = Net::with_internet();
    answer(net.there(|| sockets("0.0.0.0:7000")));
    let ground = Ground::new();
    for spoil in [&["flush", "ruleset"][..], &["delete", "chain", "inet", "kennel", "to_host"]] {
        let sandbox = ground.sandbox(&[]).await;
        sandbox.remove(REMOVE).await.unwrap();
        if spoil[0] == "delete" {
            program("nft", &["flush", "chain", "inet", "kennel", "to_host"]);
        }
        program("nft", spoil);
        let sandbox = ground.sandbox(&[]).await;
        assert_eq!(reach(&sandbox, "tcp", format!("{}:7000", Net::FAR)).await, "reached");
        held("the host", &reach(&sandbox, "icmp", format!("{}:1", Net::HOST)).await);
        sandbox.remove(REMOVE).await.unwrap();
    }
}

/// A machine that did not forward packets before does so for sandboxes only.
#[tokio::test]
async fn ip_forwarding_does_not_make_the_host_a_router() {
    let net = Net::with_internet();
    answer(net.there(|| sockets("0.0.0.0:7000")));
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
    let ground = Ground::new();
    let sandbox = ground.sandbox(&[]).await;
    assert_eq!(reach(&sandbox, "tcp", format!("{}:7000", Net::FAR)).await, "reached");
    assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap().trim(), "1");
    let rules = program("nft", &["list", "chain", "inet", "kennel", "through"]);
    assert!(rules.contains("iifname != \"kennel*\" oifname != \"kennel*\" drop"), "{rules}");
    sandbox.remove(REMOVE).await.unwrap();
}

/// Docker's own rules, without Docker: only its own packets are forwarded.
#[tokio::test]
async fn sandboxes_reach_the_internet_despite_dockers_drop_policy() {
    let net = Net::with_internet();
    answer(net.there(|| sockets("0.0.0.0:7000")));
    let ground = Ground::new();
    let sandbox = ground.sandbox(&[]).await;
    let far = format!("{}:7000", Net::FAR);
    assert_eq!(reach(&sandbox, "tcp", &far).await, "reached");
    // Docker starts later.
    for words in ["-P FORWARD DROP", "-N DOCKER-USER", "-A DOCKER-USER -j RETURN", "-I FORWARD -j DOCKER-USER"] {
        program("iptables", &words.split(' ').collect::<Vec<_>>());
    }
    held("before it is known", &reach(&sandbox, "tcp", &far).await);
    for _ in 0..3 {
        let other = ground.sandbox(&[]).await;
        assert_eq!(reach(&other, "tcp", &far).await, "reached");
        assert_eq!(reach(&other, "icmp", &far).await, "reached");
        other.remove(REMOVE).await.unwrap();
    }
    assert_eq!(reach(&sandbox, "tcp", &far).await, "reached");
    let rules = program("iptables", &["-S", "DOCKER-USER"]);
    assert_eq!(rules.matches("-j KENNEL").count(), 1, "{rules}");
    sandbox.remove(REMOVE).await.unwrap();
}

/// The real Docker, on this machine's own network: the only test that changes it. Everything that was added is removed
/// afterwards.
#[tokio::test]
async fn sandboxes_reach_the_internet_next_to_a_real_docker() {
    let socket = kennel_testkit::docker::socket();
    let policy = program("iptables", &["-S", "FORWARD"]);
    assert!(policy.contains("-j DOCKER-USER"), "{} has rules: {policy}", socket.display());
    let was = Traces::look();
    let closed = policy.contains("-P FORWARD DROP");
    if !closed {
        program("iptables", &["-P", "FORWARD", "DROP"]);
    }
    let net = Net::in_current_namespace("kentest0");
    answer(net.there(|| sockets("198.51.100.9:7000")));
    let ground = Ground::new();
    let sandbox = ground.sandbox(&[]).await;
    let outcome = reach(&sandbox, "tcp", format!("{}:7000", Net::FAR)).await;
    // Containers of the engine cannot be reached, like other sandboxes.
    let bridge = reach(&sandbox, "icmp", "172.17.0.1:1").await;
    sandbox.remove(REMOVE).await.unwrap();
    if !closed {
        program("iptables", &["-P", "FORWARD", "ACCEPT"]);
    }
    was.restore();
    assert_eq!(outcome, "reached");
    held("the engine's own end", &bridge);
}

/// Returns Kennel's interfaces and rules on this machine.
struct Traces {
    table: bool,
    chain: bool,
}

impl Traces {
    fn look() -> Self {
        let table = program("nft", &["list", "tables"]).contains("table inet kennel");
        Self { table, chain: program("iptables", &["-S"]).contains("-N KENNEL") }
    }

    fn restore(self) {
        if !self.chain {
            for words in ["-D DOCKER-USER -j KENNEL", "-F KENNEL", "-X KENNEL"] {
                program("iptables", &words.split(' ').collect::<Vec<_>>());
            }
        }
        if !self.table {
            program("nft", &["delete", "table", "inet", "kennel"]);
        }
    }
}

/// The port forwarder has no privileges, and only the sandbox's network.
#[tokio::test]
async fn the_forwarder_runs_as_nobody() {
    let _net = Net::alone();
    let ground = Ground::new();
    let spec = SandboxSpec { env: [("SECRET".to_owned(), "of the sandbox".to_owned())].into(), ..ground.spec() };
    let spec = SandboxSpec { ports: vec!["7000".parse().unwrap()], ..spec };
    let sandbox = Sandbox::create(ground.native.clone(), &spec).await.unwrap();
    sandbox.start().await.unwrap();
    let lock = ground.home.state().join(sandbox.id().as_str()).join("lock");
    let jail: u32 = std::fs::read_to_string(lock).unwrap().trim().parse().unwrap();
    let network = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    let is_forwarder = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("forward")
    };
    let (forwarders, inside): (Vec<u32>, Vec<u32>) = children(jail).into_iter().partition(is_forwarder);
    let [forwarder] = forwarders[..] else { panic!("{forwarders:?}") };
    assert_eq!(network(forwarder), network(inside[0]));
    assert_ne!(network(forwarder), network(jail));
    // Its system call filter is loaded shortly after it listens.
    let status = || std::fs::read_to_string(format!("/proc/{forwarder}/status")).unwrap();
    let filtered = within(SOON, async || status().contains("Seccomp:\t2")).await;
    assert!(filtered, "{}", status());
    for line in
        ["Uid:\t65534\t65534\t65534\t65534", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"]
    {
        assert!(status().contains(line), "{line}: {}", status());
    }
    let readable = |file: &str| std::fs::read(format!("/proc/{forwarder}/{file}")).unwrap();
    assert!(readable("environ").is_empty());
    let descriptors = std::fs::read_dir(format!("/proc/{forwarder}/fd")).unwrap().flatten();
    let open: Vec<String> = descriptors
        .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
        .filter(|target| target != "/dev/null")
        .collect();
    assert!(open.len() == 1 && open[0].starts_with("socket:"), "only where it listens: {open:?}");
    sandbox.remove(REMOVE).await.unwrap();
}

/// The forwarder is paused and resumed with the sandbox. A cgroup with limits is removed when both are gone.
#[tokio::test]
async fn ports_work_again_after_a_pause() {
    let _net = Net::alone();
    let ground = Ground::new();
    let limits = kennel_types::Limits { pids: Some(64), ..kennel_types::Limits::default() };
    let spec = SandboxSpec { ports: vec!["7000".parse().unwrap()], limits, ..ground.spec() };
    let sandbox = Sandbox::create(ground.native.clone(), &spec).await.unwrap();
    sandbox.start().await.unwrap();
    serve(&sandbox, "0.0.0.0:7000").await;
    let port = sandbox.inspect().await.unwrap().ports[0].address;
    assert_eq!(echo(port).unwrap(), "hello");
    sandbox.pause().await.unwrap();
    assert_eq!(sandbox.inspect().await.unwrap().ports.len(), 1);
    sandbox.unpause().await.unwrap();
    assert_eq!(echo(port).unwrap(), "hello");
    sandbox.remove(REMOVE).await.unwrap();
    let left = kennel_testkit::host::leftovers(&ground.home.mark(), &[sandbox.id().to_string()], &ground.home.state());
    assert!(left.is_empty(), "{left:?}");
}
