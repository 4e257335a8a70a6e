//! `doctor` and `setup`. The checks are real, but the fixes do not change this machine: every program that a fix could
//! run is a script of the test, which records how it was called.

use crate::support::{Finished, Kennel, finish};
use crate::terminal::{ends_with, terminal};
use expectrl::Expect;
use kennel_testkit::docker;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An ordinary user that exists on every machine.
const NOBODY: u32 = 65_534;

/// A simulated machine on which nothing is installed, and whose tools are scripts.
pub(crate) struct Bare {
    pub(crate) kennel: Kennel,
}

impl Bare {
    /// `script` is the package manager. In it, `$BIN` is the only directory in `PATH`, and `$SOCKET` is Docker's
    /// socket.
    pub(crate) fn new(install: &str) -> Self {
        let bare = Self { kennel: Kennel::on("local") };
        for dir in [bare.home(), &bare.bin(), &bare.of_nobody()] {
            std::fs::create_dir_all(dir).unwrap();
            // Here, the fixes of an ordinary user run as that user, because there is no sudo.
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        for manager in ["apt-get", "dnf", "pacman"] {
            bare.tool(manager, &format!("[ \"$1\" = update ] && exit 0\n{install}"));
        }
        bare.tool("sudo", "PATH=$BIN; exec \"$@\"");
        bare.tool("usermod", "");
        bare
    }

    fn tool(&self, name: &str, script: &str) {
        let (bin, calls, socket) = (self.bin(), self.calls_file(), self.socket());
        let (bin, calls, socket) = (bin.display(), calls.display(), socket.display());
        let before = format!("PATH=/usr/bin:/bin BIN={bin} SOCKET={socket}\necho \"${{0##*/}} $*\" >> {calls}\n");
        program(&self.bin().join(name), &format!("{before}{script}"));
    }

    fn home(&self) -> &Path {
        self.kennel.home.path()
    }

    fn bin(&self) -> PathBuf {
        self.home().join("fake/bin")
    }

    fn socket(&self) -> PathBuf {
        self.home().join("docker.sock")
    }

    fn of_nobody(&self) -> PathBuf {
        self.home().join("of-nobody")
    }

    fn calls_file(&self) -> PathBuf {
        self.home().join("calls")
    }

    /// The commands that were run, without the update of package lists on a machine that has none.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.calls_file()).unwrap_or_default();
        text.lines().filter(|line| !line.ends_with("apt-get update")).map(ToOwned::to_owned).collect()
    }

    fn call(&self, program: &Path, args: &[&str]) -> Command {
        let mut call = Command::new(program);
        call.args(args).current_dir(self.kennel.here()).env_clear().stdin(Stdio::null());
        call.env("PATH", self.bin()).env("HOME", self.home()).env("KENNEL_HOME", self.home());
        call.env("DOCKER_HOST", format!("unix://{}", self.socket().display()));
        call
    }

    pub(crate) fn as_root(&self, args: &[&str]) -> Command {
        self.call(Path::new(env!("CARGO_BIN_EXE_kennel")), args)
    }

    fn as_nobody(&self, args: &[&str]) -> Finished {
        // The directory of the build may be accessible only to the user who built it.
        let program = self.home().join("kennel");
        std::fs::copy(env!("CARGO_BIN_EXE_kennel"), &program).unwrap();
        let mut call = self.call(&program, args);
        call.uid(NOBODY).gid(NOBODY).env("KENNEL_HOME", self.of_nobody()).current_dir("/");
        finish(call, None)
    }
}

fn program(path: &Path, script: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Installs a fake Docker: a program, and an engine that replies.
pub(crate) fn install_docker() -> String {
    let engine = docker::socket();
    format!("echo unpacking-docker; ln -s /bin/true $BIN/dockerd; ln -s {} $SOCKET", engine.display())
}

/// How Docker is installed on the supported distributions.
fn installs_docker(line: &str) -> bool {
    ["apt-get install -y docker.io", "dnf install -y moby-engine", "pacman -S --needed --noconfirm docker"]
        .contains(&line)
}

#[test]
fn the_doctor_tries_what_it_reports() {
    let kennel = Kennel::on("native");
    let done = kennel.kennel(&["doctor", "--json"]);
    let object = done.json();
    assert_eq!((done.status, object["healthy"].as_bool()), (0, Some(true)), "{object}");
    let native = &object["providers"][0];
    assert_eq!((native["provider"].as_str(), native["available"].as_bool()), (Some("native"), Some(true)));
    assert!(native["triedMs"].as_f64().unwrap() > 0.0, "{native}");
    assert!(native["mode"]["layers"].as_array().unwrap().contains(&"seccomp".into()), "{native}");
    let state = |name: &str| {
        let check = object["machine"].as_array().unwrap().iter().find(|it| it["name"] == name).unwrap();
        assert!(!check["detail"].as_str().unwrap().is_empty(), "{check}");
        check["state"].as_str().unwrap()
    };
    for needed in ["kernel", "user namespaces", "overlay", "cgroups"] {
        assert_eq!(state(needed), "ok", "{needed}: these tests need it");
    }
    assert_eq!(state("subordinate ids"), "not_needed");
    for extra in ["landlock", "pasta", "newuidmap"] {
        assert_ne!(state(extra), "missing", "root needs no {extra}");
    }
    assert!(kennel.is_gone());
}

#[test]
fn the_doctor_prints_commands_that_repair() {
    let bare = Bare::new("");
    let done = finish(bare.as_root(&["--provider", "docker", "doctor"]), None);
    assert_eq!(done.status, 1, "{done:?}");
    let text = done.text();
    assert!(text.contains("- docker") && text.contains("9 isolation layers; limits"), "what it would enforce: {text}");
    assert!(text.contains("try: ") && text.contains(" && unset DOCKER_HOST"), "{text}");
    assert!(!text.contains("This machine"), "Docker chooses its own kernel: {text}");
    let object = finish(bare.as_root(&["--provider", "docker", "doctor", "--json"]), None).json();
    let fix = &object["providers"][0]["fix"];
    assert!(fix["command"].as_str().unwrap().contains("docker") && fix["automatic"] == false, "{fix}");
    assert!(bare.calls().is_empty(), "a check changes nothing");
}

#[test]
fn fix_installs_what_is_missing_and_checks_again() {
    let bare = Bare::new(&install_docker());
    let done = finish(bare.as_root(&["setup", "docker", "--yes"]), None);
    assert_eq!(done.status, 0, "{done:?}");
    let calls = bare.calls();
    assert!(calls.len() == 1 && installs_docker(&calls[0]), "{calls:?}");
    assert!(done.stderr.contains(&format!("\n$ {}\n", calls[0])), "{}", done.stderr);
    let text = done.text();
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in {text}"));
    assert!(at("- docker") < at("unpacking-docker") && at("unpacking-docker") < at("+ docker"), "{text}");
    let again = finish(bare.as_root(&["setup", "docker"]), None);
    assert_eq!((again.status, bare.calls().len()), (0, 1), "no question is asked: {again:?}");
    assert!(again.stderr.contains("nothing that is required is missing"), "{again:?}");
}

#[test]
fn without_a_terminal_nothing_is_run() {
    let bare = Bare::new("");
    let refused = |args: &[&str]| finish(bare.as_root(args), None).fails(125);
    let stderr = refused(&["doctor", "--fix", "--provider", "docker"]);
    assert!(stderr.lines().any(|line| installs_docker(line.trim())), "the commands are shown: {stderr}");
    assert!(stderr.contains("try: kennel doctor --provider docker --fix --yes\n"), "{stderr}");
    assert!(refused(&["setup", "docker"]).contains("try: kennel setup docker --yes\n"));
    assert!(refused(&["doctor", "--fix", "--json"]).contains("--json"));
    assert!(refused(&["doctor", "--yes"]).contains("--fix"));
    assert!(refused(&["setup", "docker", "--provider", "local"]).contains("try: kennel setup docker\n"));
    assert_eq!(bare.calls(), [""; 0]);
}

#[test]
fn answering_no_runs_nothing() {
    let bare = Bare::new(&install_docker());
    let mut call = bare.as_root(&["setup", "docker"]);
    call.env("NO_COLOR", "1");
    let mut session = terminal(call);
    let asked = session.expect("Run these? [y/N] ").expect("it asks");
    assert!(!asked.before().contains(&0x1b), "no colours: {:?}", String::from_utf8_lossy(asked.before()));
    session.send("n\r").unwrap();
    session.expect("nothing was run").expect("it says so");
    ends_with(session, 1);
    // No answer means no.
    let mut session = terminal(bare.as_root(&["doctor", "--provider", "docker", "--fix"]));
    let asked = session.expect("Run these? [y/N] ").expect("it asks");
    assert!(asked.before().contains(&0x1b), "colours: {:?}", String::from_utf8_lossy(asked.before()));
    session.send("\r").unwrap();
    session.expect("nothing was run").expect("it says so");
    ends_with(session, 1);
    assert_eq!(bare.calls(), [""; 0]);
}

#[test]
fn answering_yes_runs_the_commands() {
    let bare = Bare::new(&format!("read -p 'sure? ' answer; echo answer-$answer\n{}", install_docker()));
    let mut session = terminal(bare.as_root(&["setup", "docker"]));
    session.expect("Run these? [y/N] ").expect("it asks");
    session.send("y\r").unwrap();
    session.expect("sure? ").expect("the terminal is for what is run");
    session.send("indeed\r").unwrap();
    session.expect("answer-indeed").unwrap();
    session.expect("Docker").expect("it looks again");
    ends_with(session, 0);
    assert_eq!(bare.calls().len(), 1);
}

#[test]
fn an_ordinary_user_gets_root_only_by_sudo() {
    let bare = Bare::new("for name in pasta newuidmap; do ln -s /bin/true $BIN/$name; done");
    let done = bare.as_nobody(&["setup", "native", "--yes"]);
    let calls = bare.calls();
    let [sudo_install, install, sudo_ids, ids] = calls.as_slice() else { panic!("{calls:?}") };
    assert!(install.contains(" passt ") && ids.starts_with("usermod --add-subuids "), "{calls:?}");
    assert_eq!((sudo_install, sudo_ids), (&format!("sudo {install}"), &format!("sudo {ids}")));
    let text = done.text();
    let (before, after) = text.split_at(text.rfind("Providers").unwrap());
    assert!(before.contains("- pasta") && before.contains("- newuidmap"), "{done:?}");
    assert!(after.contains("+ pasta") && after.contains("+ newuidmap"), "{done:?}");
}

#[test]
fn commands_stop_at_the_first_failure() {
    let bare = Bare::new("echo cannot-be-found; exit 100");
    let done = bare.as_nobody(&["setup", "native", "--yes"]);
    let (text, calls) = (done.text(), bare.calls());
    assert!(text.contains("cannot-be-found"), "its output is shown: {text}");
    assert_eq!(text.matches("Providers").count(), 1, "nothing is checked again: {text}");
    let stderr = done.fails(125);
    assert!(stderr.contains("exit status: 100; the commands after it were not run"), "{stderr}");
    assert!(stderr.contains(&format!("try: {}\n", calls[0])), "{stderr}");
    assert!(!calls.iter().any(|line| line.contains("usermod")), "{calls:?}");
}

#[test]
fn a_working_provider_needs_no_setup() {
    let kennel = Kennel::on("local");
    assert!(kennel.kennel(&["setup"]).stderr.contains("nothing that is required is missing"));
    let mut call = Command::new(env!("CARGO_BIN_EXE_kennel"));
    call.arg("setup").env_clear().env("KENNEL_HOME", kennel.home.path()).current_dir(kennel.here());
    let done = finish(call, None);
    assert!(done.text().contains("+ native"), "the provider that `run` would use: {done:?}");
    done.ok();
}
