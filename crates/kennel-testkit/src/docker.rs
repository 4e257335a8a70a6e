//! A Docker engine for tests, and a small image. If there is no engine, tests fail with a hint; they are never skipped.
//!
//! The functions block. Tests and programs that prepare a test run can call them.

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

/// The environment variable with the socket of the engine to use.
pub const SOCKET_VARIABLE: &str = "KENNEL_TEST_DOCKER_SOCKET";

/// The default socket of an engine.
const USUAL_SOCKET: &str = "/var/run/docker.sock";

/// Returns the socket of a running engine: that of [`SOCKET_VARIABLE`], the default one, or that of an engine started
/// here.
pub fn socket() -> PathBuf {
    if let Some(named) = crate::environment::variable(SOCKET_VARIABLE) {
        let named = PathBuf::from(named);
        assert!(answers(&named), "{SOCKET_VARIABLE} names {}, and no Docker engine answers there", named.display());
        return named;
    }
    let usual = PathBuf::from(USUAL_SOCKET);
    if answers(&usual) { usual } else { start() }
}

/// Starts the engine for tests, one per machine, unless it already runs. This needs root and `dockerd`.
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
        // In its own process group, because that of the test may be killed as a whole.
        .process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("start dockerd: {error}; install it (apt-get install docker.io), or name a socket in {SOCKET_VARIABLE}")
    });
    comes_up(&mut child, &socket, &dir.join("dockerd.log"), "dockerd");
    socket
}

/// Returns a command for a program that outlives this one. It inherits only the standard streams: another open
/// descriptor would keep a pipe or a lock of this process in use.
pub(crate) fn outliving(program: &str) -> Command {
    const CLOSE: &str =
        r#"for fd in /proc/self/fd/*; do fd=${fd##*/}; [ "$fd" -lt 3 ] || eval "exec $fd>&-"; done; exec "$@""#;
    let mut command = Command::new("busybox");
    command.args(["sh", "-c", CLOSE, "sh", program]);
    command
}

/// Waits until an engine that was just started replies. If it does not, panics with the end of its log.
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

/// Ends the engine that [`start`] started, in this process or another, and removes its files. It does nothing while
/// another process uses the engine. Returns whether the engine is gone.
pub fn stop() -> bool {
    let dir = engine_dir();
    let _only_one = lock("dockerd");
    DOCKERS.let_go();
    // Held to the end: another process that needs one waits, finds none, and starts one.
    let users = lock_file(DOCKERS.name());
    if users.try_lock().is_err() {
        return false;
    }
    let pid = std::fs::read_to_string(dir.join("dockerd.pid")).ok().and_then(|pid| pid.trim().parse().ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        // A zombie has no program, so an ended process that nobody has reaped counts as gone.
        let raw = pid.as_raw_nonzero().get() as u32;
        let gone = within_blocking(Duration::from_mins(3), || host::program(raw).is_none());
        assert!(gone, "dockerd ({}) does not end", pid.as_raw_nonzero());
    }
    // The engine leaves the mount of its network namespace.
    host::unmount_below(&dir);
    std::fs::remove_dir_all(dir).is_ok()
}

/// A private engine for one test, which may kill it. It has its own network namespace, without a bridge.
pub struct Private {
    dir: tempfile::TempDir,
    program: Option<Child>,
    /// The architecture that the engine sees.
    machine: &'static str,
    /// Additional arguments of the engine.
    arguments: &'static [&'static str],
}

impl Private {
    /// Starts a private engine. This needs root and `dockerd`.
    pub fn start() -> Self {
        Self::start_as(std::env::consts::ARCH)
    }

    /// Starts a private engine with additional arguments.
    pub fn start_with(arguments: &'static [&'static str]) -> Self {
        Self::make(std::env::consts::ARCH, arguments)
    }

    /// Starts a private engine that sees another architecture (`setarch`).
    pub fn start_as(machine: &'static str) -> Self {
        Self::make(machine, &[])
    }

    fn make(machine: &'static str, arguments: &'static [&'static str]) -> Self {
        let dir = tempfile::Builder::new().prefix("kennel-test-engine-").tempdir().expect("a directory for an engine");
        // Root inside may be another user outside, who must be able to enter the directory.
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).expect("let others through");
        let mut engine = Self { dir, program: None, machine, arguments };
        engine.restart();
        engine
    }

    /// The engine's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("docker.sock")
    }

    /// Kills the engine with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut program) = self.program.take() {
            let _ = program.kill();
            let _ = program.wait();
        }
    }

    /// Starts the engine again, with its existing files.
    pub fn restart(&mut self) {
        let dir = self.dir.path();
        // The previous engine and its containerd were killed, so they did not remove these files.
        for pid in ["dockerd.pid", "exec/containerd/containerd.pid"] {
            let _ = std::fs::remove_file(dir.join(pid));
        }
        let log = File::options().create(true).append(true).open(dir.join("log")).expect("make a log for dockerd");
        // In its own network namespace, because an engine without a bridge removes that of other engines.
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
            // On SIGTERM, the engine ends its containers and containerd.
            if let Some(pid) = rustix::process::Pid::from_raw(program.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = program.wait();
        }
        // Processes that were left when the engine was killed.
        let mark = self.dir.path().display().to_string();
        for pid in host::processes(&mark).into_iter().filter_map(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        host::unmount_below(self.dir.path());
    }
}

/// A lock that this process holds while it uses an engine for tests.
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

    /// Marks the engine as used by this process.
    pub(crate) fn hold(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| {
            let file = lock_file(self.name);
            file.lock_shared().expect("say that the engine is in use");
            file
        });
    }

    /// Marks the engine as no longer used by this process.
    pub(crate) fn let_go(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Creates a small image on the engine of [`socket`]: busybox, the test programs and the user `nobody`. Returns its
/// name.
pub fn image() -> String {
    image_on(&socket())
}

/// Creates the small image on a given engine, unless it exists. Its name contains a hash of its content. Returns the
/// name.
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

/// Runs the `docker` program, which must succeed, and returns its output.
pub fn docker(socket: &Path, arguments: &[&str]) -> String {
    let output = command(socket).args(arguments).output().unwrap_or_else(|error| panic!("run docker: {error}"));
    assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Returns descriptions of all containers with this label.
pub fn leftovers(socket: &Path, label: &str) -> Vec<String> {
    let filter = format!("label={label}");
    let format = "container {{.Names}} ({{.Status}})";
    let list = docker(socket, &["ps", "--all", "--filter", &filter, "--format", format]);
    list.lines().map(ToOwned::to_owned).collect()
}

pub(crate) fn command(socket: &Path) -> Command {
    let mut command = Command::new("docker");
    command.arg("--host").arg(format!("unix://{}", socket.display())).stdin(Stdio::null());
    command
}

fn engine_dir() -> PathBuf {
    let dir = crate::environment::temp_dir().join("kennel-test-docker");
    std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("make {}: {error}", dir.display()));
    dir
}

/// Takes a lock that all test processes share. Work under a lock takes seconds, so a wait of minutes is a deadlock, and
/// panics.
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

/// Whether an engine replies to a ping at this socket.
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

pub(crate) fn has_image(socket: &Path, name: &str) -> bool {
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
    fn programs_that_outlive_the_tests_inherit_no_descriptor() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Descriptors that are not close-on-exec are inherited, unlike those that Rust opens.
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
