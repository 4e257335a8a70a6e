//! The networks that the provider's mode supports, and the refusal of the others.

use crate::inside::{self, SOON, ok};
use crate::programs::{self, REACH};
use crate::{Stage, net, within};
use kennel_core::{Sandbox, WriteOptions};
use kennel_types::{ErrorCode, IsolationLayer, NetworkMode, SandboxSpec, Support};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

/// Starts a sandbox with this network if the mode supports it. Otherwise the request must be refused.
async fn with(stage: &Stage, network: NetworkMode) -> Option<Sandbox> {
    let spec = SandboxSpec { network: Some(network), ..stage.spec() };
    if !stage.mode().networks.contains(&network) {
        stage.refuses(&spec).await;
        return None;
    }
    let sandbox = stage.started(&spec).await;
    assert_eq!(sandbox.inspect().await.unwrap().network, network);
    // Without real processes, nothing more can be checked.
    (stage.mode().processes == Support::Given).then_some(sandbox)
}

async fn interfaces(sandbox: &Sandbox) -> Vec<String> {
    parse_interfaces(&ok(sandbox, "cat /proc/net/dev").await)
}

fn parse_interfaces(table: &str) -> Vec<String> {
    let names = table.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned());
    names.collect()
}

fn own_namespace() -> String {
    std::fs::read_link("/proc/thread-self/ns/net").unwrap().to_string_lossy().into_owned()
}

/// With network `none`, loopback is up and there is no route.
pub async fn network_none_has_only_loopback(stage: &Stage) {
    let Some(sandbox) = with(stage, NetworkMode::None).await else { return };
    assert_ne!(ok(&sandbox, "readlink /proc/self/ns/net").await, own_namespace());
    assert_eq!(interfaces(&sandbox).await, ["lo"]);
    assert_eq!(ok(&sandbox, "tail -n +2 /proc/net/route").await, "");
    assert!(ok(&sandbox, "cat /proc/net/fib_trie").await.contains("127.0.0.1"), "loopback is up");
}

/// With network `host`, a sandbox is in the network namespace of the host.
pub async fn network_host_is_the_hosts_namespace(stage: &Stage) {
    let Some(sandbox) = with(stage, NetworkMode::Host).await else { return };
    assert_eq!(ok(&sandbox, "readlink /proc/self/ns/net").await, own_namespace());
    let layers = sandbox.inspect().await.unwrap().enforcement.layers;
    assert!(
        !layers.contains(&IsolationLayer::NetNamespace) && !layers.contains(&IsolationLayer::NetworkFilter),
        "{layers:?}"
    );
}

/// With network `bridge`, a sandbox has its own network namespace with a default route.
pub async fn network_bridge_has_its_own_namespace_and_a_route(stage: &Stage) {
    let Some(sandbox) = with(stage, NetworkMode::Bridge).await else { return };
    assert_ne!(ok(&sandbox, "readlink /proc/self/ns/net").await, own_namespace());
    assert!(interfaces(&sandbox).await.len() >= 2);
    let routes = ok(&sandbox, "tail -n +2 /proc/net/route").await;
    assert!(routes.lines().any(|line| line.split_whitespace().nth(1) == Some("00000000")), "{routes}");
    assert!(!ok(&sandbox, "cat /etc/resolv.conf").await.is_empty(), "names can be resolved");
}

/// With network `bridge`, a sandbox reaches no address of the host that this thread is on, neither by TCP nor by UDP,
/// and no other sandbox. A mode without `network_filter` does not promise this.
pub async fn bridge_reaches_neither_the_host_nor_sandboxes(stage: &Stage) {
    let Some(sandbox) = with(stage, NetworkMode::Bridge).await else { return };
    let layers = sandbox.inspect().await.unwrap().enforcement.layers;
    let holds = stage.mode().layers.contains(&IsolationLayer::NetworkFilter);
    assert_eq!(layers.contains(&IsolationLayer::NetworkFilter), holds, "{layers:?}");
    if !holds {
        return;
    }
    put_reach(stage, &sandbox).await;
    let port = net::answer_at("127.0.0.1:0".parse().unwrap()).port();
    let addresses = net::host_addresses();
    assert!(addresses.iter().any(IpAddr::is_ipv4), "the host has an address: {addresses:?}");
    for address in addresses {
        let place = net::answer_at(SocketAddr::new(address, 0));
        assert!(net::answers(place), "{place} answers the host itself");
        for how in ["tcp", "udp"] {
            held(&format!("{how} to the host at {place}"), &reach(&sandbox, how, place).await);
        }
    }
    // The host's loopback cannot be reached by other addresses either.
    for address in ["127.0.0.1", "0.0.0.0"] {
        held(address, &reach(&sandbox, "tcp", format!("{address}:{port}")).await);
    }
    let other = stage.started(&SandboxSpec { network: Some(NetworkMode::Bridge), ..stage.spec() }).await;
    put_reach(stage, &other).await;
    ok(&other, "/workspace/reach serve 0.0.0.0:7000 > /tmp/served 2>&1 & true").await;
    let place = format!("{}:7000", own_address(&other).await);
    let serves = within(SOON, async || reach(&other, "tcp", &place).await == "reached").await;
    assert!(serves, "{place} answers the sandbox that it is in");
    for how in ["tcp", "udp"] {
        held(&format!("{how} to another sandbox at {place}"), &reach(&sandbox, how, &place).await);
    }
    // Processes inside cannot change the rules.
    let tried = inside::sh(&sandbox, "nft flush ruleset || ip route flush table main || ip link set lo down").await;
    assert!(!tried.status.success(), "{}", tried.stdout_text());
    if stage.mode().networks.contains(&NetworkMode::Host) {
        let open = stage.started(&SandboxSpec { network: Some(NetworkMode::Host), ..stage.spec() }).await;
        put_reach(stage, &open).await;
        let place = format!("127.0.0.1:{port}");
        assert_eq!(reach(&open, "tcp", &place).await, "reached", "with network host, everything is in reach");
    }
}

#[track_caller]
fn held(what: &str, outcome: &str) {
    assert!(outcome.starts_with("not reached"), "{what}: {outcome}");
}

async fn reach(sandbox: &Sandbox, how: &str, to: impl std::fmt::Display) -> String {
    ok(sandbox, &format!("/workspace/reach {how} {to}")).await
}

/// Returns the address of the sandbox's interface.
async fn own_address(sandbox: &Sandbox) -> String {
    let trie = ok(sandbox, "cat /proc/net/fib_trie").await;
    let mut last = "";
    for line in trie.lines() {
        if let Some(address) = line.trim().strip_prefix("|-- ") {
            last = address;
        } else if line.contains("host LOCAL") && !last.starts_with("127.") {
            return last.to_owned();
        }
    }
    panic!("it has no address: {trie}")
}

/// Writes the program `reach` to the sandbox's workspace.
async fn put_reach(stage: &Stage, sandbox: &Sandbox) {
    let reach = stage.home().workspace().join("reach");
    if !reach.exists() {
        programs::compile(REACH, &reach);
    }
    if stage.mode().workspace == Support::Refused {
        let options = WriteOptions { mode: Some(0o755), parents: true };
        let program = std::fs::read(&reach).unwrap();
        inside::files(sandbox).await.write("/workspace/reach", &program, options).await.unwrap();
    }
}

/// A published port can be reached on the host's loopback while the sandbox runs, or the provider refuses it.
pub async fn published_ports_are_reachable(stage: &Stage) {
    let ports = vec!["7000".parse().expect("a port")];
    let spec = SandboxSpec { ports, ..stage.spec() };
    if stage.mode().ports == Support::Refused {
        return stage.refuses(&spec).await;
    }
    for network in stage.mode().networks.iter().filter(|network| **network != NetworkMode::Bridge) {
        let refused = stage.try_create(&SandboxSpec { network: Some(*network), ..spec.clone() }).await;
        assert_eq!(refused.err().expect("ports come with a network").code(), ErrorCode::InvalidConfig);
    }
    let sandbox = stage.create(&SandboxSpec { network: Some(NetworkMode::Bridge), ..spec }).await;
    assert!(sandbox.inspect().await.unwrap().ports.is_empty(), "it does not run yet");
    sandbox.start().await.unwrap();
    put_reach(stage, &sandbox).await;
    ok(&sandbox, "/workspace/reach serve 0.0.0.0:7000 > /tmp/served 2>&1 & true").await;
    let ports = sandbox.inspect().await.unwrap().ports;
    let [port] = ports[..] else { panic!("one port is published: {ports:?}") };
    assert_eq!((port.inside, port.address.ip().to_string().as_str()), (7000, "127.0.0.1"));
    assert!(within(SOON, async || answers(port.address)).await, "{port} answers");
    sandbox.stop(Duration::ZERO).await.unwrap();
    assert!(sandbox.inspect().await.unwrap().ports.is_empty(), "it does not run any more");
    assert!(within(SOON, async || !answers(port.address)).await, "nobody is at {port}");
}

fn answers(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"hello")?;
        stream.read_exact(&mut [0; 5])
    };
    ask().is_ok()
}
