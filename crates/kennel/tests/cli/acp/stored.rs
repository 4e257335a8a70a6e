//! Agents of sessions: everything is stored, on every provider, and survives kills of the relay.

use super::editor::Editor;
use crate::support::Kennel;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const HELLO: &str = "next; say '{\"jsonrpc\":\"2.0\",\"id\":\"kennel-initialize\",\"result\":{\"protocolVersion\":1}}'\n\
    next; say '{\"jsonrpc\":\"2.0\",\"id\":\"kennel-session-new\",\"result\":{\"sessionId\":\"s-1\"}}'\n";

/// A turn with text, a permission, and a file that is written and read inside.
const TURN: &str = r#"
next; say '{"jsonrpc":"2.0","method":"session/update","params":{"update":{"text":"caf\u00e9"},"big":12345678901234567890.50}}'
say '{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"options":[]}}'; next
say '{"jsonrpc":"2.0","id":2,"method":"fs/write_text_file","params":{"sessionId":"s-1","path":"file","content":"hello"}}'; next
say '{"jsonrpc":"2.0","id":"3","method":"fs/read_text_file","params":{"sessionId":"s-1","path":"file"}}'; next
say '{ "method" : "_vendor/unknown" , "params":[[[]]]}'
say '{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}'
next
"#;

const PROMPT: &str = r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"prompt":["caf\u00e9 🦀"]}}"#;
const ALLOWED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#;

/// Creates a session with an agent of this script.
fn create(kennel: &Kennel, name: &str, script: &str, options: &[&str]) -> crate::support::Finished {
    std::fs::write(kennel.here().join("agent.sh"), format!("{}{script}", super::editor::AGENT)).unwrap();
    let image = kennel.image().map(|image| vec!["--image", image]).unwrap_or_default();
    let words = [&["session", "create", "--name", name, "--acp"], &image[..], options, &["--", "sh", "agent.sh"]];
    kennel.kennel(&words.concat())
}

fn attach(kennel: &Kennel, name: &str, after: usize) -> Editor {
    Editor::call(kennel, &["session", "acp", "--after", &after.to_string(), name])
}

/// The stored messages, without what differs between two sessions.
fn stored(kennel: &Kennel, name: &str) -> Vec<(String, Value)> {
    let lines = kennel.kennel(&["session", "export", name]).ok();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let messages = lines.filter(|line| line["type"] == "message");
    messages
        .enumerate()
        .map(|(index, mut message)| {
            assert_eq!(message["sequence"], index + 1);
            (message["direction"].as_str().unwrap().to_owned(), message["message"].take())
        })
        .collect()
}

/// Plays the turn, and kills the relay after each message.
fn play(kennel: &Kennel) -> String {
    create(kennel, "pair", &format!("{HELLO}{TURN}"), &[]).ok();
    let mut heard: Vec<String> = Vec::new();
    let mut editor = attach(kennel, "pair", 0);
    editor.send(PROMPT);
    while heard.len() < 4 {
        let line = editor.hear();
        editor.kill();
        heard.push(line.clone());
        editor = attach(kennel, "pair", heard.len());
        if line.contains("request_permission") {
            editor.send(ALLOWED);
        }
    }
    let shown = kennel.kennel(&["session", "show", "pair"]).json();
    assert_eq!(
        (&shown["agent"]["liveness"], &shown["agent"]["acpSession"]),
        (&json!("running"), &json!("s-1")),
        "{shown}"
    );
    editor.leave();
    let messages = stored(kennel, "pair");
    let directions: Vec<&str> = messages.iter().map(|(direction, _)| direction.as_str()).collect();
    let expected = [
        "relay_to_agent",
        "agent_to_relay",
        "relay_to_agent",
        "agent_to_relay",
        "client_to_agent",
        "agent_to_client",
        "agent_to_client",
        "client_to_agent",
        "agent_to_relay",
        "relay_to_agent",
        "agent_to_relay",
        "relay_to_agent",
        "agent_to_client",
        "agent_to_client",
    ];
    assert_eq!(directions, expected, "{messages:?}");
    // The agent has seen each message to it once, as it is stored.
    let seen = super::editor::seen(kennel);
    let lines: Vec<Value> = seen.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sent = messages.iter().filter(|(direction, _)| direction.ends_with("to_agent"));
    assert_eq!(lines, sent.map(|(_, message)| message.clone()).collect::<Vec<_>>());
    assert!(seen.contains(PROMPT), "{seen}");
    assert_eq!(lines.last().unwrap()["result"]["content"], "hello");
    let raw = kennel.kennel(&["session", "show", "--messages", "pair"]).ok();
    let raw: Vec<&str> = raw.lines().map(|line| line.split_once("\"message\":").unwrap().1).collect();
    assert!(raw.contains(&"{ \"method\" : \"_vendor/unknown\" , \"params\":[[[]]]}}"), "as it was sent: {raw:?}");
    kennel.kennel(&["session", "rm", "--force", "pair"]).ok();
    // The working directory differs, because each program has its own home.
    let directory = kennel.here().display().to_string();
    format!("{:x}", Sha256::digest(raw.concat().replace(&directory, "HERE")))
}

#[test]
fn a_killed_turn_is_stored_the_same_on_every_provider() {
    let hashes = ["local", "native", "docker", "podman"].map(|provider| play(&Kennel::on(provider)));
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

/// Each failure gives its code, what the agent wrote, its exit code and what to do next, and nothing keeps running.
#[test]
fn agents_that_fail_end_their_session_at_once() {
    let kennel = Kennel::on("native");
    for (name, script, expected, status) in [
        ("exits", "echo 'no key' >&2; sleep 1000 & exit 3", ["exited with code 3", "no key"], 3),
        ("prints", "echo 'Welcome!'; sleep 1000", ["not a message", "Welcome!"], 125),
    ] {
        let failed = create(&kennel, name, script, &[]);
        assert_eq!(failed.status, status, "{failed:?}");
        assert!(expected.iter().all(|text| failed.stderr.contains(text)), "{failed:?}");
        let shown = kennel.kennel(&["session", "show", name]).json();
        assert_eq!((&shown["state"], &shown["agent"]["liveness"]), (&json!("failed"), &json!("ended")), "{shown}");
    }
    let silent = create(&kennel, "silent", "sleep 1000", &["--startup-timeout", "1s"]);
    assert!(silent.stderr.contains("did not reply within 1s"), "{silent:?}");
    assert_eq!(kennel.kennel(&["session", "show", "silent"]).json()["state"], "failed");
    let missing = kennel.kennel(&["session", "create", "--name", "missing", "--acp", "--", "no-such-agent"]);
    assert_eq!(missing.status, 127, "{missing:?}");
    let image =
        kennel.kennel(&["session", "create", "--acp", "--image", "no/such:image", "--pull", "never", "--", "x"]);
    assert_eq!(image.status, 125, "{image:?}");
    // A secret is in no file: neither in the store, nor in the record of the sandbox.
    let script = format!("{HELLO}echo \"$MY_KEY\" >&2; next; say \"{{\\\"method\\\":\\\"$MY_KEY\\\"}}\"; next\n");
    create(&kennel, "secret", &script, &["-e", "MY_KEY=sk-9f8e7d6c5b4a"]).ok();
    let mut editor = attach(&kennel, "secret", 0);
    editor.send(r#"{"method":"x","params":"sk-9f8e7d6c5b4a"}"#);
    assert_eq!(editor.hear(), "{\"method\":\"sk-9f8e7d6c5b4a\"}\n", "a client that is there gets it unchanged");
    editor.leave();
    let stored = kennel.kennel(&["session", "export", "secret"]).ok();
    assert!(!stored.contains("sk-9f8e7d6c5b4a") && stored.contains("***************"), "{stored}");
    let found = std::process::Command::new("grep")
        .args(["-rl", "--exclude=seen", "sk-9f8e7d6c5b4a"])
        .arg(kennel.home.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    kennel.kennel(&["session", "rm", "--force", "secret"]).ok();
}
