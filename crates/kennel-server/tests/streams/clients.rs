//! Real WebSocket clients, written from `docs/server.md`: PyPI's `websockets`, and the WebSocket of a JavaScript runtime.

use crate::support::Stage;
use kennel_testkit::{bun, python};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs a client, which starts a command, closes the connection, attaches again, and ends the command.
fn run(stage: &Stage, program: PathBuf, client: &str) {
    let client = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/streams/clients").join(client);
    let output = Command::new(program)
        .arg(client)
        .args([stage.address.to_string(), stage.token.clone(), stage.sandbox.id().to_string()])
        .stdin(Stdio::null())
        .output()
        .expect("`cargo xtask test` has installed it");
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert_eq!(stdout, "got one\ngot two\nexit 9\n", "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_in_python_works() {
    let stage = Stage::new().await;
    run(&stage, python::program(), "client.py");
    assert!(stage.running().await.is_empty());
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_in_javascript_works() {
    let stage = Stage::new().await;
    run(&stage, bun::directory().join(bun::PROGRAMS).join("bun"), "client.js");
    assert!(stage.running().await.is_empty());
    stage.clean_up().await;
}
