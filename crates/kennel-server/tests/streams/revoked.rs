//! Streams end soon after their token was revoked, and those of other tokens do not.

use crate::ports::serve;
use crate::support::{Arrived, SOON, Stage};
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::Request;
use kennel_api::Scope;
use kennel_testkit::eventually;
use kennel_testkit::programs::SOCKETS;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

/// Reads a body to its end, and returns what has arrived.
async fn rest(mut body: hyper::body::Incoming) -> String {
    let mut seen = Vec::new();
    while let Some(Ok(frame)) = tokio::time::timeout(SOON, body.frame()).await.expect("it ends") {
        seen.extend_from_slice(frame.data_ref().unwrap());
    }
    String::from_utf8(seen).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_a_revoked_token_end() {
    let stage = Stage::new().await;
    let token = stage.token("guest", Scope::Exec, None).await;
    let mut other = stage.open(json!({"type": "start", "shell": "cat", "stdin": true})).await;
    other.started().await;

    let mut terminal = stage.connect(&stage.path("stream"), Some(&token)).await.unwrap();
    // One that always has something to send must end too.
    terminal.say(json!({"type": "start", "shell": "yes"})).await;
    terminal.started().await;
    terminal.acknowledges = true;
    let request = |method: &str, path: &str, body: &str| {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        request.header("authorization", format!("Bearer {token}")).body(body.to_owned()).unwrap()
    };
    let body = r#"{"shell": "echo here; sleep 1000", "timeout": 0}"#;
    let lines = stage.send(request("POST", &stage.path("exec/stream"), body)).await;
    let events = stage.send(request("GET", "/v1/events", "")).await;
    let watch = stage.send(request("GET", &stage.path("files/watch?path=/tmp"), "")).await;
    for response in [&lines, &events, &watch] {
        assert_eq!(response.status(), 200);
    }
    let _server = serve(&stage, SOCKETS, &["websocket", "tcp:8082"]).await;
    let mut port = format!("ws://{}{}", stage.address, stage.path("ports/8082/")).into_client_request().unwrap();
    port.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let connected = TcpStream::connect(stage.address).await.unwrap();
    let (mut port, _) = tokio_tungstenite::client_async(port, connected).await.unwrap();

    let ticket = stage.send(request("POST", "/v1/tickets", r#"{"operation": "getToken", "path": "/v1/token"}"#)).await;
    let ticket: Value = serde_json::from_str(&rest(ticket.into_body()).await).unwrap();
    stage.revoke("guest").await;

    let closed = loop {
        if let Arrived::Closed(code) = terminal.next().await {
            break code;
        }
    };
    assert_eq!(closed, Some(1008));
    let lines = rest(lines.into_body()).await;
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((&last["type"], &last["error"]["code"]), (&json!("error"), &json!("permission_denied")), "{lines}");
    let watch = rest(watch.into_body()).await;
    assert!(watch.contains("the token was revoked"), "{watch}");
    rest(events.into_body()).await;
    let ended = async { while let Some(Ok(_)) = port.next().await {} };
    tokio::time::timeout(SOON, ended).await.expect("the connection to the port ends");
    let ticket = Request::get(ticket["path"].as_str().unwrap()).body(String::new()).unwrap();
    assert_eq!(stage.send(ticket).await.status(), 401, "a ticket ends with its token");

    // The streamed command ended with its stream. A command of a terminal stays, as after any close.
    other.write(0, b"still here").await;
    other.read(b"still here".len()).await;
    other.say(json!({"type": "eof", "offset": 10})).await;
    assert_eq!(other.exit().await, 0);
    eventually("the streamed command ends", async || stage.running().await.len() == 2).await;
    stage.clean_up().await;
}
