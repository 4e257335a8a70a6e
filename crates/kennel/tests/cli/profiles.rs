//! Profiles: each item of the checklist of document 001, on native, Docker and Podman. The items about a server and the
//! tools of agents need the server.

use crate::support::{Finished, Kennel, finish, hear, wait};
use crate::terminal::{ends_with, terminal};
use expectrl::Expect;
use kennel_testkit::within_blocking;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Makes a test of each case for each provider with isolation.
macro_rules! on_providers {
    ($($case:ident),* $(,)?) => {
        mod native {
            $(#[test] fn $case() { super::$case(&$crate::support::Kennel::on("native")); })*
        }
        mod docker {
            $(#[test] fn $case() { super::$case(&$crate::support::Kennel::on("docker")); })*
        }
        mod podman {
            $(#[test] fn $case() { super::$case(&$crate::support::Kennel::on("podman")); })*
        }
    };
}

mod images;
mod paths;

on_providers! {
    profile_commands,
    profiles_are_persistent,
    commands_run_in_the_profile,
    volumes_are_mounted,
    networks_differ,
    sandbox_is_kept_alive,
    idle_profile_stops_and_starts_again,
    profile_reconnects,
    errors_are_clear,
    memory_shortage_is_an_error,
    provider_is_chosen_once,
    exec_without_a_command_opens_a_shell,
    nested_sandboxes_run_in_a_profile,
    fifty_starts_create_one_sandbox,
    restart_applies_changes_and_keeps_volumes,
}

const LONG: Duration = Duration::from_mins(2);

/// Creates a profile with these options. Engines get their image. The profile is deleted with its home.
fn create(kennel: &Kennel, name: &str, options: &[&str]) {
    let mut words = vec!["profile", "create", name];
    if let Some(image) = kennel.image() {
        words.extend(["--image", image]);
    }
    words.extend(options);
    assert_eq!(kennel.kennel(&words).ok(), name);
}

fn profile(kennel: &Kennel, words: &[&str]) -> Finished {
    kennel.kennel(&[&["profile"], words].concat())
}

/// A call without a provider and an image, which `Kennel` names otherwise.
fn plain(kennel: &Kennel, words: &[&str]) -> Command {
    let call = kennel.call(&["profile"]);
    let mut plain = Command::new(call.get_program());
    plain.current_dir(kennel.here()).env_clear().stdin(Stdio::null());
    plain.envs(call.get_envs().filter_map(|(key, value)| Some((key, value?))));
    plain.args(words);
    plain
}

/// Runs a shell command in a profile.
fn sh(kennel: &Kennel, name: &str, script: &str) -> Finished {
    profile(kennel, &["exec", name, "--", "sh", "-c", script])
}

fn status(kennel: &Kennel, name: &str) -> String {
    profile(kennel, &["status", name]).ok()
}

fn sandbox_of(kennel: &Kennel, name: &str) -> Value {
    profile(kennel, &["status", "--json", name]).json()["sandboxId"].clone()
}

fn delete(kennel: &Kennel, name: &str) {
    assert_eq!(profile(kennel, &["delete", "--force", "--volumes", name]).ok(), name);
    assert!(!kennel.home.path().join(format!("data/profiles/.{name}.lock")).exists(), "the lock file is removed");
    assert_eq!(kennel.kennel(&["ls", "--all", "--ids"]).ok(), "");
}

fn profile_commands(kennel: &Kennel) {
    create(kennel, "test", &["--", "sh", "-c", "echo ready; exec sleep 1000"]);
    let listed = profile(kennel, &["list", "--json"]).json();
    assert_eq!((&listed[0]["name"], &listed[0]["status"]), (&"test".into(), &"stopped".into()), "{listed}");
    assert!(profile(kennel, &["list"]).ok().contains("test"));
    let shown = profile(kennel, &["show", "test"]).json();
    assert_eq!(shown["name"], "test");
    assert_eq!(shown["image"].as_str(), kennel.image());
    assert_eq!(profile(kennel, &["start", "test"]).ok(), "test");
    assert_eq!(status(kennel, "test"), "running");
    assert_eq!(profile(kennel, &["exec", "test", "echo", "hello"]).ok(), "hello");
    assert_eq!(profile(kennel, &["exec", "test", "pwd"]).ok(), "/workspace");
    let ready = || profile(kennel, &["logs", "test"]).ok() == "ready";
    assert!(within_blocking(LONG, ready), "{:?}", profile(kennel, &["logs", "test"]));
    assert_eq!(profile(kennel, &["logs", "--tail", "1", "test"]).ok(), "ready");
    let id = sandbox_of(kennel, "test");
    let mut followed = kennel.call(&["profile", "logs", "-f", "test"]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(hear(followed.stdout.as_mut().unwrap(), "ready\n"), "ready\n");
    profile(kennel, &["stop", "test"]).ok();
    assert_eq!(wait(&mut followed, "the followed log"), 0, "it ends with the sandbox");
    assert_eq!(status(kennel, "test"), "stopped");
    let all = profile(kennel, &["status"]).ok();
    assert!(all.lines().any(|line| line.starts_with("test ") && line.contains("stopped")), "{all}");
    profile(kennel, &["restart", "test"]).ok();
    assert_eq!((status(kennel, "test").as_str(), sandbox_of(kennel, "test")), ("running", id));
    // Without a terminal nobody can be asked, so nothing is deleted.
    assert!(profile(kennel, &["delete", "test"]).fails(125).contains("--force test"));
    delete(kennel, "test");
    assert!(profile(kennel, &["show", "test"]).fails(125).contains("there is no profile test"));
}

fn profiles_are_persistent(kennel: &Kennel) {
    create(kennel, "keep", &["--", "sh", "-c", "until [ -e /tmp/end ]; do sleep 0.1; done; rm /tmp/end; exit 7"]);
    let file = kennel.home.path().join("data/profiles/keep.json");
    let read = || serde_json::from_slice::<Value>(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(read()["name"], "keep");
    profile(kennel, &["start", "keep"]).ok();
    assert_eq!(read()["state"]["sandbox"], sandbox_of(kennel, "keep"));
    assert_eq!(read()["state"]["provider"], kennel.provider);
    // It ends by itself, without Kennel.
    sh(kennel, "keep", "touch /tmp/end").ok();
    let ended = || status(kennel, "keep") == "error (7)";
    assert!(within_blocking(LONG, ended), "{}", status(kennel, "keep"));
    let json = profile(kennel, &["status", "--json", "keep"]).json();
    assert_eq!((&json["status"], &json["exitCode"]), (&"error".into(), &7.into()), "{json}");
    // A stop that was requested is not an error, whatever the exit code is.
    profile(kennel, &["start", "keep"]).ok();
    profile(kennel, &["stop", "keep"]).ok();
    assert_eq!(status(kennel, "keep"), "stopped");
    delete(kennel, "keep");
    assert!(!file.exists());
}

fn commands_run_in_the_profile(kennel: &Kennel) {
    create(kennel, "dev", &["-e", "COLOUR=blue"]);
    let run = |words: &[&str]| finish(plain(kennel, &[&["run", "--profile", "dev"], words].concat()), None);
    assert_eq!(run(&["--", "sh", "-c", "echo $COLOUR; touch /kept; hostname > /dev/null"]).ok(), "blue");
    // The sandbox was started by the command, and is the same for the next one.
    assert_eq!(status(kennel, "dev"), "running");
    assert_eq!(run(&["--", "ls", "/kept"]).ok(), "/kept");
    assert_eq!(run(&["--", "sh", "-c", "exit 42"]).status, 42);
    let both = run(&["--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!((both.text().as_str(), both.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(run(&["-e", "COLOUR=red", "--", "sh", "-c", "echo $COLOUR"]).ok(), "red");
    assert_eq!(run(&["--timeout", "1s", "--", "sleep", "100"]).status, 124);
    let refused = run(&["--memory", "1g", "--", "true"]).fails(125);
    assert!(refused.contains("profile dev"), "{refused}");
    // Output arrives while the command runs, and much of it is cut where it is collected.
    let script = "echo early; while [ ! -e /workspace/go ]; do sleep 0.1; done; echo late";
    let mut streamed = plain(kennel, &["run", "--profile", "dev", "--", "sh", "-c", script]);
    let mut streamed = streamed.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = streamed.stdout.take().unwrap();
    assert_eq!(hear(&mut output, "early\n"), "early\n");
    std::fs::write(kennel.here().join("go"), "").unwrap();
    assert_eq!(hear(&mut output, "late\n"), "late\n");
    assert_eq!(wait(&mut streamed, "a streamed command"), 0);
    let much = run(&["--json", "--", "sh", "-c", "head -c 11000000 /dev/zero | tr '\\0' x; exit 4"]).json();
    assert_eq!((&much["truncated"], &much["exitCode"]), (&true.into(), &4.into()));
    assert!(much["stdout"].as_str().unwrap().starts_with(&"x".repeat(10 << 20)));
    // A profile that was stopped is started again.
    profile(kennel, &["stop", "dev"]).ok();
    assert_eq!(run(&["--", "ls", "/kept"]).ok(), "/kept");
    assert_eq!(status(kennel, "dev"), "running");
    // Below the workspace, a command runs in the same directory; elsewhere it does not run at all.
    std::fs::create_dir(kennel.here().join("below")).unwrap();
    let from = |dir: &std::path::Path| {
        let mut call = kennel.call(&["profile", "exec", "dev", "pwd"]);
        call.current_dir(dir);
        finish(call, None)
    };
    assert_eq!(from(&kennel.here().join("below")).ok(), "/workspace/below");
    let elsewhere = from(kennel.home.path()).fails(125);
    assert!(elsewhere.contains(kennel.here().to_str().unwrap()), "{elsewhere}");
    assert!(elsewhere.contains(kennel.home.path().to_str().unwrap()), "{elsewhere}");
    delete(kennel, "dev");
}

fn volumes_are_mounted(kennel: &Kennel) {
    let outside = kennel.home.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "from outside\n").unwrap();
    let (plain, read_only) = (format!("{}:/data", outside.display()), format!("{}:/fixed:ro", outside.display()));
    create(kennel, "vol", &["--volume", &plain, "--volume", &read_only]);
    std::fs::write(kennel.here().join("here"), "workspace\n").unwrap();
    assert_eq!(
        sh(kennel, "vol", "cat /workspace/here /data/file /fixed/file").ok(),
        "workspace\nfrom outside\nfrom outside"
    );
    assert_ne!(sh(kennel, "vol", "echo x > /fixed/new").status, 0);
    sh(kennel, "vol", "echo inside > /data/new; echo inside > /workspace/new").ok();
    for file in [outside.join("new"), kennel.here().join("new")] {
        assert_eq!(std::fs::read_to_string(file).unwrap(), "inside\n");
    }
    std::fs::write(outside.join("later"), "later\n").unwrap();
    assert_eq!(sh(kennel, "vol", "cat /data/later").ok(), "later");
    delete(kennel, "vol");
}

fn networks_differ(kennel: &Kennel) {
    for (mode, devices) in [("bridge", "eth0"), ("none", ""), ("host", "")] {
        create(kennel, mode, &["--network", mode]);
        let found = sh(kennel, mode, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").ok();
        let host = std::fs::read_link("/proc/self/ns/net").unwrap();
        let same = sh(kennel, mode, "readlink /proc/self/ns/net").ok() == host.to_string_lossy();
        match mode {
            "bridge" => assert!(found.contains(devices) && !same, "{found}"),
            "none" => assert!(found.trim() == "lo" && !same, "{found}"),
            // Native sandboxes of this test are in a network of their own, which is their host's.
            _ => assert!(same || kennel.provider == "native", "{found}"),
        }
        delete(kennel, mode);
    }
}

fn sandbox_is_kept_alive(kennel: &Kennel) {
    create(kennel, "alive", &[]);
    sh(kennel, "alive", "echo 1 > /tmp/state").ok();
    let id = sandbox_of(kennel, "alive");
    assert_eq!(sh(kennel, "alive", "cat /tmp/state").ok(), "1");
    assert_eq!((status(kennel, "alive").as_str(), sandbox_of(kennel, "alive")), ("running", id));
    delete(kennel, "alive");
}

fn idle_profile_stops_and_starts_again(kennel: &Kennel) {
    create(kennel, "idle", &["--idle-timeout", "1s"]);
    // A running command counts as use, even if it prints nothing.
    assert_eq!(sh(kennel, "idle", "sleep 2; echo done").ok(), "done");
    let stopped = || status(kennel, "idle") == "stopped";
    assert!(within_blocking(LONG, stopped), "{}", status(kennel, "idle"));
    assert_eq!(sh(kennel, "idle", "echo again").ok(), "again");
    delete(kennel, "idle");
    create(kennel, "once", &["--keep-alive=false"]);
    assert_eq!(sh(kennel, "once", "echo used").ok(), "used");
    let stopped = || status(kennel, "once") == "stopped";
    assert!(within_blocking(LONG, stopped), "{}", status(kennel, "once"));
    delete(kennel, "once");
}

fn profile_reconnects(kennel: &Kennel) {
    create(kennel, "again", &[]);
    profile(kennel, &["start", "again"]).ok();
    let id = sandbox_of(kennel, "again");
    // Each call is another process. The hint in the file may be lost: the sandbox is found by its name and its label.
    let file = kennel.home.path().join("data/profiles/again.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    document["state"]["sandbox"] = Value::Null;
    std::fs::write(&file, document.to_string()).unwrap();
    assert_eq!(sh(kennel, "again", "echo hello").ok(), "hello");
    assert_eq!(sandbox_of(kennel, "again"), id);
    kennel.kennel(&["rename", "profile-again", "renamed"]).ok();
    assert_eq!(sh(kennel, "again", "echo hello").ok(), "hello");
    assert_eq!(sandbox_of(kennel, "again"), id);
    assert_eq!(kennel.kennel(&["ls", "--all", "--ids"]).ok().lines().count(), 1);
    delete(kennel, "again");
}

fn errors_are_clear(kennel: &Kennel) {
    for name in ["../up", "", "a b", ".hidden"] {
        let stderr = profile(kennel, &["create", name]).fails(125);
        assert!(stderr.contains("invalid profile name"), "{stderr}");
    }
    create(kennel, "one", &[]);
    let again = profile(kennel, &["create", "one"]).fails(125);
    assert!(again.contains("there is a profile one already") && again.contains("kennel profile edit one"), "{again}");
    delete(kennel, "one");
    if kennel.image().is_some() {
        let missing = "kennel-test/there-is-no-such-image";
        profile(kennel, &["create", "missing", "--image", missing, "--pull", "never"]).ok();
        let stderr = profile(kennel, &["start", "missing"]).fails(125);
        assert!(stderr.contains(missing), "{stderr}");
        assert_eq!(status(kennel, "missing"), "stopped");
        delete(kennel, "missing");
    }
    if kennel.provider != "native" {
        // The engine is gone, or was never there.
        create(kennel, "gone", &[]);
        let mut call = plain(kennel, &["profile", "start", "gone"]);
        call.env("DOCKER_HOST", "unix:///nowhere/engine.sock").env("CONTAINER_HOST", "unix:///nowhere/engine.sock");
        let stderr = finish(call, None).fails(125);
        assert!(stderr.contains("/nowhere/engine.sock") && stderr.contains("try: "), "{stderr}");
        delete(kennel, "gone");
    }
    create(kennel, "crash", &["--", "sh", "-c", "echo last words; exit 3"]);
    profile(kennel, &["start", "crash"]).ok();
    let failed = || status(kennel, "crash") == "error (3)";
    assert!(within_blocking(LONG, failed), "{}", status(kennel, "crash"));
    assert_eq!(profile(kennel, &["logs", "crash"]).ok(), "last words");
    delete(kennel, "crash");
}

/// A main process that is killed because its sandbox ran out of memory is an error, although nothing exited.
fn memory_shortage_is_an_error(kennel: &Kennel) {
    let main = ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"];
    create(kennel, "greedy", &[&["--memory", "64m", "--network", "none", "--"], &main[..]].concat());
    profile(kennel, &["start", "greedy"]).ok();
    let failed = || status(kennel, "greedy") == "error (137)";
    assert!(within_blocking(LONG, failed), "{}", status(kennel, "greedy"));
    let json = profile(kennel, &["status", "--json", "greedy"]).json();
    // Podman does not report why it was killed.
    let cause = if kennel.provider == "podman" { "exited" } else { "out_of_memory" };
    assert_eq!((&json["status"], &json["cause"]), (&"error".into(), &cause.into()), "{json}");
    delete(kennel, "greedy");
}

/// A profile has its sandbox on one provider, whatever a later call names.
fn provider_is_chosen_once(kennel: &Kennel) {
    create(kennel, "pinned", &["--network", "none"]);
    assert_eq!(sh(kennel, "pinned", "echo first").ok(), "first");
    let id = sandbox_of(kennel, "pinned");
    let other = ["--provider", "local", "profile", "exec", "--json", "pinned", "--", "true"];
    let refused = finish(plain(kennel, &other), None).json();
    assert_eq!(refused["error"]["code"], "conflict", "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains(&format!("has its sandbox on {}, not on local", kennel.provider)), "{message}");
    // Without a name, the provider of the first start is used.
    assert_eq!(finish(plain(kennel, &["profile", "exec", "pinned", "--", "echo", "same"]), None).ok(), "same");
    assert_eq!(sandbox_of(kennel, "pinned"), id);
    delete(kennel, "pinned");
}

fn exec_without_a_command_opens_a_shell(kennel: &Kennel) {
    create(kennel, "shell", &["--network", "none"]);
    let mut session = terminal(kennel.call(&["profile", "exec", "shell"]));
    session.send("echo sum-$((40 + 2)); pwd\r").unwrap();
    session.expect("sum-42").expect("a shell takes commands");
    session.expect("/workspace").expect("in the workspace");
    session.send("exit 5\r").unwrap();
    ends_with(session, 5);
    assert_eq!(status(kennel, "shell"), "running", "the sandbox stays");
    delete(kennel, "shell");
}

/// A sandbox of the agent's own, such as bubblewrap's, can run inside where the provider allows it.
fn nested_sandboxes_run_in_a_profile(kennel: &Kennel) {
    let options = ["--nesting", "--no-workspace", "--workdir", "/", "--network", "none"];
    if kennel.provider != "native" {
        let image = kennel.image().unwrap();
        let made = profile(kennel, &[&["create", "nest", "--image", image], &options[..]].concat());
        let refused = if made.status == 0 { profile(kennel, &["start", "nest"]) } else { made };
        assert!(refused.fails(125).contains("nested sandboxes"), "the engine does not support it");
        if profile(kennel, &["show", "nest"]).status == 0 {
            delete(kennel, "nest");
        }
        return;
    }
    create(kennel, "nest", &options);
    let inner = "unshare -r -m -p -f sh -c 'mount -t proc proc /proc && echo $$'";
    assert_eq!(sh(kennel, "nest", inner).ok(), "1");
    delete(kennel, "nest");
    // The control: without the option, the same is refused.
    create(kennel, "flat", &["--network", "none"]);
    assert_ne!(sh(kennel, "flat", inner).status, 0);
    delete(kennel, "flat");
}

/// Edits are atomic, and a lock orders them.
#[test]
fn edits_at_once_lose_nothing() {
    let kennel = Kennel::on("native");
    create(&kennel, "many", &["--network", "none"]);
    let edits: Vec<_> = (0..20)
        .map(|number| {
            let variable = format!("K{number}=1");
            let mut call = kennel.call(&["profile", "edit", "many", "-e", &variable]);
            call.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    // Whoever reads meanwhile gets a whole profile.
    for _ in 0..20 {
        assert_eq!(profile(&kennel, &["show", "many"]).json()["network"], "none");
    }
    for mut edit in edits {
        assert_eq!(wait(&mut edit, "an edit"), 0);
    }
    let shown = profile(&kennel, &["show", "many"]).json();
    assert_eq!(shown["env"].as_object().map(serde_json::Map::len), Some(20), "{shown}");
    delete(&kennel, "many");
}

#[test]
fn delete_asks_on_a_terminal() {
    let kennel = Kennel::on("native");
    create(&kennel, "asked", &["--network", "none"]);
    profile(&kennel, &["start", "asked"]).ok();
    for (answer, status) in [("n", 1), ("", 1), ("y", 0)] {
        assert_eq!(profile(&kennel, &["status", "asked"]).ok(), "running");
        let mut session = terminal(kennel.call(&["profile", "delete", "asked"]));
        session.expect("delete profile asked and its sandbox (running)? [y/N] ").expect("it asks");
        session.send(format!("{answer}\r")).unwrap();
        ends_with(session, status);
    }
    assert_eq!(kennel.kennel(&["ls", "--all", "--ids"]).ok(), "");
    assert!(profile(&kennel, &["show", "asked"]).fails(125).contains("there is no profile asked"));
}

fn fifty_starts_create_one_sandbox(kennel: &Kennel) {
    create(kennel, "many", &[]);
    let starts: Vec<_> = (0..50)
        .map(|_| {
            let mut call = kennel.call(&["profile", "start", "many"]);
            call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for start in starts {
        let done = start.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    assert_eq!(kennel.kennel(&["ls", "--all", "--ids"]).ok().lines().count(), 1);
    delete(kennel, "many");
}

fn restart_applies_changes_and_keeps_volumes(kennel: &Kennel) {
    create(kennel, "change", &["--data"]);
    sh(kennel, "change", "echo kept > /.data/file").ok();
    let id = sandbox_of(kennel, "change");
    profile(kennel, &["edit", "change", "-e", "ADDED=1"]).ok();
    // The existing sandbox is not changed without a restart.
    assert_eq!(sh(kennel, "change", "echo ${ADDED:-none}").ok(), "none");
    profile(kennel, &["restart", "change"]).ok();
    assert_ne!(sandbox_of(kennel, "change"), id);
    assert_eq!(sh(kennel, "change", "echo $ADDED; cat /.data/file").ok(), "1\nkept");
    delete(kennel, "change");
}

#[test]
fn profile_sizes_have_units() {
    let kennel = Kennel::on("native");
    create(&kennel, "sized", &["--memory", "512m", "--disk", "1000000", "--network", "none"]);
    let shown = profile(&kennel, &["show", "sized"]).json();
    assert_eq!((&shown["memory"], &shown["disk"]), (&"512MiB".into(), &"1000000".into()), "{shown}");
    let exact = profile(&kennel, &["show", "--json", "sized"]).json();
    assert_eq!((&exact["memory"], &exact["disk"]), (&536_870_912.into(), &1_000_000.into()), "{exact}");
    // Both are accepted where a profile is read.
    let (file, words) = (kennel.home.path().join("sized.json"), ["edit", "sized", "--file"]);
    std::fs::write(&file, r#"{ "memory": "512MiB", "network": "none" }"#).unwrap();
    profile(&kennel, &[&words[..], &[file.to_str().unwrap()]].concat()).ok();
    assert_eq!(profile(&kennel, &["show", "sized"]).json()["memory"], "512MiB");
    delete(&kennel, "sized");
}

#[test]
fn image_command_needs_an_image() {
    let kennel = Kennel::on("native");
    let refused = profile(&kennel, &["create", "none", "--image-command"]).fails(125);
    assert!(refused.contains("there is no image") && refused.contains("--image IMAGE"), "{refused}");
    assert!(profile(&kennel, &["show", "none"]).fails(125).contains("there is no profile none"));
    create(&kennel, "none", &["--network", "none"]);
    assert!(profile(&kennel, &["edit", "none", "--image-command"]).fails(125).contains("there is no image"));
    let refused = kennel.kennel(&["session", "create", "--image-command"]).fails(125);
    assert!(refused.contains("--image-command needs an image"), "{refused}");
    delete(&kennel, "none");
}

/// A profile that is removed from a settings file leaves a sandbox. It is reported, and never removed.
#[test]
fn sandbox_without_a_profile_is_reported() {
    let kennel = Kennel::on("native");
    let user = kennel.home.path().join("config/config.toml");
    std::fs::create_dir_all(user.parent().unwrap()).unwrap();
    std::fs::write(&user, "[container.profiles.mine]\nnetwork = \"none\"\n").unwrap();
    project(&kennel, "[container.profiles.dev]\nnetwork = \"none\"\n");
    create(&kennel, "own", &["--network", "none"]);
    for name in ["mine", "dev", "own"] {
        profile(&kennel, &["start", name]).ok();
    }
    let gc = |words: &[&str]| kennel.kennel(&[&["gc"], words].concat());
    assert_eq!((gc(&[]).stderr.as_str(), gc(&["--json"]).json()), ("", serde_json::json!([])), "all are defined");
    let names: Vec<String> = ["mine", "dev"]
        .map(|name| profile(&kennel, &["status", "--json", name]).json()["sandboxId"].to_string())
        .into();
    std::fs::write(&user, "").unwrap();
    project(&kennel, "");
    let stderr = gc(&[]).stderr;
    let project = kennel.here().canonicalize().unwrap();
    let told = format!("belongs to profile dev of {}, which no longer exists", project.display());
    assert!(stderr.contains(&told) && stderr.contains("kennel rm --force profile-dev-"), "{stderr}");
    assert!(stderr.contains("kennel rm --force profile-mine\n") && !stderr.contains("own"), "{stderr}");
    let rows = gc(&["--json", "--dry-run"]).json();
    let actions: Vec<&Value> = rows.as_array().unwrap().iter().map(|row| &row["action"]).collect();
    assert_eq!(actions, ["report_orphaned_profile"; 2], "{rows}");
    assert_eq!(kennel.kennel(&["ls", "--ids"]).ok().lines().count(), 3, "nothing is removed");
    for id in names {
        kennel.kennel(&["rm", "--force", id.trim_matches('"')]).ok();
    }
    assert_eq!(gc(&[]).stderr, "");
    delete(&kennel, "own");
}

/// A profile of the user's own settings that names no workspace is for the directory in which it is used first.
#[test]
fn first_use_chooses_the_workspace() {
    let kennel = Kennel::on("native");
    let user = kennel.home.path().join("config/config.toml");
    std::fs::create_dir_all(user.parent().unwrap()).unwrap();
    let settings = "[container]\ndefaultProfile = \"mine\"\n[container.profiles.mine]\nnetwork = \"none\"\n";
    std::fs::write(&user, settings).unwrap();
    let other = kennel.home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let there = |words: &[&str]| {
        let mut call = kennel.call(words);
        call.current_dir(&other);
        finish(call, None)
    };
    assert_eq!(kennel.kennel(&["run", "--", "pwd"]).ok(), "/workspace");
    let refused = there(&["run", "--", "pwd"]).fails(125);
    assert!(refused.contains("where it was used first") && refused.contains("kennel profile edit mine"), "{refused}");
    // The user chooses another directory, and the next restart applies it.
    there(&["profile", "edit", "mine", "--workspace", "."]).ok();
    there(&["profile", "restart", "mine"]).ok();
    assert_eq!(there(&["run", "-c", "pwd; touch here"]).ok(), "/workspace");
    assert!(other.join("here").exists());
    // Deleting it forgets the choice, and the settings apply again.
    there(&["profile", "delete", "--force", "mine"]).ok();
    assert_eq!(kennel.kennel(&["run", "--", "pwd"]).ok(), "/workspace");
    let id = profile(&kennel, &["status", "--json", "mine"]).json()["sandboxId"].to_string();
    kennel.kennel(&["rm", "--force", id.trim_matches('"')]).ok();
}

/// Settings of a project, for `kennel.toml`.
fn project(kennel: &Kennel, text: &str) {
    std::fs::write(kennel.here().join("kennel.toml"), text).unwrap();
}

#[test]
fn project_profiles_need_trust() {
    let kennel = Kennel::on("native");
    let secret = kennel.home.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    for grant in ["network = \"host\"".to_owned(), format!("volumes = [\"{}:/s\"]", secret.display())] {
        project(&kennel, &format!("[container.profiles.dev]\n{grant}\n"));
        let stderr = profile(&kennel, &["start", "dev"]).fails(125);
        assert!(stderr.contains("not trusted") && stderr.contains("kennel config trust"), "{stderr}");
        let json = profile(&kennel, &["exec", "--json", "dev", "--", "true"]).json();
        assert_eq!(json["error"]["code"], "permission_denied", "{json}");
        kennel.kennel(&["config", "trust"]).ok();
        assert_eq!(profile(&kennel, &["exec", "dev", "--", "echo", "trusted"]).ok(), "trusted");
        profile(&kennel, &["edit", "dev", "-e", "A=1"]).ok();
        delete(&kennel, "dev");
        kennel.kennel(&["config", "trust", "--revoke"]).ok();
    }
    // A profile that grants nothing needs no trust, and a default profile always does.
    project(&kennel, "[container.profiles.dev]\nnetwork = \"none\"\n");
    assert_eq!(profile(&kennel, &["exec", "dev", "--", "echo", "plain"]).ok(), "plain");
    project(&kennel, "[container]\ndefaultProfile = \"dev\"\n[container.profiles.dev]\nnetwork = \"none\"\n");
    let stderr = kennel.kennel(&["run", "--", "true"]).fails(125);
    assert!(stderr.contains("container.defaultProfile"), "{stderr}");
    assert_eq!(kennel.kennel(&["run", "--no-profile", "--", "echo", "new"]).ok(), "new");
    kennel.kennel(&["config", "trust"]).ok();
    let json = kennel.kennel(&["run", "--json", "--", "true"]).json();
    assert_eq!(json["sandboxId"], sandbox_of(&kennel, "dev"), "{json}");
    profile(&kennel, &["edit", "dev", "-e", "A=1"]).ok();
    delete(&kennel, "dev");
}

/// A variable that only the agent needs does not keep the user from trusting the rest.
#[test]
fn profiles_can_be_trusted_beside_an_incomplete_agent() {
    let kennel = Kennel::on("native");
    let agent = "[agent]\nenv = { KEY = \"${NO_SUCH_KEY}\" }\n";
    project(&kennel, &format!("{agent}[container.profiles.dev]\nnetwork = \"host\"\n"));
    assert!(kennel.kennel(&["config", "trust"]).ok().contains("container.profiles.dev.network"));
    assert_eq!(profile(&kennel, &["exec", "dev", "--", "echo", "trusted"]).ok(), "trusted");
    profile(&kennel, &["edit", "dev", "-e", "A=1"]).ok();
    delete(&kennel, "dev");
}

#[test]
fn a_project_profile_must_not_loosen_the_users_limits() {
    let kennel = Kennel::on("native");
    std::fs::create_dir_all(kennel.home.path().join("config")).unwrap();
    std::fs::write(kennel.home.path().join("config/config.toml"), "[sandbox]\nmemory = \"256m\"\n").unwrap();
    project(&kennel, "[container.profiles.big]\nmemory = \"4g\"\n");
    let stderr = profile(&kennel, &["start", "big"]).fails(125);
    assert!(stderr.contains("more than your own settings allow"), "{stderr}");
}

#[test]
fn the_same_name_in_two_projects_is_two_sandboxes() {
    let kennel = Kennel::on("native");
    let ids: Vec<String> = ["one", "two"]
        .map(|name| {
            let dir = kennel.home.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("kennel.toml"), "[container.profiles.dev]\nnetwork = \"none\"\n").unwrap();
            let call = |words: &[&str]| {
                let mut call = kennel.call(words);
                call.current_dir(&dir);
                finish(call, None)
            };
            call(&["profile", "start", "dev"]).ok();
            let refused = call(&["profile", "delete", "--force", "dev"]).fails(125);
            assert!(refused.contains("kennel.toml"), "{refused}");
            call(&["profile", "status", "--json", "dev"]).json()["sandboxId"].to_string()
        })
        .into();
    assert_ne!(ids[0], ids[1]);
    assert_eq!(kennel.kennel(&["ls", "--ids"]).ok().lines().count(), 2);
    for id in ids {
        kennel.kennel(&["rm", "--force", id.trim_matches('"')]).ok();
    }
}

#[test]
fn profiles_can_be_switched_off() {
    let kennel = Kennel::on("native");
    create(&kennel, "dev", &["--network", "none"]);
    let user = kennel.home.path().join("config/config.toml");
    std::fs::create_dir_all(user.parent().unwrap()).unwrap();
    std::fs::write(&user, "[container]\nenabled = false\ndefaultProfile = \"dev\"\n").unwrap();
    assert!(profile(&kennel, &["start", "dev"]).fails(125).contains("container.enabled is false"));
    assert_eq!(kennel.kennel(&["run", "--", "echo", "new"]).ok(), "new");
    // A project cannot switch off the user's own default profile, which may be stricter than a plain sandbox.
    std::fs::write(&user, "[container]\ndefaultProfile = \"dev\"\n").unwrap();
    project(&kennel, "[container]\nenabled = false\n");
    let stderr = kennel.kennel(&["run", "--", "true"]).fails(125);
    assert!(stderr.contains("container.enabled"), "{stderr}");
    kennel.kennel(&["config", "trust"]).ok();
    assert_eq!(kennel.kennel(&["run", "--", "echo", "new"]).ok(), "new");
    // Running sandboxes can still be stopped and deleted.
    delete(&kennel, "dev");
}

/// The settings that document 001 prints, with an image of the tests.
fn document_001(kennel: &Kennel, runtime: &str) -> String {
    let printed = r#"{
      "container": {
        "enabled": true,
        "runtime": "podman",
        "defaultProfile": "dev",
        "profiles": {
          "dev": {
            "name": "dev",
            "image": "ubuntu:22.04",
            "workdir": "/workspace",
            "keepAlive": true,
            "idleTimeoutMinutes": 30,
            "volumes": [
              { "host": ".", "container": "/workspace", "readonly": false }
            ],
            "environment": {
              "TERM": "xterm-256color"
            },
            "network": {
              "mode": "bridge"
            }
          }
        }
      }
    }"#;
    let image = kennel.image().expect("an engine has an image");
    printed.replace("ubuntu:22.04", image).replace("\"podman\"", &format!("\"{runtime}\""))
}

/// The document's own settings, as they are printed there, and with its other runtime.
fn document_001_works_as_printed(kennel: &Kennel) {
    std::fs::write(kennel.here().join("opencode.json"), document_001(kennel, kennel.provider)).unwrap();
    let call = |words: &[&str]| finish(plain(kennel, words), None);
    assert!(call(&["run", "--", "true"]).fails(125).contains("container.defaultProfile"));
    call(&["config", "trust"]).ok();
    let first = call(&["run", "--", "sh", "-c", "pwd; echo $TERM"]);
    assert!(!first.stderr.contains("not available"), "{first:?}");
    assert_eq!(first.ok(), "/workspace\nxterm-256color");
    let json = call(&["profile", "status", "--json", "dev"]).json();
    assert_eq!((&json["status"], &json["provider"]), (&"running".into(), &kennel.provider.into()), "{json}");
    call(&["rm", "--force", json["sandboxId"].as_str().unwrap()]).ok();
}

#[test]
fn the_settings_of_document_001_work_as_printed_on_podman() {
    document_001_works_as_printed(&Kennel::on("podman"));
}

#[test]
fn the_settings_of_document_001_work_as_printed_on_docker() {
    document_001_works_as_printed(&Kennel::on("docker"));
}

/// Docker is used in place of Podman if only that is there, and the user is told.
#[test]
fn docker_instead_of_podman_is_reported() {
    let kennel = Kennel::on("docker");
    std::fs::write(kennel.here().join("opencode.json"), document_001(&kennel, "podman")).unwrap();
    let call = |words: &[&str]| {
        let mut call = plain(&kennel, words);
        call.env("CONTAINER_HOST", "unix:///nowhere/podman.sock");
        finish(call, None)
    };
    call(&["config", "trust"]).ok();
    let told = "profile dev uses docker, because podman is not available";
    let first = call(&["profile", "exec", "dev", "--", "echo", "runs"]);
    assert!(first.stderr.contains(told), "{first:?}");
    assert_eq!(first.ok(), "runs");
    let second = call(&["profile", "exec", "dev", "--", "true"]);
    assert_eq!((second.status, second.stderr.as_str()), (0, ""), "the provider is chosen once");
    let json = call(&["profile", "status", "--json", "dev"]).json();
    assert_eq!(json["provider"], "docker", "{json}");
    call(&["rm", "--force", json["sandboxId"].as_str().unwrap()]).ok();
}
