//! What a user reads when something goes wrong: the words, the next command, the exit status. Every code of the table is
//! met at least once, as a user would meet it.
//!
//! The words are in `snapshots/`; `INSTA_UPDATE=always cargo test -p kennel failures` writes them anew.

use crate::support::{Finished, Kennel, finish};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::{Command, Stdio};

/// A shelf of failures, on the way into a snapshot.
struct Shelf<'a> {
    kennel: &'a Kennel,
    text: String,
    /// Words that differ from run to run, and what stands for them.
    replaced: Vec<(String, &'static str)>,
    codes: BTreeSet<String>,
}

impl<'a> Shelf<'a> {
    fn new(kennel: &'a Kennel) -> Self {
        let home = kennel.home.path().display().to_string();
        let here = kennel.here().display().to_string();
        Self { kennel, text: String::new(), replaced: vec![(here, "HERE"), (home, "HOME")], codes: BTreeSet::new() }
    }

    fn call(&self, words: &[&str]) -> Command {
        let mut call = Command::new(env!("CARGO_BIN_EXE_kennel"));
        call.args(words).current_dir(self.kennel.here()).env_clear().stdin(Stdio::null());
        call.env("PATH", std::env::var_os("PATH").unwrap()).env("KENNEL_HOME", self.kennel.home.path());
        call.env("HOME", self.kennel.home.path()).env("DOCKER_HOST", "unix:///nowhere/docker.sock");
        call
    }

    /// Puts a failure on the shelf.
    #[track_caller]
    fn put(&mut self, words: &[&str]) {
        let call = self.call(words);
        self.put_call(words, call);
    }

    #[track_caller]
    fn put_call(&mut self, words: &[&str], call: Command) {
        let done = finish(call, None);
        assert_ne!(done.status, 0, "{words:?} should fail: {done:?}");
        // `inspect` prints an array of those that it found.
        let out = if words[0] == "inspect" { "[]\n" } else { "" };
        assert_eq!(done.text(), out, "what went wrong is said on standard error");
        self.show(words, &done);
    }

    fn show(&mut self, words: &[&str], done: &Finished) {
        let mut said = done.stderr.clone();
        for (word, name) in &self.replaced {
            said = said.replace(word, name);
        }
        let line: Vec<String> = words
            .iter()
            .map(|word| {
                let word = self.replaced.iter().fold((*word).to_owned(), |word, (from, to)| word.replace(from, to));
                if word.is_empty() || word.contains(char::is_whitespace) { format!("'{word}'") } else { word }
            })
            .collect();
        let escapes = said.replace('\x1b', "ESC");
        write!(self.text, "$ kennel {}\n{}[{}]\n\n", line.join(" "), escapes, done.status).unwrap();
    }

    /// The code that `--json` tells of the same failure.
    fn code(&mut self, words: &[&str]) {
        let done = finish(self.call(words), None);
        let object = done.json();
        let error = if object.is_array() { &object[0]["error"] } else { &object["error"] };
        self.codes.insert(error["code"].as_str().unwrap_or_else(|| panic!("{object}")).to_owned());
    }
}

#[test]
fn what_is_said_when_it_goes_wrong() {
    let kennel = Kennel::on("local");
    let mut shelf = Shelf::new(&kennel);
    std::fs::write(kennel.here().join("plain"), "not a program").unwrap();
    std::fs::write(kennel.here().join("wrong.env"), "A=1\nno name=2\n").unwrap();
    // Words that are not there.
    shelf.put(&["rnu"]);
    shelf.put(&["run", "--memroy", "1g"]);
    shelf.put(&["run", "--provider", "dokcer"]);
    shelf.put(&["rm"]);
    shelf.put(&["cp", "a"]);
    // Values that make no sense.
    shelf.put(&["run", "--memory", "lots", "--", "true"]);
    shelf.put(&["run", "--cpus", "-1", "--", "true"]);
    shelf.put(&["run", "--pids", "0", "--", "true"]);
    shelf.put(&["run", "--timeout", "soon", "--", "true"]);
    shelf.put(&["run", "--network", "wifi", "--", "true"]);
    shelf.put(&["run", "-v", "/nowhere:/data", "--", "true"]);
    shelf.put(&["run", "-v", "plain:data", "--", "true"]);
    shelf.put(&["run", "-e", "NOT_SET_ANYWHERE", "--", "true"]);
    shelf.put(&["run", "--env-file", "wrong.env", "--", "true"]);
    shelf.put(&["run", "--env-file", "missing.env", "--", "true"]);
    shelf.put(&["run", "--label", "nothing", "--", "true"]);
    shelf.put(&["run", "--workspace", "/nowhere", "--", "true"]);
    shelf.put(&["run", "--workspace", "plain", "--", "true"]);
    shelf.put(&["run", "--keep", "--rm", "--", "true"]);
    shelf.put(&["--provider", "local", "run", "--name", "No Good", "--", "true"]);
    shelf.put(&["ls", "--filter", "status=gone"]);
    shelf.put(&["ls", "--filter", "colour=red"]);
    shelf.put(&["explain", "gravity"]);
    // Commands that cannot be run.
    shelf.put(&["--provider", "local", "run", "--", "no-such-program"]);
    shelf.put(&["--provider", "local", "run", "--", "./plain"]);
    shelf.put(&["--provider", "local", "run", "--", "echo one string"]);
    shelf.put(&["--provider", "local", "run"]);
    shelf.put(&["--provider", "local", "run", "--timeout", "50ms", "--", "sleep", "100"]);
    shelf.put(&["--provider", "local", "run", "-w", "/nowhere", "--", "true"]);
    // What a provider does not give.
    shelf.put(&["--provider", "local", "run", "--memory", "64m", "--", "true"]);
    shelf.put(&["--provider", "local", "run", "--network", "none", "--", "true"]);
    shelf.put(&["--provider", "local", "run", "--user", "nobody", "--", "true"]);
    shelf.put(&["--provider", "local", "run", "--image", "debian", "--", "true"]);
    shelf.put(&["--provider", "native", "run", "--network", "bridge", "--", "true"]);
    shelf.put(&["--provider", "native", "run", "-v", "plain:/proc/x", "--", "true"]);
    shelf.put(&["--provider", "native", "run", "--user", "nobody-of-that-name", "--", "true"]);
    // Engines that are not there.
    shelf.put(&["--provider", "docker", "run", "--image", "debian", "--", "true"]);
    shelf.put(&["--provider", "docker", "run", "--", "true"]);
    shelf.put(&["run", "--image", "debian", "--", "true"]);
    // Sandboxes that are not there, not running, or in the way.
    for verb in ["start", "stop", "rm", "inspect", "logs", "attach", "wait", "stats"] {
        shelf.put(&[verb, "nobody"]);
    }
    shelf.put(&["exec", "nobody", "--", "true"]);
    shelf.put(&["cp", "plain", "nobody:/x"]);
    kennel.kennel(&["create", "--name", "box"]).ok();
    shelf.put(&["create", "--provider", "local", "--name", "box"]);
    shelf.put(&["exec", "box", "--", "true"]);
    shelf.put(&["attach", "box"]);
    kennel.kennel(&["start", "box"]).ok();
    shelf.put(&["rm", "box"]);
    shelf.put(&["attach", "box", "--process", "4711"]);
    shelf.put(&["cp", "box:/nowhere/at/all", "."]);
    shelf.put(&["cp", "nothing-here", "box:/tmp/x"]);
    insta::assert_snapshot!("failures", shelf.text);
}

#[test]
fn what_is_said_in_colour() {
    let kennel = Kennel::on("local");
    let mut shelf = Shelf::new(&kennel);
    for words in [&["exec", "nobody", "--", "true"][..], &["rnu"], &["explain", "gravity"]] {
        let mut call = shelf.call(words);
        call.env("CLICOLOR_FORCE", "1");
        shelf.put_call(words, call);
        // Whoever wants none gets none.
        let mut call = shelf.call(words);
        call.env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1");
        shelf.put_call(words, call);
    }
    insta::assert_snapshot!("failures_in_colour", shelf.text);
}

#[test]
fn the_same_codes_for_programs() {
    let kennel = Kennel::on("local");
    let mut shelf = Shelf::new(&kennel);
    let name = format!("box-{}", std::process::id());
    kennel.kennel(&["create", "--name", &name]).ok();
    shelf.code(&["--provider", "docker", "run", "--json", "--image", "debian", "--", "true"]);
    shelf.code(&["--provider", "local", "run", "--json", "--", "no-such-program"]);
    shelf.code(&["--provider", "local", "run", "--json", "--timeout", "50ms", "--", "sleep", "100"]);
    shelf.code(&["exec", "--json", "nobody", "--", "true"]);
    shelf.code(&["exec", "--json", &name, "--", "true"]);
    shelf.code(&["--provider", "local", "run", "--json", "--name", &name, "--", "true"]);
    shelf.code(&["--provider", "local", "run", "--json", "-v", "plain", "--", "true"]);
    shelf.code(&["--provider", "local", "run", "--json", "--memory", "64m", "--", "true"]);
    let huge = "x".repeat(120_000);
    let words: Vec<&str> =
        ["--provider", "local", "run", "--json", "--"].into_iter().chain([huge.as_str(); 10]).collect();
    shelf.code(&words);
    let met: Vec<&str> = shelf.codes.iter().map(String::as_str).collect();
    let expected = [
        "already_exists",
        "exec_failed",
        "invalid_config",
        "limit_exceeded",
        "not_available",
        "not_found",
        "stopped",
        "timeout",
        "unsupported",
    ];
    assert_eq!(met, expected);
}
