//! What holds for every request: the form of errors, request ids, idempotency keys, the document, the end.

use crate::client::Call;
use crate::stand::Stand;
use kennel_core::Provider as _;
use kennel_mock::{Answer, Gate};
use kennel_testkit::eventually;
use kennel_types::Scope;
use serde_json::json;

#[tokio::test]
async fn errors_of_the_framework_have_a_body_too() {
    let stand = Stand::new().await;
    let admin = |method: &str, path: &str| Call::new(method, path).token(&stand.admin);
    let nothing = admin("GET", "/v1/nothing").send(stand.address).await;
    assert_eq!(nothing.fails(404), "not_found");
    let method = admin("PATCH", "/v1/sandboxes").send(stand.address).await;
    assert_eq!(method.fails(405), "unsupported");
    assert!(method.header("allow").is_some_and(|allow| allow.contains("POST")), "{method:?}");
    let kind =
        admin("POST", "/v1/sandboxes").header("content-type", "text/plain").bytes(b"{}").send(stand.address).await;
    assert_eq!(kind.fails(415), "invalid_config");
    let large = admin("POST", "/v1/sandboxes").bytes(&vec![b' '; 17 << 20]).send(stand.address).await;
    assert_eq!(large.fails(413), "limit_exceeded");
    for body in ["{", "[]", "\"x\"", r#"{"nonsense":1}"#, r#"{"memory":"much"}"#, r#"{"startupTimeout":"7"}"#] {
        let wrong = admin("POST", "/v1/sandboxes").bytes(body.as_bytes()).send(stand.address).await;
        assert_eq!(wrong.fails(400), "invalid_config", "{body}");
    }
    let unknown = admin("POST", "/v1/sandboxes").bytes(br#"{"nonsense":1}"#).send(stand.address).await;
    assert!(unknown.json()["error"]["message"].as_str().unwrap().contains("nonsense"), "{unknown:?}");
    for query in ["limit=0", "limit=x", "nonsense=1", "cursor=x", "status=gone"] {
        let wrong = admin("GET", &format!("/v1/sandboxes?{query}")).send(stand.address).await;
        assert_eq!(wrong.fails(400), "invalid_config", "{query}");
    }
    assert_eq!(stand.count().await, 0);
    stand.end().await;
}

#[tokio::test]
async fn a_request_id_is_chosen_or_made() {
    let stand = Stand::new().await;
    let chosen = Call::new("GET", "/healthz").header("x-request-id", "abc-1").send(stand.address).await;
    assert_eq!(chosen.header("x-request-id"), Some("abc-1"));
    for odd in ["", "a b", &"x".repeat(65), "é"] {
        let made = Call::new("GET", "/healthz").header("x-request-id", odd).send(stand.address).await;
        assert!(made.header("x-request-id").is_some_and(|id| id.len() == 16), "{odd}");
    }
    stand.end().await;
}

#[tokio::test]
async fn a_repeated_request_creates_one_sandbox() {
    let stand = Stand::new().await;
    let call = |key: &str, body: &serde_json::Value| {
        Call::new("POST", "/v1/sandboxes").token(&stand.admin).header("idempotency-key", key).json(body)
    };
    let first = call("k1", &json!({"name": "box"})).send(stand.address).await;
    let again = call("k1", &json!({"name": "box"})).send(stand.address).await;
    assert_eq!(first.ok(201), again.ok(201));
    assert_eq!((first.header("idempotent-replayed"), again.header("idempotent-replayed")), (None, Some("true")));
    assert_eq!(call("k1", &json!({"name": "box2"})).send(stand.address).await.fails(422), "conflict");
    assert_eq!(stand.count().await, 1);
    // Another token has keys of its own.
    let other = stand.token("other", Scope::Create, None).await;
    let own =
        Call::new("POST", "/v1/sandboxes").token(&other).header("idempotency-key", "k1").send(stand.address).await;
    own.ok(201);
    // A request that failed is not remembered.
    assert_eq!(call("k2", &json!({"name": "box"})).send(stand.address).await.fails(409), "already_exists");
    stand.send("DELETE", "/v1/sandboxes/box?force=true", None).await.ok(204);
    call("k2", &json!({"name": "box"})).send(stand.address).await.ok(201);
    for bad in ["a b", &"x".repeat(256)] {
        assert_eq!(call(bad, &json!({})).send(stand.address).await.fails(400), "invalid_config");
    }
    assert_eq!(stand.count().await, 2);
    stand.end().await;
}

#[tokio::test]
async fn public_routes_tell_what_there_is() {
    let stand = Stand::new().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(Call::new("GET", path).send(stand.address).await.ok(200)["status"], "ok");
    }
    let document = Call::new("GET", "/openapi.json").send(stand.address).await.ok(200);
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document, kennel_server::document());
    let page = Call::new("GET", "/docs").send(stand.address).await;
    let text = String::from_utf8(page.body.clone()).unwrap();
    assert!(text.contains("/v1/sandboxes/{sandbox}/exec"), "{text}");
    assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("<script"), "it loads something");
    stand.end().await;
}

#[tokio::test]
async fn the_checked_in_document_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
    let text = format!("{:#}\n", kennel_server::document());
    if kennel_testkit::environment::variable("KENNEL_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "docs/reference/openapi.json is out of date: KENNEL_UPDATE_DOCS=1 cargo test -p kennel-server current"
    );
}

#[tokio::test]
async fn the_end_waits_for_open_requests_and_leaves_sandboxes_running() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box"})).await;
    let (mock, gate) = (stand.mock.clone(), Gate::new());
    mock.on(["work"], Answer::exit(0).stdout("done").hold(&gate));
    let (address, admin) = (stand.address, stand.admin.clone());
    let call = Call::new("POST", "/v1/sandboxes/box/exec").token(&admin).json(&json!({"argv": ["work"]}));
    let working = tokio::spawn(call.send(address));
    eventually("the command runs", async || !mock.ran().is_empty()).await;
    let ending = tokio::spawn(stand.end());
    eventually("no connection is accepted", async || tokio::net::TcpStream::connect(address).await.is_err()).await;
    gate.open();
    assert_eq!(working.await.unwrap().ok(200)["stdout"], "done");
    ending.await.unwrap();
    let info = mock.get("box").await.unwrap();
    assert_eq!(info.status, kennel_types::Status::Running);
}
