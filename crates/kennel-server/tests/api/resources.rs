//! The resources: sandboxes, commands, files, and what else there is.

use crate::client::Call;
use crate::stand::{Stand, echo};
use serde_json::{Value, json};

#[tokio::test]
async fn the_life_of_a_sandbox() {
    let stand = Stand::new().await;
    let body = json!({"name": "box", "labels": {"team": "a"}, "start": false});
    let made = stand.send("POST", "/v1/sandboxes", Some(body)).await.ok(201);
    assert_eq!((&made["status"], &made["name"]), (&json!("created"), &json!("box")));
    let status = async |action: &str| {
        stand.send("POST", &format!("/v1/sandboxes/box/{action}"), None).await.ok(200)["status"].clone()
    };
    assert_eq!(status("start").await, "running");
    assert_eq!(status("start").await, "running");
    assert_eq!(status("stop").await, "stopped");
    let stopped = stand.send("POST", "/v1/sandboxes/box/exec", Some(echo("x"))).await;
    assert_eq!(stopped.fails(409), "stopped");
    assert_eq!(stopped.json()["error"]["hint"], "POST /v1/sandboxes/box/start");
    let started = json!({"argv": ["echo", "x"], "start": true});
    assert_eq!(stand.send("POST", "/v1/sandboxes/box/exec", Some(started)).await.ok(200)["stdout"], "x\n");
    let renamed = stand.send("POST", "/v1/sandboxes/box/rename", Some(json!({"name": "crate"}))).await.ok(200);
    assert_eq!(renamed["name"], "crate");
    assert_eq!(stand.send("GET", "/v1/sandboxes/box", None).await.fails(404), "not_found");
    assert_eq!(stand.send("DELETE", "/v1/sandboxes/crate", None).await.fails(409), "conflict");
    let waited = stand.send("GET", "/v1/sandboxes/crate/wait?timeoutMs=1", None).await.ok(200);
    assert_eq!(waited["ended"], false);
    stand.send("DELETE", "/v1/sandboxes/crate?force=true", None).await.ok(204);
    assert_eq!(stand.send("GET", "/v1/sandboxes/crate", None).await.fails(404), "not_found");
    assert_eq!(stand.count().await, 0);
    stand.end().await;
}

#[tokio::test]
async fn a_list_has_pages_and_filters() {
    let stand = Stand::new().await;
    for (name, team) in [("a", "red"), ("b", "blue"), ("c", "red"), ("d", "red")] {
        stand.sandbox(json!({"name": name, "labels": {"team": team}, "start": name == "a"})).await;
    }
    let names = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap();
        let mut names: Vec<String> = items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let list = async |query: &str| stand.send("GET", &format!("/v1/sandboxes?{query}"), None).await.ok(200);
    assert_eq!(names(&list("").await), ["a", "b", "c", "d"]);
    assert_eq!(names(&list("label=team%3Dred").await), ["a", "c", "d"]);
    assert_eq!(names(&list("label=team&label=team%3Dblue").await), ["b"]);
    assert_eq!(names(&list("status=running").await), ["a"]);
    assert_eq!(names(&list("provider=docker").await), [""; 0]);
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = list(&format!("limit=3{cursor}")).await;
        seen.extend(names(&page));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    seen.sort();
    assert_eq!(seen, ["a", "b", "c", "d"]);
    stand.end().await;
}

#[tokio::test]
async fn a_command_returns_what_it_printed() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box"})).await;
    let exec = async |body: Value| stand.send("POST", "/v1/sandboxes/box/exec", Some(body)).await;
    let done = exec(echo("hello")).await.ok(200);
    assert_eq!((&done["exitCode"], &done["stdout"], &done["truncated"]), (&json!(0), &json!("hello\n"), &json!(false)));
    assert!(done["timings"]["totalMicros"].is_u64(), "{done}");
    assert_eq!(exec(json!({"argv": ["cat"], "stdin": "in"})).await.ok(200)["stdout"], "in");
    assert_eq!(exec(json!({"argv": ["false"]})).await.ok(200)["exitCode"], 1);
    let cut = exec(json!({"argv": ["echo", "0123456789"], "outputLimit": 4})).await.ok(200);
    assert_eq!((&cut["truncated"], &cut["cut"]["stdoutBytes"]), (&json!(true), &json!(7)));
    assert!(cut["stdout"].as_str().unwrap().starts_with("0123\n["), "{cut}");
    let late = exec(json!({"argv": ["sleep", "1000"], "timeout": "50ms"})).await.ok(200);
    assert_eq!((&late["exitCode"], &late["error"]["code"]), (&json!(124), &json!("timeout")));
    for wrong in [
        json!({}),
        json!({"argv": []}),
        json!({"argv": ["true"], "shell": "true"}),
        json!({"argv": ["a\u{0}b"]}),
        json!({"argv": ["true"], "env": {"A=B": "x"}}),
        json!({"argv": ["true"], "stdin": "a", "stdinBase64": "YQ=="}),
        json!({"argv": ["true"], "stdinBase64": "!"}),
        json!({"argv": ["true"], "outputLimit": 10_485_761}),
    ] {
        assert_eq!(exec(wrong.clone()).await.fails(400), "invalid_config", "{wrong}");
    }
    stand.end().await;
}

#[tokio::test]
async fn files_are_written_read_and_listed() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box"})).await;
    let files = "/v1/sandboxes/box/files";
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let put = Call::new("PUT", &format!("{files}?path=/data/a.bin")).token(&stand.admin).bytes(&content);
    put.send(stand.address).await.ok(204);
    let read = async |range: Option<&str>| {
        let call = Call::new("GET", &format!("{files}?path=/data/a.bin")).token(&stand.admin);
        let call = range.map_or(call, |range| call_with(&stand, files, range));
        call.send(stand.address).await
    };
    let whole = read(None).await;
    assert_eq!((whole.status, whole.header("content-length")), (200, Some("300000")));
    assert!(whole.body == content);
    let part = read(Some("bytes=10-19")).await;
    assert_eq!((part.status, part.header("content-range")), (206, Some("bytes 10-19/300000")));
    assert_eq!(part.body, content[10..20]);
    let beyond = read(Some("bytes=300000-")).await;
    assert_eq!(
        (beyond.fails(416).as_str(), beyond.header("content-range")),
        ("invalid_config", Some("bytes */300000"))
    );
    let stat = stand.send("GET", &format!("{files}/stat?path=/data/a.bin"), None).await.ok(200);
    assert_eq!((&stat["kind"], &stat["sizeBytes"]), (&json!("file"), &json!(300_000)));
    let listed = stand.send("GET", &format!("{files}/list?path=/data"), None).await.ok(200);
    assert_eq!(listed["entries"][0]["path"], "a.bin");
    stand.send("POST", &format!("{files}/mkdir"), Some(json!({"path": "/data/sub"}))).await.ok(204);
    let moved = json!({"from": "/data/a.bin", "to": "/data/sub/b.bin"});
    stand.send("POST", &format!("{files}/move"), Some(moved)).await.ok(204);
    assert_eq!(stand.send("GET", &format!("{files}?path=/data/a.bin"), None).await.fails(404), "not_found");
    assert_eq!(stand.send("GET", &format!("{files}?path=/data"), None).await.fails(400), "invalid_config");
    stand.send("DELETE", &format!("{files}?path=/data&recursive=true"), None).await.ok(204);
    assert_eq!(stand.send("GET", &format!("{files}/stat?path=/data"), None).await.fails(404), "not_found");
    for wrong in ["", "?path=", "?path=/x&mode=9", "?path=/x&nonsense=1"] {
        let call = Call::new("PUT", &format!("{files}{wrong}")).token(&stand.admin);
        assert_eq!(call.send(stand.address).await.fails(400), "invalid_config", "{wrong}");
    }
    stand.end().await;
}

fn call_with(stand: &Stand, files: &str, range: &str) -> Call {
    Call::new("GET", &format!("{files}?path=/data/a.bin")).token(&stand.admin).header("range", range)
}

#[tokio::test]
async fn the_rest_of_the_inventory() {
    let stand = Stand::new().await;
    stand.sandbox(json!({"name": "box", "data": true, "project": "shop"})).await;
    let get = async |path: &str| stand.send("GET", path, None).await;
    let volumes = get("/v1/volumes").await.ok(200);
    assert_eq!(volumes["items"][0]["name"], "data-box");
    assert_eq!(stand.send("DELETE", "/v1/volumes/data-box", None).await.fails(409), "conflict");
    assert_eq!(stand.send("DELETE", "/v1/volumes/data-nothing", None).await.fails(404), "not_found");
    // Another project does not get the data of a sandbox that is gone.
    stand.send("DELETE", "/v1/sandboxes/box?force=true", None).await.ok(204);
    let stranger = stand.token("stranger", kennel_types::Scope::Create, Some("bakery")).await;
    let taken = json!({"name": "box", "data": true});
    assert_eq!(stand.send_as(&stranger, "POST", "/v1/sandboxes", Some(taken)).await.fails(409), "already_exists");
    stand.send("DELETE", "/v1/volumes/data-box", None).await.ok(204);
    assert_eq!(get("/v1/sessions").await.ok(200)["items"], json!([]));
    assert_eq!(get("/v1/sessions/nothing").await.fails(404), "not_found");
    assert_eq!(get("/v1/profiles").await.ok(200)["items"], json!([]));
    assert_eq!(get("/v1/profiles/nothing").await.fails(404), "not_found");
    assert_eq!(get("/v1/images").await.ok(200)["items"], json!([]));
    assert!(get("/v1/providers").await.ok(200)["items"].is_array());
    let metrics = get("/metrics").await;
    let text = String::from_utf8(metrics.body).unwrap();
    assert!(text.contains("kennel_sandbox_create_seconds_count 1"), "{text}");
    stand.end().await;
}

#[tokio::test]
async fn metrics_tell_what_was_measured() {
    let stand = Stand::new().await;
    let id = stand.sandbox(json!({"name": "box"})).await;
    stand.send("POST", "/v1/sandboxes/box/exec", Some(echo("x"))).await.ok(200);
    let reply = stand.send("GET", "/metrics", None).await;
    assert_eq!(reply.status, 200);
    let text = String::from_utf8(reply.body).unwrap();
    for part in [
        "kennel_sandboxes{provider=\"mock\",status=\"running\"} 1",
        "kennel_sandbox_start_seconds_count 1",
        "kennel_exec_seconds_count 1",
        "kennel_store_seconds_count{operation=\"read\"}",
        "kennel_oom_kills_total 0",
        "kennel_requests_total{operation=\"exec\",status=\"200\"} 1",
        &format!("kennel_sandbox_memory_bytes{{sandbox=\"{id}\",name=\"box\",provider=\"mock\"}}"),
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    // A token that is bound to a project sees no sandboxes of others.
    let stranger = stand.token("stranger", kennel_types::Scope::Read, Some("bakery")).await;
    let reply = stand.send_as(&stranger, "GET", "/metrics", None).await;
    assert!(!String::from_utf8(reply.body).unwrap().contains(&id));
    stand.end().await;
}
