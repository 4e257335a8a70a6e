//! What a user reads when nothing fails: the help and the output of every command, with colours and without.
//!
//! The texts are in `snapshots/`. `INSTA_UPDATE=always cargo test -p kennel words` updates them.

mod machine;
mod papers;
mod screen;
mod watched;

use crate::agents;
use crate::idle::Resident;
use crate::support::{Finished, Kennel, finish};
use kennel_testkit::docker;
use kennel_testkit::registry::Registry;
use std::fmt::Write;
use std::path::Path;

const COMMANDS: &[&str] = &[
    "run",
    "create",
    "start",
    "stop",
    "pause",
    "unpause",
    "rename",
    "build",
    "rm",
    "ls",
    "inspect",
    "exec",
    "profile",
    "profile create",
    "profile list",
    "profile show",
    "profile edit",
    "profile delete",
    "profile start",
    "profile stop",
    "profile restart",
    "profile status",
    "profile logs",
    "profile exec",
    "session",
    "session create",
    "session ls",
    "session show",
    "session events",
    "session export",
    "session acp",
    "session exec",
    "session start",
    "session stop",
    "session rm",
    "session adopt",
    "serve",
    "pool",
    "pool ls",
    "pool set",
    "pool rm",
    "acp",
    "agent",
    "agent run",
    "agent ls",
    "agent show",
    "agent image",
    "token",
    "token create",
    "token ls",
    "token revoke",
    "attach",
    "logs",
    "cp",
    "stats",
    "events",
    "wait",
    "gc",
    "volume",
    "volume ls",
    "volume inspect",
    "volume rm",
    "volume prune",
    "image",
    "image ls",
    "image pull",
    "image load",
    "image rm",
    "image prune",
    "config",
    "config show",
    "config get",
    "config set",
    "config path",
    "config schema",
    "config trust",
    "config validate",
    "doctor",
    "setup",
    "explain",
    "completions",
    "man",
    "version",
];

fn help(kennel: &Kennel, command: &str, coloured: bool) -> String {
    let mut call = std::process::Command::new(env!("CARGO_BIN_EXE_kennel"));
    call.args(command.split_whitespace()).arg("--help").env_clear().current_dir(kennel.here());
    // A terminal wider than any real one.
    call.env("COLUMNS", "100").envs(coloured.then_some(("CLICOLOR_FORCE", "1")));
    let said = finish(call, None).ok();
    let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
    let text = format!("$ kennel {}\n{}\n", format!("{command} --help").trim(), lines.join("\n"));
    text.replace('\x1b', "ESC")
}

/// Each help text is its own snapshot, so that a change is easy to find.
#[test]
fn the_help_of_every_command() {
    let kennel = Kennel::on("local");
    for command in std::iter::once("").chain(COMMANDS.iter().copied()) {
        let name = format!("help {command}").trim().replace(' ', "_");
        insta::with_settings!({ snapshot_path => "snapshots/help" }, {
            insta::assert_snapshot!(name, help(&kennel, command, false));
        });
    }
}

/// Asserts that only colours were added.
#[test]
fn the_help_in_colour() {
    let kennel = Kennel::on("local");
    for command in std::iter::once("").chain(COMMANDS.iter().copied()) {
        let coloured = help(&kennel, command, true);
        assert!(coloured.contains("ESC[1m"), "{coloured}");
        let mut plain = String::new();
        for part in coloured.split("ESC[") {
            plain += if plain.is_empty() { part } else { part.split_once('m').expect("a colour ends").1 };
        }
        let lines: Vec<&str> = plain.lines().map(str::trim_end).collect();
        assert_eq!(lines.join("\n") + "\n", help(&kennel, command, false), "{command}");
    }
    insta::with_settings!({ snapshot_path => "snapshots/help" }, {
        insta::assert_snapshot!("help_in_colour", help(&kennel, "run", true));
    });
}

#[test]
fn every_command_has_a_snapshot_of_its_help() {
    let kennel = Kennel::on("local");
    for above in ["", "agent ", "config ", "image ", "pool ", "profile ", "session ", "token ", "volume "] {
        let words: Vec<&str> = above.split_whitespace().chain(["--help"]).collect();
        let said = kennel.kennel(&words).ok();
        let listed = said.lines().skip_while(|line| !line.starts_with("Usage:")).take_while(|line| *line != "Options:");
        let listed: Vec<&str> = listed.filter(|line| line.starts_with("  ")).collect();
        assert!(!listed.is_empty(), "{said}");
        for command in listed.iter().filter_map(|line| line.split_whitespace().next()) {
            let command = format!("{above}{command}");
            assert!(COMMANDS.contains(&command.as_str()), "the help of {command} has no snapshot");
        }
    }
}

#[test]
fn every_command_has_a_snapshot_of_a_success() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    let mut seen = String::new();
    for dir in [here.join("snapshots"), here.join("words/snapshots")] {
        for file in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let of_help = name.starts_with("cli__words__help");
            if file.extension().is_some_and(|it| it == "snap") && name.starts_with("cli__words__") && !of_help {
                seen += &std::fs::read_to_string(file).unwrap();
            }
        }
    }
    let calls: Vec<&str> = seen.lines().filter_map(|line| line.strip_prefix("$ kennel ")).collect();
    // These commands only have a help text.
    let groups = ["agent", "config", "image", "pool", "profile", "session", "token", "volume"];
    for command in COMMANDS.iter().filter(|command| !groups.contains(command)) {
        let is_it =
            |call: &&str| call.strip_prefix(command).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
        assert!(calls.iter().any(is_it), "the output of {command} is in no snapshot");
    }
}

/// The output of a series of commands, for a snapshot.
struct Walk<'a> {
    kennel: &'a Kennel,
    coloured: bool,
    text: String,
    /// Texts that differ from run to run, and their replacements.
    replaced: Vec<(String, String)>,
}

impl<'a> Walk<'a> {
    fn new(kennel: &'a Kennel, coloured: bool) -> Self {
        let mut walk = Self { kennel, coloured, text: String::new(), replaced: Vec::new() };
        walk.stands_for(&kennel.here().display().to_string(), "HERE");
        walk.stands_for(&kennel.home.path().display().to_string(), "HOME");
        walk
    }

    fn go(&mut self, words: &[&str]) -> String {
        self.go_with(words, None)
    }

    fn go_with(&mut self, words: &[&str], stdin: Option<&str>) -> String {
        let mut call = self.kennel.call(words);
        call.envs(self.coloured.then_some(("CLICOLOR_FORCE", "1")));
        if self.kennel.provider == "local" {
            call.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
        }
        let done: Finished = finish(call, stdin.map(|text| text.as_bytes().to_vec()));
        assert_eq!(done.status, 0, "{words:?}: {done:?}");
        self.note(words, &done.text());
        assert_eq!(done.stderr, "", "{words:?}");
        done.text().trim_end().to_owned()
    }

    fn note(&mut self, words: &[&str], said: &str) {
        let line: Vec<String> = words
            .iter()
            .map(|word| if word.contains(char::is_whitespace) { format!("'{word}'") } else { (*word).to_owned() })
            .collect();
        let mut shown = format!("$ kennel {}\n{}\n\n", line.join(" "), said.trim_end());
        for (from, to) in &self.replaced {
            shown = shown.replace(from, to);
        }
        let lines: Vec<String> = shown.lines().map(|line| steady(line.trim_end())).collect();
        self.text.extend([lines.join("\n").as_str(), "\n\n"]);
    }

    fn stands_for(&mut self, found: &str, name: &str) {
        self.replaced.push((found.to_owned(), name.to_owned()));
    }
}

/// Replaces a date with its time, such as `2026-11-17 18:42:34`.
fn without_time(line: &str) -> String {
    const SHAPE: &[u8] = b"0000-00-00 00:00:00";
    let fits = |part: &[u8]| {
        part.iter().zip(SHAPE).all(|(byte, like)| if *like == b'0' { byte.is_ascii_digit() } else { byte == like })
    };
    match line.as_bytes().windows(SHAPE.len()).position(fits) {
        Some(at) => format!("{}DATE AND TIME -----{}", &line[..at], &line[at + SHAPE.len()..]),
        None => line.to_owned(),
    }
}

/// A line without numbers that differ between runs.
fn steady(line: &str) -> String {
    let line = without_time(&line.replace('\x1b', "ESC"));
    for name in [
        "\"createdMs\": ",
        "\"size\": ",
        "\"kennel.created-ms\": ",
        "\"kennel.installation\": ",
        "\"create\": ",
        "\"start\": ",
        "\"connect\": ",
        "\"exec\": ",
        "\"remove\": ",
        "\"total\": ",
    ] {
        if let Some((indent, _)) = line.split_once(name) {
            return format!("{indent}{name}DIFFERS,");
        }
    }
    // As wide as the column below it.
    if let Some((before, after)) = line.split_once("CREATED ") {
        return format!("{before}CREATED   {}", after.trim_start());
    }
    if line.contains(" ago") {
        let words: Vec<&str> = line.split(' ').collect();
        let at = words.iter().position(|word| *word == "ago").unwrap_or(0);
        let mut words: Vec<String> = words.into_iter().map(ToOwned::to_owned).collect();
        if at >= 2 {
            words[at - 2] = "N".into();
            words[at - 1] = "seconds".into();
        }
        return words.join(" ");
    }
    line
}

#[test]
fn what_images_print() {
    insta::assert_snapshot!("images", images(false));
}

#[test]
fn what_images_print_in_colour() {
    assert_eq!(images(true), images(false), "there is nothing to colour");
}

fn images(coloured: bool) -> String {
    let (socket, registry) = (docker::socket(), Registry::start());
    let name = registry.push(&socket, &docker::image_on(&socket), "team/busybox:1");
    let kennel = Kennel::among_others("local");
    let mut walk = Walk::new(&kennel, coloured);
    walk.stands_for(&registry.address(), "REGISTRY");
    let archive = kennel_testkit::busybox::archive();
    walk.stands_for(archive.to_str().unwrap(), "busybox.tar");
    walk.go(&["image", "pull", &name]);
    walk.go(&["image", "load", "--name", "mine", archive.to_str().unwrap()]);
    walk.go(&["image", "ls", "--format", "name"]);
    walk.go(&["image", "rm", "mine"]);
    walk.go(&["image", "prune"]);
    walk.text
}

#[test]
fn what_pools_print() {
    let kennel = Kennel::on("native");
    let mut walk = Walk::new(&kennel, false);
    walk.go(&["pool", "set", "quick", "--min", "2", "--max", "5"]);
    walk.go(&["pool", "ls"]);
    walk.go(&["pool", "rm", "quick"]);
    insta::assert_snapshot!("pools", walk.text);
}

#[test]
fn what_agents_print() {
    let kennel = Kennel::on("native");
    let mut walk = Walk::new(&kennel, false);
    std::fs::write(kennel.here().join("agent.sh"), agents::script(agents::TURN)).unwrap();
    walk.go(&["agent", "ls"]);
    walk.go(&["agent", "show", "claude-code"]);
    walk.go(&["agent", "image", "--print", "claude-code"]);
    let agent = ["--network", "none", "--command", "sh agent.sh", "--permission", "allow"];
    walk.go(&[&["agent", "run"], &agent[..], &["make a file"]].concat());
    let hello = "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}\n";
    walk.go_with(&["acp", "--network", "none", "--", "sh", "agent.sh"], Some(hello));
    insta::assert_snapshot!("agents", walk.text);
}

#[test]
fn what_tokens_print() {
    let kennel = Kennel::on("local");
    let mut walk = Walk::new(&kennel, false);
    let create = ["token", "create", "ci", "--scope", "exec", "--project", "shop"];
    let secret = kennel.kennel(&create).ok().trim().to_owned();
    walk.stands_for(&secret, "TOKEN");
    walk.note(&create, &secret);
    let listed: serde_json::Value = serde_json::from_str(&kennel.kennel(&["token", "ls", "--json"]).ok()).unwrap();
    walk.stands_for(listed[0]["id"].as_str().unwrap(), "ID-OF-TOKEN-");
    walk.go(&["token", "ls"]);
    walk.go(&["token", "revoke", "ci"]);
    insta::assert_snapshot!("tokens", walk.text);
}

#[test]
fn what_volumes_print() {
    insta::assert_snapshot!("volumes", volumes(false));
}

#[test]
fn what_volumes_print_in_colour() {
    assert_eq!(volumes(true), volumes(false), "there is nothing to colour");
}

fn volumes(coloured: bool) -> String {
    let kennel = Kennel::on("native");
    let mut walk = Walk::new(&kennel, coloured);
    let create = ["create", "--name", "box", "--start", "--data", "--cache", "npm:/root/.npm"];
    walk.go(&create);
    let names = kennel.kennel(&["volume", "ls", "-q"]).ok();
    let hash = names.split('-').nth(1).expect("the cache is named after the workspace");
    walk.stands_for(hash, "HASHHASH");
    let id = kennel.kennel(&["ls", "-q"]).ok();
    walk.stands_for(&id, "ID----------");
    walk.go(&["volume", "ls", "--no-size"]);
    walk.go(&["volume", "ls", "-q"]);
    walk.go(&["volume", "ls", "--json"]);
    walk.go(&["rm", "--force", "box"]);
    walk.go(&["volume", "inspect", "data-box"]);
    // The size of an empty directory depends on the filesystem.
    let planned = kennel.kennel(&["volume", "prune", "--dry-run"]).ok();
    let size = planned.lines().last().and_then(|line| line.strip_prefix("would free ")).expect("a size");
    walk.stands_for(size, "SIZE");
    walk.go(&["volume", "prune", "--dry-run"]);
    walk.go(&["volume", "prune", "--force"]);
    walk.go(&["volume", "rm", names.lines().next().unwrap_or_default()]);
    walk.go(&["volume", "ls"]);
    walk.text
}

/// A walk through all commands of profiles.
fn walk_profiles() -> String {
    let kennel = Kennel::on("native");
    let mut walk = Walk::new(&kennel, false);
    let here = kennel.here();
    walk.stands_for(here.to_str().unwrap(), "HERE");
    walk.go(&["profile", "create", "dev", "--network", "none", "--", "sh", "-c", "echo started; exec sleep 100"]);
    walk.go(&["profile", "list"]);
    walk.go(&["profile", "show", "dev"]);
    walk.go(&["profile", "start", "dev"]);
    walk.go(&["profile", "status", "dev"]);
    walk.go(&["profile", "exec", "dev", "--", "echo", "hello"]);
    walk.go(&["profile", "logs", "dev"]);
    walk.go(&["profile", "edit", "dev", "--memory", "1g"]);
    walk.go(&["profile", "restart", "dev"]);
    walk.go(&["profile", "stop", "dev"]);
    walk.go(&["profile", "delete", "--force", "dev"]);
    walk.text
}

/// A walk through all commands of sessions.
fn walk_sessions() -> String {
    let kennel = Kennel::on("native");
    let mut walk = Walk::new(&kennel, false);
    let here = kennel.here();
    walk.stands_for(here.to_str().unwrap(), "HERE");
    walk.go(&["session", "create", "--name", "fix", "--network", "none"]);
    let shown = kennel.kennel(&["session", "show", "fix"]).json();
    walk.stands_for(shown["id"].as_str().unwrap(), "ID----------");
    walk.stands_for(shown["sandbox"].as_str().unwrap(), "SANDBOX-----");
    walk.go(&["session", "ls"]);
    walk.go(&["session", "exec", "fix", "--", "echo", "hello"]);
    walk.go(&["session", "stop", "fix"]);
    walk.go(&["session", "start", "fix"]);
    walk.go(&["session", "events", "fix"]);
    walk.go(&["session", "adopt"]);
    let secret = kennel.kennel(&["session", "show", "--secret", "fix"]).ok();
    walk.stands_for(&secret, "SECRET");
    walk.go(&["session", "show", "--secret", "fix"]);
    walk.go(&["session", "rm", "--force", "fix"]);
    let agent = "read a; echo '{\"id\":\"kennel-initialize\",\"result\":{}}'\n\
        read b; echo '{\"id\":\"kennel-session-new\",\"result\":{\"sessionId\":\"s\"}}'; read c\n";
    std::fs::write(here.join("agent.sh"), agent).unwrap();
    walk.go(&["session", "create", "--name", "pair", "--network", "none", "--acp", "--", "sh", "agent.sh"]);
    // Its standard input ends at once.
    walk.go(&["session", "acp", "pair"]);
    let exported = kennel.kennel(&["session", "export", "pair"]).ok();
    let answers = exported.lines().filter(|line| line.contains("agent_to_relay"));
    // Times differ.
    let timeless = |line: &str| match (line.find("\"timeMs\":"), line.find(",\"message\"")) {
        (Some(from), Some(to)) => format!("{}\"timeMs\":TIME{}", &line[..from], &line[to..]),
        _ => line.to_owned(),
    };
    walk.note(&["session", "export", "pair"], &answers.map(|line| timeless(line) + "\n").collect::<String>());
    walk.go(&["session", "rm", "--force", "pair"]);
    let resident = Resident::start(&kennel);
    walk.note(&["serve"], &resident.greeting);
    walk.text
}

#[test]
fn a_walk_through_sessions() {
    insta::assert_snapshot!("sessions", walk_sessions());
}

#[test]
fn a_walk_through_profiles() {
    insta::assert_snapshot!("profiles", walk_profiles());
}

fn walk(provider: &'static str, coloured: bool) -> String {
    let kennel = Kennel::on(provider);
    let mut walk = Walk::new(&kennel, coloured);
    if let Some(image) = kennel.image() {
        walk.stands_for(image, "IMAGE");
    }
    walk.go(&["run", "--", "echo", "hello"]);
    walk.go(&["run", "-c", "echo a | tr a b"]);
    let id = walk.go(&["create", "--name", "box"]);
    let id = kennel.kennel(&["ls", "--all", "--format", "id", "--filter", &format!("name={id}")]).ok();
    walk.stands_for(&id, "ID----------");
    walk.go(&["ls", "--all"]);
    walk.go(&["start", "box"]);
    walk.go(&["ls"]);
    walk.go(&["ls", "-q"]);
    walk.go(&["ls", "--format", "id,name,provider,status,network,workspace"]);
    walk.go(&["ls", "--json"]);
    walk.go(&["inspect", "box"]);
    walk.go(&["exec", "box", "--", "echo", "hello"]);
    walk.go(&["exec", "--json", "box", "--", "echo", "hello"]);
    std::fs::write(kennel.here().join("notes"), "one\n").unwrap();
    walk.go(&["cp", "notes", "box:/tmp/notes"]);
    walk.go(&["cp", "box:/tmp/notes", "-"]);
    walk.go_with(&["cp", "-", "box:/tmp/more"], Some("two\n"));
    walk.go(&["logs", "box"]);
    walk.go(&["pause", "box"]);
    walk.go(&["ls"]);
    walk.go(&["unpause", "box"]);
    walk.go(&["rename", "box", "crate"]);
    walk.go(&["stop", "--timeout", "0", "crate"]);
    walk.go(&["wait", "crate"]);
    walk.go(&["rm", "crate"]);
    walk.go(&["ls", "--all"]);
    walk.go(&["ls", "--all", "--json"]);
    walk.text
}

#[test]
fn what_native_prints() {
    insta::assert_snapshot!("native", walk("native", false));
}

#[test]
fn what_docker_prints() {
    insta::assert_snapshot!("docker", walk("docker", false));
}

#[test]
fn what_build_prints() {
    let kennel = Kennel::on("docker");
    let image = kennel.image().unwrap();
    std::fs::write(kennel.here().join("Dockerfile"), format!("FROM {image}\nCMD [\"true\"]\n")).unwrap();
    let tag = format!("kennel-test/words-{}", kennel.home.mark().to_lowercase());
    let mut text = String::new();
    for more in [&[][..], &["--json"]] {
        // The engine's own messages are not part of the snapshot.
        let said = kennel.kennel(&[&["build", "--tag", &tag], more].concat()).ok();
        let words = [&["$ kennel build --tag TAG"], more].concat().join(" ");
        write!(text, "{words}\n{}\n\n", said.replace(&tag, "TAG")).unwrap();
    }
    kennel_testkit::docker::docker(&kennel_testkit::docker::socket(), &["rmi", &tag]);
    insta::assert_snapshot!("build", text);
}

#[test]
fn what_native_prints_in_colour() {
    insta::assert_snapshot!("native_in_colour", walk("native", true));
}

#[test]
fn what_needs_no_sandbox() {
    insta::assert_snapshot!("without_a_sandbox", without_a_sandbox(false));
}

#[test]
fn what_needs_no_sandbox_in_colour() {
    // The output has no colours.
    assert_eq!(without_a_sandbox(true), without_a_sandbox(false));
}

fn without_a_sandbox(coloured: bool) -> String {
    let kennel = Kennel::on("local");
    let mut walk = Walk::new(&kennel, coloured);
    walk.go(&["config", "path"]);
    walk.go(&["config", "set", "sandbox.memory", "2g"]);
    walk.go(&["config", "set", "sandbox.network", "host"]);
    walk.go(&["config", "get", "sandbox.memory"]);
    walk.go(&["config", "show", "sandbox"]);
    walk.go(&["config", "show", "--json", "sandbox.memory"]);
    walk.go(&["config", "validate"]);
    walk.go(&["config", "trust"]);
    // With an engine that does not exist, and without the kernel's version.
    walk.go(&["explain"]);
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    walk.stands_for(&kernel, "KERNEL");
    walk.go(&["explain", "native"]);
    walk.go(&["explain", "limits"]);
    walk.go(&["explain", "limits", "--json"]);
    walk.go(&["version"]);
    walk.go(&["gc"]);
    walk.text
}
