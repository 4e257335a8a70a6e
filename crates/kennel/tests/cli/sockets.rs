//! Bridges to sockets of the host: `--socket`, the process that serves a sandbox that stays, and what is refused.

use crate::settings::{call, project};
use crate::support::{CALL, Finished, Kennel};
use kennel_testkit::programs::{self, SOCKETS};
use kennel_testkit::{host, within_blocking};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Makes a test of each case for each provider that has sockets.
macro_rules! where_sockets_work {
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

where_sockets_work! {
    run_serves_sockets_itself,
    process_serves_a_sandbox_that_stays,
    killed_sandbox_leaves_no_process,
    idle_sandbox_stops_and_is_served_again,
}

const TARGET: &str = "/tmp/kennel-test.sock";

/// A program of the host that sends everything back, with a word before it, as long as this test runs.
fn echo(path: &Path, word: &'static str) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = word.as_bytes().to_vec();
            let _ = stream.read_to_end(&mut bytes).and_then(|_| stream.write_all(&bytes));
        }
    });
}

/// Puts a client into the workspace, and a server beside it. Returns the path of the server's socket.
fn set_up(kennel: &Kennel) -> PathBuf {
    programs::compile(SOCKETS, &kennel.here().join("client"));
    let path = kennel.home.path().canonicalize().unwrap().join("service.sock");
    echo(&path, "host:");
    path
}

fn bridge(path: &Path) -> String {
    format!("{}:{TARGET}", path.display())
}

/// Sends a word from inside.
fn send(kennel: &Kennel, id: &str) -> Finished {
    kennel.kennel_with(&["exec", id, "--", "/workspace/client", "send", &format!("unix:{TARGET}")], b"hello")
}

/// The processes that serve a sandbox.
fn serving(id: &str) -> Vec<u32> {
    host::called("kennel", id).into_iter().filter(|pid| cmdline(*pid).contains("--serve-bridges")).collect()
}

fn cmdline(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[track_caller]
fn until_nobody_serves(id: &str) {
    assert!(within_blocking(CALL, || serving(id).is_empty()), "{:?}", serving(id));
}

fn run_serves_sockets_itself(kennel: &Kennel) {
    let path = set_up(kennel);
    std::os::unix::fs::symlink(&path, kennel.here().join("user.sock")).unwrap();
    let unix = format!("unix:{TARGET}");
    let command = |option: &[&str]| {
        let words = [&["run", "--network", "none"], option, &["--", "/workspace/client", "send", &unix]].concat();
        kennel.kennel_with(&words, b"hello")
    };
    assert_eq!(command(&["--socket", &bridge(&path)]).ok(), "host:hello");
    assert_ne!(command(&[]).status, 0, "without the option there is no socket");
    // A relative path starts at the current directory.
    let near = kennel.here().join("near.sock");
    echo(&near, "near:");
    assert_eq!(command(&["--socket", &format!("near.sock:{TARGET}")]).ok(), "near:hello");
    // The inside could have made this symlink.
    let refused = command(&["--socket", &format!("user.sock:{TARGET}")]).fails(125);
    assert!(refused.contains("leads out of"), "{refused}");
}

fn process_serves_a_sandbox_that_stays(kennel: &Kennel) {
    let path = set_up(kennel);
    let id = kennel.kennel(&["create", "--start", "--network", "none", "--socket", &bridge(&path)]).ok();
    assert_eq!(send(kennel, &id).ok(), "host:hello");
    let [first] = serving(&id)[..] else { panic!("one process serves it: {:?}", serving(&id)) };
    assert_eq!(std::fs::read_link(format!("/proc/{first}/cwd")).unwrap(), Path::new("/"));
    let shown = kennel.kennel(&["inspect", &id]).json();
    assert_eq!(shown[0]["labels"]["kennel.sockets"], format!("[\"{}\"]", bridge(&path)));
    kennel.kennel(&["start", &id]).ok();
    assert_eq!(serving(&id), [first], "it runs already");

    // A process that was killed is replaced by the next use.
    kill(first);
    until_nobody_serves(&id);
    assert_eq!(send(kennel, &id).ok(), "host:hello");
    assert_eq!(serving(&id).len(), 1);

    // It ends with the sandbox, and comes back with it.
    kennel.kennel(&["stop", "-t", "0", &id]).ok();
    until_nobody_serves(&id);
    kennel.kennel(&["start", &id]).ok();
    assert_eq!(send(kennel, &id).ok(), "host:hello");

    // Without the socket, the sandbox is not started.
    kennel.kennel(&["stop", "-t", "0", &id]).ok();
    std::fs::remove_file(&path).unwrap();
    let refused = kennel.kennel(&["start", &id]).fails(125);
    assert!(refused.contains("service.sock: No such file"), "{refused}");
    assert_eq!(kennel.kennel(&["inspect", &id]).json()[0]["status"], "stopped");
    echo(&path, "again:");
    kennel.kennel(&["start", &id]).ok();
    assert_eq!(send(kennel, &id).ok(), "again:hello");
    kennel.kennel(&["rm", "--force", &id]).ok();
    until_nobody_serves(&id);
    let left: Vec<_> = std::fs::read_dir(kennel.home.path().join("state/bridges")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

fn killed_sandbox_leaves_no_process(kennel: &Kennel) {
    let path = set_up(kennel);
    let id = kennel.kennel(&["create", "--start", "--network", "none", "--socket", &bridge(&path)]).ok();
    assert_eq!(serving(&id).len(), 1);
    let mine = serving(&id);
    let is_of_kennel = |pid: &u32| host::program(*pid).is_some_and(|program| program.contains("kennel"));
    for pid in host::processes(&kennel.home.mark()).into_iter().filter(is_of_kennel) {
        if !mine.contains(&pid) {
            let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
            // Some end with the first one.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    until_nobody_serves(&id);
    assert!(within_blocking(CALL, || kennel.kennel(&["inspect", &id]).json()[0]["status"] == "stopped"));
    kennel.kennel(&["start", &id]).ok();
    assert_eq!(send(kennel, &id).ok(), "host:hello");
}

fn idle_sandbox_stops_and_is_served_again(kennel: &Kennel) {
    let path = set_up(kennel);
    let words = ["create", "--start", "--network", "none", "--idle-timeout", "1s", "--socket", &bridge(&path)];
    let id = kennel.kennel(&words).ok();
    let status = || kennel.kennel(&["inspect", &id]).json()[0]["status"].as_str().unwrap().to_owned();
    assert!(within_blocking(CALL, || status() == "stopped"), "the open bridge keeps it running");
    until_nobody_serves(&id);
    assert_eq!(send(kennel, &id).ok(), "host:hello", "the next use starts it");
}

/// A real agent with a key. It ends with the test.
struct Agent {
    process: Child,
    socket: PathBuf,
    fingerprint: String,
}

impl Agent {
    fn start(dir: &Path) -> Self {
        let socket = dir.canonicalize().unwrap().join("agent.sock");
        let process = Command::new("ssh-agent").arg("-D").arg("-a").arg(&socket).stdout(Stdio::null()).spawn();
        let process = process.expect("start ssh-agent");
        assert!(within_blocking(CALL, || socket.exists()));
        let key = dir.join("key");
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).env("SSH_AUTH_SOCK", &socket).stdin(Stdio::null());
            let output = command.output().unwrap();
            assert!(output.status.success(), "{program}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", key.to_str().unwrap()]);
        run("ssh-add", &["-q", key.to_str().unwrap()]);
        let fingerprint = run("ssh-add", &["-l"]).trim_end().to_owned();
        Self { process, socket, fingerprint }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn ssh_agent_is_used_inside_without_a_network() {
    let kennel = Kennel::on("native");
    let agent = Agent::start(kennel.home.path());
    assert!(agent.fingerprint.contains("ED25519"), "{}", agent.fingerprint);
    let socket = format!("{}:/run/ssh-agent.sock", agent.socket.display());
    let options = ["--network", "none", "--socket", &socket, "-e", "SSH_AUTH_SOCK=/run/ssh-agent.sock"];
    let run = [&["run"], &options[..], &["--", "ssh-add", "-l"]].concat();
    assert_eq!(kennel.kennel(&run).ok(), agent.fingerprint);
    let id = kennel.kennel(&[&["create", "--start"], &options[..]].concat()).ok();
    for _ in 0..3 {
        assert_eq!(kennel.kennel(&["exec", &id, "--", "ssh-add", "-l"]).ok(), agent.fingerprint);
    }
    let signed = "cd /tmp && ssh-add -L > key.pub && echo text > text && ssh-keygen -q -Y sign -n test -f key.pub text \
                  && ssh-keygen -Y check-novalidate -n test -s text.sig < text";
    let signed = kennel.kennel(&["exec", &id, "-c", signed]).ok();
    assert!(signed.contains("Good \"test\" signature"), "the agent signs: {signed}");
}

#[test]
fn profiles_and_sessions_have_sockets() {
    let kennel = Kennel::on("native");
    let path = set_up(&kennel);
    let unix = format!("unix:{TARGET}");
    let client = ["--", "/workspace/client", "send", &unix];
    kennel.kennel(&["profile", "create", "p", "--network", "none", "--socket", &bridge(&path)]).ok();
    let exec = [&["profile", "exec", "p"], &client[..]].concat();
    assert_eq!(kennel.kennel_with(&exec, b"hello").ok(), "host:hello");
    kennel.kennel(&["profile", "delete", "--force", "p"]).ok();
    let create = ["session", "create", "--name", "s", "--network", "none", "--socket", &bridge(&path)];
    kennel.kennel(&create).ok();
    let exec = [&["session", "exec", "s"], &client[..]].concat();
    assert_eq!(kennel.kennel_with(&exec, b"hello").ok(), "host:hello");
    kennel.kennel(&["session", "rm", "--force", "s"]).ok();
}

#[test]
fn sockets_of_a_project_need_trust() {
    let kennel = Kennel::on("native");
    let path = set_up(&kennel);
    project(&kennel, &format!("[sandbox]\nnetwork = \"none\"\nsockets = [\"{}\"]\n", bridge(&path)));
    let run = |kennel: &Kennel| call(kennel, &["run", "-c", &format!("ls {TARGET}")], &[]);
    let refused = run(&kennel).fails(125);
    assert!(refused.contains("sandbox.sockets") && refused.contains("a socket of this machine"), "{refused}");
    call(&kennel, &["config", "trust"], &[]).ok();
    assert_eq!(run(&kennel).ok(), TARGET);
    // Once the path leads to another socket, it needs trust again.
    let other = kennel.home.path().join("other.sock");
    echo(&other, "other:");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    let refused = run(&kennel).fails(125);
    assert!(refused.contains("when the file was trusted the path led elsewhere"), "{refused}");
}

#[test]
fn wrong_sockets_are_refused_by_name() {
    let kennel = Kennel::on("native");
    let path = set_up(&kennel);
    let said = |option: &str| kennel.kennel(&["create", "--socket", option]).fails(125);
    for (option, why) in [
        ("service.sock", "expected HOST:TARGET"),
        ("service.sock:relative", "expected HOST:TARGET"),
        ("absent.sock:/tmp/x", "the program that listens there is running"),
    ] {
        let stderr = said(option);
        assert!(stderr.contains("--socket") && stderr.contains(why), "{stderr}");
    }
    // A keeper of Kennel itself.
    let id = kennel.sandbox();
    let keeper = kennel.home.path().join("state/native").join(&id).join("sock");
    assert!(keeper.exists());
    let stderr = said(&format!("{}:/tmp/x", keeper.display()));
    assert!(stderr.contains("it belongs to Kennel itself"), "{stderr}");
    let local = Kennel::on("local");
    let stderr = local.kennel(&["run", "--socket", &bridge(&path), "--", "true"]).fails(125);
    assert!(stderr.contains("local") && stderr.contains(TARGET), "{stderr}");
    assert!(stderr.contains("kennel explain sockets"), "{stderr}");
}

/// An engine's socket is refused on every provider, whatever its path is.
#[test]
fn socket_of_an_engine_is_refused() {
    for provider in ["native", "docker", "podman"] {
        let kennel = Kennel::on(provider);
        let engine = kennel_testkit::docker::socket();
        let link = kennel.home.path().join("harmless");
        std::os::unix::fs::symlink(&engine, &link).unwrap();
        for path in [&engine, &link] {
            let stderr = kennel.kennel(&["run", "--socket", &bridge(path), "--", "true"]).fails(125);
            assert!(stderr.contains("a container engine listens there"), "{provider}: {stderr}");
        }
    }
}
