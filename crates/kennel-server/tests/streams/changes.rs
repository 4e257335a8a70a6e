//! Sandboxes that change while the server has connections to them: their limits, and pauses.

use crate::support::{Stage, text};
use kennel_testkit::eventually;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_change_while_a_sandbox_runs() {
    let stage = Stage::new().await;
    let send = async |method: &str, path: &str, body: Value| -> (u16, Value) {
        let response = stage.request(method, path, Some(body)).await;
        (response.status().as_u16(), serde_json::from_str(&text(response).await).unwrap())
    };
    let body = json!({"name": "box", "network": "none", "memory": "64m", "pids": 20});
    let (status, made) = send("POST", "/v1/sandboxes", body).await;
    assert_eq!(status, 201, "{made}");
    let greedy = json!({"argv": ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"]});
    let (_, killed) = send("POST", "/v1/sandboxes/box/exec", greedy.clone()).await;
    assert_eq!(killed["error"]["reason"], "out_of_memory", "{killed}");
    let (status, changed) = send("PATCH", "/v1/sandboxes/box", json!({"memory": "400m", "pids": 30})).await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!((&changed["limits"]["memoryBytes"], &changed["limits"]["pids"]), (&json!(400 << 20), &json!(30)));
    let (_, enough) = send("POST", "/v1/sandboxes/box/exec", greedy).await;
    assert_eq!(enough["exitCode"], 0, "{enough}");
    // It runs without a cgroup for this limit.
    let (status, refused) = send("PATCH", "/v1/sandboxes/box", json!({"cpus": 1, "memory": "32m"})).await;
    assert_eq!((status, &refused["error"]["code"]), (501, &json!("unsupported")), "{refused}");
    assert!(refused["error"]["nextStep"].to_string().contains("stop the sandbox"), "{refused}");
    let (_, shown) = send("GET", "/v1/sandboxes/box", json!({})).await;
    assert_eq!(shown["limits"], changed["limits"]);
    stage.clean_up().await;
}

#[tokio::test]
async fn requests_to_a_paused_sandbox_fail_at_once() {
    let stage = Stage::new().await;
    let exec = async |argv: &str| {
        stage.request("POST", &stage.path("exec"), Some(json!({"argv": [argv]}))).await.status().as_u16()
    };
    let post = async |action: &str| stage.request("POST", &stage.path(action), None).await.status().as_u16();
    // Now the server has a connection to the keeper, which does not respond while it is paused.
    assert_eq!(exec("true").await, 200);
    assert_eq!(post("pause").await, 200);
    assert_eq!(exec("true").await, 409);
    for path in ["files/list?path=/", "processes", "ports/80/"] {
        assert_eq!(stage.request("GET", &stage.path(path), None).await.status().as_u16(), 409, "{path}");
    }
    assert_eq!(post("resume").await, 200);
    assert_eq!(exec("true").await, 200);
    // Another process pauses it, and the server learns that from an event.
    stage.sandbox.pause().await.unwrap();
    let is_told = async || {
        let path = stage.path("exec");
        let request = stage.request("POST", &path, Some(json!({"argv": ["true"]})));
        tokio::time::timeout(std::time::Duration::from_secs(5), request).await.is_ok_and(|reply| reply.status() == 409)
    };
    eventually("the server knows that it is paused", is_told).await;
    let path = format!("/v1/sandboxes/{}?force=true", stage.sandbox.id());
    assert_eq!(stage.request("DELETE", &path, None).await.status().as_u16(), 204);
    stage.clean_up().await;
}
