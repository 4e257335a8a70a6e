//! Tickets for requests without a token.

use crate::support::{Stage, text};
use hyper::Request;
use kennel_api::Scope;
use serde_json::{Value, json};

async fn ticket(stage: &Stage, operation: &str, path: &str) -> String {
    let body = json!({"operation": operation, "path": path});
    let response = stage.request("POST", "/v1/tickets", Some(body)).await;
    assert_eq!(response.status(), 201);
    let ticket: Value = serde_json::from_str(&text(response).await).unwrap();
    ticket["path"].as_str().unwrap().to_owned()
}

async fn get(stage: &Stage, path: &str) -> u16 {
    stage.send(Request::get(path).body(String::new()).unwrap()).await.status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_is_for_one_request() {
    let stage = Stage::new().await;
    let path = ticket(&stage, "streamCommand", &stage.path("stream")).await;
    let mut client = stage.connect(&path, None).await.expect("the ticket is enough");
    client.say(json!({"type": "start", "argv": ["echo", "hi"]})).await;
    client.started().await;
    assert_eq!(client.exit().await, 0);
    assert_eq!(client.received[0], b"hi\n");
    assert!(stage.connect(&path, None).await.is_err(), "it was used");

    assert_eq!(get(&stage, "/v1/token").await, 401);
    let path = ticket(&stage, "getToken", "/v1/token").await;
    assert_eq!(get(&stage, &path).await, 200);
    assert_eq!(get(&stage, &path).await, 401, "it was used");
    let path = ticket(&stage, "getToken", "/v1/token").await.replace("/v1/token", "/v1/events");
    assert_eq!(get(&stage, &path).await, 401, "it is for another request");
    let path = ticket(&stage, "streamEvents", "/v1/events").await;
    assert_eq!(get(&stage, &format!("{path}&after=1")).await, 401, "it is for another query");
    let path = ticket(&stage, "streamEvents", "/v1/events?after=1").await;
    assert_eq!(get(&stage, &path).await, 200);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_gives_no_more_than_its_token() {
    let stage = Stage::new().await;
    let reader = stage.token("reader", Scope::Read, None).await;
    let bound = stage.token("bound", Scope::Exec, Some("mine")).await;
    let create = async |token: &str, body: Value| {
        let request = Request::post("/v1/tickets")
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json");
        stage.send(request.body(body.to_string()).unwrap()).await
    };
    let stream = json!({"operation": "streamCommand", "path": stage.path("stream")});
    assert_eq!(create(&reader, stream.clone()).await.status(), 403);
    for wrong in [
        json!({"operation": "createTicket", "path": "/v1/tickets"}),
        json!({"operation": "noSuchThing", "path": "/v1/token"}),
        json!({"operation": "getToken", "path": "https://elsewhere/v1/token"}),
        json!({"operation": "getToken", "path": "/v1/token?ticket=1"}),
        json!({"operation": "getToken"}),
    ] {
        assert_eq!(create(&stage.token, wrong.clone()).await.status(), 400, "{wrong}");
    }
    // The sandbox belongs to no project, so it does not exist for this token, nor for its tickets.
    let response = create(&bound, stream).await;
    assert_eq!(response.status(), 201);
    let ticket: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(get(&stage, ticket["path"].as_str().unwrap()).await, 404);
    stage.clean_up().await;
}
