//! What fails around `kennel serve`: the disk, the database, an engine. Each has its own error, and nothing is lost.

use crate::server::Serving;
use crate::support::{CALL, Kennel, hear};
use kennel_testkit::{docker, within_blocking};
use serde_json::{Value, json};
use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn code(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["error"]["code"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
}

#[test]
fn a_full_disk_has_its_own_error_and_leaves_nothing() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let token = server.token();
    server.post(&token, "/v1/sandboxes", &json!({"name": "box", "network": "none"}), 201);
    let (large, small) = (kennel.here().join("large"), kennel.here().join("small"));
    std::fs::write(&large, vec![7; 100 << 20]).unwrap();
    std::fs::write(&small, "small").unwrap();
    let upload = |file: &Path| ["--upload-file".to_owned(), file.display().to_string()];
    let put = |file: &Path| {
        let arguments = upload(file);
        server.curl(&token, &arguments.each_ref().map(String::as_str), "/v1/sandboxes/box/files?path=/dev/shm/file")
    };
    // The memory file system of a sandbox has 64 MiB.
    assert_eq!(put(&small).0, 204);
    let (status, body) = put(&large);
    assert_eq!((status, code(&body).as_str()), (507, "limit_exceeded"));
    let listed = json!({"shell": "ls -A /dev/shm; cat /dev/shm/file"});
    let done = server.post(&token, "/v1/sandboxes/box/exec", &listed, 200);
    assert_eq!(done["stdout"], "file\nsmall", "the file is as it was, and nothing is beside it");
    kennel.kennel(&["rm", "--force", "box"]).ok();
}

#[test]
fn a_locked_database_delays_nobody_who_does_not_write() {
    const LOCK: &str = "import sqlite3, sys
store = sqlite3.connect(sys.argv[1], isolation_level=None)
store.execute('BEGIN IMMEDIATE')
print('locked', flush=True)
sys.stdin.read()";
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let token = server.token();
    server.post(&token, "/v1/sandboxes", &json!({"name": "box", "network": "none"}), 201);
    let mut locking = Command::new("python3");
    locking.args(["-c", LOCK]).arg(server.state.join("kennel.db")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut locking = locking.spawn().unwrap();
    hear(locking.stdout.as_mut().unwrap(), "locked\n");
    // Commands and lists only read.
    let done = server.post(&token, "/v1/sandboxes/box/exec", &json!({"argv": ["echo", "hi"]}), 200);
    assert_eq!(done["stdout"], "hi\n");
    let key = ["--header", "Idempotency-Key: once", "--json", r#"{"network": "none"}"#];
    let (status, body) = server.curl(&token, &key, "/v1/sandboxes");
    assert_eq!((status, code(&body).as_str()), (504, "timeout"));
    assert_eq!(kennel.kennel(&["ls", "-q"]).ok().lines().count(), 1, "nothing was created");
    drop(locking.stdin.take());
    locking.wait().unwrap();
    let (status, body) = server.curl(&token, &key, "/v1/sandboxes");
    assert_eq!(status, 201, "{}", String::from_utf8_lossy(&body));
    let ids = kennel.kennel(&["ls", "-q"]).ok();
    assert_eq!(ids.lines().count(), 2);
    for id in ids.lines() {
        kennel.kennel(&["rm", "--force", id]).ok();
    }
}

/// A socket that leads to the engine, unless it is switched off.
struct Switch {
    path: PathBuf,
    is_off: Arc<AtomicBool>,
}

impl Switch {
    fn to(engine: PathBuf, path: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let is_off = Arc::<AtomicBool>::default();
        let off = is_off.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A connection that is closed at once is what a client sees of an engine that ends.
                let (Ok(stream), false) = (stream, off.load(Ordering::Relaxed)) else { continue };
                let Ok(inside) = UnixStream::connect(&engine) else { continue };
                let off = off.clone();
                std::thread::spawn(move || join(&stream, &inside, &off));
            }
        });
        Self { path, is_off }
    }
}

/// Copies between two sockets until one is closed, or the switch is off.
fn join(client: &UnixStream, engine: &UnixStream, off: &AtomicBool) {
    std::thread::scope(|scope| {
        for (mut from, mut to) in [(client, engine), (engine, client)] {
            scope.spawn(move || {
                let _ = from.set_read_timeout(Some(std::time::Duration::from_millis(100)));
                let mut buffer = [0; 1 << 13];
                loop {
                    match std::io::Read::read(&mut from, &mut buffer) {
                        Ok(count) if count > 0 && to.write_all(&buffer[..count]).is_ok() => {}
                        Err(error)
                            if error.kind() == std::io::ErrorKind::WouldBlock && !off.load(Ordering::Relaxed) => {}
                        _ => break,
                    }
                }
                let how =
                    if off.load(Ordering::Relaxed) { std::net::Shutdown::Both } else { std::net::Shutdown::Write };
                let _ = to.shutdown(how);
            });
        }
    });
}

#[test]
fn an_engine_that_is_gone_for_a_while_has_its_own_error() {
    let kennel = Kennel::on("docker");
    let switch = Switch::to(docker::socket(), kennel.home.path().join("engine.sock"));
    let mut call = kennel.call(&["serve", "--listen", "127.0.0.1:0"]);
    call.env("DOCKER_HOST", format!("unix://{}", switch.path.display()));
    let server = Serving::start_by(&kennel, &mut call);
    let token = server.token();
    let image = kennel.image().unwrap();
    // All tests share an engine, so the sandbox has a random name.
    let made = server.post(&token, "/v1/sandboxes", &json!({"image": image, "network": "none"}), 201);
    let path = |rest: &str| format!("/v1/sandboxes/{}{rest}", made["id"].as_str().unwrap());
    let echo = json!({"argv": ["echo", "hi"]});
    assert_eq!(server.post(&token, &path("/exec"), &echo, 200)["stdout"], "hi\n");
    switch.is_off.store(true, Ordering::Relaxed);
    let create = json!({"image": image, "network": "none"}).to_string();
    let failed = || server.curl(&token, &["--json", &create], "/v1/sandboxes");
    let is_told = || {
        let (status, body) = failed();
        status == 503 && code(&body) == "not_available"
    };
    assert!(within_blocking(CALL, is_told), "{:?}", failed());
    assert_eq!(server.curl(&token, &[], "/healthz").0, 200);
    switch.is_off.store(false, Ordering::Relaxed);
    let works = || {
        let (status, body) = server.curl(&token, &["--json", &echo.to_string()], &path("/exec"));
        status == 200 && String::from_utf8_lossy(&body).contains("hi")
    };
    assert!(within_blocking(CALL, works), "it works again");
    assert_eq!(server.curl(&token, &["--request", "DELETE"], &path("?force=true&volumes=true")).0, 204);
}
