//! How an agent fails, and how it ends. The other side learns of it, and nothing keeps running: each test looks for leftovers
//! at its end.

use super::editor::Editor;
use super::{INITIALIZE, INITIALIZED};
use crate::support::{Kennel, on_every_provider, signal};
use rustix::process::Signal;

on_every_provider! {
    missing_agent_is_an_error,
    agent_that_exits_is_an_error,
    agent_that_ignores_the_end_is_ended,
    killed_editor_leaves_nothing,
    killed_agent_is_an_error,
}

const PROMPT: &str = r#"{"jsonrpc":"2.0","id":"p","method":"session/prompt","params":{}}"#;

fn missing_agent_is_an_error(kennel: &Kennel) {
    let mut editor = Editor::run(kennel, &[], &["no-such-agent", "--acp"]);
    editor.send(INITIALIZE);
    let answer = editor.hear_json();
    assert_eq!((&answer["id"], &answer["error"]["data"]["exitCode"]), (&0.into(), &127.into()), "{answer}");
    let done = editor.end();
    assert_eq!(done.status, 127, "{done:?}");
    assert!(done.stderr.contains("no-such-agent") && done.stderr.contains("try: install the agent"), "{done:?}");
}

fn agent_that_exits_is_an_error(kennel: &Kennel) {
    let mut editor = Editor::open(kennel, "next; echo 'no key: set KEY' >&2; exit 3\n", &[]);
    editor.send(INITIALIZE);
    let answer = editor.hear_json();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&0.into(), &(-32603).into()), "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("exited with code 3") && message.contains("no key: set KEY"), "{answer}");
    assert_eq!(
        (&answer["error"]["data"]["code"], &answer["error"]["data"]["exitCode"]),
        (&"start_failed".into(), &3.into())
    );
    let done = editor.end();
    assert_eq!(done.status, 3, "{done:?}");
    assert!(done.stderr.contains("| no key: set KEY") && done.stderr.contains("try:"), "{done:?}");
}

/// It also leaves a process behind, in a session of its own.
fn agent_that_ignores_the_end_is_ended(kennel: &Kennel) {
    let script = format!("next; say '{INITIALIZED}'; setsid sleep 1000 & while :; do sleep 1; done\n");
    let mut editor = Editor::open(kennel, &script, &[]);
    editor.send(INITIALIZE);
    editor.hear();
    assert_eq!(editor.leave().status, 0);
    assert!(kennel.is_gone(), "{:?}", kennel.left());
}

fn killed_editor_leaves_nothing(kennel: &Kennel) {
    let script = format!("next; say '{INITIALIZED}'; sleep 1000\n");
    for ended_by in [Signal::TERM, Signal::KILL] {
        let mut editor = Editor::open(kennel, &script, &[]);
        editor.send(INITIALIZE);
        editor.hear();
        signal(&editor.child, ended_by);
        if ended_by == Signal::TERM {
            assert_eq!(editor.end().status, 143);
        } else {
            editor.child.wait().unwrap();
        }
        assert!(kennel.is_gone(), "{:?}", kennel.left());
    }
}

fn killed_agent_is_an_error(kennel: &Kennel) {
    let script = format!("next; say '{INITIALIZED}'; next; kill -9 $$\n");
    let mut editor = Editor::open(kennel, &script, &[]);
    editor.send(INITIALIZE);
    editor.hear();
    editor.send(PROMPT);
    let answer = editor.hear_json();
    assert_eq!(answer["id"], "p");
    assert!(answer["error"]["message"].as_str().unwrap().contains("signal 9"), "{answer}");
    assert_eq!(editor.end().status, 137);
}

#[test]
fn silent_agent_is_an_error() {
    let kennel = Kennel::on("local");
    let mut editor = Editor::open(&kennel, "echo thinking >&2; sleep 1000\n", &["--startup-timeout", "500ms"]);
    editor.send(INITIALIZE);
    let answer = editor.hear_json();
    assert_eq!(answer["error"]["data"]["code"], "timeout", "{answer}");
    let done = editor.end();
    assert_eq!(done.status, 124, "{done:?}");
    assert!(done.stderr.contains("did not reply within 500ms"), "{done:?}");
}

#[test]
fn output_that_is_not_json_is_an_error() {
    let kennel = Kennel::on("local");
    let mut editor = Editor::open(&kennel, "next; echo 'Usage: agent [OPTIONS]'; sleep 1000\n", &[]);
    editor.send(INITIALIZE);
    let answer = editor.hear_json();
    assert!(answer["error"]["message"].as_str().unwrap().contains("Usage: agent [OPTIONS]"), "{answer}");
    let done = editor.end();
    assert_eq!(done.status, 125, "{done:?}");
    assert!(done.stderr.contains("ACP mode"), "{done:?}");
}

#[test]
fn agent_may_end_first() {
    let kennel = Kennel::on("local");
    let mut editor = Editor::open(&kennel, &format!("next; say '{INITIALIZED}'; exit 0\n"), &[]);
    editor.send(INITIALIZE);
    editor.hear();
    assert_eq!(editor.end().status, 0);
}

#[test]
fn without_an_agent_there_is_a_hint() {
    let kennel = Kennel::on("native");
    let error = kennel.kennel(&["acp"]).fails(125);
    assert!(error.contains("no agent") && error.contains("agent.command"), "{error}");
}
