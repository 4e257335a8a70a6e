//! `kennel agent`: presets, and single turns with scripted agents.

use crate::support::{Finished, Kennel, on_every_provider, signal, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Stdio;

on_every_provider! {
    turn_is_played_and_printed,
}

/// The beginning of every scripted agent: it opens a session, and reads the prompt.
const BEGIN: &str = r#"next() { IFS= read -r line || exit 0; printf '%s\n' "$line" >> seen; }
say() { printf '%s\n' "$1"; }
next; say '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}'
next; say '{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}'
next
"#;

/// A turn in which the agent asks for permission, and then writes a file.
pub(crate) const TURN: &str = r#"update() { say "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"s\",\"update\":$1}}"; }
update '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"I will "}}'
update '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"do it."}}'
update '{"sessionUpdate":"tool_call","toolCallId":"t","title":"Write hello.txt","kind":"edit","status":"pending"}'
say '{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"t","title":"Write hello.txt","kind":"edit"},"options":[{"optionId":"always","kind":"allow_always","name":"A"},{"optionId":"yes","kind":"allow_once","name":"Y"},{"optionId":"no","kind":"reject_once","name":"N"}]}}'
next
case "$line" in
*'"yes"'*) echo hello > hello.txt; update '{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed","content":[{"type":"diff","path":"hello.txt","oldText":null,"newText":"hello\n"}]}' ;;
*) update '{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"failed"}' ;;
esac
update '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"Done."}}'
say '{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}'
next
"#;

/// Returns an agent that opens a session, reads the prompt, and goes on with this script.
pub(crate) fn script(then: &str) -> String {
    format!("{BEGIN}{then}")
}

/// The words of a call that runs the agent of a script.
fn words<'a>(kennel: &'a Kennel, script: &str, options: &[&'a str]) -> Vec<&'a str> {
    std::fs::write(kennel.here().join("agent.sh"), self::script(script)).unwrap();
    let image = kennel.image().map(|image| vec!["--image", image]).unwrap_or_default();
    [&["agent", "run", "--command", "sh agent.sh"], &image[..], options, &["make a file"]].concat()
}

fn run(kennel: &Kennel, script: &str, options: &[&str]) -> Finished {
    kennel.kennel(&words(kennel, script, options))
}

fn turn_is_played_and_printed(kennel: &Kennel) {
    let printed = run(kennel, TURN, &["--permission", "allow"]).ok();
    let expected = "I will do it.\n* Write hello.txt\n  allowed: Write hello.txt (edit)\n  hello.txt\n  + hello\nDone.";
    assert_eq!(printed, expected);
    assert_eq!(std::fs::read_to_string(kennel.here().join("hello.txt")).unwrap(), "hello\n");
    let seen = std::fs::read_to_string(kennel.here().join("seen")).unwrap();
    let seen: Vec<Value> = seen.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(seen[1]["params"]["cwd"], kennel.here().to_str().unwrap());
    assert_eq!(seen[2]["params"]["prompt"][0]["text"], "make a file");
}

#[test]
fn permissions_follow_the_policy() {
    let kennel = Kennel::on("local");
    for (options, allowed) in [
        (&[][..], false),
        (&["--permission", "deny"], false),
        (&["--permission", "deny", "--permission", "edit=allow"], true),
        (&["--permission", "allow", "--permission", "edit=deny"], false),
        (&["--permission", "execute=deny", "--permission", "allow"], true),
    ] {
        let _ = std::fs::remove_file(kennel.here().join("hello.txt"));
        let printed = run(&kennel, TURN, options).ok();
        assert_eq!(kennel.here().join("hello.txt").exists(), allowed, "{options:?}: {printed}");
        assert!(printed.contains(if allowed { "allowed:" } else { "denied:" }), "{options:?}: {printed}");
    }
    let refused = run(&kennel, TURN, &["--permission", "ask"]).fails(125);
    assert!(refused.contains("no terminal"), "{refused}");
    assert!(run(&kennel, TURN, &["--permission", "shell=deny"]).fails(125).contains("unknown kind"));
}

#[test]
fn json_is_one_object_per_line() {
    let kennel = Kennel::on("local");
    let done = run(&kennel, TURN, &["--json", "--permission", "allow"]);
    assert_eq!(done.status, 0, "{done:?}");
    let lines: Vec<Value> = done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["update", "update", "update", "permission", "update", "update", "result"]);
    assert_eq!((&lines[3]["decision"], &lines[6]["stopReason"]), (&"allow".into(), &"end_turn".into()));
    let failed = run(&kennel, "exit 4\n", &["--json"]);
    let result: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!((failed.status, &result["exitCode"], &result["error"]["code"]), (4, &4.into(), &"exec_failed".into()));
}

#[test]
fn stop_reason_is_the_exit_status() {
    let kennel = Kennel::on("local");
    let refusal = run(&kennel, "say '{\"id\":2,\"result\":{\"stopReason\":\"refusal\"}}'; next\n", &[]);
    assert_eq!(refusal.status, 1, "{refusal:?}");
    assert!(refusal.stderr.contains("ended its turn early: refusal"), "{refusal:?}");
    let login = "say '{\"id\":2,\"error\":{\"code\":-32000,\"message\":\"Authentication required\"}}'; next\n";
    let refused = run(&kennel, login, &[]).fails(125);
    assert!(refused.contains("Authentication required") && refused.contains("log in to the agent"), "{refused}");
}

#[test]
fn interrupt_cancels_the_turn_and_a_second_one_ends_it() {
    let kennel = Kennel::on("local");
    let script = "echo prompted >&2; next; say '{\"id\":2,\"result\":{\"stopReason\":\"cancelled\"}}'; next\n";
    let stubborn = "echo prompted >&2; next; echo cancelled >&2; while :; do sleep 1; done\n";
    for (script, signals) in [(script, 1), (stubborn, 2)] {
        let mut call = kennel.call(&words(&kennel, script, &[]));
        let mut child = call.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        for word in ["prompted", "cancelled"].iter().take(signals) {
            crate::support::hear(&mut stderr, word);
            signal(&child, Signal::INT);
        }
        assert_eq!(wait(&mut child, "kennel agent run"), 130);
        let seen = std::fs::read_to_string(kennel.here().join("seen")).unwrap();
        assert!(seen.lines().last().unwrap().contains("session/cancel"), "{seen}");
    }
}

#[test]
fn agents_are_listed_and_users_add_their_own() {
    let kennel = Kennel::on("local");
    let names = |kennel: &Kennel| {
        let all = kennel.kennel(&["agent", "ls", "--json"]).json();
        all.as_array().unwrap().iter().map(|agent| agent["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&kennel), ["claude-code", "codex", "gemini", "goose", "opencode", "qwen-code"]);
    assert!(kennel.kennel(&["agent", "show", "goose"]).ok().contains("never run"));
    let dir = kennel.home.path().join("config/agents");
    std::fs::create_dir_all(&dir).unwrap();
    let own = "command = [\"sh\", \"agent.sh\"]\nsecrets = [\"MY_KEY\", \"NOT_SET\"]\nenv = { FIXED = \"f\" }\n";
    std::fs::write(dir.join("mine.toml"), own).unwrap();
    assert!(names(&kennel).contains(&"mine".to_owned()));
    let script = "echo \"$MY_KEY $FIXED ${NOT_SET-unset}\" > environment\nsay '{\"id\":2,\"result\":{\"stopReason\":\"end_turn\"}}'; next\n";
    std::fs::write(kennel.here().join("agent.sh"), self::script(script)).unwrap();
    let mut call = kennel.call(&["agent", "run", "--agent", "mine", "hello"]);
    call.env("MY_KEY", "secret");
    crate::support::finish(call, None).ok();
    assert_eq!(std::fs::read_to_string(kennel.here().join("environment")).unwrap(), "secret f unset\n");
    let unknown = kennel.kennel(&["acp", "--agent", "nobody"]).fails(125);
    assert!(unknown.contains("kennel agent ls"), "{unknown}");
}

#[test]
fn agent_of_the_settings_is_started() {
    let kennel = Kennel::on("local");
    let script = "echo \"$KEY\" > environment\nsay '{\"id\":2,\"result\":{\"stopReason\":\"end_turn\"}}'; next\n";
    std::fs::write(kennel.here().join("agent.sh"), self::script(script)).unwrap();
    let settings = "[agent]\ncommand = \"sh\"\nargs = [\"agent.sh\"]\nenv = { KEY = \"${MY_KEY}\" }\n";
    std::fs::write(kennel.here().join("kennel.toml"), settings).unwrap();
    let call = || {
        let mut call = kennel.call(&["agent", "run", "hello"]);
        call.env("MY_KEY", "value");
        crate::support::finish(call, None)
    };
    let refused = call().fails(125);
    assert!(refused.contains("agent.command") && refused.contains("kennel config trust"), "{refused}");
    // The user's own file needs no trust.
    std::fs::remove_file(kennel.here().join("kennel.toml")).unwrap();
    std::fs::create_dir_all(kennel.home.path().join("config")).unwrap();
    std::fs::write(kennel.home.path().join("config/config.toml"), settings).unwrap();
    call().ok();
    assert_eq!(std::fs::read_to_string(kennel.here().join("environment")).unwrap(), "value\n");
    for (key, value, said) in
        [("workspaceContainerPath", "\"../w\"", "workspaceContainerPath"), ("autoRemove", "false", "always removed")]
    {
        let container = format!("{settings}mode = \"container\"\n[agent.container]\n{key} = {value}\n");
        std::fs::write(kennel.home.path().join("config/config.toml"), container).unwrap();
        let mut plain = std::process::Command::new(env!("CARGO_BIN_EXE_kennel"));
        plain.args(["agent", "run", "hello"]).current_dir(kennel.here()).env_clear().stdin(Stdio::null());
        plain.env("KENNEL_HOME", kennel.home.path()).env("HOME", kennel.home.path()).env("MY_KEY", "value");
        let refused = crate::support::finish(plain, None).fails(125);
        assert!(refused.contains(said), "{refused}");
    }
}
