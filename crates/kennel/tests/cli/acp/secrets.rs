//! Secrets reach the agent's process only. A search for a random key finds it nowhere else.

use super::editor::Editor;
use super::{INITIALIZE, agent_script};
use crate::support::{Kennel, on_every_provider};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

on_every_provider! {
    secrets_reach_only_the_agent,
}

/// Everything of Kennel and its engine that may be read, for each place whether it contains the key.
fn found(kennel: &Kennel, key: &str) -> Vec<&'static str> {
    let id = kennel.kennel(&["ls", "--all", "-q"]).ok();
    let inspected = kennel.kennel(&["inspect", id.trim()]).ok();
    let places = [
        ("files", contains(kennel.home.path(), key)),
        ("inspect", inspected.contains(key)),
        ("engine", engine_shows(kennel, key)),
        ("ps", another_user_sees(key)),
    ];
    places.into_iter().filter(|(_, found)| *found).map(|(place, _)| place).collect()
}

fn secrets_reach_only_the_agent(kennel: &Kennel) {
    let key =
        format!("canary-{:016x}", std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), kennel.provider));
    // The files of the secret, and what the agent is to reply with, are not among the searched ones.
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("key");
    std::fs::write(&file, format!("{key}-file\n")).unwrap();
    agent_script(kennel, "next; printf '{\"id\":0,\"result\":\"%s %s %s\"}\\n' \"$A\" \"$B\" \"$C\"; next\n");
    let from_file = format!("B=file:{}", file.display());
    let from_command = format!("C=command:sed s/file/command/ {}", file.display());
    let options = ["--secret", "A=env:TEST_SECRET", "--secret", &from_file, "--secret", &from_command];
    let mut editor = Editor::run_with(kennel, &options, &["sh", "agent.sh"], &[("TEST_SECRET", &format!("{key}-env"))]);
    editor.send(INITIALIZE);
    let heard = editor.hear();
    assert!(heard.contains(&format!("{key}-env {key}-file {key}-command")), "{heard}");
    assert_eq!(found(kennel, &key), Vec::<&str>::new());
    editor.send("{}");
    editor.leave();
    assert!(!contains(kennel.home.path(), &key), "nothing is left of it");
    // The control: a variable of a sandbox is found in all places that its provider has, and one of a command is found by ps.
    kennel.kennel(&["create", "-e", &format!("KEY={key}")]).ok();
    let mut seen =
        Command::new("sh").args(["-c", "read -r line", &key]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let places = found(kennel, &key);
    drop(seen.stdin.take());
    seen.wait().unwrap();
    // A container's variables are with its engine, and not in a file of Kennel.
    let expected = if kennel.provider == "docker" { "engine" } else { "files" };
    assert!(places.contains(&expected) && places.contains(&"ps"), "{places:?}");
}

#[test]
fn secrets_of_a_project_need_trust() {
    let kennel = Kennel::on("local");
    agent_script(&kennel, "next; printf '{\"id\":0,\"result\":\"%s\"}\\n' \"$KEY\"; next\n");
    std::fs::write(kennel.here().join("kennel.toml"), "[agent.secrets]\nKEY = \"command:touch ran; echo value\"\n")
        .unwrap();
    let refused = kennel.kennel(&["acp"]).fails(125);
    assert!(refused.contains("agent.secrets") && refused.contains("kennel config trust"), "{refused}");
    assert!(!kennel.here().join("ran").exists(), "the command was not run");
    for (source, said) in
        [("KEY", "expected env:NAME"), ("file:missing", "secret KEY: read missing"), ("command:exit 3", "secret KEY")]
    {
        std::fs::write(kennel.here().join("kennel.toml"), "").unwrap();
        let failed = kennel.kennel(&["acp", "--secret", &format!("KEY={source}"), "--", "sh", "agent.sh"]);
        assert!(failed.status != 0 && failed.stderr.contains(said), "{failed:?}");
    }
}

/// Whether another user finds a word in the command lines and environments of all processes.
fn another_user_sees(word: &str) -> bool {
    const NOBODY: u32 = 65534;
    // The word is not on the command line of the search itself.
    let script = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'";
    let output = Command::new("sh").args(["-c", script]).uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap();
    assert!(!output.stdout.is_empty(), "nothing was searched");
    String::from_utf8_lossy(&output.stdout).contains(word)
}

/// Whether the engine shows a word in the description of any container.
fn engine_shows(kennel: &Kennel, word: &str) -> bool {
    if kennel.provider != "docker" {
        return false;
    }
    let socket = format!("unix://{}", kennel_testkit::docker::socket().display());
    let docker = |words: &[&str]| {
        let output = Command::new("docker").args(["-H", &socket]).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let mark = kennel.home.mark();
    let shown = |id: &str| docker(&["inspect", id]);
    docker(&["ps", "-aq"]).lines().map(shown).any(|text| text.contains(&mark) && text.contains(word))
}

/// Whether a file below a directory contains a word.
fn contains(dir: &Path, word: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.flatten().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => contains(&entry.path(), word),
        Ok(kind) if kind.is_file() => {
            std::fs::read(entry.path()).is_ok_and(|bytes| bytes.windows(word.len()).any(|part| part == word.as_bytes()))
        }
        _ => false,
    })
}
