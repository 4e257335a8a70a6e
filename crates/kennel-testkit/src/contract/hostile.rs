//! Processes inside that attack their keeper and the host.

use crate::inside::{SOON, code, ok, run, sh};
use crate::{Stage, host, within};
use futures_util::StreamExt;
use kennel_core::{Dialed, Keeper, RemoveOptions, Sandbox};
use kennel_proto::{Body, Decoder, Frame, GENERATION, Hello, Request, Spawn, caps, encode};
use kennel_types::{ErrorCode, ExecSpec, IsolationLayer, SandboxSpec, Support};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Processes inside can find the keeper's socket, but the keeper closes their connections.
pub async fn processes_inside_cannot_connect_to_the_keeper(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let Some(socket) = stage.socket_inside() else {
        // The socket has no path inside, and it is not in the sandbox's network namespace.
        if stage.mode().layers.contains(&IsolationLayer::NetNamespace) {
            assert_eq!(ok(&sandbox, "grep -c '/' /proc/net/unix || true").await, "0");
        }
        return;
    };
    assert_eq!(ok(&sandbox, &format!("test -S {socket} && echo there")).await, "there");
    let mut hello = Vec::new();
    let body = Body::Hello(Hello { generation: GENERATION, token: None, owner: true });
    encode(&Frame { stream: 0, body }, &mut hello);
    let knock = ExecSpec::argv(["knock", &socket]);
    let output = sandbox.run(&knock, Some(&hello), 1 << 20).await.unwrap();
    assert_eq!(output.stderr_text(), "", "it could connect");
    let mut decoder = Decoder::new();
    decoder.feed(&output.stdout);
    while let Ok(Some(frame)) = decoder.next_frame() {
        assert!(matches!(frame.body, Body::Fail(_)), "the keeper replied {frame:?}");
    }
    assert_eq!(ok(&sandbox, "echo unharmed").await, "unharmed");
}

/// A keeper that requires a token accepts no connection without it or with another token.
pub async fn connection_without_the_token_is_refused(stage: &Stage) {
    let sandbox = stage.running().await;
    let provider = stage.provider();
    let dialed = provider.dial(sandbox.id()).await.unwrap();
    let Some(secret) = dialed.token else {
        // Without a token, a layer of isolation must keep processes inside out.
        let walls = &stage.mode().layers;
        assert!(walls.contains(&IsolationLayer::PidNamespace) || stage.mode().processes == Support::Refused);
        return;
    };
    assert!(secret.len() >= 16, "a secret of {} bytes", secret.len());
    for wrong in [None, Some(Vec::new()), Some(vec![0; secret.len()]), Some(secret[1..].to_vec())] {
        let Dialed { stream, .. } = provider.dial(sandbox.id()).await.unwrap();
        let refused = Keeper::connect(Dialed { stream, token: wrong, owner: false }).await;
        assert!(refused.is_err(), "a wrong secret was accepted");
    }
    let Dialed { stream, .. } = provider.dial(sandbox.id()).await.unwrap();
    Keeper::connect(Dialed { stream, token: Some(secret), owner: false }).await.unwrap();
}

/// A keeper closes a connection that violates the protocol, and continues to serve the others.
pub async fn malformed_frames_end_only_their_connection(stage: &Stage) {
    let sandbox = stage.running().await;
    assert_eq!(ok(&sandbox, "echo before").await, "before");
    let frame = |stream: u32, body: Body| {
        let mut bytes = Vec::new();
        encode(&Frame { stream, body }, &mut bytes);
        bytes
    };
    let welcome = |token: &Option<Vec<u8>>| {
        let token = token.clone().map(Into::into);
        frame(0, Body::Hello(Hello { generation: GENERATION, token, owner: false }))
    };
    let list = || frame(7, Body::Open(Box::new(Request::Processes)));
    let sleep = || {
        let spawn = Spawn { detached: false, ..Spawn::main(&["sleep".into(), "1000".into()]) };
        frame(7, Body::Open(Box::new(Request::Spawn(spawn))))
    };
    let header = |length: u32, kind: u32| [(length | kind << 24).to_le_bytes(), 1u32.to_le_bytes()].concat();
    // The flag says whether a hello is sent before the garbage.
    let cases: [(&str, bool, Vec<u8>); 8] = [
        ("noise", false, vec![0xff; 4096]),
        ("no hello", false, list()),
        ("noise after the hello", true, vec![0xa5; 4096]),
        ("a frame longer than any", true, header(0x00ff_ffff, 3)),
        ("an unknown kind", true, header(4, 99)),
        ("a malformed request", true, [header(4, 3), vec![0xff; 4]].concat()),
        ("a stream opened twice", true, [sleep(), sleep()].concat()),
        ("a frame that only a keeper sends", true, frame(0, Body::Pong)),
    ];
    for (what, greets, garbage) in cases {
        let Dialed { mut stream, token, .. } = stage.provider().dial(sandbox.id()).await.unwrap();
        if greets {
            stream.write_all(&welcome(&token)).await.unwrap();
        }
        // The keeper may close the connection while garbage is still being sent.
        let _ = stream.write_all(&garbage).await;
        let hung_up = tokio::time::timeout(SOON, stream.read_to_end(&mut Vec::new())).await;
        assert!(hung_up.is_ok(), "{what}: the keeper did not close the connection");
        assert_eq!(ok(&sandbox, "echo after").await, "after", "{what}");
    }
    // Commands that the connection had started end with it.
    crate::eventually("nothing of it runs", async || {
        sandbox.processes().await.unwrap().iter().all(|info| !info.running)
    })
    .await;
}

/// A keeper refuses connections above its cap. Existing ones continue, and new ones are accepted when others close.
pub async fn too_many_connections_are_refused(stage: &Stage) {
    let sandbox = stage.running().await;
    assert_eq!(ok(&sandbox, "echo first").await, "first");
    let connections = (0..caps::CONNECTIONS + 10).map(async |_| {
        let connected = async { Keeper::connect(stage.provider().dial(sandbox.id()).await?).await };
        tokio::time::timeout(SOON, connected).await.expect("no hang")
    });
    // A few at a time, because an engine may have to start a program for each.
    let held: Vec<_> = futures_util::stream::iter(connections).buffer_unordered(8).collect().await;
    let let_in = held.iter().filter(|connection| connection.is_ok()).count();
    assert!(
        (caps::CONNECTIONS / 2..caps::CONNECTIONS).contains(&let_in),
        "{let_in} connections in addition to the first"
    );
    assert_eq!(ok(&sandbox, "echo still").await, "still");
    drop(held);
    let again = within(SOON, async || match stage.provider().dial(sandbox.id()).await {
        Ok(dialed) => Keeper::connect(dialed).await.is_ok(),
        Err(_) => false,
    });
    assert!(again.await, "there is room again");
}

/// Starts a sandbox whose socket is swapped later. It has the default start timeout, because a later process waits
/// that long for a socket.
async fn to_be_swapped(stage: &Stage) -> Sandbox {
    stage.started(&SandboxSpec { startup_ms: None, ..stage.spec() }).await
}

/// Checks that a later process does not connect to a swapped socket.
async fn is_refused(stage: &Stage, sandbox: &Sandbox, swap: &str) {
    let later = stage.again(stage.reopen(), sandbox).await;
    let dialed = tokio::time::timeout(SOON, later.exec(&ExecSpec::argv(["true"]))).await.expect("no hang");
    assert_ne!(code(dialed), ErrorCode::Internal, "{swap}");
    // The sandbox can still be removed.
    later.remove(RemoveOptions { volumes: false, force: true }).await.unwrap();
}

/// A socket that was replaced by a symlink to another socket, by a file or by nothing is refused.
pub async fn replaced_socket_is_refused(stage: &Stage) {
    // If no files of the sandbox are on this machine, the socket is not either.
    if !stage.has_processes().await || stage.mode().workspace == Support::Refused {
        return;
    }
    let elsewhere = stage.home().path().join("elsewhere.sock");
    let listener = tokio::net::UnixListener::bind(&elsewhere).unwrap();
    // At the same time, because a later process waits a while for a missing socket.
    let swaps = ["link", "file", "nothing"].map(async |swap| {
        let sandbox = to_be_swapped(stage).await;
        assert_eq!(ok(&sandbox, "echo up").await, "up");
        let is_socket = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
        let own = |path: &PathBuf| path.components().any(|part| part.as_os_str() == sandbox.id().as_str());
        let all = host::walk(&stage.home().state(), false).into_iter();
        let sockets: Vec<PathBuf> = all.filter(own).filter(is_socket).collect();
        assert!(!sockets.is_empty(), "the keeper listens somewhere in the state directory");
        for socket in sockets {
            std::fs::remove_file(&socket).unwrap();
            match swap {
                "link" => std::os::unix::fs::symlink(&elsewhere, &socket).unwrap(),
                "file" => std::fs::write(&socket, "").unwrap(),
                _ => {}
            }
        }
        is_refused(stage, &sandbox, swap).await;
    });
    futures_util::future::join_all(swaps).await;
    let knocked = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
    assert!(knocked.is_err(), "a client was led to another socket");
}

/// If root inside can access the socket and replaces it, for example by another listener, the connection is refused.
pub async fn socket_replaced_from_inside_is_refused(stage: &Stage) {
    let Some(socket) = stage.socket_inside() else {
        // In this case the socket must not be visible inside.
        let sandbox = stage.running().await;
        if stage.mode().layers.contains(&IsolationLayer::MountNamespace) {
            let state = stage.home().state();
            assert_eq!(sh(&sandbox, &format!("find {} -type s", state.display())).await.stdout_text(), "");
        }
        return;
    };
    let swaps = [
        format!("rm {socket}; ln -s /run/elsewhere.sock {socket}"),
        format!("rm {socket}; mkdir {socket}"),
        format!("rm {socket}; knock listen {socket} >/dev/null 2>&1 & while ! test -S {socket}; do :; done"),
    ];
    let swaps = swaps.map(async |swap| {
        let sandbox = to_be_swapped(stage).await;
        let root = ExecSpec { user: Some("0".into()), ..ExecSpec::shell(swap.as_str()) };
        assert!(run(&sandbox, &root).await.status.success(), "{swap}");
        is_refused(stage, &sandbox, &swap).await;
    });
    futures_util::future::join_all(swaps).await;
}

/// The keeper survives when root inside kills every process that it can see.
pub async fn keeper_survives_kill_of_all_processes(stage: &Stage) {
    if !stage.mode().layers.contains(&IsolationLayer::PidNamespace) {
        // Without a pid namespace it would see the host's processes, so it kills only its own process group.
        if stage.has_processes().await {
            let sandbox = stage.running().await;
            assert_eq!(sh(&sandbox, "kill -9 0").await.status.signal, Some(9));
            assert_eq!(ok(&sandbox, "echo alive").await, "alive");
        }
        return;
    }
    let sandbox = stage.running().await;
    let massacre =
        ExecSpec { user: Some("0".into()), ..ExecSpec::shell("kill -9 1; kill -9 -1; kill -STOP 1; exit 0") };
    let _ = tokio::time::timeout(SOON, sandbox.run(&massacre, None, 1000)).await.expect("an answer comes");
    let alive = within(SOON, async || {
        sandbox.run(&ExecSpec::argv(["echo", "alive"]), None, 100).await.is_ok_and(|output| output.status.success())
    });
    assert!(alive.await, "the keeper replies");
}
