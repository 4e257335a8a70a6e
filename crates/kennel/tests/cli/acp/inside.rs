//! Files and terminals are served from the agent's own sandbox, and never from the host.

use super::editor::{Editor, seen, seen_json};
use super::{INITIALIZE, INITIALIZED};
use crate::support::{Kennel, on_every_provider};
use serde_json::{Value, json};

on_every_provider! {
    files_are_read_and_written,
    terminals_run_commands,
}

/// The lines of a script that sends requests and reads their responses.
fn requests(requests: &[Value]) -> String {
    requests.iter().map(|request| format!("say '{request}'; next\n")).collect::<Vec<_>>().concat()
}

#[expect(clippy::needless_pass_by_value, reason = "the parameters are written where they are passed")]
fn request(id: &str, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// Plays the requests of an agent, and returns the responses that it got. The editor must see none of it.
fn play(kennel: &Kennel, script: &str) -> Vec<Value> {
    let begin = format!("next; say '{INITIALIZED}'\nnext; say '{{\"id\":1,\"result\":{{\"sessionId\":\"s\"}}}}'\n");
    let mut editor = Editor::open(kennel, &format!("{begin}{script}say '{{\"method\":\"done\"}}'\n"), &[]);
    editor.send(INITIALIZE);
    editor.hear();
    let cwd = kennel.here().join("sub");
    std::fs::create_dir_all(&cwd).unwrap();
    editor.send(&json!({ "id": 1, "method": "session/new", "params": { "cwd": cwd, "mcpServers": [] } }).to_string());
    editor.hear();
    assert_eq!(editor.hear(), "{\"method\":\"done\"}\n");
    assert_eq!(editor.leave().status, 0);
    seen_json(kennel).split_off(2)
}

fn files_are_read_and_written(kennel: &Kennel) {
    let here = kennel.here();
    std::fs::write(here.join("text"), "one\ntwo\nthree\n").unwrap();
    std::fs::write(here.join("bytes"), b"\xff\xfe").unwrap();
    let read = |id: &str, path: &str| request(id, "fs/read_text_file", json!({ "sessionId": "s", "path": path }));
    let at = |name: &str| here.join(name).display().to_string();
    let script = requests(&[
        read("a", &at("text")),
        request("b", "fs/read_text_file", json!({ "sessionId": "s", "path": at("text"), "line": 2, "limit": 1 })),
        read("c", &at("missing")),
        read("d", &at("bytes")),
        request(
            "e",
            "fs/write_text_file",
            json!({ "sessionId": "s", "path": at("new/file"), "content": "caf\u{e9}\n" }),
        ),
        // Relative to the working directory of the session.
        request("f", "fs/write_text_file", json!({ "sessionId": "s", "path": "made", "content": "x" })),
        request("g", "fs/delete", json!({})),
        request("h", "fs/read_text_file", json!({ "path": 1 })),
    ]);
    let got = play(kennel, &script);
    let ids: Vec<&Value> = got.iter().map(|response| &response["id"]).collect();
    assert_eq!(ids, ["a", "b", "c", "d", "e", "f", "g", "h"]);
    assert_eq!(got[0]["result"], json!({ "content": "one\ntwo\nthree\n" }));
    assert_eq!(got[1]["result"], json!({ "content": "two\n" }));
    let codes: Vec<&Value> = [2, 3, 6, 7].iter().map(|at: &usize| &got[*at]["error"]["code"]).collect();
    assert_eq!(codes, [-32002, -32603, -32601, -32602]);
    assert_eq!((&got[4]["result"], &got[5]["result"]), (&json!({}), &json!({})));
    assert_eq!(std::fs::read_to_string(here.join("new/file")).unwrap(), "caf\u{e9}\n");
    assert_eq!(std::fs::read_to_string(here.join("sub/made")).unwrap(), "x");
}

fn terminals_run_commands(kennel: &Kennel) {
    let create = |id: &str, params: Value| request(id, "terminal/create", params);
    let about =
        |id: &str, method: &str, number: u32| request(id, method, json!({ "terminalId": format!("kennel-{number}") }));
    let script = requests(&[
        // A whole line for a shell, in the working directory of the session.
        create(
            "a",
            json!({ "sessionId": "s", "command": "pwd; echo $WORD; echo err >&2; exit 3", "env": [{ "name": "WORD", "value": "w" }] }),
        ),
        about("b", "terminal/wait_for_exit", 1),
        about("c", "terminal/output", 1),
        about("d", "terminal/release", 1),
        about("e", "terminal/output", 1),
        create("f", json!({ "command": "sh", "args": ["-c", "echo started; sleep 1000"], "cwd": "/" })),
        about("g", "terminal/kill", 2),
        about("h", "terminal/wait_for_exit", 2),
        create("i", json!({ "command": "no-such-program", "args": ["x"] })),
        create("j", json!({ "command": "printf 0123456789", "outputByteLimit": 4 })),
        about("k", "terminal/wait_for_exit", 4),
        about("l", "terminal/output", 4),
        // Nobody releases these. They end with the agent.
        create("m", json!({ "command": "sleep 1000" })),
    ]);
    let got = play(kennel, &script);
    let result = |at: usize| &got[at]["result"];
    assert_eq!(result(0), &json!({ "terminalId": "kennel-1" }));
    assert_eq!(result(1), &json!({ "exitCode": 3, "signal": null }));
    let output = result(2)["output"].as_str().unwrap();
    for line in [kennel.here().join("sub").to_str().unwrap(), "w", "err"] {
        assert!(output.lines().any(|printed| printed == line), "{line}: {output}");
    }
    assert_eq!((&result(2)["truncated"], &result(2)["exitStatus"]["exitCode"]), (&false.into(), &3.into()));
    assert_eq!(got[4]["error"]["code"], -32002, "{}", got[4]);
    assert_eq!((result(6), result(7)), (&json!({}), &json!({ "exitCode": null, "signal": "SIGKILL" })));
    assert!(got[8]["error"]["message"].as_str().unwrap().contains("no-such-program"), "{}", got[8]);
    assert_eq!((&result(11)["output"], &result(11)["truncated"]), (&"6789".into(), &true.into()));
}

/// What an agent must not read: a key in the home directory, by its path, through a symlink in the workspace, and past it;
/// and the host's passwords.
fn no_file_of_the_host_is_read(provider: &'static str) {
    const CANARY: &str = "canary-d41d8cd98f";
    let kennel = Kennel::on(provider);
    let here = kennel.here();
    let key = kennel.home.path().join("key");
    std::fs::write(&key, CANARY).unwrap();
    std::os::unix::fs::symlink(&key, here.join("absolute")).unwrap();
    std::os::unix::fs::symlink("../key", here.join("relative")).unwrap();
    std::os::unix::fs::symlink(kennel.home.path(), here.join("directory")).unwrap();
    let path = |path: &std::path::Path| path.display().to_string();
    let read = |id: &str, path: String| request(id, "fs/read_text_file", json!({ "sessionId": "s", "path": path }));
    let script = requests(&[
        read("a", path(&key)),
        read("b", path(&here.join("absolute"))),
        read("c", path(&here.join("relative"))),
        read("d", path(&here.join("directory/key"))),
        read("e", path(&here.join("../key"))),
        read("f", "/proc/1/root/etc/hostname".to_owned()),
        request("g", "terminal/create", json!({ "command": format!("cat {} absolute relative 2>&1", key.display()) })),
        request("h", "terminal/wait_for_exit", json!({ "terminalId": "kennel-1" })),
        request("i", "terminal/output", json!({ "terminalId": "kennel-1" })),
        read("j", "/etc/shadow".to_owned()),
    ]);
    let got = play(&kennel, &script);
    assert!(!seen(&kennel).contains(CANARY), "{got:?}");
    for response in &got[..6] {
        assert!(response["error"]["code"].is_number(), "{response}");
    }
    assert_ne!(got[7]["result"]["exitCode"], 0);
    // Native shows the host's users without their passwords, and the image has no such file.
    match got[9]["result"]["content"].as_str() {
        Some(shadow) => {
            let fields = shadow.lines().filter_map(|line| line.split(':').nth(1));
            assert!(fields.clone().count() > 0 && fields.clone().all(|field| field.len() <= 2), "{shadow}");
        }
        None => assert_eq!(got[9]["error"]["code"], -32002),
    }
    // The control: the same agent without a sandbox reads it.
    let kennel = Kennel::on("local");
    let key = kennel.home.path().join("key");
    std::fs::write(&key, CANARY).unwrap();
    let got = play(&kennel, &requests(&[read("a", path(&key))]));
    assert_eq!(got[0]["result"]["content"], CANARY);
}

#[test]
fn no_file_of_the_host_is_read_on_native() {
    no_file_of_the_host_is_read("native");
}

#[test]
fn no_file_of_the_host_is_read_on_docker() {
    no_file_of_the_host_is_read("docker");
}
