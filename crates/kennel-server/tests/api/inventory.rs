//! Volumes, pools, images and builds. Builds with an engine are tested with the command line's own tests.

use crate::client::Call;
use crate::stand::Stand;
use kennel_testkit::eventually;
use kennel_types::Scope;
use serde_json::{Value, json};

#[tokio::test]
async fn volumes_are_shown_and_pruned() {
    let stand = Stand::new().await;
    for (name, project) in [("a", "shop"), ("b", "bakery"), ("c", "shop")] {
        let body = json!({"name": name, "project": project, "data": true, "caches": {"npm": "/cache"}});
        stand.sandbox(body).await;
    }
    let shown = stand.send("GET", "/v1/volumes/data-a", None).await.ok(200);
    assert_eq!((&shown["kind"], &shown["project"]), (&json!("data"), &json!("shop")));
    assert_eq!(shown["usedBy"].as_array().unwrap().len(), 1);
    assert_eq!(stand.send("GET", "/v1/volumes/data-x", None).await.fails(404), "not_found");
    for name in ["a", "b"] {
        stand.send("DELETE", &format!("/v1/sandboxes/{name}?force=true"), None).await.ok(204);
    }
    let shop = stand.token("shop", Scope::Create, Some("shop")).await;
    let prune = async |token: &str, body: Value| -> Vec<String> {
        let pruned = stand.send_as(token, "POST", "/v1/volumes/prune", Some(body)).await.ok(200);
        assert_eq!(pruned["failed"], json!([]));
        pruned["volumes"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(stand.send_as(&shop, "GET", "/v1/volumes/data-b", None).await.fails(404), "not_found");
    assert_eq!(prune(&shop, json!({"dryRun": true})).await, ["data-a"]);
    assert_eq!(prune(&shop, json!({})).await, ["data-a"], "the volume of another project stays");
    assert_eq!(prune(&shop, json!({})).await, [""; 0]);
    assert_eq!(prune(&stand.admin, json!({})).await, ["data-b"]);
    stand.send("GET", "/v1/volumes/data-c", None).await.ok(200);
    stand.end().await;
}

#[tokio::test]
async fn a_pool_is_set_used_and_removed() {
    let stand = Stand::new().await;
    let set = async |body: Value| stand.send("PUT", "/v1/pools/warm", Some(body)).await;
    let made =
        set(json!({"min": 2, "sessions": true, "ownWorkspace": true, "sandbox": {"network": "none"}})).await.ok(200);
    assert_eq!((&made["name"], &made["min"], &made["max"]), (&json!("warm"), &json!(2), &json!(2)));
    eventually("two members wait", async || {
        stand.send("GET", "/v1/pools", None).await.ok(200)["items"][0]["ready"] == 2
    })
    .await;
    assert_eq!(
        stand.send("GET", "/v1/sandboxes", None).await.ok(200)["items"],
        json!([]),
        "members are no sandboxes yet"
    );
    let body = json!({"ownWorkspace": true, "pool": "require", "sandbox": {"network": "none"}});
    stand.send("POST", "/v1/sessions", Some(body)).await.ok(201);
    let other = json!({"pool": "require", "ownWorkspace": true, "sandbox": {"network": "bridge"}});
    assert_eq!(stand.send("POST", "/v1/sessions", Some(other)).await.fails(503), "not_available");
    for wrong in [
        json!({"min": 3, "max": 2}),
        json!({"max": 1001}),
        json!({"ownWorkspace": true}),
        json!({"sandbox": {"command": ["true"]}}),
        json!({"sandbox": {"data": true}}),
        json!({"sandbox": {"name": "x"}}),
    ] {
        assert_eq!(set(wrong.clone()).await.fails(400), "invalid_config", "{wrong}");
    }
    let shop = stand.token("shop", Scope::Read, Some("shop")).await;
    assert_eq!(stand.send_as(&shop, "GET", "/v1/pools", None).await.ok(200)["items"], json!([]));
    stand.send("DELETE", "/v1/pools/warm", None).await.ok(204);
    assert_eq!(stand.send("DELETE", "/v1/pools/warm", None).await.fails(404), "not_found");
    eventually("the members are gone", async || stand.count().await == 1).await;
    stand.end().await;
}

#[tokio::test]
async fn builds_and_pulls_refuse_what_a_token_does_not_allow() {
    let stand = Stand::new().await;
    let token = stand.token("dev", Scope::Create, None).await;
    let context = stand.directory("context");
    let body = json!({"context": context, "tag": "x"});
    assert_eq!(stand.send_as(&token, "POST", "/v1/builds", Some(body)).await.fails(403), "permission_denied");
    assert_eq!(stand.send_as(&token, "DELETE", "/v1/images?name=x", None).await.fails(403), "permission_denied");
    let upload = async |token: &str, query: &str| {
        Call::new("POST", &format!("/v1/builds/upload?{query}"))
            .token(token)
            .bytes(b"no archive")
            .send(stand.address)
            .await
    };
    // The name of an image that others use.
    let refused = upload(&token, "tag=debian").await;
    assert_eq!(refused.fails(403), "permission_denied");
    let id = stand.send_as(&token, "GET", "/v1/token", None).await.ok(200)["id"].as_str().unwrap().to_owned();
    assert!(String::from_utf8_lossy(&refused.body).contains(&format!("localhost/{id}/")), "{refused:?}");
    for query in ["", "tag=x&arg=novalue", "tag=x&nonsense=1", "tag=x"] {
        assert_eq!(upload(&stand.admin, query).await.fails(400), "invalid_config", "{query}");
    }
    for file in ["%2Fetc%2Fpasswd", "..%2Fx"] {
        assert_eq!(upload(&stand.admin, &format!("tag=x&file={file}")).await.fails(400), "invalid_config", "{file}");
    }
    let left = std::fs::read_dir(stand.dir.path().join("state/builds")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "no context is left");
    for wrong in [json!({}), json!({"image": "Not An Image"}), json!({"image": "x", "provider": "local"})] {
        let refused = stand.send_as(&token, "POST", "/v1/images/pull", Some(wrong.clone())).await;
        assert_eq!(refused.fails(400), "invalid_config", "{wrong}");
    }
    stand.end().await;
}

#[tokio::test]
async fn a_failed_pull_ends_with_an_error() {
    let stand = Stand::new().await;
    // Nothing listens there.
    let body = json!({"image": "127.0.0.1:1/team/x"});
    let lines = stand.send("POST", "/v1/images/pull", Some(body)).await;
    assert_eq!((lines.status, lines.header("content-type")), (200, Some("application/x-ndjson")));
    let text = String::from_utf8(lines.body).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["type"], "error", "{text}");
    assert!(last["error"]["code"].is_string() && last["error"]["requestId"].is_string(), "{text}");
    assert_eq!(stand.send("DELETE", "/v1/images?name=nothing", None).await.fails(404), "image_not_found");
    stand.end().await;
}
