//! Sessions on the command line: what is recorded, and what is left when something was interrupted.

use crate::support::{Finished, Kennel, on_every_provider};
use kennel_testkit::within_blocking;
use rustix::fs::inotify;
use serde_json::Value;
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

on_every_provider! {
    session_is_used_stopped_and_removed,
    secret_is_for_the_main_process_and_its_owner,
    result_outlives_the_sandbox,
    lost_sandbox_is_noticed,
}

const LONG: Duration = Duration::from_mins(2);

/// Opens a session. Engines get their image.
fn create(kennel: &Kennel, options: &[&str]) -> Finished {
    let mut words = vec!["session", "create"];
    if let Some(image) = kennel.image() {
        words.extend(["--image", image]);
    }
    words.extend(options);
    kennel.kennel(&words)
}

fn session(kennel: &Kennel, words: &[&str]) -> Finished {
    kennel.kennel(&[&["session"], words].concat())
}

fn show(kennel: &Kennel, name: &str) -> Value {
    session(kennel, &["show", name]).json()
}

/// The changes of state that are recorded for a session.
fn events(kennel: &Kennel, name: &str) -> Vec<(Value, Value, Value)> {
    let lines = session(kennel, &["events", "--json", name]).ok();
    let event = |line: &str| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        (event["from"].take(), event["to"].take(), event["cause"].take())
    };
    lines.lines().map(event).collect()
}

fn session_is_used_stopped_and_removed(kennel: &Kennel) {
    assert_eq!(create(kennel, &["--name", "fix"]).ok(), "fix");
    let shown = show(kennel, "fix");
    assert_eq!((&shown["state"], &shown["provider"]), (&"running".into(), &kennel.provider.into()), "{shown}");
    let again = create(kennel, &["--name", "fix"]).fails(125);
    assert!(again.contains("fix"), "{again}");
    assert_eq!(session(kennel, &["exec", "fix", "-c", "echo $KENNEL_SESSION"]).ok(), shown["id"].as_str().unwrap());
    let secret = session(kennel, &["show", "--secret", "fix"]).ok();
    assert_eq!(session(kennel, &["exec", "fix", "-c", "echo $KENNEL_SESSION_SECRET"]).ok(), secret);
    assert_eq!(session(kennel, &["exec", "fix", "--", "sh", "-c", "exit 5"]).status, 5);
    session(kennel, &["stop", "fix"]).ok();
    assert_eq!(show(kennel, "fix")["state"], "stopped");
    let refused = session(kennel, &["exec", "fix", "--", "true"]).fails(125);
    assert!(refused.contains("kennel session start fix"), "{refused}");
    session(kennel, &["start", "fix"]).ok();
    assert_eq!(session(kennel, &["exec", "fix", "--", "echo", "again"]).ok(), "again");
    let refused = session(kennel, &["rm", "fix"]).fails(125);
    assert!(refused.contains("kennel session stop fix"), "{refused}");
    let steps: Vec<String> = events(kennel, "fix").iter().map(|(from, to, _)| format!("{from} {to}")).collect();
    let expected = [
        "null \"creating\"",
        "\"creating\" \"running\"",
        "\"running\" \"running\"",
        "\"running\" \"stopped\"",
        "\"stopped\" \"stopped\"",
        "\"stopped\" \"running\"",
    ];
    assert_eq!(steps, expected);
    session(kennel, &["rm", "--force", "fix"]).ok();
    assert_eq!(session(kennel, &["ls", "--json"]).json(), serde_json::json!([]));
    assert_eq!(kennel.kennel(&["ls", "--all", "--ids"]).ok(), "");
    let error = session(kennel, &["show", "fix"]);
    assert_eq!((error.status, &error.json()["error"]["code"]), (125, &"not_found".into()));
}

/// The main process has the secret of its session. Its owner can read it back, and nothing else shows it.
fn secret_is_for_the_main_process_and_its_owner(kennel: &Kennel) {
    let main = "echo $KENNEL_SESSION_SECRET > told.new; mv told.new told; exec sleep 1000";
    create(kennel, &["--name", "agent", "--", "sh", "-c", main]).ok();
    let told = kennel.here().join("told");
    assert!(within_blocking(LONG, || told.exists()), "the main process runs");
    let told = std::fs::read_to_string(told).unwrap();
    let secret = told.trim();
    assert!(secret.len() >= 32, "{secret:?} can be guessed");
    assert_eq!(session(kennel, &["show", "--secret", "agent"]).ok(), secret);
    let sandbox = show(kennel, "agent")["sandbox"].as_str().unwrap().to_owned();
    for words in [
        &["session", "show", "agent"][..],
        &["session", "ls", "--json"],
        &["session", "events", "--json", "agent"],
        &["inspect", &sandbox],
        &["ls", "--json"],
        &["logs", &sandbox],
    ] {
        let shown = kennel.kennel(words);
        assert_eq!(shown.status, 0, "{shown:?}");
        assert!(!shown.text().contains(secret) && !shown.stderr.contains(secret), "{words:?} shows it");
    }
    let database = kennel.home.path().join("state/kennel.db");
    assert_eq!(std::fs::metadata(database).unwrap().mode() & 0o777, 0o600, "only the owner can read it");
    create(kennel, &["--name", "other"]).ok();
    assert_ne!(session(kennel, &["show", "--secret", "other"]).ok(), secret, "each session has its own");
    session(kennel, &["rm", "--force", "agent", "other"]).ok();
}

fn result_outlives_the_sandbox(kennel: &Kennel) {
    let script = "i=1; while [ $i -le 60 ]; do echo line $i; i=$((i+1)); done; exit 9";
    create(kennel, &["--name", "job", "--rm", "--", "sh", "-c", script]).ok();
    let ended = || show(kennel, "job")["state"] == "failed";
    assert!(within_blocking(LONG, ended), "{}", show(kennel, "job"));
    let gone = || kennel.kennel(&["ls", "--all", "--ids"]).ok().is_empty();
    assert!(within_blocking(LONG, gone));
    let shown = show(kennel, "job");
    assert_eq!((&shown["exitCode"], &shown["cause"]), (&9.into(), &"exited".into()), "{shown}");
    let log: Vec<&str> = shown["log"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert_eq!((log.len(), log[0], log[49]), (50, "line 11", "line 60"));
    session(kennel, &["rm", "job"]).ok();
}

fn lost_sandbox_is_noticed(kennel: &Kennel) {
    create(kennel, &["--name", "lost"]).ok();
    let shown = show(kennel, "lost");
    kennel.kennel(&["rm", "--force", shown["sandbox"].as_str().unwrap()]).ok();
    let what = format!("session {} as failed: its sandbox is lost", shown["id"].as_str().unwrap());
    // A dry run changes nothing, and prints what is done later.
    for _ in 0..2 {
        assert_eq!(kennel.kennel(&["gc", "--dry-run"]).ok(), format!("would mark {what}"));
    }
    assert_eq!(kennel.kennel(&["gc"]).ok(), format!("marked {what}"));
    assert_eq!(kennel.kennel(&["gc"]).ok(), "");
    let shown = show(kennel, "lost");
    assert_eq!((&shown["state"], &shown["cause"]), (&"failed".into(), &"lost".into()), "{shown}");
    session(kennel, &["rm", "lost"]).ok();
}

#[test]
fn damaged_database_is_moved_aside_and_its_sandboxes_are_adopted() {
    let kennel = Kennel::on("native");
    create(&kennel, &["--name", "kept", "--network", "none"]).ok();
    let database = kennel.home.path().join("state/kennel.db");
    let _ = std::fs::remove_file(database.with_extension("db-wal"));
    std::fs::write(&database, "this is no database").unwrap();
    let stderr = session(&kennel, &["ls"]).fails(125);
    assert!(stderr.contains("damaged") && stderr.contains("kennel.db.corrupt-1"), "{stderr}");
    let aside = kennel.home.path().join("state/kennel.db.corrupt-1");
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "this is no database");
    // The sandbox still runs. It is reported, and not removed.
    assert!(kennel.kennel(&["gc"]).stderr.contains("another store"));
    assert_eq!(kennel.kennel(&["exec", "kept", "--", "echo", "alive"]).ok(), "alive");
    assert_eq!(session(&kennel, &["adopt", "--all"]).ok(), "kept");
    assert_eq!(session(&kennel, &["exec", "kept", "--", "echo", "alive"]).ok(), "alive");
    session(&kennel, &["rm", "--force", "kept"]).ok();
}

/// `run`, `create`, `exec`, `ls` and `profile` never open the database: the kernel reports no opening of the file, and one
/// that is damaged stays where it is.
#[test]
fn plain_commands_never_open_the_database() {
    let kennel = Kennel::on("native");
    let database = kennel.home.path().join("state/kennel.db");
    std::fs::create_dir_all(database.parent().unwrap()).unwrap();
    std::fs::write(&database, "this is no database").unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, &database, inotify::WatchFlags::OPEN).unwrap();
    let is_opened = || inotify::Reader::new(&watch, &mut [MaybeUninit::uninit(); 4096]).next().is_ok();
    kennel.kennel(&["run", "--network", "none", "--", "true"]).ok();
    kennel.kennel(&["create", "--name", "box", "--network", "none", "--start"]).ok();
    kennel.kennel(&["exec", "box", "--", "true"]).ok();
    kennel.kennel(&["ls"]).ok();
    kennel.kennel(&["rm", "--force", "box"]).ok();
    kennel.kennel(&["profile", "create", "dev", "--network", "none"]).ok();
    kennel.kennel(&["profile", "exec", "dev", "--", "true"]).ok();
    kennel.kennel(&["profile", "delete", "--force", "dev"]).ok();
    assert!(!is_opened(), "the database was opened");
    assert_eq!(std::fs::read_to_string(&database).unwrap(), "this is no database");
    assert!(is_opened(), "the kernel reports that this test has opened it");
    // The control: a command that opens it notices.
    session(&kennel, &["ls"]).fails(125);
    assert!(!database.exists() || std::fs::read(&database).unwrap() != b"this is no database");
}

#[test]
fn several_sessions_are_removed_at_once() {
    let kennel = Kennel::on("local");
    for name in ["one", "two", "three"] {
        create(&kennel, &["--name", name]).ok();
    }
    let done = session(&kennel, &["rm", "--force", "one", "missing", "two"]);
    assert_eq!((done.status, done.text().as_str()), (125, "one\ntwo\n"), "a failure does not stop the others");
    assert!(done.stderr.contains("there is no session missing"), "{done:?}");
    let rows = session(&kennel, &["rm", "--force", "--json", "three", "three"]).json();
    assert_eq!((&rows[0]["removed"], &rows[0]["error"]), (&"three".into(), &Value::Null), "{rows}");
    assert_eq!((&rows[1]["removed"], &rows[1]["error"]["code"]), (&Value::Null, &"not_found".into()), "{rows}");
    assert_eq!(session(&kennel, &["ls", "--json"]).json(), serde_json::json!([]));
}

#[test]
fn events_have_a_header_and_their_time() {
    let kennel = Kennel::on("local");
    create(&kennel, &["--name", "fix"]).ok();
    let text = session(&kennel, &["events", "fix"]).ok();
    let cells = |line| str::split(line, "   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let rows: Vec<Vec<&str>> = text.lines().map(cells).collect();
    assert_eq!(rows[0], ["NUMBER", "TIME (UTC)", "SESSION", "STATE", "CAUSE"], "{text}");
    let shape: String = rows[1].concat().chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    assert!(shape.contains("0000-00-00 00:00:00") && text.contains("- -> creating"), "{text}");
    session(&kennel, &["rm", "--force", "fix"]).ok();
}

/// A session that is created from a profile has its settings, but not its sandbox.
#[test]
fn session_is_made_from_a_profile() {
    let kennel = Kennel::on("native");
    let profile = |words: &[&str]| kennel.kennel(&[&["profile"], words].concat());
    profile(&["create", "dev", "-e", "COLOUR=blue", "-e", "SIZE=1", "--network", "none", "--keep-alive=false"]).ok();
    create(&kennel, &["--profile", "dev", "--name", "fix", "-e", "SIZE=2"]).ok();
    assert_eq!(session(&kennel, &["exec", "fix", "-c", "echo $COLOUR $SIZE; pwd"]).ok(), "blue 2\n/workspace");
    let shown = show(&kennel, "fix");
    let expected = (&"dev".into(), &kennel.here().to_str().unwrap().into());
    assert_eq!((&shown["profile"], &shown["workspace"]), expected, "{shown}");
    // The profile does not use the session's sandbox, even if the profile's own is missing.
    assert_eq!(profile(&["status", "--json", "dev"]).json()["sandboxId"], Value::Null);
    assert_eq!(profile(&["exec", "dev", "-c", "echo $SIZE"]).ok(), "1");
    assert_ne!(profile(&["status", "--json", "dev"]).json()["sandboxId"], shown["sandbox"]);
    profile(&["delete", "--force", "dev"]).ok();
    assert_eq!(session(&kennel, &["exec", "fix", "-c", "echo $SIZE"]).ok(), "2", "the session does not need it");
    assert_eq!(kennel.kennel(&["gc"]).stderr, "", "and is not reported");
    session(&kennel, &["rm", "--force", "fix"]).ok();

    // From another directory, the profile's workspace would be unexpected. The user can choose one.
    profile(&["create", "dev", "--network", "none"]).ok();
    let elsewhere = |words: &[&str]| {
        let mut call = kennel.call(&[&["session", "create", "--profile", "dev"], words].concat());
        call.current_dir(kennel.home.path());
        crate::support::finish(call, None)
    };
    assert!(elsewhere(&[]).fails(125).contains("profile dev is for"));
    elsewhere(&["--own-workspace", "--name", "own"]).ok();
    session(&kennel, &["rm", "--force", "own"]).ok();
    assert!(create(&kennel, &["--profile", "none"]).fails(125).contains("there is no profile none"));
    profile(&["delete", "--force", "dev"]).ok();
}

#[test]
fn own_workspace_is_kept() {
    let kennel = Kennel::on("native");
    let options = ["--name", "own", "--own-workspace", "--network", "none", "--", "sh", "-c", "echo result > file"];
    create(&kennel, &options).ok();
    let ended = || show(&kennel, "own")["state"] == "completed";
    assert!(within_blocking(LONG, ended), "{}", show(&kennel, "own"));
    let workspace = show(&kennel, "own")["workspace"].as_str().unwrap().to_owned();
    session(&kennel, &["rm", "own"]).ok();
    assert_eq!(std::fs::read_to_string(format!("{workspace}/file")).unwrap(), "result\n");
}

#[test]
fn unsafe_repositories_are_refused() {
    let kennel = Kennel::on("native");
    // Each is refused with a reason: repositories that would run code with the user's rights, and URLs whose secrets
    // would be stored.
    for url in ["/etc", "file:///etc", "ext::sh -c true", "ssh://host/x", "https://user:secret@host/x"] {
        let stderr = create(&kennel, &["--clone", url]).fails(125);
        assert!(stderr.contains("invalid repository") && !stderr.contains("secret"), "{stderr}");
    }
    assert_eq!(session(&kennel, &["ls", "--json"]).json(), serde_json::json!([]));
}
