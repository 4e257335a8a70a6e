//! Ports of a sandbox without a network, for programs and for browsers.

use crate::support::{SOON, Stage, text};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::Request;
use kennel_api::Scope;
use kennel_core::{Exec, ExecEvent, WriteOptions};
use kennel_testkit::programs::{self, SOCKETS};
use kennel_types::ExecSpec;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

/// Starts a program inside that listens, and waits until it does. It ends with the handle.
pub(crate) async fn serve(stage: &Stage, source: &str, arguments: &[&str]) -> Exec {
    let compiled = stage.home.path().join("program");
    programs::compile(source, &compiled);
    let files = stage.sandbox.files(None).await.unwrap();
    let options = WriteOptions { mode: Some(0o755), parents: true };
    let place = format!("/tmp/program-{}", arguments.join("-").replace(':', "-"));
    files.write(&place, &std::fs::read(&compiled).unwrap(), options).await.unwrap();
    let words = [place.as_str()].into_iter().chain(arguments.iter().copied());
    let mut server = stage.sandbox.exec(&ExecSpec::argv(words)).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"ready\n") {
        match tokio::time::timeout(SOON, server.next()).await.expect("it listens").unwrap() {
            ExecEvent::Output(_, bytes) => seen.extend(bytes),
            ExecEvent::Exited(status) => panic!("{status:?}: {}", String::from_utf8_lossy(&seen)),
        }
    }
    server
}

const HEADERS: &str = include_str!("programs/headers.rs");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_reach_ports_below_the_path_of_the_sandbox() {
    let stage = Stage::new().await;
    let _server = serve(&stage, HEADERS, &["8080"]).await;
    let request = Request::post(stage.path("ports/8080/some%2Fpath//x?a=%20b"))
        .header("authorization", format!("Bearer {}", stage.token))
        .header("cookie", "session=secret")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("x-mine", "2")
        .body("the body".to_owned())
        .unwrap();
    let response = stage.send(request).await;
    assert_eq!(response.status(), 418, "the status is that of the program inside");
    let headers = response.headers().clone();
    assert_eq!(headers["content-security-policy"], "sandbox");
    assert_eq!(headers["x-own"], "kept");
    for name in ["set-cookie", "clear-site-data", "service-worker-allowed"] {
        assert!(!headers.contains_key(name), "{name}");
    }
    let seen = text(response).await;
    assert!(seen.starts_with("POST /some%2Fpath//x?a=%20b HTTP/1.1\r\n"), "{seen}");
    assert!(seen.ends_with("\r\n\r\nthe body"), "{seen}");
    let lower = seen.to_lowercase();
    assert!(lower.contains("\r\nx-mine: 2\r\n") && lower.contains("\r\nhost: localhost:8080\r\n"), "{seen}");
    for own in ["authorization", "cookie", "kennel_", "secret", "x-hop"] {
        assert!(!lower.contains(own), "{own} got inside: {seen}");
    }

    let response = stage.request("GET", &stage.path("ports/9/"), None).await;
    assert_eq!(response.status(), 502, "nothing listens there");
    let error: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    let reader = stage.token("reader", Scope::Read, None).await;
    let request = Request::get(stage.path("ports/8080/")).header("authorization", format!("Bearer {reader}"));
    assert_eq!(stage.send(request.body(String::new()).unwrap()).await.status(), 403);
    let request = Request::get(stage.path("ports/8080/")).body(String::new()).unwrap();
    assert_eq!(stage.send(request).await.status(), 401);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn web_sockets_reach_ports() {
    let stage = Stage::new().await;
    let _server = serve(&stage, SOCKETS, &["websocket", "tcp:7001"]).await;
    let mut request = format!("ws://{}{}", stage.address, stage.path("ports/7001/chat")).into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {}", stage.token).parse().unwrap());
    let stream = TcpStream::connect(stage.address).await.unwrap();
    let (mut socket, response) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    assert_eq!(response.status(), 101);
    for length in [0, 1, 125, 126, 5000] {
        let message = Message::text("x".repeat(length));
        socket.send(message.clone()).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), message);
    }
    socket.close(None).await.unwrap();
    while let Some(Ok(message)) = socket.next().await {
        assert!(message.is_close(), "{message:?}");
    }
    stage.clean_up().await;
}

/// Sends a request as a browser would, to a host name that leads to this machine.
async fn browse(stage: &Stage, host: &str, path: &str, cookie: Option<&str>) -> (u16, hyper::HeaderMap, String) {
    let mut request = Request::get(path).header("host", host);
    if let Some(cookie) = cookie {
        request = request.header("cookie", cookie);
    }
    let response = stage.send(request.body(String::new()).unwrap()).await;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    (status, headers, text(response).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browsers_reach_ports_under_their_own_host() {
    let mut stage = Stage::new().await;
    let _server = serve(&stage, HEADERS, &["8080"]).await;
    let token = stage.token("browser", Scope::Exec, None).await;
    let host = format!("8080-{}.localhost:{}", stage.sandbox.id(), stage.address.port());
    assert_eq!(browse(&stage, &host, "/", None).await.0, 401);

    let request = Request::post(stage.path("previews"))
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json");
    let body = json!({"port": 8080, "path": "/start?x=1"}).to_string();
    let response = stage.send(request.body(body).unwrap()).await;
    assert_eq!(response.status(), 201);
    let preview: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(preview["origin"], format!("http://{host}"));
    let link = preview["url"].as_str().unwrap().strip_prefix(&format!("http://{host}")).unwrap().to_owned();

    let (status, headers, _) = browse(&stage, &host, &link, None).await;
    assert_eq!((status, &headers["location"]), (303, &"/start?x=1".parse().unwrap()));
    let cookie = headers["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && !cookie.to_lowercase().contains("domain"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(browse(&stage, &host, &link, None).await.0, 401, "a link can be opened once");

    let both = format!("theirs=1; {cookie}; more=2");
    let (status, headers, seen) = browse(&stage, &host, "/start?x=1", Some(&both)).await;
    assert_eq!(status, 418);
    assert!(seen.starts_with("GET /start?x=1 HTTP/1.1\r\n"), "{seen}");
    assert!(seen.to_lowercase().contains("cookie: theirs=1; more=2\r\n") && !seen.contains("kennel-preview"), "{seen}");
    let cookies: Vec<_> = headers.get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["a=1; Path=/"]);
    assert!(!headers.contains_key("content-security-policy"), "its origin is its own");

    // The cookie is for one port of one sandbox, and gives no access to the API.
    let other = format!("8081-{}.localhost:{}", stage.sandbox.id(), stage.address.port());
    assert_eq!(browse(&stage, &other, "/", Some(cookie)).await.0, 401);
    assert_eq!(browse(&stage, &stage.address.to_string(), "/v1/token", Some(cookie)).await.0, 401);
    let foreign =
        Request::get("/").header("host", &host).header("cookie", cookie).header("origin", "http://evil.example");
    assert_eq!(stage.send(foreign.body(String::new()).unwrap()).await.status(), 403);

    stage.revoke("browser").await;
    assert_eq!(browse(&stage, &host, "/", Some(cookie)).await.0, 401, "with its token, it loses its access");
    stage.end();
    stage.clean_up().await;
}
