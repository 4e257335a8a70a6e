//! The agent of a session behind a server that is killed: no message is lost or repeated.

use crate::support::{SOON, Stage, engine};
use axum::body::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use kennel_acp::{Agent, NewAgent, Relays, Served};
use kennel_engine::{Direction, Message as Stored, OpenSession, Session, SessionState, Sessions};
use kennel_testkit::eventually;
use kennel_types::{ExecSpec, NetworkMode, SandboxSpec};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// What every agent can do: read the next message, and append it to the file `/tmp/seen`; and send one.
const AGENT: &str = "next() { IFS= read -r line || exit 0; printf '%s\\n' \"$line\" >> /tmp/seen; }\n\
    say() { printf '%s\\n' \"$1\"; }\n";

/// The beginning of a conversation with the relay.
const HELLO: &str = r#"
next; say '{"jsonrpc":"2.0","id":"kennel-initialize","result":{"protocolVersion":1,"_meta":{"x":1.0}}}'
next; say '{"jsonrpc":"2.0","id":"kennel-session-new","result":{"sessionId":"s-1"}}'
"#;

/// A turn: text, 10 MiB, a permission, a file that is written and read inside, and the end.
const TURN: &str = r#"
next; say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s-1","update":{"text":"caf\u00e9"}}}'
i=0; while [ $i -lt 10 ]; do
  printf '{"jsonrpc":"2.0","method":"session/update","params":{"n":%d,"x":"' $i
  head -c 1048576 /dev/zero | tr '\0' x; printf '"}}\n'; i=$((i+1))
done
say '{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"s-1","options":[]}}'; next
say '{"jsonrpc":"2.0","id":2,"method":"fs/write_text_file","params":{"sessionId":"s-1","path":"/tmp/file","content":"hello"}}'; next
say '{"jsonrpc":"2.0","id":"3","method":"fs/read_text_file","params":{"sessionId":"s-1","path":"/tmp/file"}}'; next
say '{"jsonrpc":"2.0","method":"_vendor/thing"}'
say '{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}'
next; say '{"jsonrpc":"2.0","id":"p2","result":{"stopReason":"end_turn"}}'
"#;

/// A client over a WebSocket, which continues where its last connection was lost.
struct Client {
    socket: WebSocketStream<TcpStream>,
    heard: Vec<String>,
}

impl Client {
    async fn open(stage: &Stage, session: &Session, heard: Vec<String>) -> Self {
        let path = format!("/v1/sessions/{}/acp?after={}", session.summary.id, heard.len());
        let mut request = format!("ws://{}{path}", stage.address).into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {}", stage.token).parse().unwrap());
        let stream = TcpStream::connect(stage.address).await.unwrap();
        let limits = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let (socket, response) =
            tokio_tungstenite::client_async_with_config(request, stream, Some(limits)).await.unwrap();
        assert_eq!(response.headers()["kennel-acp-position"], heard.len().to_string());
        assert!(response.headers().contains_key("acp-connection-id"));
        Self { socket, heard }
    }

    async fn say(&mut self, message: &str) {
        self.socket.send(Message::text(message)).await.unwrap();
    }

    /// Returns the next message, or the code with which the connection was closed.
    async fn next(&mut self) -> Result<String, u16> {
        loop {
            match tokio::time::timeout(SOON, self.socket.next()).await.expect("something arrives") {
                Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
                Some(Ok(Message::Close(frame))) => return Err(frame.map_or(1005, |frame| frame.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(1006),
            }
        }
    }

    /// Waits for the next message of the agent.
    async fn hear(&mut self) -> Value {
        let text = self.next().await.expect("the connection is open");
        let message = serde_json::from_str(&text).unwrap();
        self.heard.push(text);
        message
    }
}

async fn sessions(stage: &Stage) -> Sessions {
    engine(stage.home.path(), &stage.home.programs()).sessions().await.unwrap().0
}

fn new_agent(script: &str, opens: bool) -> NewAgent {
    let spec = ExecSpec::argv(["sh".to_owned(), "-c".to_owned(), format!("{AGENT}{script}")]);
    NewAgent {
        name: "scripted".to_owned(),
        agent: Agent { spec, startup: Duration::from_mins(1), served: Served::default(), paths: None, to_client: None },
        opens: opens.then(|| "/tmp".to_owned()),
        secrets: vec!["sk-secret-0123456789".to_owned()],
    }
}

/// Opens a session, and starts its agent. The relay of this process ends; the server's continues.
async fn start(stage: &Stage, sessions: &Sessions, script: &str) -> Session {
    let session = open(stage, sessions).await;
    let relay = Relays::new(sessions.clone()).start(&session.summary.id, new_agent(script, true)).await.unwrap();
    tokio::time::timeout(SOON, relay.ready()).await.expect("it begins").unwrap();
    session
}

async fn open(stage: &Stage, sessions: &Sessions) -> Session {
    let spec = SandboxSpec {
        network: Some(NetworkMode::None),
        env: [("KENNEL_TEST_HOME".to_owned(), stage.home.mark())].into(),
        ..SandboxSpec::default()
    };
    let request = OpenSession { provider: "native".to_owned(), spec, ..OpenSession::default() };
    sessions.open(request).await.unwrap()
}

async fn stored(sessions: &Sessions, session: &Session) -> Vec<Stored> {
    sessions.messages().list(&session.summary.id, 0, usize::MAX >> 1, usize::MAX).await.unwrap()
}

/// Checks that numbers and offsets have no gaps, and returns what was sent in each direction.
fn check(messages: &[Stored]) -> [String; 2] {
    let mut bytes = [String::new(), String::new()];
    let mut position = 0;
    for (index, message) in messages.iter().enumerate() {
        assert_eq!(message.sequence, index as u64 + 1);
        let stream = &mut bytes[usize::from(message.direction.is_of_agent())];
        assert_eq!(message.start, stream.len() as u64, "{message:?}");
        stream.push_str(std::str::from_utf8(&message.content).unwrap());
        if message.direction == Direction::AgentToClient {
            position += 1;
            assert_eq!(message.position, Some(position));
        }
        assert!(!message.open, "everything is answered: {message:?}");
    }
    bytes
}

const PROMPT: &str = r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s-1","prompt":[]}}"#;
const ALLOWED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"selected","optionId":"a"}}}"#;
const SECOND: &str =
    r#"{"jsonrpc":"2.0","id":"p2","method":"session/prompt","params":{"text":"sk-secret-0123456789"}}"#;

/// The messages of the agent that clients see.
const SEEN: usize = 15;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_killed_after_each_message_loses_and_repeats_nothing() {
    let mut stage = Stage::new().await;
    let sessions = sessions(&stage).await;
    let session = start(&stage, &sessions, &format!("{HELLO}{TURN}")).await;
    let mut client = Client::open(&stage, &session, Vec::new()).await;
    // The relay has begun the conversation, so these are answered from the store.
    client.say(r#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":1}}"#).await;
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{"protocolVersion":1,"_meta":{"x":1.0}}}"#;
    assert_eq!(client.next().await.unwrap(), answer);
    client.say(r#"{"jsonrpc":"2.0","id":"n","method":"session/new","params":{"cwd":"/elsewhere"}}"#).await;
    assert_eq!(client.next().await.unwrap(), r#"{"jsonrpc":"2.0","id":"n","result":{"sessionId":"s-1"}}"#);
    client.say(PROMPT).await;
    // Whether the message was stored is not known, so the client sends it again.
    stage.kill();
    stage.restart();
    client = Client::open(&stage, &session, Vec::new()).await;
    client.say(PROMPT).await;
    while client.heard.len() < SEEN - 1 {
        let message = client.hear().await;
        stage.kill();
        stage.restart();
        client = Client::open(&stage, &session, client.heard).await;
        if message["method"] == "session/request_permission" {
            client.say(ALLOWED).await;
            stage.kill();
            stage.restart();
            client = Client::open(&stage, &session, client.heard).await;
            client.say(ALLOWED).await;
        }
    }
    client.say(SECOND).await;
    assert_eq!(client.hear().await["id"], "p2");
    // The agent has ended: the client learns it, and the session is completed.
    assert_eq!(client.next().await, Err(1000));
    let ended = async || sessions.show(session.summary.id.as_str()).await.unwrap();
    eventually("the session ends", async || ended().await.summary.state == SessionState::Completed).await;
    assert_eq!(ended().await.summary.exit_code, Some(0));

    let messages = stored(&sessions, &session).await;
    let [to_agent, of_agent] = check(&messages);
    let seen: Vec<String> = messages
        .iter()
        .filter(|message| message.position.is_some())
        .map(|message| String::from_utf8(message.content.clone()).unwrap().trim_end().to_owned())
        .collect();
    assert!(seen == client.heard, "the client has heard what is stored");
    assert_eq!(seen.len(), SEEN);
    for number in 0..10 {
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"n\":{number},\"x\":\"{}\"}}}}",
            "x".repeat(1 << 20)
        );
        assert_eq!(of_agent.matches(&line).count(), 1, "line {number}");
    }
    // What the agent has read is what is stored, but for the secret.
    let sent: Vec<Value> = to_agent.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let methods: Vec<&str> = sent.iter().map(|message| message["method"].as_str().unwrap_or("-")).collect();
    assert_eq!(methods, ["initialize", "session/new", "session/prompt", "-", "-", "-", "session/prompt"]);
    assert_eq!(sent[3]["id"], 1);
    assert_eq!((&sent[4]["id"], &sent[5]["id"]), (&json!(2), &json!("3")));
    assert_eq!(sent[5]["result"]["content"], "hello");
    assert!(to_agent.contains("\"********************\"") && !to_agent.contains("sk-secret"), "it is redacted");
    let file = read_by_agent(&stage, &session).await;
    assert_eq!(file.replace("sk-secret-0123456789", "********************"), to_agent, "the agent saw each once");
    stage.clean_up().await;
}

/// What the agent has read, after its sandbox was stopped.
async fn read_by_agent(stage: &Stage, session: &Session) -> String {
    let provider = crate::support::native(stage);
    let sandbox = kennel_core::Sandbox::find(provider, session.summary.sandbox.as_str()).await.unwrap();
    sandbox.start().await.unwrap();
    sandbox.run(&ExecSpec::argv(["cat", "/tmp/seen"]), None, 1 << 20).await.unwrap().stdout_text()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_mebibytes_pass_and_a_message_over_the_cap_is_an_error_to_its_sender() {
    const BIG: usize = 50 << 20;
    let stage = Stage::new().await;
    let sessions = sessions(&stage).await;
    let script = format!(
        "{HELLO}printf '{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":%s}}\\n' $(head -n 1 | wc -c)\n\
         printf '{{\"method\":\"x\",\"params\":\"'; head -c {BIG} /dev/zero | tr '\\0' x; printf '\"}}\\n'\n\
         printf '{{\"id\":7,\"method\":\"x\",\"params\":\"'; head -c 70000000 /dev/zero | tr '\\0' x; printf '\"}}\\n'\n\
         next; say '{{\"method\":\"after\"}}'\nnext\n"
    );
    let session = start(&stage, &sessions, &script).await;
    let mut client = Client::open(&stage, &session, Vec::new()).await;
    client.say(&format!("{{\"id\":3,\"method\":\"x\",\"params\":\"{}\"}}", "x".repeat(64 << 20))).await;
    let refused: Value = serde_json::from_str(&client.next().await.unwrap()).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(3), &json!(-32600)), "{refused}");
    let big = format!("{{\"id\":1,\"method\":\"x\",\"params\":\"{}\"}}", "x".repeat(BIG));
    client.say(&big).await;
    assert_eq!(client.hear().await["result"], big.len() + 1);
    client.hear().await;
    assert_eq!(client.heard[1].len(), "{\"method\":\"x\",\"params\":\"\"}".len() + BIG);
    assert_eq!(client.hear().await["method"], "after", "the agent got the error, and goes on");
    let messages = stored(&sessions, &session).await;
    let last = messages.iter().rfind(|message| !message.direction.is_of_agent()).unwrap();
    let refused: Value = serde_json::from_slice(&last.content).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32600)));
    drop(client);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_dies_the_other_side_learns_it_at_once() {
    let stage = Stage::new().await;
    let sessions = sessions(&stage).await;
    // Its child would outlive it.
    let dies = format!("{HELLO}sleep 1000 & next; echo broken >&2; exit 3\n");
    let session = start(&stage, &sessions, &dies).await;
    let mut client = Client::open(&stage, &session, Vec::new()).await;
    client.say(PROMPT).await;
    let failed: Value = serde_json::from_str(&client.next().await.unwrap()).unwrap();
    assert_eq!((&failed["id"], &failed["error"]["data"]["exitCode"]), (&json!(1), &json!(3)), "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("broken"), "{failed}");
    assert_eq!(client.next().await, Err(1011));
    let ended = async || sessions.show(session.summary.id.as_str()).await.unwrap();
    eventually("the session ends", async || ended().await.summary.state == SessionState::Failed).await;
    let ended = ended().await;
    assert_eq!((ended.summary.exit_code, ended.log), (Some(3), Some(vec!["broken".to_owned()])));
    assert!(ended.error.unwrap().contains("exited with code 3"));

    // The sandbox is stopped by someone else.
    let session = start(&stage, &sessions, &format!("{HELLO}next; sleep 1000\n")).await;
    let mut client = Client::open(&stage, &session, Vec::new()).await;
    client.say(PROMPT).await;
    let id = session.summary.id.as_str();
    eventually("it is stored", async || stored(&sessions, &session).await.iter().any(|it| it.open)).await;
    sessions.stop(id, Duration::ZERO).await.unwrap();
    let failed: Value = serde_json::from_str(&client.next().await.unwrap()).unwrap();
    assert_eq!(failed["id"], 1, "{failed}");
    assert_eq!(client.next().await, Err(1011));

    // A client that leaves ends nothing: the session goes on, and another client gets the turn.
    let session =
        start(&stage, &sessions, &format!("{HELLO}next; next; say '{{\"id\":2,\"result\":1}}'; next\n")).await;
    let mut client = Client::open(&stage, &session, Vec::new()).await;
    client.say(PROMPT).await;
    eventually("it is stored", async || stored(&sessions, &session).await.iter().any(|it| it.open)).await;
    drop(client);
    let mut client = Client::open(&stage, &session, Vec::new()).await;
    client.say(r#"{"id":2,"method":"x"}"#).await;
    assert_eq!(client.hear().await["id"], 2);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_owns_the_turn_and_others_watch() {
    let stage = Stage::new().await;
    let sessions = sessions(&stage).await;
    let script = format!(
        "{HELLO}next; say '{{\"method\":\"note\"}}'; say '{{\"id\":5,\"method\":\"session/request_permission\"}}'; next\n\
         say '{{\"id\":1,\"result\":{{}}}}'; next; say '{{\"id\":9,\"result\":{{}}}}'; next\n"
    );
    let session = start(&stage, &sessions, &script).await;
    let mut owner = Client::open(&stage, &session, Vec::new()).await;
    let mut other = Client::open(&stage, &session, Vec::new()).await;
    owner.say(PROMPT).await;
    assert_eq!(owner.hear().await["method"], "note");
    assert_eq!(other.hear().await["method"], "note");
    assert_eq!(owner.hear().await["id"], 5);
    other.say(r#"{"id":9,"method":"session/prompt"}"#).await;
    let refused: Value = serde_json::from_str(&other.next().await.unwrap()).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(9), &json!(-32600)), "{refused}");
    // The owner leaves in the middle of the turn: the other one is asked instead.
    drop(owner);
    assert_eq!(other.hear().await["id"], 5);
    other.say(r#"{"id":5,"result":{}}"#).await;
    assert_eq!(other.hear().await["id"], 1, "it continues from the beginning, so it gets the response");
    other.say(r#"{"id":9,"method":"session/prompt"}"#).await;
    assert_eq!(other.hear().await["id"], 9);
    other.say("[]").await;
    let refused: Value = serde_json::from_str(&other.next().await.unwrap()).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32600)), "{refused}");
    other.socket.send(Message::Binary(Bytes::from_static(b"x"))).await.unwrap();
    assert_eq!(other.next().await, Err(1003));
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_sessions_at_once() {
    const SESSIONS: usize = 100;
    let stage = Stage::new().await;
    let sessions = sessions(&stage).await;
    let script = format!("{HELLO}next; say '{{\"method\":\"x\"}}'; say '{{\"id\":1,\"result\":{{}}}}'; next\n");
    let all: Vec<Session> =
        futures_util::stream::iter(0..SESSIONS).map(|_| start(&stage, &sessions, &script)).buffered(8).collect().await;
    let mut clients = Vec::new();
    for session in &all {
        clients.push(Client::open(&stage, session, Vec::new()).await);
    }
    futures_util::future::join_all(clients.iter_mut().map(|client| client.say(PROMPT))).await;
    for client in &mut clients {
        assert_eq!(client.hear().await["method"], "x");
        assert_eq!(client.hear().await["id"], 1);
    }
    for session in &all {
        check(&stored(&sessions, session).await);
    }
    drop(clients);
    stage.clean_up().await;
}

/// Reads the next event of a stream: its id, and its data.
async fn event(body: &mut hyper::body::Incoming, buffer: &mut String) -> (Option<u64>, Value) {
    loop {
        if let Some((event, rest)) = buffer.split_once("\n\n") {
            let field = |name| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let found = (field("id:").map(|id| id.parse().unwrap()), field("data:").map(ToOwned::to_owned));
            let end = buffer.len() - rest.len();
            buffer.drain(..end);
            if let (id, Some(data)) = found {
                return (id, serde_json::from_str(&data).unwrap());
            }
            continue;
        }
        let frame = tokio::time::timeout(SOON, http_body_util::BodyExt::frame(body)).await.expect("an event arrives");
        buffer.push_str(std::str::from_utf8(frame.unwrap().unwrap().data_ref().unwrap()).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_pass_over_http() {
    let stage = Stage::new().await;
    let sessions = sessions(&stage).await;
    let script = format!(
        "{HELLO}next; say '{{\"method\":\"note\"}}'; say '{{\"id\":1,\"result\":{{}}}}'; next; say '{{\"method\":\"last\"}}'; next\n"
    );
    let session = start(&stage, &sessions, &script).await;
    let path = format!("/v1/sessions/{}/acp", session.summary.id);
    let call = async |method: &str, connection: Option<&str>, headers: &[(&str, &str)], body: &str| {
        let mut request = hyper::Request::builder().method(method).uri(&path);
        for (name, value) in headers.iter().copied().chain(connection.map(|id| ("acp-connection-id", id))) {
            request = request.header(name, value);
        }
        let request = request.header("authorization", format!("Bearer {}", stage.token));
        stage.send(request.body(body.to_owned()).unwrap()).await
    };
    let json = [("content-type", "application/json")];
    let events = [("accept", "text/event-stream")];
    assert_eq!(call("POST", None, &json, PROMPT).await.status(), 400, "the first one is initialize");
    assert_eq!(call("POST", None, &[], PROMPT).await.status(), 415);
    assert_eq!(call("GET", None, &events, "").await.status(), 400);
    assert_eq!(call("GET", Some("x"), &[("accept", "application/json")], "").await.status(), 406);
    assert_eq!(call("GET", Some("nothing"), &events, "").await.status(), 404);
    let opened = call("POST", None, &json, r#"{"id":0,"method":"initialize","params":{}}"#).await;
    assert_eq!(opened.status(), 200);
    let id = opened.headers()["acp-connection-id"].to_str().unwrap().to_owned();
    let answer: Value = serde_json::from_str(&crate::support::text(opened).await).unwrap();
    assert_eq!(answer["result"]["protocolVersion"], 1);
    let mut stream = call("GET", Some(&id), &events, "").await.into_body();
    assert_eq!(call("GET", Some(&id), &events, "").await.status(), 409);
    assert_eq!(call("POST", Some(&id), &json, PROMPT).await.status(), 202);
    let mut buffer = String::new();
    assert_eq!(event(&mut stream, &mut buffer).await, (Some(1), json!({"method": "note"})));
    assert_eq!(event(&mut stream, &mut buffer).await.0, Some(2));
    drop(stream);
    assert_eq!(call("POST", Some(&id), &json, r#"{"method":"go"}"#).await.status(), 202);
    // After a lost stream, it continues behind the last event that it has seen.
    let again = [("accept", "text/event-stream"), ("last-event-id", "1")];
    let mut response = call("GET", Some(&id), &again, "").await;
    eventually("the server notices the lost stream", async || {
        if response.status() == 409 {
            response = call("GET", Some(&id), &again, "").await;
        }
        response.status() == 200
    })
    .await;
    let (mut stream, mut buffer) = (response.into_body(), String::new());
    assert_eq!(event(&mut stream, &mut buffer).await.0, Some(2));
    assert_eq!(event(&mut stream, &mut buffer).await, (Some(3), json!({"method": "last"})));
    assert_eq!(call("DELETE", Some(&id), &[], "").await.status(), 202);
    assert_eq!(call("POST", Some(&id), &json, PROMPT).await.status(), 404);
    stage.clean_up().await;
}
