//! Sandboxes that `kennel serve` pauses and stops while nobody uses them.

use crate::support::{CALL, Kennel, hear, signal};
use kennel_testkit::{wait_in_race, within_blocking};
use rustix::process::Signal;
use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Creates a test of each case for each provider that can pause.
macro_rules! where_pausing_works {
    ($($case:ident),* $(,)?) => {
        mod native {
            $(#[test] fn $case() { super::$case(&$crate::support::Kennel::on("native")); })*
        }
        mod docker {
            $(#[test] fn $case() { super::$case(&$crate::support::Kennel::on("docker")); })*
        }
    };
}

where_pausing_works! {
    idle_sandbox_is_paused_then_stopped_and_used_again,
    commands_race_the_pause_and_the_stop,
    killed_resident_leaves_no_sandbox_paused,
    notes_of_a_killed_resident_do_no_harm,
    users_own_pause_is_never_undone,
}

/// A running `kennel serve`. It is killed when this is dropped.
pub(crate) struct Resident {
    process: Child,
    /// What it prints when it is ready.
    pub(crate) greeting: String,
}

impl Resident {
    pub(crate) fn start(kennel: &Kennel) -> Self {
        Self::start_by(kennel.call(&["serve"]))
    }

    /// Starts it by this call.
    fn start_by(mut serve: Command) -> Self {
        let mut child = serve.stdout(Stdio::piped()).spawn().expect("start kennel serve");
        let greeting = hear(child.stdout.as_mut().expect("standard output is a pipe"), "Ctrl-C\n");
        Self { process: child, greeting }
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn end(mut self) {
        signal(&self.process, Signal::TERM);
        assert_eq!(crate::support::wait(&mut self.process, "kennel serve"), 0);
    }

    pub(crate) fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it is a child");
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Creates a sandbox that is paused and stopped after these times.
fn sandbox(kennel: &Kennel, pause: &str, stop: &str) -> String {
    kennel.kennel(&["create", "--start", "--idle-pause", pause, "--idle-timeout", stop]).ok()
}

fn status(kennel: &Kennel, id: &str) -> String {
    let shown = kennel.kennel(&["inspect", id]).json();
    shown[0]["status"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned()
}

#[track_caller]
fn until(kennel: &Kennel, id: &str, wanted: &str) {
    assert!(within_blocking(CALL, || status(kennel, id) == wanted), "it is {}, not {wanted}", status(kennel, id));
}

fn idle_sandbox_is_paused_then_stopped_and_used_again(kennel: &Kennel) {
    let id = sandbox(kennel, "1s", "3s");
    let resident = Resident::start(kennel);
    until(kennel, &id, "paused");
    assert_eq!(kennel.kennel(&["exec", &id, "--", "echo", "awake"]).ok(), "awake");
    until(kennel, &id, "stopped");
    assert_eq!(kennel.kennel(&["inspect", &id]).json()[0]["endCause"], "idle");
    assert_eq!(kennel.kennel(&["exec", &id, "--", "echo", "started"]).ok(), "started");
    // A running command counts as use, even if it prints nothing.
    assert_eq!(kennel.kennel(&["exec", &id, "-c", "sleep 4; echo done"]).ok(), "done");
    let second = kennel.kennel(&["serve"]).fails(125);
    assert!(second.contains(&format!("process {}", resident.process.id())), "{second}");
    resident.end();
}

/// Each command prints its output, at whatever moment the resident process pauses or stops the sandbox.
fn commands_race_the_pause_and_the_stop(kennel: &Kennel) {
    let rounds = if kennel.provider == "native" { 1000 } else { 200 };
    let _resident = Resident::start(kennel);
    // Several sandboxes, because most of the time is spent waiting.
    let sandboxes: Vec<String> = (0..4).map(|_| sandbox(kennel, "30ms", "1s")).collect();
    let seen: HashSet<String> = std::thread::scope(|scope| {
        let race = |id: &String| {
            let id = id.clone();
            scope.spawn(move || race(kennel, &id, rounds / 4))
        };
        let races: Vec<_> = sandboxes.iter().map(race).collect();
        races.into_iter().flat_map(|race| race.join().expect("each command prints its output")).collect()
    });
    // Control: there was something to race with.
    assert!(seen.contains("paused") && seen.contains("stopped"), "{seen:?}");
}

/// Runs commands at different moments. Returns the states in which the sandbox was seen.
fn race(kennel: &Kennel, id: &str, rounds: u64) -> HashSet<String> {
    let mut seen = HashSet::new();
    for round in 0..rounds {
        // Mostly near the pause, sometimes near the stop, and after it.
        let about = match round % 25 {
            0 => 1500,
            12 => 1010,
            _ => 15,
        };
        wait_in_race(Duration::from_millis(about + round * 7 % 40));
        if round % 5 == 0 {
            seen.insert(status(kennel, id));
        }
        let word = format!("round-{round}");
        let finished = kennel.kennel(&["exec", id, "--", "echo", &word]);
        assert_eq!((finished.status, finished.text().trim_end()), (0, word.as_str()), "{finished:?}, seen {seen:?}");
    }
    seen
}

fn killed_resident_leaves_no_sandbox_paused(kennel: &Kennel) {
    let id = sandbox(kennel, "100ms", "1h");
    let resident = Resident::start(kennel);
    until(kennel, &id, "paused");
    resident.kill();
    assert_eq!(status(kennel, &id), "paused");
    assert_eq!(kennel.kennel(&["exec", &id, "--", "echo", "awake"]).ok(), "awake");
    assert_eq!(status(kennel, &id), "running");

    let resident = Resident::start(kennel);
    until(kennel, &id, "paused");
    resident.kill();
    let planned = kennel.kennel(&["gc", "--dry-run"]).ok();
    assert!(planned.starts_with("would resume sandbox"), "{planned}");
    let row = serde_json::json!({ "action": "resume", "sandbox": id });
    let rows = kennel.kennel(&["gc", "--dry-run", "--json"]).json();
    assert_eq!(rows, serde_json::json!([row]));
    assert_eq!(status(kennel, &id), "paused");
    let done = kennel.kennel(&["gc"]).ok();
    assert!(done.starts_with("resumed sandbox"), "{done}");
    assert_eq!(status(kennel, &id), "running");

    let resident = Resident::start(kennel);
    until(kennel, &id, "paused");
    kennel.kennel(&["gc"]).ok();
    assert_eq!(status(kennel, &id), "paused", "the resident process that paused it still runs");
    drop(resident);
    assert_eq!(kennel.kennel(&["gc", "--json"]).json(), serde_json::json!([row]));
    assert_eq!(status(kennel, &id), "running");
    assert_eq!(kennel.kennel(&["gc", "--json"]).json(), serde_json::json!([]), "it is awake");
    kennel.kennel(&["rm", "--force", &id]).ok();
    let noted = kennel.home.state().join("idle");
    assert_eq!(std::fs::read_dir(&noted).expect("something was noted").count(), 0, "nothing is left of it");
}

/// The resident process may be killed between any two effects. Its notes may then be out of date.
fn notes_of_a_killed_resident_do_no_harm(kennel: &Kennel) {
    let id = sandbox(kennel, "100ms", "1s");
    let note = kennel.home.state().join("idle").join(format!("{id}.paused"));
    // Killed before the pause.
    std::fs::write(&note, "").expect("the directory exists");
    assert_eq!(kennel.kennel(&["exec", &id, "--", "echo", "running"]).ok(), "running");
    assert!(!note.exists());
    // Killed after the stop.
    until(kennel, &id, "stopped");
    std::fs::write(&note, "").expect("the directory exists");
    assert_eq!(kennel.kennel(&["exec", &id, "--", "echo", "started"]).ok(), "started");
    assert!(!note.exists());
    // The same, and then the next resident process starts.
    until(kennel, &id, "stopped");
    std::fs::write(&note, "").expect("the directory exists");
    let resident = Resident::start(kennel);
    assert!(!note.exists());
    drop(resident);
    assert_eq!(kennel.kennel(&["exec", &id, "--", "echo", "again"]).ok(), "again");
}

fn users_own_pause_is_never_undone(kennel: &Kennel) {
    let id = sandbox(kennel, "100ms", "1h");
    kennel.kennel(&["pause", &id]).ok();
    let resident = Resident::start(kennel);
    let refused = kennel.kennel(&["exec", &id, "--", "true"]).fails(125);
    assert!(refused.contains("is paused"), "{refused}");
    assert_eq!(status(kennel, &id), "paused");
    // A sandbox that the resident process has paused becomes paused by the user.
    kennel.kennel(&["unpause", &id]).ok();
    until(kennel, &id, "paused");
    kennel.kennel(&["pause", &id]).ok();
    kennel.kennel(&["exec", &id, "--", "true"]).fails(125);
    resident.kill();
    kennel.kennel(&["gc"]).ok();
    assert_eq!(status(kennel, &id), "paused");
}

/// An engine whose socket does not exist yet when `kennel serve` starts is watched as soon as it appears.
mod docker_later {
    use super::*;
    use crate::support::finish;
    use kennel_testkit::docker;

    #[test]
    fn engine_that_appears_later_is_watched() {
        let kennel = Kennel::on("docker");
        let socket = kennel.home.path().join("later/run/docker.sock");
        let address = format!("unix://{}", socket.display());
        // All providers of the machine may be used, but no other engine.
        let call = |words: &[&str]| {
            let mut call = Command::new(env!("CARGO_BIN_EXE_kennel"));
            let settings = kennel.call(&["ls"]);
            call.current_dir(kennel.here()).env_clear().stdin(Stdio::null());
            call.envs(settings.get_envs().filter_map(|(key, value)| Some((key, value?))));
            call.env("DOCKER_HOST", &address).env("CONTAINER_HOST", "unix:///nowhere/podman.sock");
            call.args(words);
            call
        };
        let resident = Resident::start_by(call(&["serve"]));
        let create = ["create", "--provider", "docker", "--start", "--idle-pause", "100ms"];
        let options = ["--image", kennel.image().expect("an engine has an image")];
        let create = [&create[..], &options].concat();
        assert!(finish(call(&create), None).fails(125).contains("docker.sock"), "there is no engine yet");
        std::fs::create_dir_all(socket.parent().expect("it is in a directory")).expect("a new directory");
        std::os::unix::fs::symlink(docker::socket(), &socket).expect("a new symlink");
        let id = finish(call(&create), None).ok();
        let paused = || finish(call(&["inspect", &id]), None).json()[0]["status"] == "paused";
        assert!(within_blocking(CALL, paused), "it is {}", finish(call(&["inspect", &id]), None).text());
        assert_eq!(finish(call(&["exec", &id, "--", "echo", "awake"]), None).ok(), "awake");
        drop(resident);
        finish(call(&["rm", "--force", &id]), None).ok();
    }
}
