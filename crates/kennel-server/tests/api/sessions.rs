//! Sessions through the API, in native sandboxes.

use crate::client::{Call, Reply};
use crate::stand::{NativeStand, Stand};
use kennel_server::ServerOptions;
use kennel_types::Scope;
use serde_json::{Value, json};

async fn open(stand: &NativeStand, mut body: Value) -> Reply {
    if body.get("sandbox").is_none() {
        body["sandbox"] = stand.sandbox_body();
    }
    stand.send("POST", "/v1/sessions", Some(body)).await
}

#[tokio::test]
async fn a_session_is_opened_used_and_removed() {
    let stand = NativeStand::new().await;
    let work = stand.home.workspace();
    std::fs::write(work.join("notes"), "hello").unwrap();
    let made = open(&stand, json!({"name": "fix", "workspace": work})).await.ok(201);
    assert_eq!((&made["name"], &made["state"]), (&json!("fix"), &json!("running")), "{made}");
    let exec = async |body: Value| stand.send("POST", "/v1/sessions/fix/exec", Some(body)).await;
    let done = exec(json!({"shell": "cat /workspace/notes; printf ' %s' $KENNEL_SESSION"})).await.ok(200);
    assert_eq!(done["stdout"], format!("hello {}", made["id"].as_str().unwrap()));
    let secret = stand.send("GET", "/v1/sessions/fix/secret", None).await.ok(200)["secret"].clone();
    let inside = exec(json!({"shell": "printf %s $KENNEL_SESSION_SECRET"})).await.ok(200);
    assert_eq!(inside["stdout"], secret);
    // The sandbox is one of the API, too.
    let sandbox = stand.send("GET", "/v1/sandboxes/fix", None).await.ok(200);
    assert_eq!((&sandbox["id"], &sandbox["session"]), (&made["sandbox"], &made["id"]));
    assert_eq!(open(&stand, json!({"name": "fix"})).await.fails(409), "already_exists");
    stand.send("POST", "/v1/sessions/fix/stop", Some(json!({"grace": 0}))).await.ok(200);
    let stopped = exec(json!({"argv": ["true"]})).await;
    assert_eq!(
        (stopped.fails(409).as_str(), &stopped.json()["error"]["nextStep"]["step"]),
        ("stopped", &json!("start_session"))
    );
    assert_eq!(exec(json!({"argv": ["true"], "start": true})).await.ok(200)["exitCode"], 0);
    assert_eq!(stand.send("GET", "/v1/sessions/fix", None).await.ok(200)["state"], "running");
    // A command in a paused sandbox fails at once, although the server has a connection to its keeper.
    stand.send("POST", "/v1/sandboxes/fix/pause", None).await.ok(200);
    assert_eq!(exec(json!({"argv": ["true"]})).await.fails(409), "stopped");
    stand.send("POST", "/v1/sandboxes/fix/resume", None).await.ok(200);
    assert_eq!(exec(json!({"argv": ["true"]})).await.ok(200)["exitCode"], 0);
    let events = async |query: &str| {
        let page = stand.send("GET", &format!("/v1/sessions/fix/events{query}"), None).await.ok(200);
        let items = page["items"].as_array().unwrap().clone();
        (items.iter().map(|event| event["to"].as_str().unwrap().to_owned()).collect::<Vec<_>>(), page)
    };
    let (all, page) = events("").await;
    assert_eq!((all[0].as_str(), all[1].as_str(), all.last().unwrap().as_str()), ("creating", "running", "running"));
    assert_eq!(page["nextCursor"], json!(null));
    let (first, page) = events("?limit=2").await;
    assert_eq!(first, all[..2]);
    let (rest, _) = events(&format!("?cursor={}", page["nextCursor"].as_str().unwrap())).await;
    assert_eq!(rest, all[2..]);
    let listed = stand.send("GET", "/v1/sessions?state=running", None).await.ok(200);
    assert_eq!(listed["items"][0]["name"], "fix");
    assert_eq!(stand.send("GET", "/v1/sessions?state=failed", None).await.ok(200)["items"], json!([]));
    assert_eq!(stand.send("GET", "/v1/sessions?state=odd", None).await.fails(400), "invalid_config");
    stand.send("DELETE", "/v1/sessions/fix?force=true", None).await.ok(204);
    assert_eq!(exec(json!({"argv": ["true"]})).await.fails(404), "not_found");
    stand.clean_up().await;
}

#[tokio::test]
async fn a_session_has_a_workspace_of_its_own() {
    let stand = NativeStand::new().await;
    let made = open(&stand, json!({"name": "own", "ownWorkspace": true})).await.ok(201);
    let dir = stand.home.path().join("kennel-workspaces").join(made["id"].as_str().unwrap());
    assert_eq!(made["workspace"], json!(dir));
    let body = json!({"shell": "echo kept > /workspace/file"});
    stand.send("POST", "/v1/sessions/own/exec", Some(body)).await.ok(200);
    stand.send("DELETE", "/v1/sessions/own?force=true", None).await.ok(204);
    assert_eq!(std::fs::read_to_string(dir.join("file")).unwrap(), "kept\n");
    // A main process, whose result is recorded although its sandbox is removed.
    let mut sandbox = stand.sandbox_body();
    sandbox["command"] = json!(["sh", "-c", "echo working; exit 7"]);
    sandbox["autoRemove"] = json!(true);
    open(&stand, json!({"name": "job", "sandbox": sandbox})).await.ok(201);
    kennel_testkit::eventually("the session has ended", async || {
        stand.send("POST", "/v1/sessions/job/stop", None).await.ok(200);
        stand.send("GET", "/v1/sessions/job", None).await.ok(200)["exitCode"] == 7
    })
    .await;
    assert_eq!(stand.send("GET", "/v1/sandboxes/job", None).await.fails(404), "not_found");
    for wrong in [
        json!({"ownWorkspace": true, "workspace": "/tmp"}),
        json!({"ownWorkspace": true, "clone": "https://example.org/x.git"}),
        json!({"clone": "/etc"}),
        json!({"clone": "https://user:secret@example.org/x.git"}),
        json!({"sandbox": {"name": "x"}}),
        json!({"sandbox": {"workspace": "/tmp"}}),
        json!({"sandbox": {"ttl": "1h"}}),
        json!({"sandbox": {"start": false}}),
        json!({"profile": "a", "noProfile": true}),
        json!({"name": "Not A Name"}),
        json!({"nonsense": 1}),
    ] {
        assert_eq!(open(&stand, wrong.clone()).await.fails(400), "invalid_config", "{wrong}");
    }
    assert_eq!(open(&stand, json!({"profile": "nothing"})).await.fails(404), "not_found");
    assert_eq!(stand.send("GET", "/v1/sandboxes", None).await.ok(200)["items"], json!([]));
    stand.clean_up().await;
}

#[tokio::test]
async fn a_repeated_request_opens_one_session() {
    let stand = Stand::new().await;
    let call = |key: &str, body: &Value| {
        Call::new("POST", "/v1/sessions").token(&stand.admin).header("idempotency-key", key).json(body)
    };
    let body = json!({"name": "fix", "ownWorkspace": true});
    let first = call("k1", &body).send(stand.address).await.ok(201);
    let again = call("k1", &body).send(stand.address).await;
    assert_eq!((again.ok(201), again.header("idempotent-replayed")), (first, Some("true")));
    assert_eq!(call("k1", &json!({})).send(stand.address).await.fails(422), "conflict");
    assert_eq!(stand.count().await, 1);
    stand.end().await;
}

#[tokio::test]
async fn sessions_obey_the_limits_of_a_token() {
    let stand = Stand::new().await;
    let outside = stand.directory("private");
    let token = stand.token_with("dev", |token| token.limits.sandboxes = Some(1)).await;
    let open = async |token: &str, body: Value| stand.send_as(token, "POST", "/v1/sessions", Some(body)).await;
    for body in [
        json!({"workspace": outside}),
        json!({"sandbox": {"network": "host"}}),
        json!({"sandbox": {"nesting": true}}),
        json!({"sandbox": {"mounts": [{"host": outside, "target": "/mnt"}]}}),
    ] {
        assert_eq!(open(&token, body.clone()).await.fails(403), "permission_denied", "{body}");
    }
    assert_eq!(stand.send("GET", "/v1/sessions", None).await.ok(200)["items"], json!([]), "nothing is recorded");
    assert_eq!(stand.count().await, 0);
    open(&token, json!({})).await.ok(201);
    assert_eq!(open(&token, json!({})).await.fails(503), "limit_exceeded");
    // Another project sees nothing of it.
    let own = stand.token("own", Scope::Create, Some("shop")).await;
    open(&own, json!({"name": "shop"})).await.ok(201);
    let stranger = stand.token("stranger", Scope::Create, Some("bakery")).await;
    for (method, path, body) in [
        ("GET", "/v1/sessions/shop", None),
        ("GET", "/v1/sessions/shop/events", None),
        ("GET", "/v1/sessions/shop/secret", None),
        ("POST", "/v1/sessions/shop/exec", Some(json!({"argv": ["true"]}))),
        ("DELETE", "/v1/sessions/shop", None),
    ] {
        assert_eq!(stand.send_as(&stranger, method, path, body).await.fails(404), "not_found", "{path}");
    }
    stand.end().await;
}

#[tokio::test]
async fn sessions_use_the_profile_of_the_server() {
    let options = ServerOptions { profile: Some("dev".into()), ..ServerOptions::default() };
    let stand = Stand::with_options(options).await;
    let work = stand.directory("work");
    let profile = |name: &str, team: &str| json!({"name": name, "sandbox": {"workspace": work, "labels": {"team": team}, "env": {"TEAM": team}}});
    for (name, team) in [("dev", "red"), ("other", "blue")] {
        stand.send("POST", "/v1/profiles", Some(profile(name, team))).await.ok(201);
    }
    let team = async |body: Value| {
        let made = stand.send("POST", "/v1/sessions", Some(body)).await.ok(201);
        let path = format!("/v1/sandboxes/{}", made["sandbox"].as_str().unwrap());
        let sandbox = stand.send("GET", &path, None).await.ok(200);
        (sandbox["labels"]["team"].clone(), made["profile"].clone(), made["workspace"].clone())
    };
    assert_eq!(team(json!({})).await, (json!("red"), json!("dev"), json!(work)));
    assert_eq!(team(json!({"profile": "other"})).await, (json!("blue"), json!("other"), json!(work)));
    assert_eq!(team(json!({"noProfile": true})).await, (json!(null), json!(null), json!(null)));
    let changed = json!({"sandbox": {"labels": {"team": "green"}}});
    assert_eq!(team(changed).await.0, "green");
    let own = team(json!({"ownWorkspace": true})).await;
    assert!(own.2 != json!(work) && own.2.is_string(), "{own:?}");
    // The profile mounts a directory that this token does not allow, and its path is not told.
    let token = stand.token("dev", Scope::Create, None).await;
    let before = stand.count().await;
    let refused = stand.send_as(&token, "POST", "/v1/sessions", Some(json!({}))).await;
    assert_eq!(refused.fails(403), "permission_denied");
    assert!(!String::from_utf8_lossy(&refused.body).contains("/work"), "{refused:?}");
    assert_eq!(stand.count().await, before);
    stand.send_as(&token, "POST", "/v1/sessions", Some(json!({"ownWorkspace": true}))).await.ok(201);
    stand.end().await;
}
