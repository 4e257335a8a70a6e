//! A Docker engine to test on, and a small image. A missing engine is a failure that says what to do, never a skip.
//!
//! Blocking, and fit to be called by programs that prepare a test run as well as by tests.

use crate::{busybox, host, within_blocking};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The variable that names the socket of the engine to use.
pub const SOCKET_VARIABLE: &str = "KENNEL_TEST_DOCKER_SOCKET";

/// Where engines usually listen.
const USUAL_SOCKET: &str = "/var/run/docker.sock";

/// The socket of an engine that answers: the one named by [`SOCKET_VARIABLE`], the usual one, or one started here.
pub fn socket() -> PathBuf {
    if let Some(named) = crate::environment::variable(SOCKET_VARIABLE) {
        let named = PathBuf::from(named);
        assert!(answers(&named), "{SOCKET_VARIABLE} names {}, and no Docker engine answers there", named.display());
        return named;
    }
    let usual = PathBuf::from(USUAL_SOCKET);
    if answers(&usual) { usual } else { start() }
}

/// Starts an engine of our own, one per machine, unless it runs already. It needs root and `dockerd`.
pub fn start() -> PathBuf {
    let dir = engine_dir();
    let socket = dir.join("docker.sock");
    DOCKERS.hold();
    if answers(&socket) {
        return socket;
    }
    assert!(
        std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0),
        "no Docker engine answers at {USUAL_SOCKET}, and only root can start one: \
         start Docker, or name an engine's socket in {SOCKET_VARIABLE}"
    );
    let network = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).ok();
    assert!(network("self") == network("thread-self"), "the engine is everyone's: start it before moving elsewhere");
    let _only_one = lock("dockerd");
    if answers(&socket) {
        return socket;
    }
    let log = File::create(dir.join("dockerd.log")).expect("make a log for dockerd");
    let mut command = outliving("dockerd");
    command
        .arg("--data-root")
        .arg(dir.join("data"))
        .arg("--exec-root")
        .arg(dir.join("exec"))
        .arg("--pidfile")
        .arg(dir.join("dockerd.pid"))
        .arg("-H")
        .arg(format!("unix://{}", socket.display()))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle on the log"))
        .stderr(log)
        // Not in the group of the test, which may be ended as a whole.
        .process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("start dockerd: {error}; install it (apt-get install docker.io), or name a socket in {SOCKET_VARIABLE}")
    });
    comes_up(&mut child, &socket, &dir.join("dockerd.log"), "dockerd");
    socket
}

/// A program that outlives this one. It gets none of the descriptors that this one was given, beside the usual three: whoever waits for a
/// pipe to be closed, or for a lock, must not wait for it.
pub(crate) fn outliving(program: &str) -> Command {
    const CLOSE: &str =
        r#"for fd in /proc/self/fd/*; do fd=${fd##*/}; [ "$fd" -lt 3 ] || eval "exec $fd>&-"; done; exec "$@""#;
    let mut command = Command::new("busybox");
    command.args(["sh", "-c", CLOSE, "sh", program]);
    command
}

/// Waits for an engine that was started just now to answer. If it does not, the end of its log says why.
pub(crate) fn comes_up(child: &mut Child, socket: &Path, log: &Path, what: &str) {
    let up = within_blocking(Duration::from_mins(3), || {
        answers(socket) || child.try_wait().is_ok_and(|ended| ended.is_some())
    });
    if !up || !answers(socket) {
        let _ = child.kill();
        let log = std::fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        panic!("{what} did not come up; the end of its log:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
    }
}

/// Ends the engine that [`start`] has started, here or in another process, and removes what it kept. While another
/// process uses it, it is left alone; answers whether it is gone.
pub fn stop() -> bool {
    let dir = engine_dir();
    let _only_one = lock("dockerd");
    DOCKERS.let_go();
    // Held to the end: whoever comes meanwhile waits, finds no engine and starts one.
    let users = lock_file(DOCKERS.name());
    if users.try_lock().is_err() {
        return false;
    }
    let pid = std::fs::read_to_string(dir.join("dockerd.pid")).ok().and_then(|pid| pid.trim().parse().ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        // One that has ended runs no program, also while nobody has asked for its status.
        let raw = pid.as_raw_nonzero().get() as u32;
        let gone = within_blocking(Duration::from_mins(3), || host::program(raw).is_none());
        assert!(gone, "dockerd ({}) does not end", pid.as_raw_nonzero());
    }
    // It leaves the network namespace that it was in.
    host::unmount_below(&dir);
    std::fs::remove_dir_all(dir).is_ok()
}

/// An engine for one test alone, which may be killed. It has no network, and takes nobody's.
pub struct Private {
    dir: tempfile::TempDir,
    program: Option<Child>,
    /// The kind of machine it takes itself for.
    machine: &'static str,
    /// What else it is told.
    arguments: &'static [&'static str],
}

impl Private {
    /// Starts one. It needs root and `dockerd`.
    pub fn start() -> Self {
        Self::start_as(std::env::consts::ARCH)
    }

    /// Starts one with arguments of its own.
    pub fn start_with(arguments: &'static [&'static str]) -> Self {
        Self::make(std::env::consts::ARCH, arguments)
    }

    /// Starts one that takes this for a machine of another kind, as the kernel lets it (`setarch`).
    pub fn start_as(machine: &'static str) -> Self {
        Self::make(machine, &[])
    }

    fn make(machine: &'static str, arguments: &'static [&'static str]) -> Self {
        let dir = tempfile::Builder::new().prefix("kennel-test-engine-").tempdir().expect("a directory for an engine");
        // Whoever is root inside may be another outside, who has to get there.
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).expect("let others through");
        let mut engine = Self { dir, program: None, machine, arguments };
        engine.restart();
        engine
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("docker.sock")
    }

    /// Kills it, without a word.
    pub fn kill(&mut self) {
        if let Some(mut program) = self.program.take() {
            let _ = program.kill();
            let _ = program.wait();
        }
    }

    /// Starts it again on what it had.
    pub fn restart(&mut self) {
        let dir = self.dir.path();
        // Its predecessor was killed, and its containerd with it: neither could.
        for pid in ["dockerd.pid", "exec/containerd/containerd.pid"] {
            let _ = std::fs::remove_file(dir.join(pid));
        }
        let log = File::options().create(true).append(true).open(dir.join("log")).expect("make a log for dockerd");
        // In a network namespace of its own: one without a bridge removes the bridge of others.
        let mut command = Command::new("unshare");
        command
            .args(["--net", "setarch", self.machine, "dockerd"])
            .arg("--data-root")
            .arg(dir.join("data"))
            .arg("--exec-root")
            .arg(dir.join("exec"));
        command
            .arg("--pidfile")
            .arg(dir.join("dockerd.pid"))
            .arg("-H")
            .arg(format!("unix://{}", self.socket().display()));
        command
            .args(["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"])
            .args(self.arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        self.program = Some(command.spawn().unwrap_or_else(|error| panic!("start dockerd: {error}")));
        let up = within_blocking(Duration::from_mins(3), || answers(&self.socket()));
        assert!(up, "{}", std::fs::read_to_string(dir.join("log")).unwrap_or_default());
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if let Some(mut program) = self.program.take() {
            // It ends its containers, and containerd, when it is asked to.
            if let Some(pid) = rustix::process::Pid::from_raw(program.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = program.wait();
        }
        // What was left when it was killed.
        let mark = self.dir.path().display().to_string();
        for pid in host::processes(&mark).into_iter().filter_map(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        host::unmount_below(self.dir.path());
    }
}

/// Held by this process for as long as it uses an engine of our own.
pub(crate) struct InUse {
    name: &'static str,
    held: Mutex<Option<File>>,
}

static DOCKERS: InUse = InUse::new("dockerd-users");

impl InUse {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, held: Mutex::new(None) }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Says that it is in use, from now on.
    pub(crate) fn hold(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| {
            let file = lock_file(self.name);
            file.lock_shared().expect("say that the engine is in use");
            file
        });
    }

    /// Says that it is not, as far as this process is concerned.
    pub(crate) fn let_go(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A small image on the engine [`socket`] finds: busybox, the programs of this kit, `nobody`, and nothing else.
pub fn image() -> String {
    image_on(&socket())
}

/// The same on a given engine. It is made once, and is named by what is in it.
pub fn image_on(socket: &Path) -> String {
    let name = format!("kennel-test/busybox:{}", busybox::fingerprint());
    if !has_image(socket, &name) {
        let _only_one = lock("image");
        if !has_image(socket, &name) {
            make_image(socket, &name);
        }
    }
    name
}

/// Runs the engine's own command line, which must succeed, and answers what it prints.
pub fn docker(socket: &Path, arguments: &[&str]) -> String {
    let output = command(socket).args(arguments).output().unwrap_or_else(|error| panic!("run docker: {error}"));
    assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Containers of an installation that still exist, in words.
pub fn leftovers(socket: &Path, label: &str) -> Vec<String> {
    let filter = format!("label={label}");
    let format = "container {{.Names}} ({{.Status}})";
    let list = docker(socket, &["ps", "--all", "--filter", &filter, "--format", format]);
    list.lines().map(ToOwned::to_owned).collect()
}

fn command(socket: &Path) -> Command {
    let mut command = Command::new("docker");
    command.arg("--host").arg(format!("unix://{}", socket.display())).stdin(Stdio::null());
    command
}

fn engine_dir() -> PathBuf {
    let dir = crate::environment::temp_dir().join("kennel-test-docker");
    std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("make {}: {error}", dir.display()));
    dir
}

/// One at a time, across all processes that test. What is done under a lock takes seconds: whoever waits for minutes
/// waits for itself, and says so instead.
pub(crate) fn lock(what: &str) -> File {
    let file = lock_file(what);
    let free = within_blocking(Duration::from_mins(5), || file.try_lock().is_ok());
    assert!(free, "the lock {what} is not given back: does its holder wait for itself?");
    file
}

pub(crate) fn lock_file(what: &str) -> File {
    let path = crate::environment::temp_dir().join(format!("kennel-test-{what}.lock"));
    File::create(&path).unwrap_or_else(|error| panic!("make {}: {error}", path.display()))
}

/// Whether an engine answers a ping at this socket.
pub fn answers(socket: &Path) -> bool {
    let ping = || -> std::io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    ping().is_ok_and(|answer| answer.starts_with(b"HTTP/1.") && answer.ends_with(b"OK"))
}

fn has_image(socket: &Path, name: &str) -> bool {
    let inspect = command(socket).args(["image", "inspect", name]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    inspect.is_ok_and(|status| status.success())
}

fn make_image(socket: &Path, name: &str) {
    let archive = std::fs::File::open(busybox::archive()).expect("open the archive of the image");
    let import = command(socket)
        .args(["import", "--change", "CMD [\"sh\"]", "--change", "ENV FROM_IMAGE=yes", "-", name])
        .stdin(archive)
        .stdout(Stdio::null())
        .status();
    assert!(import.is_ok_and(|status| status.success()), "the image {name} could not be made");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_outlives_us_gets_no_descriptor_of_ours() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Others than those that Rust opens are inherited.
        let _inherited = rustix::io::dup(&file).unwrap();
        let has = |mut command: Command| {
            let output = command.args(["-l", "/proc/self/fd"]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stdout).contains(file.path().to_str().unwrap())
        };
        assert!(has(Command::new("ls")), "it can be seen");
        assert!(!has(outliving("ls")));
    }
}
