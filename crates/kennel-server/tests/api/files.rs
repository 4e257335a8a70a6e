//! Several files at once, and the search for files.

use crate::stand::NativeStand;
use serde_json::{Value, json};

#[tokio::test]
async fn several_files_are_written_and_read_at_once() {
    let stand = NativeStand::new().await;
    let sandbox = stand.make("box").await;
    let call = async |what: &str, body: Value| stand.send("POST", &format!("{sandbox}/files/{what}"), Some(body)).await;
    let files = json!([
        {"path": "/tmp/many/a.txt", "text": "hello"},
        {"path": "/tmp/many/b.bin", "base64": "/wD+", "mode": "755"},
        {"path": "/proc/no/such", "text": "x"},
        {"path": "", "text": "x"},
    ]);
    let written = call("write", json!({"files": files})).await.ok(200);
    let codes: Vec<&Value> = written["files"].as_array().unwrap().iter().map(|file| &file["error"]["code"]).collect();
    assert_eq!((codes[0], codes[1], codes[3]), (&json!(null), &json!(null), &json!("invalid_config")), "{written}");
    assert!(codes[2].is_string(), "{written}");
    let stat = stand.send("GET", &format!("{sandbox}/files/stat?path=/tmp/many/b.bin"), None).await.ok(200);
    assert_eq!(stat["mode"], 0o755);
    let paths = json!(["/tmp/many/a.txt", "/tmp/many/b.bin", "/tmp/many/none", "/tmp"]);
    let read = call("read", json!({"paths": paths})).await.ok(200);
    assert_eq!((&read["files"][0]["text"], &read["files"][1]["base64"]), (&json!("hello"), &json!("/wD+")));
    assert_eq!(read["files"][2]["error"]["code"], "not_found");
    assert_eq!(read["files"][3]["error"]["code"], "invalid_config");
    // All files of a response together are bounded.
    let body = json!({"shell": "head -c 17000000 /dev/zero > /tmp/many/large"});
    stand.send("POST", &format!("{sandbox}/exec"), Some(body)).await.ok(200);
    let read = call("read", json!({"paths": ["/tmp/many/large", "/tmp/many/a.txt"]})).await.ok(200);
    assert_eq!(read["files"][0]["error"]["code"], "limit_exceeded");
    assert_eq!(read["files"][1]["text"], "hello");
    for (what, wrong) in [
        ("read", json!({"paths": []})),
        ("read", json!({})),
        ("read", json!({"paths": vec!["x"; 1001]})),
        ("write", json!({"files": [{"path": "/tmp/new"}]})),
        ("write", json!({"files": [{"path": "/tmp/new", "text": "a", "base64": "YQ=="}]})),
        ("write", json!({"files": [{"path": "/tmp/new", "text": "a"}, {"path": "/tmp/x", "base64": "!"}]})),
        ("write", json!({"files": [{"path": "/tmp/new", "text": "a", "mode": "+7"}]})),
    ] {
        assert_eq!(call(what, wrong.clone()).await.fails(400), "invalid_config", "{wrong}");
    }
    let new = stand.send("GET", &format!("{sandbox}/files/stat?path=/tmp/new"), None).await;
    assert_eq!(new.fails(404), "not_found", "a malformed request writes nothing");
    stand.clean_up().await;
}

#[tokio::test]
async fn files_are_found_by_name_and_by_text() {
    let stand = NativeStand::new().await;
    let sandbox = stand.make("box").await;
    let script = r"mkdir -p /tmp/top/src/deep /tmp/top/bin; cd /tmp/top
        printf 'one\nneedle here\r\nNeedle there\n' > src/main.rs; printf 'a needle' > src/deep/notes.md
        printf 'needle\0' > bin/program; head -c 9000000 /dev/zero | tr '\0' x > bin/large
        ln -s /etc/passwd link; touch 'b[1].rs'; mkfifo pipe";
    let made = stand.send("POST", &format!("{sandbox}/exec"), Some(json!({"shell": script}))).await.ok(200);
    assert_eq!(made["exitCode"], 0, "{made}");
    let search =
        async |query: &str| stand.send("GET", &format!("{sandbox}/files/search?path=/tmp/top&{query}"), None).await;
    let paths = |found: &Value| -> Vec<String> {
        found["matches"].as_array().unwrap().iter().map(|it| it["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(paths(&search("name=*.rs").await.ok(200)), ["b[1].rs", "src/main.rs"]);
    assert_eq!(paths(&search("name=src/**/*.md").await.ok(200)), ["src/deep/notes.md"]);
    assert_eq!(paths(&search("name=*&depth=1").await.ok(200)), ["b[1].rs", "bin", "link", "pipe", "src"]);
    let found = search("text=needle").await.ok(200);
    assert_eq!(paths(&found), ["src/deep/notes.md", "src/main.rs"]);
    assert_eq!((&found["matches"][1]["line"], &found["matches"][1]["text"]), (&json!(2), &json!("needle here")));
    assert_eq!((&found["skipped"], &found["truncated"]), (&json!(2), &json!(false)), "{found}");
    let found = search("text=needle&ignoreCase=true&name=*.rs").await.ok(200);
    assert_eq!(found["matches"].as_array().unwrap().len(), 2);
    assert_eq!(paths(&search("text=%5Eneedle.here%24&regex=true").await.ok(200)), ["src/main.rs"]);
    assert_eq!(paths(&search("text=needle.here").await.ok(200)), [""; 0], "it is no regular expression");
    let cut = search("text=needle&limit=1").await.ok(200);
    assert_eq!((cut["matches"].as_array().unwrap().len(), &cut["truncated"]), (1, &json!(true)));
    for wrong in ["name=%5B", "text=%28&regex=true", "regex=true", "limit=0", "text=", "depth=65", "depth=0"] {
        assert_eq!(search(wrong).await.fails(400), "invalid_config", "{wrong}");
    }
    let missing = stand.send("GET", &format!("{sandbox}/files/search?path=/no/such"), None).await;
    assert_eq!(missing.fails(404), "not_found");
    stand.clean_up().await;
}
