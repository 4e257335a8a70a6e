//! Commands that go on, and their input and output without a WebSocket.

use crate::client::{Call, Reply};
use crate::stand::NativeStand;
use serde_json::{Value, json};

struct Process<'a> {
    stand: &'a NativeStand,
    path: String,
}

impl<'a> Process<'a> {
    async fn start(stand: &'a NativeStand, sandbox: &str, body: Value) -> Self {
        let started = stand.send("POST", &format!("{sandbox}/processes"), Some(body)).await.ok(201);
        Self { stand, path: format!("{sandbox}/processes/{}", started["process"]) }
    }

    async fn get(&self, rest: &str) -> Reply {
        self.stand.send("GET", &format!("{}{rest}", self.path), None).await
    }

    async fn write(&self, query: &str, bytes: &[u8]) -> Reply {
        let path = format!("{}/stdin{query}", self.path);
        Call::new("POST", &path).token(&self.stand.admin).bytes(bytes).send(self.stand.address).await
    }

    /// Reads from these offsets, and waits if there is nothing.
    async fn read(&self, stdout: u64, stderr: u64) -> Value {
        self.get(&format!("/output?stdout={stdout}&stderr={stderr}&waitMs=60000")).await.ok(200)
    }
}

#[tokio::test]
async fn output_is_read_by_offset_and_input_is_written() {
    let stand = NativeStand::new().await;
    let sandbox = stand.make("box").await;
    let script = "echo ready; echo problem >&2; while read line; do echo \"got $line\"; done; exit 5";
    let body = json!({"shell": script, "stdin": true, "tag": "mine"});
    let process = Process::start(&stand, &sandbox, body).await;
    let (mut out, mut err) = (String::new(), String::new());
    while out.is_empty() || err.is_empty() {
        let read = process.read(out.len() as u64, err.len() as u64).await;
        out += read["stdout"]["text"].as_str().unwrap();
        err += read["stderr"]["text"].as_str().unwrap();
    }
    assert_eq!((out.as_str(), err.as_str()), ("ready\n", "problem\n"));
    let seen = process.get("").await.ok(200);
    assert_eq!(
        (&seen["running"], &seen["tag"], &seen["stdout"]["printedBytes"]),
        (&json!(true), &json!("mine"), &json!(6))
    );
    assert_eq!(process.get("/wait?timeoutMs=1").await.ok(200)["running"], true);
    assert_eq!(process.write("", b"one\n").await.ok(200), json!({"offset": 4, "closed": false}));
    // A repeated request writes nothing twice, and one with a gap is refused.
    assert_eq!(process.write("?offset=0", b"one\n").await.ok(200)["offset"], 4);
    assert_eq!(process.write("?offset=2", b"e\ntwo\n").await.ok(200)["offset"], 8);
    assert_eq!(process.write("?offset=9", b"x").await.fails(409), "conflict");
    let expected = "ready\ngot one\ngot two\n";
    while out.len() < expected.len() {
        let read = process.read(out.len() as u64, 8).await;
        assert_eq!(read["stdout"]["offset"], out.len());
        out += read["stdout"]["text"].as_str().unwrap();
    }
    assert_eq!(out, expected);
    // The same bytes can be read again until a request says that the client has them.
    assert_eq!(
        process.read(14, 8).await["stdout"],
        json!({"offset": 14, "nextOffset": 22, "lostBytes": 0, "text": "got two\n"})
    );
    assert_eq!(process.write("?eof=true", b"").await.ok(200)["closed"], true);
    let ended = process.get("/wait").await.ok(200);
    assert_eq!((&ended["running"], &ended["exitCode"]), (&json!(false), &json!(5)));
    let last = process.read(22, 8).await;
    assert_eq!((&last["stdout"]["text"], &last["exit"]["exitCode"]), (&json!(""), &json!(5)), "{last}");
    assert_eq!(process.write("", b"late").await.fails(409), "conflict");
    assert_eq!(process.get("/output?stdout=23").await.fails(400), "invalid_config");
    assert_eq!(process.get("/output?waitMs=600001").await.fails(400), "invalid_config");
    for path in ["", "/wait", "/output"] {
        let missing = stand.send("GET", &format!("{sandbox}/processes/9999{path}"), None).await;
        assert_eq!(missing.fails(404), "not_found", "{path}");
    }
    stand.clean_up().await;
}

#[tokio::test]
async fn much_output_arrives_in_parts_and_losses_are_told() {
    let stand = NativeStand::new().await;
    let sandbox = stand.make("box").await;
    let body = json!({"shell": "head -c 3000000 /dev/zero; exit 3", "hold": true});
    let process = Process::start(&stand, &sandbox, body).await;
    let (mut at, mut code) = (0, None);
    while code.is_none() {
        let read = process.read(at, 0).await;
        assert_eq!(read["stdout"]["lostBytes"], 0, "it holds its output");
        at = read["stdout"]["nextOffset"].as_u64().unwrap();
        code = read["exit"]["exitCode"].as_i64();
    }
    assert_eq!((at, code), (3_000_000, Some(3)));
    // Without `hold`, the oldest output of a command that nobody reads is lost.
    let process = Process::start(&stand, &sandbox, json!({"shell": "head -c 3000000 /dev/zero"})).await;
    assert_eq!(process.get("/wait").await.ok(200)["exitCode"], 0);
    let (mut at, mut lost, mut ended) = (0, 0, false);
    while !ended {
        let read = process.read(at, 0).await;
        lost += read["stdout"]["lostBytes"].as_u64().unwrap();
        at = read["stdout"]["nextOffset"].as_u64().unwrap();
        ended = read["exit"].is_object();
    }
    assert_eq!(at, 3_000_000);
    assert!(lost >= 3_000_000 - (256 << 10), "{lost}");
    // Bytes that are no text, and a character whose rest comes later.
    let script = r"printf '\377'; read x; printf 'a\303'; read x; printf '\251'; read x";
    let process = Process::start(&stand, &sandbox, json!({"shell": script, "stdin": true})).await;
    let part = process.read(0, 0).await["stdout"].clone();
    assert_eq!(part["base64"], "/w==");
    process.write("", b"\n").await.ok(200);
    assert_eq!(process.read(1, 0).await["stdout"]["text"], "a");
    process.write("", b"\n").await.ok(200);
    kennel_testkit::eventually("the character is complete", async || process.read(2, 0).await["stdout"]["text"] == "é")
        .await;
    stand.clean_up().await;
}

#[tokio::test]
async fn a_repeated_request_starts_one_command() {
    let stand = NativeStand::new().await;
    let sandbox = stand.make("box").await;
    let start = async |key: &str, body: &Value| {
        let call = Call::new("POST", &format!("{sandbox}/processes")).token(&stand.admin);
        call.header("idempotency-key", key).json(body).send(stand.address).await
    };
    let body = json!({"argv": ["sleep", "1000"], "tag": "one"});
    let first = start("k", &body).await.ok(201);
    assert_eq!(start("k", &body).await.ok(201), first);
    assert_eq!(start("k", &json!({"argv": ["sleep", "1"]})).await.fails(422), "conflict");
    start("l", &json!({"argv": ["sleep", "1000"]})).await.ok(201);
    let listed = stand.send("GET", &format!("{sandbox}/processes"), None).await.ok(200);
    let tags: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|item| &item["tag"]).collect();
    assert_eq!(tags, [&json!("one"), &json!(null)], "the id of the request is not shown");
    stand.clean_up().await;
}
