//! Events as server-sent events, over restarts.

use crate::support::{SOON, Stage};
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::Incoming;
use kennel_api::Scope;
use kennel_core::{RemoveOptions, Sandbox};
use kennel_types::SandboxSpec;
use serde_json::Value;

/// Reads server-sent events.
struct Reader {
    body: Incoming,
    rest: String,
    /// The id of the last event.
    last: Option<u64>,
}

impl Reader {
    async fn open(stage: &Stage, token: &str, last: Option<u64>) -> Self {
        let request = Request::get("/v1/events").header("authorization", format!("Bearer {token}"));
        let request = match last {
            Some(last) => request.header("last-event-id", last.to_string()),
            None => request,
        };
        let response = stage.send(request.body(String::new()).unwrap()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut reader = Self { body: response.into_body(), rest: String::new(), last: None };
        // The first one has no data. It says where the stream is.
        assert_eq!(reader.block().await, Some(None));
        reader
    }

    /// Returns the data of the next event, or `None` at the end of the stream. An event may have no data.
    async fn block(&mut self) -> Option<Option<Value>> {
        loop {
            if let Some((block, rest)) = self.rest.split_once("\n\n") {
                let (mut data, mut id) = (None, None);
                for line in block.lines() {
                    match line.split_once(": ") {
                        Some(("id", number)) => id = Some(number.parse().unwrap()),
                        Some(("data", text)) => data = Some(serde_json::from_str(text).unwrap()),
                        _ => {}
                    }
                }
                let is_comment = id.is_none() && data.is_none();
                self.rest = String::from(rest);
                if is_comment {
                    continue;
                }
                let id: u64 = id.expect("every event has an id");
                assert!(data.is_none() || self.last.is_none_or(|last| last < id), "{id} after {:?}", self.last);
                self.last = Some(id);
                return Some(data);
            }
            let frame = tokio::time::timeout(SOON, self.body.frame()).await.expect("an event")?.ok()?;
            self.rest += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        }
    }

    /// Returns the next event: its kind and its sandbox.
    async fn next(&mut self) -> Option<(String, String)> {
        let data = self.block().await?.expect("data");
        let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
        Some((text("event"), text("sandboxId")))
    }

    /// Reads until a new sandbox is known. If it was created before the server watches its provider, it is listed.
    async fn until_there(&mut self, sandbox: &Sandbox) {
        loop {
            let (kind, id) = self.next().await.expect("the stream goes on");
            if id == sandbox.id().as_str() && matches!(kind.as_str(), "created" | "listed") {
                return;
            }
        }
    }

    /// Reads to an event.
    async fn until(&mut self, kind: &str, sandbox: &Sandbox) {
        let wanted = (kind.to_owned(), sandbox.id().to_string());
        while self.next().await.expect("the stream goes on") != wanted {}
    }
}

async fn create(stage: &Stage, project: Option<&str>) -> Sandbox {
    let spec = SandboxSpec { project: project.map(ToOwned::to_owned), ..SandboxSpec::default() };
    Sandbox::create(stage.sandbox.provider().clone(), &spec).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_have_no_repeat_and_no_silent_gap_over_restarts() {
    let mut stage = Stage::new().await;
    let mut reader = Reader::open(&stage, &stage.token, None).await;
    for round in 0..5 {
        let seen = create(&stage, None).await;
        reader.until_there(&seen).await;
        let last = reader.last;
        if round % 2 == 0 {
            stage.kill();
        } else {
            stage.end();
        }
        // The stream ends, and nothing more is in it.
        while reader.next().await.is_some() {}
        let last = reader.last.max(last);
        let unseen = create(&stage, None).await;
        stage.restart();
        reader = Reader::open(&stage, &stage.token, last).await;
        reader.last = last;
        assert_eq!(reader.next().await.unwrap().0, "missed", "the gap is announced first");
        let mut listed = Vec::new();
        while !(listed.contains(&unseen.id().to_string()) && listed.contains(&seen.id().to_string())) {
            let (kind, sandbox) = reader.next().await.unwrap();
            assert!(kind == "listed" || kind == "missed", "{kind}");
            listed.push(sandbox);
        }
        unseen.remove(RemoveOptions::default()).await.unwrap();
        reader.until("removed", &unseen).await;
    }
    // A client that connects again without a restart gets what came after, and nothing twice.
    let last = reader.last;
    drop(reader);
    let later = create(&stage, None).await;
    let mut reader = Reader::open(&stage, &stage.token, last).await;
    assert_eq!(reader.next().await.unwrap(), ("created".into(), later.id().to_string()));
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_other_projects_are_not_shown() {
    let stage = Stage::new().await;
    let token = stage.token("bound", Scope::Read, Some("mine")).await;
    let mut reader = Reader::open(&stage, &token, None).await;
    let other = create(&stage, Some("other")).await;
    let none = create(&stage, None).await;
    let mine = create(&stage, Some("mine")).await;
    for sandbox in [&other, &none, &mine] {
        sandbox.remove(RemoveOptions::default()).await.unwrap();
    }
    let mut kinds = Vec::new();
    loop {
        let (kind, sandbox) = reader.next().await.unwrap();
        assert!(sandbox.is_empty() || sandbox == mine.id().as_str(), "{kind} of {sandbox}");
        kinds.push(kind.clone());
        if kind == "removed" || kind == "missed" {
            break;
        }
    }
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_number_is_refused() {
    let stage = Stage::new().await;
    let request = Request::get("/v1/events").header("authorization", format!("Bearer {}", stage.token));
    let response = stage.send(request.header("last-event-id", "abc").body(String::new()).unwrap()).await;
    assert_eq!(response.status(), 400);
    stage.clean_up().await;
}
