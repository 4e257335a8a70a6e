//! Commands, logs and file changes as lines of JSON.

use crate::support::{SOON, Stage, text};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kennel_testkit::eventually;
use serde_json::{Value, json};

/// Reads lines as they arrive.
struct Lines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    async fn open(stage: &Stage, method: &str, path: &str, body: Option<Value>) -> Self {
        let response = stage.request(method, path, body).await;
        assert_eq!(response.status(), 200, "{}", text(response).await);
        assert_eq!(response.headers()["content-type"], "application/x-ndjson");
        Self { body: response.into_body(), rest: Vec::new() }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(SOON, self.body.frame()).await.expect("a line")?.unwrap();
            self.rest.extend_from_slice(frame.data_ref().unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_streamed_without_a_web_socket() {
    let stage = Stage::new().await;
    let script = "printf 'h\\303\\251llo\\n'; printf '\\377' >&2; cat; exit 4";
    let body = json!({"shell": script, "stdin": "in"});
    let mut lines = Lines::open(&stage, "POST", &stage.path("exec/stream"), Some(body)).await;
    assert_eq!(lines.next().await.unwrap()["type"], "started");
    let (mut stdout, mut stderr) = (String::new(), Vec::new());
    let exit = loop {
        let line = lines.next().await.unwrap();
        match (line["type"].as_str().unwrap(), line["channel"].as_str()) {
            ("output", Some("stdout")) => {
                assert_eq!(line["offset"], stdout.len());
                stdout += line["text"].as_str().unwrap();
            }
            ("output", Some("stderr")) => stderr.push(line["base64"].as_str().unwrap().to_owned()),
            _ => break line,
        }
    };
    assert_eq!((stdout.as_str(), stderr), ("héllo\nin", vec!["/w==".to_owned()]));
    assert_eq!(exit, json!({"type": "exit", "exitCode": 4, "signal": null, "timedOut": false, "oomKilled": false}));
    assert!(lines.next().await.is_none());

    let response = stage.request("POST", &stage.path("exec/stream"), Some(json!({"argv": ["/no/such"]}))).await;
    assert_eq!(response.status(), 422);
    let error: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(error["error"]["code"], "exec_failed");
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_command_ends_with_its_client() {
    let stage = Stage::new().await;
    let body = json!({"shell": "echo here; sleep 1000", "timeout": 0});
    let mut lines = Lines::open(&stage, "POST", &stage.path("exec/stream"), Some(body)).await;
    while lines.next().await.unwrap()["text"] != "here\n" {}
    assert_eq!(stage.running().await.len(), 1);
    drop(lines);
    eventually("the command ends", async || stage.running().await.is_empty()).await;
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_command_waits_for_a_slow_client() {
    let stage = Stage::new().await;
    let body = json!({"shell": "seq 1 1000000", "timeout": 0});
    let mut lines = Lines::open(&stage, "POST", &stage.path("exec/stream"), Some(body)).await;
    lines.next().await.unwrap();
    lines.next().await.unwrap();
    assert_eq!(stage.running().await.len(), 1, "it has printed more than the buffers hold, and waits");
    let mut exit = None;
    while let Some(line) = lines.next().await {
        exit = Some(line);
    }
    assert_eq!(exit.unwrap()["exitCode"], 0);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_files_are_streamed() {
    let stage = Stage::new().await;
    let path = stage.path("files/watch?path=/tmp&recursive=true");
    let mut lines = Lines::open(&stage, "GET", &path, None).await;
    assert_eq!(lines.next().await.unwrap(), json!({"type": "watching"}));
    let files = stage.sandbox.files(None).await.unwrap();
    files.write("/tmp/new", b"x", kennel_core::WriteOptions::default()).await.unwrap();
    while lines.next().await.unwrap() != json!({"type": "created", "path": "new"}) {}
    files.remove("/tmp/new", false).await.unwrap();
    while lines.next().await.unwrap() != json!({"type": "removed", "path": "new"}) {}
    let missing = stage.request("GET", &stage.path("files/watch?path=/no/such"), None).await;
    assert_eq!(missing.status(), 404);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_followed_to_its_end() {
    let stage = Stage::new().await;
    let spec = kennel_types::SandboxSpec {
        command: Some(
            ["sh", "-c", "echo one; until test -e /tmp/go; do sleep 0.05; done; echo two"].map(Into::into).into(),
        ),
        network: Some(kennel_types::NetworkMode::None),
        ..kennel_types::SandboxSpec::default()
    };
    let sandbox = kennel_core::Sandbox::create(stage.sandbox.provider().clone(), &spec).await.unwrap();
    sandbox.start().await.unwrap();
    let path = format!("/v1/sandboxes/{}/logs/follow", sandbox.id());
    let mut lines = Lines::open(&stage, "GET", &path, None).await;
    let mut seen = String::new();
    while let Some(line) = lines.next().await {
        match line["type"].as_str().unwrap() {
            "output" => {
                seen += line["text"].as_str().unwrap();
                if seen == "one\n" {
                    let files = sandbox.files(None).await.unwrap();
                    files.write("/tmp/go", b"", kennel_core::WriteOptions::default()).await.unwrap();
                }
            }
            "end" => break,
            other => panic!("{other}: {line}"),
        }
    }
    assert_eq!(seen, "one\ntwo\n");
    stage.clean_up().await;
}
