//! The output of `doctor` and `setup` if everything works in the end. Parts that depend on the machine are left out,
//! but every check is there.

use super::Walk;
use crate::doctor::{Bare, install_docker};
use crate::support::{Finished, Kennel, finish};
use serde_json::Value;
use std::process::{Command, Stdio};

/// Checks that may succeed or fail on a good machine.
const EITHER_WAY: [&str; 3] = ["landlock", "pasta", "newuidmap"];
/// Checks whose text depends on the machine.
const OWN_WORDS: [&str; 2] = ["kernel", "cgroups"];

/// Without `--provider`, and without an engine.
fn doctor(kennel: &Kennel, words: &[&str], coloured: bool) -> Finished {
    let mut call = Command::new(env!("CARGO_BIN_EXE_kennel"));
    call.args(words).current_dir(kennel.here()).env_clear().stdin(Stdio::null());
    call.env("PATH", kennel_testkit::environment::variable("PATH").unwrap()).env("KENNEL_HOME", kennel.home.path());
    call.env("DOCKER_HOST", "unix:///nowhere/docker.sock").envs(coloured.then_some(("CLICOLOR_FORCE", "1")));
    let done = finish(call, None);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
    done
}

/// Normalizes a line for people.
fn steady(line: &str) -> String {
    if let Some((before, rest)) = line.split_once("a sandbox took ") {
        let (_, after) = rest.split_once(" ms").expect("so many milliseconds");
        return format!("{before}a sandbox took N ms{after}");
    }
    if let Some(at) = line.find("try:") {
        let end = line[at..].find(' ').map_or(line.len(), |space| at + space);
        return format!("{} WHAT GETS IT", &line[..end]);
    }
    for name in EITHER_WAY {
        if line.contains(&format!(" {name:<16} ")) {
            return format!("  ? {name:<16} WHAT IS SEEN");
        }
    }
    for name in OWN_WORDS {
        if let Some(at) = line.find(&format!(" {name:<16} ")) {
            return format!("{} {name:<16} WHAT IS SEEN", &line[..at]);
        }
    }
    line.to_owned()
}

/// Normalizes JSON.
fn steady_json(mut object: Value) -> String {
    for provider in object["providers"].as_array_mut().unwrap() {
        if provider["triedMs"].is_number() {
            provider["triedMs"] = "N".into();
        }
    }
    let differs = |of: &mut Value| {
        assert!(!of.is_null());
        *of = "DIFFERS".into();
    };
    for check in object["machine"].as_array_mut().unwrap() {
        let name = check["name"].as_str().unwrap().to_owned();
        if EITHER_WAY.contains(&&*name) {
            differs(&mut check["state"]);
        }
        if EITHER_WAY.contains(&&*name) || OWN_WORDS.contains(&&*name) {
            differs(&mut check["detail"]);
        }
    }
    let all = object["providers"].as_array_mut().unwrap().iter_mut();
    for fix in all.map(|provider| &mut provider["fix"]).filter(|fix| !fix.is_null()) {
        differs(&mut fix["command"]);
        differs(&mut fix["automatic"]);
    }
    serde_json::to_string_pretty(&object).unwrap()
}

fn healthy(coloured: bool) -> String {
    let kennel = Kennel::on("native");
    let mut walk = Walk::new(&kennel, coloured);
    walk.stands_for(&rustix::system::uname().release().to_string_lossy(), "KERNEL");
    let text = doctor(&kennel, &["doctor"], coloured).text();
    walk.note(&["doctor"], &text.lines().map(steady).collect::<Vec<_>>().join("\n"));
    let done = doctor(&kennel, &["doctor", "--json"], coloured);
    walk.note(&["doctor", "--json"], &steady_json(done.json()));
    walk.text
}

#[test]
fn what_the_doctor_prints() {
    insta::assert_snapshot!("doctor", healthy(false));
}

#[test]
fn what_the_doctor_prints_in_colour() {
    insta::assert_snapshot!("doctor_in_colour", healthy(true));
}

/// Installs a fake Docker, which the next check finds.
fn setup(coloured: bool) -> String {
    let bare = Bare::new(&install_docker());
    let mut walk = Walk::new(&bare.kennel, coloured);
    for words in [&["setup", "docker", "--yes"][..], &["setup", "docker"]] {
        let mut call = bare.as_root(words);
        call.envs(coloured.then_some(("CLICOLOR_FORCE", "1")));
        let done = finish(call, None);
        assert_eq!(done.status, 0, "{done:?}");
        let calls = bare.calls();
        assert_eq!(calls.len(), 1, "{calls:?}");
        walk.stands_for(&calls[0], "INSTALL DOCKER");
        walk.note(words, &format!("{}\n--- on standard error\n{}", engine(&done.text()), engine(&done.stderr)));
    }
    walk.text
}

/// Removes the engine's version, and the update of package lists on a machine that has none.
fn engine(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.ends_with("apt-get update") {
            if line.contains('$') {
                lines.pop(); // the empty line before it
            }
            continue;
        }
        let line = line.replace("apt-get update && ", "");
        lines.push(match line.split_once("Docker ") {
            Some((before, version)) if version.contains("(API ") => format!("{before}Docker VERSION (API VERSION)"),
            _ => line,
        });
    }
    lines.join("\n")
}

#[test]
fn what_setup_prints() {
    insta::assert_snapshot!("setup", setup(false));
}

#[test]
fn what_setup_prints_in_colour() {
    insta::assert_snapshot!("setup_in_colour", setup(true));
}
