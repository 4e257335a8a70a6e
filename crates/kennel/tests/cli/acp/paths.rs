//! A workspace at another path inside, and requests that are passed to the editor.

use super::editor::{Editor, seen_json};
use super::{INITIALIZE, INITIALIZED};
use crate::support::{Kennel, on_every_provider};
use serde_json::{Value, json};

on_every_provider! {
    workspace_is_at_the_chosen_path,
}

fn workspace_is_at_the_chosen_path(kennel: &Kennel) {
    if kennel.provider == "local" {
        let refused = kennel.kennel(&["acp", "--workspace-path", "/w", "--", "true"]).fails(125);
        assert!(refused.contains("has no mounts"), "{refused}");
        return;
    }
    let here = kennel.here().canonicalize().unwrap();
    std::fs::write(here.join("text"), "from the workspace").unwrap();
    let update = r#"{"method":"session/update","params":{"update":{"title":"/w/a","locations":[{"path":"/w/a"}]}}}"#;
    let read = r#"{"id":"r","method":"fs/read_text_file","params":{"sessionId":"s","path":"/w/text"}}"#;
    // The agent replies with its own directory.
    let script = format!(
        "next; say '{INITIALIZED}'\nnext; say '{{\"id\":1,\"result\":{{\"sessionId\":\"s\"}}}}'\n\
         say '{update}'; say '{read}'; next\n\
         printf '{{\"method\":\"pwd\",\"params\":\"%s\"}}\\n' \"$(pwd)\"\n"
    );
    let mut editor = Editor::open(kennel, &script, &["--workspace-path", "/w"]);
    editor.send(INITIALIZE);
    editor.hear();
    let params = json!({ "cwd": here, "mcpServers": [{ "command": here.join("m"), "args": ["/w"] }], "other": here });
    editor.send(&json!({ "id": 1, "method": "session/new", "params": params }).to_string());
    assert_eq!(editor.hear_json()["result"]["sessionId"], "s");
    let heard = editor.hear_json();
    assert_eq!(heard["params"]["update"]["locations"][0]["path"], json!(here.join("a")));
    assert_eq!(heard["params"]["update"]["title"], "/w/a", "a text is not a path");
    assert_eq!(editor.hear_json()["params"], "/w");
    editor.leave();
    let seen = seen_json(kennel);
    assert_eq!(seen[1]["params"]["cwd"], "/w");
    assert_eq!(seen[1]["params"]["mcpServers"][0]["command"], "/w/m");
    assert_eq!(seen[1]["params"]["other"], json!(here));
    assert_eq!(seen[2]["result"]["content"], "from the workspace");
}

/// Only if the user chose it, the editor gets requests for files, and only for paths in the workspace.
#[test]
fn chosen_requests_are_passed_to_the_editor() {
    let kennel = Kennel::on("native");
    let here = kennel.here().canonicalize().unwrap();
    std::fs::write(kennel.home.path().join("canary"), "canary").unwrap();
    std::os::unix::fs::symlink("../canary", here.join("out")).unwrap();
    let request = |id: &str, method: &str, params: Value| json!({ "id": id, "method": method, "params": params });
    let file =
        |id: &str, path: &std::path::Path| request(id, "fs/read_text_file", json!({ "sessionId": "s", "path": path }));
    let requests = [
        file("a", &here.join("out")),
        file("b", &kennel.home.path().join("canary")),
        file("c", std::path::Path::new("/etc/shadow")),
        request("d", "terminal/create", json!({ "sessionId": "s", "command": "echo inside" })),
        file("e", &here.join("unsaved")),
    ];
    let lines = requests.iter().map(|request| format!("say '{request}'; next\n")).collect::<Vec<_>>().concat();
    let script = format!("next; say '{INITIALIZED}'\n{lines}say '{{\"method\":\"done\"}}'\n");
    let mut editor = Editor::open(&kennel, &script, &["--to-editor", "files"]);
    editor.send(INITIALIZE);
    editor.hear();
    let asked = editor.hear_json();
    assert_eq!((&asked["id"], &asked["params"]["path"]), (&"e".into(), &json!(here.join("unsaved"))), "{asked}");
    editor.send(&json!({ "id": "e", "result": { "content": "not saved yet" } }).to_string());
    assert_eq!(editor.hear_json()["method"], "done");
    assert_eq!(editor.leave().status, 0);
    let seen = seen_json(&kennel);
    // What the editor can do is for it to say. Terminals are still served inside.
    let capabilities = &seen[0]["params"]["clientCapabilities"];
    assert_eq!(*capabilities, json!({ "fs": { "readTextFile": false }, "terminal": true }));
    for refused in &seen[1..4] {
        assert!(refused["error"]["message"].as_str().unwrap().contains("not in the workspace"), "{refused}");
    }
    assert!(seen[4]["result"]["terminalId"].is_string(), "{}", seen[4]);
    assert_eq!(seen[5]["result"]["content"], "not saved yet");
}
