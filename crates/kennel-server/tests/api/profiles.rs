//! Profiles through the API.

use crate::client::Call;
use crate::stand::{NativeStand, Stand};
use kennel_types::Scope;
use serde_json::{Value, json};

#[tokio::test]
async fn a_profile_is_created_changed_and_deleted() {
    let stand = NativeStand::new().await;
    let (work, mut sandbox) = (stand.home.workspace(), stand.sandbox_body());
    sandbox["workspace"] = json!(work);
    sandbox["command"] = json!(["sh", "-c", "echo \"hello $WHO\"; sleep 1000"]);
    // A variable of the server is not expanded, neither now nor when the profile is read.
    sandbox["env"]["WHO"] = json!("${HOME}");
    let made = stand.send("POST", "/v1/profiles", Some(json!({"name": "dev", "sandbox": sandbox}))).await.ok(201);
    assert_eq!((&made["name"], &made["status"]), (&json!("dev"), &json!("stopped")));
    let call = async |method: &str, rest: &str, body: Option<Value>| {
        stand.send(method, &format!("/v1/profiles/dev{rest}"), body).await
    };
    assert_eq!(stand.send("POST", "/v1/profiles", Some(json!({"name": "dev"}))).await.fails(409), "already_exists");
    assert_eq!(call("GET", "/logs", None).await.fails(404), "not_found");
    let started = call("POST", "/start", None).await.ok(200);
    assert_eq!(started["status"], "running");
    let logged = async |text: &str| {
        let wanted = format!("hello {text}\n");
        kennel_testkit::eventually("the log is written", async || {
            call("GET", "/logs?tail=1", None).await.body == wanted.as_bytes()
        })
        .await;
    };
    logged("${HOME}").await;
    let change = json!({"sandbox": {"env": {"WHO": "you"}}});
    call("PATCH", "", Some(change)).await.ok(200);
    let restarted = call("POST", "/restart", None).await.ok(200);
    assert_eq!(restarted["status"], "running");
    assert_ne!(restarted["sandbox"], started["sandbox"], "the profile has changed");
    logged("you").await;
    let shown = stand.send("GET", &format!("/v1/sandboxes/{}", restarted["sandbox"].as_str().unwrap()), None).await;
    assert_eq!(shown.ok(200)["workspace"], json!(work), "the workspace stays");
    call("DELETE", "", None).await.ok(204);
    assert_eq!(call("GET", "", None).await.fails(404), "not_found");
    assert_eq!(stand.send("GET", "/v1/sandboxes", None).await.ok(200)["items"], json!([]));
    for wrong in [
        json!({}),
        json!({"name": "../x"}),
        json!({"name": "x", "sandbox": {"name": "y"}}),
        json!({"name": "x", "sandbox": {"ttl": 1}}),
        json!({"name": "x", "sandbox": {"start": false}}),
        json!({"name": "x", "sandbox": {"workspace": "relative"}}),
    ] {
        let refused = stand.send("POST", "/v1/profiles", Some(wrong.clone())).await;
        assert_eq!(refused.fails(400), "invalid_config", "{wrong}");
    }
    stand.clean_up().await;
}

#[tokio::test]
async fn only_an_admin_makes_a_profile_that_has_more_of_the_host() {
    let stand = Stand::new().await;
    let (inside, outside) = (stand.directory("work"), stand.directory("private"));
    let token = stand.token_with("dev", |token| token.directories = vec![inside.display().to_string()]).await;
    let create = async |token: &str, name: &str, sandbox: Value| {
        let body = json!({"name": name, "sandbox": sandbox});
        stand.send_as(token, "POST", "/v1/profiles", Some(body)).await
    };
    let privileged = [
        json!({"network": "host"}),
        json!({"nesting": true}),
        json!({"runtime": "runsc"}),
        json!({"userns": "host"}),
        json!({"protectGit": false}),
        json!({"workspace": outside}),
        json!({"mounts": [{"host": outside, "target": "/mnt"}]}),
    ];
    for body in &privileged {
        assert_eq!(create(&token, "bad", body.clone()).await.fails(403), "permission_denied", "{body}");
    }
    assert_eq!(stand.send("GET", "/v1/profiles", None).await.ok(200)["items"], json!([]));
    create(&token, "good", json!({"workspace": inside})).await.ok(201);
    for body in &privileged {
        let body = json!({"sandbox": body});
        let refused = stand.send_as(&token, "PATCH", "/v1/profiles/good", Some(body.clone())).await;
        assert_eq!(refused.fails(403), "permission_denied", "{body}");
    }
    // A profile of an admin is neither changed nor started nor deleted without the scope, and its paths are not told.
    create(&stand.admin, "mine", json!({"workspace": outside})).await.ok(201);
    for (method, path, body) in [
        ("PATCH", "/v1/profiles/mine", Some(json!({"sandbox": {"image": "evil"}}))),
        ("POST", "/v1/profiles/mine/start", None),
        ("POST", "/v1/profiles/mine/restart", None),
        ("DELETE", "/v1/profiles/mine", None),
    ] {
        let refused = stand.send_as(&token, method, path, body).await;
        assert_eq!(refused.fails(403), "permission_denied", "{method} {path}");
        assert!(!String::from_utf8_lossy(&refused.body).contains("private"), "{refused:?}");
    }
    assert_eq!(stand.count().await, 0);
    stand.send_as(&token, "POST", "/v1/profiles/good/start", None).await.ok(200);
    stand.send_as(&token, "DELETE", "/v1/profiles/good", None).await.ok(204);
    // A token with limits gives none to a profile.
    let small = stand.token_with("small", |token| token.limits.memory_bytes = Some(1 << 20)).await;
    assert_eq!(create(&small, "x", json!({})).await.fails(403), "permission_denied");
    // Profiles belong to no project.
    let shop = stand.token("shop", Scope::Create, Some("shop")).await;
    assert_eq!(create(&shop, "x", json!({})).await.fails(403), "permission_denied");
    for (method, path) in [("GET", ""), ("GET", "/logs"), ("DELETE", ""), ("POST", "/restart")] {
        let refused = stand.send_as(&shop, method, &format!("/v1/profiles/mine{path}"), None).await;
        assert_eq!(refused.fails(404), "not_found", "{method} {path}");
    }
    stand.end().await;
}

#[tokio::test]
async fn a_repeated_request_creates_one_profile() {
    let stand = Stand::new().await;
    let call = || {
        let call = Call::new("POST", "/v1/profiles").token(&stand.admin).header("idempotency-key", "k");
        call.json(&json!({"name": "dev"}))
    };
    let first = call().send(stand.address).await.ok(201);
    let again = call().send(stand.address).await;
    assert_eq!((again.ok(201), again.header("idempotent-replayed")), (first, Some("true")));
    stand.end().await;
}
