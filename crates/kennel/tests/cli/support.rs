//! The program under test in its own home, and a check afterwards that finds leftovers.

use kennel_testkit::net::sandbox_interfaces;
use kennel_testkit::podman::Service;
use kennel_testkit::{Home, Net, docker, host, within_blocking};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The time limit of one call. A call that hangs fails.
pub(crate) const CALL: Duration = Duration::from_mins(2);

/// Creates a test of each case for each provider.
macro_rules! on_every_provider {
    ($($case:ident),* $(,)?) => {
        mod local {
            $(#[test] fn $case() { super::$case(&$crate::support::Kennel::on("local")); })*
        }
        mod native {
            $(#[test] fn $case() { super::$case(&$crate::support::Kennel::on("native")); })*
        }
        mod docker {
            $(#[test] fn $case() { super::$case(&$crate::support::Kennel::on("docker")); })*
        }
    };
}
pub(crate) use on_every_provider;

/// The program on one provider.
pub(crate) struct Kennel {
    pub(crate) home: Home,
    pub(crate) provider: &'static str,
    image: Option<String>,
    /// The variable that names the engine, and its address.
    engine: Option<(&'static str, String)>,
    /// A separate network for its sandboxes, so that no rule of this machine is changed.
    pub(crate) net: Option<Net>,
}

/// A finished call.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Finished {
    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Asserts success. Returns standard output without the last newline.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.text().trim_end_matches('\n').to_owned()
    }

    /// Asserts that the call failed with this status. Returns standard error.
    #[track_caller]
    pub(crate) fn fails(self, status: i32) -> String {
        assert_eq!(self.status, status, "{self:?}");
        self.stderr
    }

    /// Standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Kennel {
    pub(crate) fn on(provider: &'static str) -> Self {
        if provider == "native" {
            assert!(rustix::process::geteuid().is_root(), "the tests of native need root");
        }
        let socket = match provider {
            "docker" => Some(("DOCKER_HOST", docker::socket())),
            "podman" => Some(("CONTAINER_HOST", Service::Root.socket())),
            _ => None,
        };
        let image = socket.as_ref().map(|(_, socket)| docker::image_on(socket));
        let net = (socket.is_none() && rustix::process::geteuid().is_root()).then(Net::alone);
        let engine = socket.map(|(variable, socket)| (variable, format!("unix://{}", socket.display())));
        Self { home: Home::new(), provider, image, engine, net }
    }

    /// Creates a program on this machine's own network.
    pub(crate) fn among_others(provider: &'static str) -> Self {
        Self { home: Home::new(), provider, image: None, engine: None, net: None }
    }

    /// The image of its sandboxes, if the provider needs one.
    pub(crate) fn image(&self) -> Option<&str> {
        self.image.as_deref()
    }

    /// The current directory of the program, which is also the workspace.
    pub(crate) fn here(&self) -> PathBuf {
        self.home.workspace()
    }

    /// Creates a call. Of the environment it gets only what it needs.
    pub(crate) fn call(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        command.current_dir(self.here()).env_clear().stdin(Stdio::null());
        command
            .env("PATH", kennel_testkit::environment::variable("PATH").expect("PATH is set"))
            .env("KENNEL_HOME", self.home.path());
        command.env("HOME", self.home.path());
        if let Some((variable, address)) = &self.engine {
            command.env(variable, address);
        }
        command.args(["--provider", self.provider]).args(&args[..1]);
        if let (Some(image), "run" | "create") = (&self.image, args[0]) {
            command.args(["--image", image]);
        }
        command.args(&args[1..]);
        command
    }

    /// Runs a call to its end.
    #[track_caller]
    pub(crate) fn kennel(&self, args: &[&str]) -> Finished {
        finish(self.call(args), None)
    }

    /// Runs a call to its end, with this standard input.
    #[track_caller]
    pub(crate) fn kennel_with(&self, args: &[&str], stdin: &[u8]) -> Finished {
        finish(self.call(args), Some(stdin.to_vec()))
    }

    /// Creates and starts a sandbox that waits for commands. Returns its id.
    #[track_caller]
    pub(crate) fn sandbox(&self) -> String {
        self.kennel(&["create", "--start"]).ok()
    }

    /// Asserts that nothing of this home is left on the machine, after a while: leftovers of a tied sandbox are removed
    /// in the background.
    pub(crate) fn is_gone(&self) -> bool {
        within_blocking(CALL, || self.left().is_empty())
    }

    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = host::leftovers(&self.home.mark(), &[], &self.home.state());
        let listed = self.kennel(&["ls", "--all", "-q"]);
        assert_eq!(listed.status, 0, "{listed:?}");
        if self.net.is_some() {
            left.extend(sandbox_interfaces().into_iter().map(|name| format!("interface {name}")));
        }
        left.extend(listed.text().lines().map(|id| format!("sandbox {id}")));
        left
    }
}

impl Drop for Kennel {
    fn drop(&mut self) {
        let listed = self.kennel(&["ls", "--all", "-q"]);
        assert!(listed.status == 0 || std::thread::panicking(), "{listed:?}");
        let mut attempts = Vec::new();
        for id in listed.text().lines() {
            let removed = self.kennel(&["rm", "--force", "--volumes", id]);
            // It may have been removed meanwhile.
            let fine = removed.status == 0 || removed.stderr.contains("there is no sandbox");
            assert!(fine || std::thread::panicking(), "{removed:?}");
            attempts.push(removed);
        }
        if !std::thread::panicking() {
            assert!(self.is_gone(), "left behind:\n{}\nremoved before: {attempts:?}", self.left().join("\n"));
        }
    }
}

/// Runs a call and waits for its end, up to the time limit.
#[track_caller]
pub(crate) fn finish(mut command: Command, stdin: Option<Vec<u8>>) -> Finished {
    if stdin.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start kennel");
    if let Some(bytes) = stdin {
        let mut pipe = child.stdin.take().expect("standard input is a pipe");
        // A command that does not read everything is no error.
        std::thread::spawn(move || drop(pipe.write_all(&bytes)));
    }
    let out = collect(child.stdout.take().expect("standard output is a pipe"));
    let err = collect(child.stderr.take().expect("standard error is a pipe"));
    let status = wait(&mut child, &format!("{command:?}"));
    let stdout = out.join().expect("standard output was read");
    let stderr = String::from_utf8_lossy(&err.join().expect("standard error was read")).into_owned();
    Finished { status, stdout, stderr }
}

fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).expect("read from kennel");
        all
    })
}

/// Waits for the end of a call. Returns its exit status.
#[track_caller]
pub(crate) fn wait(child: &mut Child, what: &str) -> i32 {
    let mut status = None;
    within_blocking(CALL, || {
        status = child.try_wait().expect("wait for kennel");
        status.is_some()
    });
    let Some(status) = status else {
        let _ = child.kill();
        panic!("{what} took longer than {CALL:?}");
    };
    status.code().unwrap_or_else(|| panic!("{what} ended by {status}"))
}

/// Reads from a call until it has printed a word. Returns everything that was read.
#[track_caller]
pub(crate) fn hear(from: &mut impl Read, word: &str) -> String {
    let mut heard = Vec::new();
    let mut byte = [0];
    while !heard.ends_with(word.as_bytes()) {
        let count = from.read(&mut byte).expect("read from kennel");
        assert!(count == 1, "{word:?} never came: {:?}", String::from_utf8_lossy(&heard));
        heard.push(byte[0]);
    }
    String::from_utf8_lossy(&heard).into_owned()
}

/// Sends a signal to a call.
pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).expect("kennel is there to get a signal");
}
