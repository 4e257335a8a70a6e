//! Podman services to test on: root's own, and one of an ordinary user. A missing one is a failure that says what to do, never
//! a skip. Nothing of the machine's own Podman is touched: storage, networks and settings are in a directory of ours.
//!
//! Blocking, and fit to be called by programs that prepare a test run as well as by tests. Podman speaks Docker's language, so
//! [`crate::docker`] makes images on it and looks behind our back.

use crate::docker::{self, InUse, answers, comes_up, lock, lock_file, outliving};
use crate::{host, testers_ids, within_blocking};
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Whose service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Root's.
    Root,
    /// That of the user `kennel-tester`.
    User,
}

static ROOTS: InUse = InUse::new("podman-users");
static USERS: InUse = InUse::new("podman-rootless-users");

/// Registries on loopback need no certificate.
const REGISTRIES: &str = "[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n";

/// What works on every machine: less than what is granted (Podman itself gives some of it up), and a runtime that runs on both versions of control groups.
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
    /// The variable that names the socket of one to use.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Root => "KENNEL_TEST_PODMAN_SOCKET",
            Self::User => "KENNEL_TEST_PODMAN_ROOTLESS_SOCKET",
        }
    }

    /// The socket of one that answers: the one named by [`Self::variable`], or one started here.
    pub fn socket(self) -> PathBuf {
        let variable = self.variable();
        if let Some(named) = crate::environment::variable(variable) {
            let named = PathBuf::from(named);
            assert!(answers(&named), "{variable} names {}, and no Podman answers there", named.display());
            return named;
        }
        self.start()
    }

    /// Starts one of our own, unless it runs already. It needs root and `podman`.
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
            // Not in the group of the test, which may be ended as a whole.
            .process_group(0);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("start podman: {error}; install it (apt-get install podman)"));
        std::fs::write(dir.join("service.pid"), child.id().to_string()).expect("write down who it is");
        comes_up(&mut child, &socket, &dir.join("service.log"), "podman");
        socket
    }

    /// Ends the one that [`Self::start`] has started, here or in another process, and removes what it kept. While another
    /// process uses it, it is left alone; answers whether it is gone.
    pub fn stop(self) -> bool {
        let dir = self.dir();
        let _only_one = lock(self.word());
        self.in_use().let_go();
        // Held to the end: whoever comes meanwhile waits, finds no service and starts one.
        let users = lock_file(self.in_use().name());
        if users.try_lock().is_err() {
            return false;
        }
        if dir.join("containers.conf").exists() {
            // Whatever a test that was killed has left.
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
            // It goes on in a namespace of its own, as another process, whatever became of the one that was started.
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
        // Of each command that was run through it one stays for minutes, in case someone asks how it ended.
        for pid in host::called("conmon", &format!("{}/", dir.display())) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        // Podman mounts its storage onto itself, and leaves that.
        host::unmount_below(&dir);
        // What belongs to ids of the user's range is the user's to remove, and root's too.
        std::fs::remove_dir_all(dir).is_ok()
    }

    /// The one that holds the user's namespace between two commands.
    fn end_pause_process(dir: &Path) {
        for pid in host::walk(dir, false).into_iter().filter(|path| path.ends_with("pause.pid")) {
            let pid = std::fs::read_to_string(pid).ok().and_then(|pid| pid.trim().parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// Podman's own command line, on the same storage.
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
        // Registries of tests speak plainly; Docker lets those on loopback by itself.
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

/// A small image on a service; see [`docker::image_on`].
pub fn image_on(socket: &Path) -> String {
    docker::image_on(socket)
}
