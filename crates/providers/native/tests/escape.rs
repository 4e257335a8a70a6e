//! Ways out, each tried for real, by root inside. All must be refused, or lead nowhere but inside.
//!
//! The attacks are in the kit's program `escape`; its numbers of system calls are those of x86-64.

#![cfg(target_arch = "x86_64")]

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::{Home, Net, programs};
use kennel_types::{ExecSpec, NetworkMode, SandboxSpec};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;

/// How many attacks there are: one that is not carried out is no proof.
const ATTACKS: usize = 40;

async fn attacked(network: NetworkMode) -> Vec<String> {
    let (home, _net) = (Home::new(), Net::alone());
    let program = home.workspace().join("escape");
    programs::compile(programs::ESCAPE, &program);
    let secret = home.path().join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let name = home.mark();
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();

    let native: Arc<dyn Provider> = Arc::new(Native::new(home.state(), home.programs()));
    let spec = SandboxSpec { workspace: Some(home.workspace()), network: Some(network), ..SandboxSpec::default() };
    let sandbox = Sandbox::create(native, &spec).await.unwrap();
    sandbox.start().await.unwrap();
    let pid = child.id().to_string();
    let words = ["/workspace/escape", secret.to_str().unwrap(), &pid, &name];
    let output = sandbox.run(&ExecSpec::argv(words), None, 1 << 20).await.unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, output.stderr_text());
    // Whatever was done to it, it can still be used, and ended.
    let after = sandbox.run(&ExecSpec::shell("echo still here"), None, 100).await.unwrap();
    assert_eq!(after.stdout_text(), "still here\n");
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();

    assert!(child.try_wait().unwrap().is_none(), "a process of the host was ended");
    child.kill().unwrap();
    child.wait().unwrap();
    let jail = kennel_keeper_bin::JAIL.install(&home.programs()).unwrap();
    assert!(std::fs::read(jail).unwrap() == kennel_keeper_bin::JAIL.bytes(), "the jail's program was changed");
    output.stdout_text().lines().map(ToOwned::to_owned).collect()
}

#[tokio::test]
async fn no_attack_gets_out() {
    for network in [NetworkMode::None, NetworkMode::Bridge] {
        let told = attacked(network).await;
        let escaped: Vec<&String> = told.iter().filter(|line| !line.contains(": held: ")).collect();
        assert!(escaped.is_empty(), "{network}: {escaped:#?}");
        assert_eq!(told.len(), ATTACKS, "{network}: {told:#?}");
    }
}

/// The host's network was asked for: sockets that have no file are of the network, and so in reach. Nothing else is.
#[tokio::test]
async fn on_the_hosts_network_no_other_attack_gets_out() {
    let told = attacked(NetworkMode::Host).await;
    let escaped: Vec<&String> = told.iter().filter(|line| !line.contains(": held: ")).collect();
    assert!(escaped.iter().all(|line| line.starts_with("abstract sockets of the host: ")), "{escaped:#?}");
    assert_eq!(told.len(), ATTACKS, "{told:#?}");
}
