//! Real escape attempts by root inside. All must be refused, or have no effect outside. The sandbox is created by root,
//! and by an ordinary user, whose files and processes are then attacked.
//!
//! The attacks are in the test program `escape`.

#![cfg(target_arch = "x86_64")]

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::{Home, NOBODYS_IDS, Net, become_ordinary_user, programs};
use kennel_types::{ExecSpec, NetworkMode, SandboxSpec};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;

/// The user who creates the sandbox.
#[derive(Clone, Copy)]
enum Maker {
    Root,
    User,
}

/// The number of attacks, because an attack that is not carried out proves nothing.
const ATTACKS: usize = 40;

async fn attacked(network: NetworkMode, made_by: Maker) -> Vec<String> {
    attacked_as(SandboxSpec { network: Some(network), ..SandboxSpec::default() }, made_by).await
}

async fn attacked_as(spec: SandboxSpec, made_by: Maker) -> Vec<String> {
    let _net = Net::alone();
    // Only root has access to the compiler.
    let compiled = tempfile::tempdir().unwrap();
    let program = compiled.path().join("escape");
    programs::compile(programs::ESCAPE, &program);
    let program = std::fs::read(program).unwrap();
    if let Maker::User = made_by {
        become_ordinary_user(NOBODYS_IDS);
    }
    let home = Home::new();
    std::fs::write(home.workspace().join("escape"), program).unwrap();
    std::fs::set_permissions(home.workspace().join("escape"), std::fs::Permissions::from_mode(0o755)).unwrap();
    if let (true, Maker::Root) = (spec.nesting, made_by) {
        // Root's own directory is not shared with such a sandbox.
        for path in [home.workspace(), home.workspace().join("escape")] {
            std::os::unix::fs::chown(path, Some(NOBODYS_IDS.0), Some(NOBODYS_IDS.1)).unwrap();
        }
    }
    let programs = match made_by {
        Maker::Root => home.programs(),
        Maker::User => home.path().join("programs"),
    };
    let secret = home.path().join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let name = home.mark();
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();

    let native: Arc<dyn Provider> = Arc::new(Native::new(home.state(), programs.clone()));
    let spec = SandboxSpec { workspace: Some(home.workspace()), ..spec };
    let sandbox = Sandbox::create(native, &spec).await.unwrap();
    sandbox.start().await.unwrap();
    let pid = child.id().to_string();
    let words = ["/workspace/escape", secret.to_str().unwrap(), &pid, &name];
    let output = sandbox.run(&ExecSpec::argv(words), None, 1 << 20).await.unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, output.stderr_text());
    // After all attacks, it can still be used and stopped.
    let after = sandbox.run(&ExecSpec::shell("echo still here"), None, 100).await.unwrap();
    assert_eq!(after.stdout_text(), "still here\n");
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();

    assert!(child.try_wait().unwrap().is_none(), "a process of the host was ended");
    child.kill().unwrap();
    child.wait().unwrap();
    let jail = kennel_keeper_bin::JAIL.install(&programs).unwrap();
    assert!(std::fs::read(jail).unwrap() == kennel_keeper_bin::JAIL.bytes(), "the jail's program was changed");
    output.stdout_text().lines().map(ToOwned::to_owned).collect()
}

#[tokio::test]
async fn no_escape_succeeds() {
    none_gets_out(&attacked(NetworkMode::None, Maker::Root).await);
}

#[tokio::test]
async fn no_escape_over_a_bridge_succeeds() {
    none_gets_out(&attacked(NetworkMode::Bridge, Maker::Root).await);
}

#[tokio::test]
async fn no_escape_of_an_ordinary_user_succeeds() {
    none_gets_out(&attacked(NetworkMode::None, Maker::User).await);
}

fn none_gets_out(told: &[String]) {
    let escaped: Vec<&String> = told.iter().filter(|line| !line.contains(": held: ")).collect();
    assert!(escaped.is_empty(), "{escaped:#?}");
    assert_eq!(told.len(), ATTACKS, "{told:#?}");
}

/// With nesting, sandboxes can be created inside, and no other attack succeeds.
#[tokio::test]
async fn with_nesting_no_other_escape_succeeds() {
    only_namespaces_are_made(Maker::Root).await;
}

#[tokio::test]
async fn with_nesting_no_other_escape_succeeds_for_an_ordinary_user() {
    only_namespaces_are_made(Maker::User).await;
}

async fn only_namespaces_are_made(made_by: Maker) {
    const MADE: [&str; 2] = ["enter or make namespaces: ", "fork into a user namespace: "];
    let spec = SandboxSpec { nesting: true, network: Some(NetworkMode::None), ..SandboxSpec::default() };
    let told = attacked_as(spec, made_by).await;
    let escaped: Vec<&String> = told.iter().filter(|line| !line.contains(": held: ")).collect();
    assert!(escaped.iter().all(|line| MADE.iter().any(|made| line.starts_with(made))), "{escaped:#?}");
    assert_eq!(told.len(), ATTACKS, "{told:#?}");
}

/// With network `host`, abstract sockets belong to the network namespace and can be reached, unless Landlock blocks
/// them. No other attack succeeds.
#[tokio::test]
async fn on_the_hosts_network_no_other_escape_succeeds() {
    at_most_sockets_are_reached(&attacked(NetworkMode::Host, Maker::Root).await);
}

#[tokio::test]
async fn on_the_hosts_network_no_other_escape_of_an_ordinary_user_succeeds() {
    at_most_sockets_are_reached(&attacked(NetworkMode::Host, Maker::User).await);
}

fn at_most_sockets_are_reached(told: &[String]) {
    const KNOWS_SOCKETS: u32 = 6;
    if kennel_jail::landlock_version().is_ok_and(|version| version >= KNOWS_SOCKETS) {
        return none_gets_out(told);
    }
    let escaped: Vec<&String> = told.iter().filter(|line| !line.contains(": held: ")).collect();
    assert!(escaped.iter().all(|line| line.starts_with("abstract sockets of the host: ")), "{escaped:#?}");
    assert_eq!(told.len(), ATTACKS, "{told:#?}");
}

/// Input cannot be injected into the terminal of the caller.
#[tokio::test]
async fn nothing_is_typed_into_the_terminal_of_the_caller() {
    let (home, _net) = (Home::new(), Net::alone());
    programs::compile(programs::ESCAPE, &home.workspace().join("escape"));
    let native: Arc<dyn Provider> = Arc::new(Native::new(home.state(), home.programs()));
    let network = Some(NetworkMode::None);
    let spec = SandboxSpec { workspace: Some(home.workspace()), network, ..SandboxSpec::default() };
    let sandbox = Sandbox::create(native, &spec).await.unwrap();
    sandbox.start().await.unwrap();
    let words = ["/workspace/escape", "--type"];
    let on_terminal = ExecSpec { tty: Some(kennel_types::TermSize { rows: 24, cols: 80 }), ..ExecSpec::argv(words) };
    let output = sandbox.run(&on_terminal, None, 1 << 16).await.unwrap();
    let told = output.stdout_text();
    assert!(told.starts_with("Err") && told.contains("not implemented"), "{told}");
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
}
