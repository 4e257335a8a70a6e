//! What clients and networks do wrong: each has its own error, and other clients notice nothing.

use crate::client::Call;
use crate::stand::{Stand, echo};
use kennel_types::Scope;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The time limit of one step. Only a failing test waits that long.
const SOON: Duration = Duration::from_secs(90);

/// Sends bytes as they are, and returns everything that the server sends until it closes the connection.
async fn raw(stand: &Stand, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut reply = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut reply)).await;
    // The server may reset a connection whose request it does not read to the end.
    drop(read.expect("the server closes the connection"));
    String::from_utf8_lossy(&reply).into_owned()
}

#[tokio::test]
async fn half_open_connections_end_and_disturb_nobody() {
    let stand = Stand::new().await;
    let mut halves = Vec::new();
    for _ in 0..200 {
        let mut half = TcpStream::connect(stand.address).await.unwrap();
        half.write_all(b"GET /healthz HTTP/1.1\r\nhost: ").await.unwrap();
        halves.push(half);
    }
    stand.sandbox(json!({"name": "box"})).await;
    let done = stand.send("POST", "/v1/sandboxes/box/exec", Some(echo("hi"))).await.ok(200);
    assert_eq!(done["stdout"], "hi\n");
    for mut half in halves {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(SOON, half.read_to_end(&mut rest)).await;
        let _ = read.expect("the server closes it");
    }
    stand.end().await;
}

#[tokio::test]
async fn a_body_of_ten_gibibytes_is_refused_without_reading_it() {
    let stand = Stand::new().await;
    let head = |rest: &str| {
        format!(
            "POST /v1/sandboxes HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n{rest}\r\n\r\n",
            stand.address, stand.admin
        )
    };
    // A client that says so is refused before it sends anything.
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    stream.write_all(head("content-length: 10737418240").as_bytes()).await.unwrap();
    let mut reply = [0; 20];
    tokio::time::timeout(SOON, stream.read_exact(&mut reply)).await.unwrap().unwrap();
    assert!(reply.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&reply));
    // One that does not is refused when it has sent too much.
    let stream = TcpStream::connect(stand.address).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let head = head("transfer-encoding: chunked");
    let sending = tokio::spawn(async move {
        let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 1 << 20], b"\r\n"].concat();
        to.write_all(head.as_bytes()).await.unwrap();
        let mut sent = 0_u64;
        while to.write_all(&chunk).await.is_ok() && sent < 10 << 30 {
            sent += 1 << 20;
        }
        sent
    });
    tokio::time::timeout(SOON, from.read_exact(&mut reply)).await.unwrap().unwrap();
    assert!(reply.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&reply));
    let sent = tokio::time::timeout(SOON, sending).await.unwrap().unwrap();
    assert!(sent < 1 << 30, "the server has read {sent} bytes");
    assert_eq!(stand.count().await, 0);
    stand.end().await;
}

#[tokio::test]
async fn headers_cannot_be_injected() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box"})).await;
    let call = |line: &str| format!("GET {line}\r\nhost: {}\r\nconnection: close\r\n\r\n", stand.address);
    // Encoded line breaks stay text.
    let reply = raw(&stand, call("/v1/x%0d%0aset-cookie:%20a=b HTTP/1.1").as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 404 ") && !reply.contains("\r\nset-cookie"), "{reply}");
    for malformed in [
        "/healthz HTTP/1.1\r\nx-request-id: a\rset-cookie: b",
        "/healthz HTTP/1.1\r\nx-request-id : a",
        "/healthz HTTP/1.1\r\nx-request-id: a\0b",
        "/healthz HTTP/1.1\r\ntransfer-encoding: chunked, identity",
        "/healthz HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2",
        "/heal thz HTTP/1.1",
    ] {
        let reply = raw(&stand, call(malformed).as_bytes()).await;
        assert!(reply.starts_with("HTTP/1.1 400 ") && !reply.contains("set-cookie"), "{malformed:?}: {reply}");
    }
    // Two requests in one, of which an intermediary would see one.
    let smuggled = "/healthz HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked";
    let reply = raw(&stand, format!("{}0\r\n\r\nGET /openapi.json HTTP/1.1\r\n\r\n", call(smuggled)).as_bytes()).await;
    assert!(!reply.contains("\"openapi\""), "{reply}");
    // What becomes a header of a response.
    for path in ["/a\r\nset-cookie: b", "//evil.example", "/\\evil.example", "evil"] {
        let body = json!({"port": 80, "path": path});
        let refused = stand.send("POST", "/v1/sandboxes/box/previews", Some(body)).await;
        assert_eq!(refused.fails(400), "invalid_config", "{path:?}");
    }
    stand.end().await;
}

#[tokio::test]
async fn paths_of_requests_lead_nowhere_else() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box"})).await;
    let dir = stand.directory("work");
    let token = stand.token_with("dev", |token| token.directories = vec![dir.display().to_string()]).await;
    for path in [
        "/v1/sandboxes/../../etc/passwd",
        "/v1/sandboxes/..%2f..%2fetc%2fpasswd",
        "/v1/sandboxes/%2e%2e/%2e%2e/token",
        "/v1/sandboxes/box/../../../token",
        "/v1/profiles/..%2f..%2fstate%2ftoken",
        "/v1/sessions/..%2ftoken",
        "//v1/sandboxes",
        "/v1/sandboxes/%00",
    ] {
        let reply = stand.send("GET", path, None).await;
        assert!(matches!(reply.status, 400 | 404), "{path}: {reply:?}");
        reply.fails(reply.status);
    }
    let sibling = stand.directory("work-private");
    for workspace in
        [format!("{}/..", dir.display()), sibling.display().to_string(), format!("{}/./../work-private", dir.display())]
    {
        let body = json!({"workspace": workspace});
        assert_eq!(stand.send_as(&token, "POST", "/v1/sandboxes", Some(body)).await.fails(403), "permission_denied");
    }
    assert_eq!(stand.count().await, 1);
    stand.end().await;
}

#[tokio::test]
async fn a_token_that_calls_too_often_is_told_when_to_try_again() {
    let stand = Stand::new().await;
    let token = stand.token("busy", Scope::Read, None).await;
    let head = format!("GET /v1/token HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\n", stand.address);
    // One connection, and all requests at once.
    let last = format!("{head}connection: close\r\n\r\n");
    let mut all = format!("{head}\r\n").repeat(5000);
    all.push_str(&last);
    let stream = TcpStream::connect(stand.address).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let sending = tokio::spawn(async move { to.write_all(all.as_bytes()).await.map(|()| to) });
    let mut reply = Vec::new();
    tokio::time::timeout(SOON, from.read_to_end(&mut reply)).await.unwrap().unwrap();
    drop(sending.await.unwrap().unwrap());
    let text = String::from_utf8_lossy(&reply);
    let count = |status: &str| text.matches(&format!("HTTP/1.1 {status} ")).count();
    assert_eq!(count("200") + count("429"), 5001);
    assert!(count("200") >= 2000, "the burst is allowed: {}", count("200"));
    if count("429") > 0 {
        assert!(text.contains("retry-after: 1\r\n") && text.contains("too_many_requests"));
    }
    // Others are not affected.
    let own: Value = stand.send("GET", "/v1/token", None).await.ok(200);
    assert_eq!(own["name"], "admin");
    assert_eq!(Call::new("GET", "/healthz").send(stand.address).await.ok(200)["status"], "ok");
    stand.end().await;
}
