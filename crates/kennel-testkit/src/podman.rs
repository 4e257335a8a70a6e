//! Podman services for tests: one of root, and one of an ordinary user. If there is no service, tests fail with a hint;
//! they are never skipped. The machine's own Podman is not touched: storage, networks and settings are in a separate
//! directory.
//!
//! The functions block. Tests and programs that prepare a test run can call them. Podman has Docker's API, so
//! [`crate::docker`] creates images on it and lists its containers.

use crate::docker::{self, InUse, answers, comes_up, lock, lock_file, outliving};
use crate::{host, testers_ids, within_blocking};
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A Podman service, by its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The service of root.
    Root,
    /// The service of the user `kennel-tester`.
    User,
}

static ROOTS: InUse = InUse::new("podman-users");
static USERS: InUse = InUse::new("podman-rootless-users");

/// Allows plain HTTP for registries on loopback.
const REGISTRIES: &str = "[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n";

/// Settings that work on every machine: lower resource limits than those of this process (Podman lowers some itself),
/// and a runtime that supports both cgroup versions.
fn settings() -> String {
    use rustix::process::{Resource, getrlimit};
    let most = |resource| getrlimit(resource).maximum.unwrap_or(u64::MAX).min(16_384);
    let (files, processes) = (most(Resource::Nofile), most(Resource::Nproc));
    format!(
        "[containers]\ndefault_ulimits = [\"nofile={files}:{files}\", \"nproc={processes}:{processes}\"]\n\
         [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n"
    )
}

impl Service {
    /// The environment variable with the socket of the service to use.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Root => "KENNEL_TEST_PODMAN_SOCKET",
            Self::User => "KENNEL_TEST_PODMAN_ROOTLESS_SOCKET",
        }
    }

    /// Returns the socket of a running service: that of [`Self::variable`], or that of a service started here.
    pub fn socket(self) -> PathBuf {
        let variable = self.variable();
        if let Some(named) = crate::environment::variable(variable) {
            let named = PathBuf::from(named);
            assert!(answers(&named), "{variable} names {}, and no Podman answers there", named.display());
            return named;
        }
        self.start()
    }

    /// Starts the service for tests, unless it already runs. This needs root and `podman`.
    pub fn start(self) -> PathBuf {
        let dir = self.dir();
        let socket = dir.join("podman.sock");
        self.in_use().hold();
        if answers(&socket) {
            return socket;
        }
        assert!(
            rustix::process::geteuid().is_root(),
            "only root can start a Podman to test on: name a socket in {}",
            self.variable()
        );
        let _only_one = lock(self.word());
        if answers(&socket) {
            return socket;
        }
        self.make_place(&dir);
        let log = File::create(dir.join("service.log")).expect("make a log for podman");
        let mut command = self.podman(outliving("podman"));
        command
            .args(["system", "service", "--time", "0"])
            .arg(format!("unix://{}", socket.display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle on the log"))
            .stderr(log)
            // In its own process group, because that of the test may be killed as a whole.
            .process_group(0);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("start podman: {error}; install it (apt-get install podman)"));
        std::fs::write(dir.join("service.pid"), child.id().to_string()).expect("write down who it is");
        comes_up(&mut child, &socket, &dir.join("service.log"), "podman");
        socket
    }

    /// Ends the service that [`Self::start`] started, in this process or another, and removes its files. It does
    /// nothing while another process uses the service. Returns whether the service is gone.
    pub fn stop(self) -> bool {
        let dir = self.dir();
        let _only_one = lock(self.word());
        self.in_use().let_go();
        // Held to the end: another process that needs one waits, finds none, and starts one.
        let users = lock_file(self.in_use().name());
        if users.try_lock().is_err() {
            return false;
        }
        if dir.join("containers.conf").exists() {
            // Containers that a killed test has left.
            let _ = self.podman(Command::new("podman")).args(["rm", "--force", "--all", "--time", "0"]).output();
        }
        let pid = std::fs::read_to_string(dir.join("service.pid")).ok().and_then(|pid| pid.trim().parse().ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let raw = pid.as_raw_nonzero().get() as u32;
            let gone = within_blocking(Duration::from_mins(3), || host::program(raw).is_none());
            assert!(gone, "podman ({raw}) does not end");
        }
        if self == Self::User {
            Self::end_pause_process(&dir);
            // The service continues in its own namespace as another process, even if the one that was started has
            // ended.
            let mark = format!("CONTAINERS_CONF={}", dir.join("containers.conf").display());
            let gone = within_blocking(Duration::from_mins(3), || {
                let left = host::marked(&mark);
                for pid in left.iter().filter_map(|pid| rustix::process::Pid::from_raw(*pid as i32)) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
                left.is_empty()
            });
            assert!(gone, "podman of an ordinary user does not end");
        }
        // For each command, one process stays for minutes to report its exit code.
        for pid in host::called("conmon", &format!("{}/", dir.display())) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        // Podman leaves a bind mount of its storage directory onto itself.
        host::unmount_below(&dir);
        // Files may belong to subordinate ids of the user. Root can remove them.
        std::fs::remove_dir_all(dir).is_ok()
    }

    /// Ends the process that holds the user's namespace between two commands.
    fn end_pause_process(dir: &Path) {
        for pid in host::walk(dir, false).into_iter().filter(|path| path.ends_with("pause.pid")) {
            let pid = std::fs::read_to_string(pid).ok().and_then(|pid| pid.trim().parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// Configures a `podman` command for the service's storage.
    fn podman(self, mut command: Command) -> Command {
        let dir = self.dir();
        for (flag, place) in
            [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp"), ("--network-config-dir", "networks")]
        {
            command.arg(flag).arg(dir.join(place));
        }
        command.args(["--storage-driver", "overlay"]);
        command.env("CONTAINERS_CONF", dir.join("containers.conf")).env("HOME", dir.join("home")).current_dir(&dir);
        command.env_remove("DOCKER_HOST").env_remove("CONTAINER_HOST");
        if self == Self::User {
            let (user, group) = testers_ids();
            command.env("XDG_RUNTIME_DIR", dir.join("xdg")).uid(user).gid(group);
        }
        command
    }

    fn make_place(self, dir: &Path) {
        for place in ["home", "xdg"] {
            std::fs::create_dir_all(dir.join(place)).expect("make a place for podman");
        }
        std::fs::write(dir.join("containers.conf"), settings()).expect("write podman's settings");
        // Registries in tests use plain HTTP. Docker allows this on loopback by default.
        let registries = dir.join("home/.config/containers");
        std::fs::create_dir_all(&registries).expect("make a place for podman's registries");
        std::fs::write(registries.join("registries.conf"), REGISTRIES).expect("write podman's registries");
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).expect("open podman's place");
        if self == Self::User {
            let (user, group) = testers_ids();
            let settings = ["home", "home/.config", "home/.config/containers", "xdg"].map(|place| dir.join(place));
            for path in settings.into_iter().chain([dir.to_owned()]) {
                chown(&path, Some(user), Some(group)).expect("give podman's place to its user");
            }
        }
    }

    fn dir(self) -> PathBuf {
        let dir = crate::environment::temp_dir().join(format!("kennel-test-{}", self.word()));
        std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("make {}: {error}", dir.display()));
        dir
    }

    fn word(self) -> &'static str {
        match self {
            Self::Root => "podman-root",
            Self::User => "podman-rootless",
        }
    }

    fn in_use(self) -> &'static InUse {
        match self {
            Self::Root => &ROOTS,
            Self::User => &USERS,
        }
    }
}

/// Creates the small image on a service; see [`docker::image_on`]. Returns its name.
pub fn image_on(socket: &Path) -> String {
    docker::image_on(socket)
}
