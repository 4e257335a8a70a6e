//! Who may do what. The tests walk over the OpenAPI document, which has every route: routes can only be added together with
//! their description.

use crate::client::Call;
use crate::stand::{Stand, echo};
use kennel_types::Scope;
use serde_json::{Value, json};

/// An operation of the document.
struct Route {
    id: String,
    method: String,
    path: String,
    scope: Option<Scope>,
    is_stream: bool,
}

/// All operations, with the sandbox `box` and made-up names in their paths.
fn routes() -> Vec<Route> {
    let document = kennel_server::document();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let mut path = path.replace("{sandbox}", "box").replace("{process}", "1").replace("{port}", "80");
            while let (Some(from), Some(to)) = (path.find('{'), path.find('}')) {
                path.replace_range(from..=to, "x");
            }
            let required = operation["parameters"].as_array().unwrap().iter();
            let query: Vec<String> = required
                .filter(|parameter| parameter["in"] == "query" && parameter["required"] == true)
                .map(|parameter| format!("{}=%2Ftmp", parameter["name"].as_str().unwrap()))
                .collect();
            if !query.is_empty() {
                path = format!("{path}?{}", query.join("&"));
            }
            routes.push(Route {
                id: operation["operationId"].as_str().unwrap().to_owned(),
                method: method.to_ascii_uppercase(),
                path,
                scope: operation["x-scope"].as_str().map(|scope| scope.parse().unwrap()),
                is_stream: operation["responses"].to_string().contains("text/event-stream"),
            });
        }
    }
    assert!(routes.len() > 70, "{}", routes.len());
    routes
}

impl Route {
    fn call(&self) -> Call {
        Call::new(&self.method, &self.path)
    }

    /// A body with which the request is valid.
    fn body(&self) -> Option<Value> {
        match self.id.as_str() {
            "exec" | "startProcess" | "execStream" => Some(echo("hi")),
            "createPreview" => Some(json!({"port": 80})),
            "changeSandbox" => Some(json!({"labels": {"a": "b"}})),
            "renewSandbox" => Some(json!({"ttl": "1h"})),
            "renameSandbox" => Some(json!({"name": "other"})),
            "makeDirectory" => Some(json!({"path": "/tmp/new"})),
            "moveFile" => Some(json!({"from": "/tmp/a", "to": "/tmp/b"})),
            "readFiles" => Some(json!({"paths": ["/tmp/a"]})),
            "writeFiles" => Some(json!({"files": [{"path": "/tmp/a", "text": "x"}]})),
            "signalProcess" => Some(json!({"signal": 15})),
            _ => None,
        }
    }
}

#[tokio::test]
async fn every_route_refuses_callers_without_rights() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box", "project": "shop"})).await;
    let revoked = stand.token("revoked", Scope::Admin, None).await;
    stand.revoke("revoked").await;
    let scopes = [("read", Scope::Read), ("exec", Scope::Exec), ("create", Scope::Create)];
    let mut tokens = Vec::new();
    for (name, scope) in scopes {
        tokens.push((scope, stand.token(name, scope, None).await));
    }
    for route in routes() {
        let origin = route.call().token(&stand.admin).header("origin", "http://evil.example").send(stand.address).await;
        assert_eq!(origin.fails(403), "permission_denied", "{}", route.id);
        let host = route.call().token(&stand.admin).header("host", "evil.example").send(stand.address).await;
        assert_eq!(host.fails(421), "permission_denied", "{}", route.id);
        let Some(scope) = route.scope else { continue };
        let nobody = route.call().send(stand.address).await;
        assert_eq!(nobody.fails(401), "permission_denied", "{}", route.id);
        assert_eq!(nobody.header("www-authenticate"), Some("Bearer"), "{}", route.id);
        for bad in [revoked.as_str(), "kennel_", "nonsense"] {
            route.call().token(bad).send(stand.address).await.fails(401);
        }
        route.call().header("authorization", "Basic eDp5").send(stand.address).await.fails(401);
        for (has, token) in tokens.iter().filter(|(has, _)| *has < scope) {
            let refused = route.call().token(token).send(stand.address).await;
            assert_eq!(refused.fails(403), "permission_denied", "{} with {has}", route.id);
        }
    }
    assert_eq!(stand.count().await, 1);
    stand.end().await;
}

#[tokio::test]
async fn what_belongs_to_another_project_does_not_exist() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box", "project": "shop"})).await;
    let stranger = stand.token("stranger", Scope::Create, Some("bakery")).await;
    for route in routes().iter().filter(|route| route.path.contains("/box") && !route.is_stream) {
        let call = route.call().token(&stranger);
        let call = route.body().map_or(call, |body| route.call().token(&stranger).json(&body));
        assert_eq!(call.send(stand.address).await.fails(404), "not_found", "{}", route.id);
    }
    let listed = stand.send_as(&stranger, "GET", "/v1/sandboxes", None).await.ok(200);
    assert_eq!(listed["items"], json!([]));
    let own = stand.token("own", Scope::Read, Some("shop")).await;
    assert_eq!(stand.send_as(&own, "GET", "/v1/sandboxes/box", None).await.ok(200)["project"], "shop");
    stand.end().await;
}

#[tokio::test]
async fn only_an_admin_gets_more_of_the_host() {
    let stand = Stand::new().await;
    let (inside, outside) = (stand.directory("work"), stand.directory("private"));
    std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
    let token = stand.token_with("dev", |token| token.directories = vec![inside.display().to_string()]).await;
    let link = inside.join("link").display().to_string();
    let up = format!("{}/../private", inside.display());
    for body in [
        json!({"network": "host"}),
        json!({"nesting": true}),
        json!({"runtime": "runsc"}),
        json!({"userns": "host"}),
        json!({"protectGit": false}),
        json!({"workspace": outside}),
        json!({"workspace": "/"}),
        json!({"workspace": link}),
        json!({"workspace": up}),
        json!({"workspace": "/does/not/exist"}),
        json!({"mounts": [{"host": outside, "target": "/mnt"}]}),
        json!({"mounts": [{"host": "/var/run/docker.sock", "target": "/mnt"}]}),
        json!({"mounts": [{"host": "/", "target": "/mnt", "readOnly": true}]}),
    ] {
        let refused = stand.send_as(&token, "POST", "/v1/sandboxes", Some(body.clone())).await;
        assert_eq!(refused.fails(403), "permission_denied", "{body}");
        assert_eq!(stand.count().await, 0, "{body}");
    }
    // A server with only one provider refuses others by name.
    stand.send_as(&token, "POST", "/v1/sandboxes", Some(json!({"provider": "local"}))).await.fails(503);
    assert_eq!(stand.count().await, 0);
    stand.end().await;
}

#[tokio::test]
async fn limits_of_a_token_are_defaults_and_caps() {
    let stand = Stand::new().await;
    let token = stand
        .token_with("dev", |token| {
            token.project = Some("shop".into());
            token.limits.sandboxes = Some(2);
        })
        .await;
    let elsewhere = stand.send_as(&token, "POST", "/v1/sandboxes", Some(json!({"project": "bakery"}))).await;
    assert_eq!(elsewhere.fails(403), "permission_denied");
    stand.sandbox(json!({"project": "bakery"})).await;
    for _ in 0..2 {
        let made = stand.send_as(&token, "POST", "/v1/sandboxes", Some(json!({}))).await.ok(201);
        assert_eq!(made["project"], "shop");
    }
    let third = stand.send_as(&token, "POST", "/v1/sandboxes", None).await;
    assert_eq!(third.fails(503), "limit_exceeded");
    assert_eq!(stand.count().await, 3);
    let small = stand.token_with("small", |token| token.limits.memory_bytes = Some(1 << 20)).await;
    let large = stand.send_as(&small, "POST", "/v1/sandboxes", Some(json!({"memory": "2m"}))).await;
    assert_eq!(large.fails(403), "permission_denied");
    stand.end().await;
}

#[tokio::test]
async fn the_own_user_needs_no_token_on_the_unix_socket() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let stand = Stand::new().await;
    let mut socket = tokio::net::UnixStream::connect(stand.dir.path().join("state/api.sock")).await.unwrap();
    socket.write_all(b"GET /v1/token HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    socket.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    assert!(reply.contains("\"scope\":\"admin\""), "{reply}");
    stand.end().await;
}
