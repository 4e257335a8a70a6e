//! A rootless Docker engine for tests, started by Docker's own script. If there is no engine, tests fail with a hint;
//! they are never skipped.
//!
//! The functions block. Tests and programs that prepare a test run can call them.

use crate::docker::{InUse, answers, comes_up, lock, lock_file, outliving};
use crate::{host, testers_ids, within_blocking};
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// The environment variable with the socket of the rootless engine to use.
pub const SOCKET_VARIABLE: &str = "KENNEL_TEST_DOCKER_ROOTLESS_SOCKET";

/// The path of the script in Debian's package.
pub const SCRIPT: &str = "/usr/share/docker.io/contrib/dockerd-rootless.sh";

const WORD: &str = "docker-rootless";

static USERS: InUse = InUse::new("docker-rootless-users");

/// Returns the socket of a running rootless engine: that of [`SOCKET_VARIABLE`], or that of an engine started here.
pub fn socket() -> PathBuf {
    if let Some(named) = crate::environment::variable(SOCKET_VARIABLE) {
        let named = PathBuf::from(named);
        assert!(answers(&named), "{SOCKET_VARIABLE} names {}, and no Docker engine answers there", named.display());
        return named;
    }
    start()
}

/// Starts the rootless engine for tests as the user `kennel-tester`, unless it already runs. This needs root, `dockerd`
/// and `rootlesskit`.
pub fn start() -> PathBuf {
    let dir = dir();
    let socket = dir.join("docker.sock");
    USERS.hold();
    if answers(&socket) {
        return socket;
    }
    let root = rustix::process::geteuid().is_root();
    assert!(root, "only root can start a Docker as another user: name a socket in {SOCKET_VARIABLE}");
    let _only_one = lock(WORD);
    if answers(&socket) {
        return socket;
    }
    let (user, group) = testers_ids();
    for place in ["home", "xdg", "data"] {
        let place = dir.join(place);
        std::fs::create_dir_all(&place).expect("make a place for dockerd");
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o700)).expect("make it private");
        chown(&place, Some(user), Some(group)).expect("give it to its user");
    }
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("open the place of dockerd");
    chown(&dir, Some(user), Some(group)).expect("give it to its user");
    let log = File::create(dir.join("dockerd.log")).expect("make a log for dockerd");
    let mut command = outliving("sh");
    command
        .arg(SCRIPT)
        .arg("--data-root")
        .arg(dir.join("data"))
        .arg("-H")
        .arg(format!("unix://{}", socket.display()))
        .env("HOME", dir.join("home"))
        .env("XDG_RUNTIME_DIR", dir.join("xdg"))
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env_remove("DOCKER_HOST")
        .current_dir(&dir)
        .uid(user)
        .gid(group)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle on the log"))
        .stderr(log)
        // In its own process group, because that of the test may be killed as a whole.
        .process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("start a rootless dockerd: {error}"));
    let what = "a rootless dockerd (it needs apt-get install docker.io rootlesskit uidmap)";
    comes_up(&mut child, &socket, &dir.join("dockerd.log"), what);
    socket
}

/// Ends the engine that [`start`] started, in this process or another, and removes its files. It does nothing while
/// another process uses the engine. Returns whether the engine is gone.
pub fn stop() -> bool {
    let dir = dir();
    let _only_one = lock(WORD);
    USERS.let_go();
    // Held to the end: another process that needs one waits, finds none, and starts one.
    let users = lock_file(USERS.name());
    if users.try_lock().is_err() {
        return false;
    }
    // All its processes, and those of its containers, have this variable from the script.
    let mark = format!("XDG_RUNTIME_DIR={}", dir.join("xdg").display());
    let end = |signal| {
        let left = host::marked(&mark);
        for pid in left.iter().filter_map(|pid| rustix::process::Pid::from_raw(*pid as i32)) {
            let _ = rustix::process::kill_process(pid, signal);
        }
        left.is_empty()
    };
    // On SIGTERM, the engine ends its containers first.
    end(rustix::process::Signal::TERM);
    if !within_blocking(Duration::from_secs(30), || host::marked(&mark).is_empty()) {
        let gone = within_blocking(Duration::from_secs(30), || end(rustix::process::Signal::KILL));
        assert!(gone, "a rootless dockerd does not end");
    }
    host::unmount_below(&dir);
    // Files may belong to subordinate ids of the user. Root can remove them.
    std::fs::remove_dir_all(dir).is_ok()
}

fn dir() -> PathBuf {
    let dir = crate::environment::temp_dir().join(format!("kennel-test-{WORD}"));
    std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("make {}: {error}", dir.display()));
    dir
}
