//! An inside that turns against its keeper and its host.

use crate::inside::{SOON, code, ok, run, sh};
use crate::{Stage, host, within};
use kennel_core::{Dialed, Keeper, RemoveOptions, Sandbox};
use kennel_proto::{Body, Decoder, Frame, GENERATION, Hello, encode};
use kennel_types::{ErrorCode, ExecSpec, Layer, Support};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;

/// It finds the socket and is not let in.
pub async fn the_inside_cannot_talk_to_its_keeper(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let Some(socket) = stage.socket_inside() else {
        // There is no path to knock at: nothing of it is in the sandbox's own network.
        if stage.mode().layers.contains(&Layer::NetNamespace) {
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
    assert_eq!(output.stderr_text(), "", "it could knock");
    let mut decoder = Decoder::new();
    decoder.feed(&output.stdout);
    while let Ok(Some(frame)) = decoder.next_frame() {
        assert!(matches!(frame.body, Body::Fail(_)), "the keeper answered {frame:?}");
    }
    assert_eq!(ok(&sandbox, "echo unharmed").await, "unharmed");
}

/// Without it, or with another, nobody is let in.
pub async fn a_secret_is_wanted_where_there_is_one(stage: &Stage) {
    let sandbox = stage.running().await;
    let provider = stage.provider();
    let dialed = provider.dial(sandbox.id()).await.unwrap();
    let Some(secret) = dialed.token else {
        // No secret: then it must be a wall that keeps the inside out.
        let walls = &stage.mode().layers;
        assert!(walls.contains(&Layer::PidNamespace) || stage.mode().processes == Support::Refused);
        return;
    };
    assert!(secret.len() >= 16, "a secret of {} bytes", secret.len());
    for wrong in [None, Some(Vec::new()), Some(vec![0; secret.len()]), Some(secret[1..].to_vec())] {
        let Dialed { stream, .. } = provider.dial(sandbox.id()).await.unwrap();
        let refused = Keeper::connect(Dialed { stream, token: wrong, owner: false }).await;
        assert!(refused.is_err(), "a wrong secret was taken");
    }
    let Dialed { stream, .. } = provider.dial(sandbox.id()).await.unwrap();
    Keeper::connect(Dialed { stream, token: Some(secret), owner: false }).await.unwrap();
}

/// A later process is not led astray by what is in the socket's place.
async fn is_refused(stage: &Stage, sandbox: &Sandbox, swap: &str) {
    let later = stage.again(stage.reopen(), sandbox).await;
    let dialed = tokio::time::timeout(SOON, later.exec(&ExecSpec::argv(["true"]))).await.expect("no hang");
    assert_ne!(code(dialed), ErrorCode::Internal, "{swap}");
    // It spoilt itself only: it can still be removed.
    later.remove(RemoveOptions { volumes: false, force: true }).await.unwrap();
}

/// By a link to a socket where someone listens, by a file, by nothing.
pub async fn a_swapped_socket_is_refused(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let elsewhere = stage.home().path().join("elsewhere.sock");
    let listener = tokio::net::UnixListener::bind(&elsewhere).unwrap();
    for swap in ["link", "file", "nothing"] {
        let sandbox = stage.running().await;
        assert_eq!(ok(&sandbox, "echo up").await, "up");
        let is_socket = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
        let sockets: Vec<PathBuf> = host::walk(&stage.home().state(), false).into_iter().filter(is_socket).collect();
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
    }
    let knocked = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
    assert!(knocked.is_err(), "someone was led to another socket");
}

/// By root inside, where the socket can be reached: among others by a listener that is not the keeper.
pub async fn a_socket_swapped_from_inside_is_refused(stage: &Stage) {
    let Some(socket) = stage.socket_inside() else {
        // Nothing of it may be seen inside, then.
        let sandbox = stage.running().await;
        if stage.mode().layers.contains(&Layer::MountNamespace) {
            let state = stage.home().state();
            assert_eq!(sh(&sandbox, &format!("find {} -type s", state.display())).await.stdout_text(), "");
        }
        return;
    };
    for swap in [
        format!("rm {socket}; ln -s /run/elsewhere.sock {socket}"),
        format!("rm {socket}; mkdir {socket}"),
        format!("rm {socket}; knock listen {socket} >/dev/null 2>&1 & while ! test -S {socket}; do :; done"),
    ] {
        let sandbox = stage.running().await;
        let root = ExecSpec { user: Some("0".into()), ..ExecSpec::shell(swap.as_str()) };
        assert!(run(&sandbox, &root).await.status.success(), "{swap}");
        is_refused(stage, &sandbox, &swap).await;
    }
}

/// Root inside kills all it can see.
pub async fn the_keeper_outlives_a_massacre(stage: &Stage) {
    if !stage.mode().layers.contains(&Layer::PidNamespace) {
        // All it can see would be the host's processes: here it is its own group.
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
    assert!(alive.await, "the keeper answers");
}
