//! What changes about a sandbox after its creation: labels, limits, and when it expires.

use crate::client::Call;
use crate::stand::Stand;
use kennel_types::Scope;
use serde_json::json;

#[tokio::test]
async fn a_sandbox_expires_unless_it_is_renewed() {
    let stand = Stand::new().await;
    let made = stand.send("POST", "/v1/sandboxes", Some(json!({"name": "box", "ttl": "1h"}))).await.ok(201);
    let expires = made["expiresAt"].as_u64().unwrap();
    assert!(expires > made["createdMs"].as_u64().unwrap() + 3_500_000, "{made}");
    let renewed = stand.send("POST", "/v1/sandboxes/box/renew", Some(json!({"ttl": "2h"}))).await.ok(200);
    assert!(renewed["expiresAt"].as_u64().unwrap() > expires + 3_500_000, "{renewed}");
    let shown = stand.send("GET", "/v1/sandboxes/box", None).await.ok(200);
    assert_eq!(shown["expiresAt"], renewed["expiresAt"]);
    let never = stand.send("POST", "/v1/sandboxes/box/renew", Some(json!({"ttl": 0}))).await.ok(200);
    assert_eq!(never["expiresAt"], json!(null));
    let plain = stand.send("POST", "/v1/sandboxes", Some(json!({"name": "plain", "ttl": 0}))).await.ok(201);
    assert_eq!(plain["expiresAt"], json!(null));
    // One that runs is removed too, and nothing of it is left.
    stand.send("POST", "/v1/sandboxes/box/renew", Some(json!({"ttl": 1}))).await.ok(200);
    kennel_testkit::eventually("it is removed", async || {
        stand.send("GET", "/v1/sandboxes/box", None).await.status == 404
    })
    .await;
    assert_eq!(stand.count().await, 1);
    let noted = stand.dir.path().join("state/amendments");
    kennel_testkit::eventually("nothing is noted", async || {
        std::fs::read_dir(&noted).unwrap().flatten().all(|entry| entry.file_name() == ".lock")
    })
    .await;
    assert_eq!(stand.send("POST", "/v1/sandboxes/box/renew", Some(json!({"ttl": 1}))).await.fails(404), "not_found");
    assert_eq!(stand.send("POST", "/v1/sandboxes/plain/renew", Some(json!({}))).await.fails(400), "invalid_config");
    stand.end().await;
}

#[tokio::test]
async fn a_creation_that_fails_leaves_no_time() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box"})).await;
    let taken = stand.send("POST", "/v1/sandboxes", Some(json!({"name": "box", "ttl": "1h"}))).await;
    assert_eq!(taken.fails(409), "already_exists");
    let noted = std::fs::read_dir(stand.dir.path().join("state/amendments")).unwrap().flatten();
    assert_eq!(noted.filter(|entry| entry.file_name() != ".lock").count(), 0);
    stand.end().await;
}

#[tokio::test]
async fn labels_are_set_and_removed() {
    let stand = Stand::new().await;
    let id = stand.sandbox(json!({"name": "box", "project": "shop", "labels": {"team": "a", "old": "x"}})).await;
    let patch = async |body| stand.send("PATCH", "/v1/sandboxes/box", Some(body)).await;
    let changed = patch(json!({"labels": {"team": "b", "old": null, "new": "y"}})).await.ok(200);
    for (key, value) in [("team", json!("b")), ("old", json!(null)), ("new", json!("y"))] {
        assert_eq!(changed["labels"][key], value, "{key}");
    }
    let found = stand.send("GET", "/v1/sandboxes?label=team%3Db", None).await.ok(200);
    assert_eq!(found["items"][0]["id"], id.as_str());
    assert_eq!(stand.send("GET", "/v1/sandboxes?label=old", None).await.ok(200)["items"], json!([]));
    // Kennel's own labels decide who sees a sandbox.
    for own in ["kennel.project", "kennel", ""] {
        assert_eq!(patch(json!({"labels": {own: "x"}})).await.fails(400), "invalid_config", "{own:?}");
    }
    assert_eq!(patch(json!({})).await.fails(400), "invalid_config");
    assert_eq!(patch(json!({"name": "other"})).await.fails(400), "invalid_config", "there is another route for it");
    let shop = stand.token("shop", Scope::Create, Some("shop")).await;
    let foreign = stand.token("foreign", Scope::Create, Some("bank")).await;
    let body = json!({"labels": {"by": "shop"}});
    stand.send_as(&shop, "PATCH", "/v1/sandboxes/box", Some(body.clone())).await.ok(200);
    assert_eq!(stand.send_as(&foreign, "PATCH", "/v1/sandboxes/box", Some(body)).await.fails(404), "not_found");
    stand.end().await;
}

#[tokio::test]
async fn limits_that_cannot_be_changed_are_refused_as_a_whole() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box"})).await;
    let token = stand.token_with("small", |token| token.limits.memory_bytes = Some(128 << 20)).await;
    let patch = async |body| stand.send_as(&token, "PATCH", "/v1/sandboxes/box", Some(body)).await;
    assert_eq!(patch(json!({"memory": "129m"})).await.fails(403), "permission_denied");
    assert_eq!(patch(json!({"pids": 0})).await.fails(400), "invalid_config");
    // The provider of these tests has no limits. A refused request also leaves the labels as they were.
    let refused = patch(json!({"memory": "128m", "labels": {"a": "b"}})).await;
    assert_eq!(refused.fails(501), "unsupported");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("changing the limits of a sandbox"), "{message}");
    let shown = stand.send("GET", "/v1/sandboxes/box", None).await.ok(200);
    assert_eq!(shown["labels"]["a"], json!(null));
    stand.end().await;
}

#[tokio::test]
async fn arrays_are_no_objects() {
    let stand = Stand::new().await;
    for body in [r#"["box"]"#, r#"{"mounts": [["/tmp", "/x", false]]}"#, r#"{"ports": [[80, null, false]]}"#] {
        let call = Call::new("POST", "/v1/sandboxes").token(&stand.admin).header("content-type", "application/json");
        assert_eq!(call.bytes(body.as_bytes()).send(stand.address).await.fails(400), "invalid_config", "{body}");
    }
    assert_eq!(stand.count().await, 0);
    stand.end().await;
}
