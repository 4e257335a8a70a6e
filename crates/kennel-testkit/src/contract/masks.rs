//! Paths that no mount shows: Kennel's own directories, and the sockets of container engines.

use crate::inside::{code, ok, sh};
use crate::{Stage, programs, within_blocking};
use kennel_types::{ErrorCode, Mount, SandboxSpec, Support};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

fn mount(host: &Path, target: &str, read_only: bool) -> Mount {
    Mount { host: host.to_owned(), target: target.into(), read_only }
}

/// Returns a spec that mounts a directory above the user's settings twice, with that directory and the settings.
fn mounting(stage: &Stage) -> (SandboxSpec, PathBuf, PathBuf) {
    let settings = stage.home().settings();
    let top = settings.ancestors().nth(2).unwrap().to_owned();
    fs::create_dir_all(&top).unwrap();
    let mounts = vec![mount(&top, "/top", false), mount(&top, "/fixed", true)];
    (SandboxSpec { mounts, ..stage.spec() }, top, settings)
}

/// Kennel's own directories below a mount can be neither read nor changed inside, not even by renaming a parent.
pub async fn kennels_own_directories_are_masked(stage: &Stage) {
    let (spec, top, settings) = mounting(stage);
    fs::create_dir_all(&settings).unwrap();
    fs::write(settings.join("config.toml"), "secret").unwrap();
    fs::write(top.join("seen"), "seen").unwrap();
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    // The control: a process of the host can rename it.
    fs::rename(top.join(".config"), top.join("away")).unwrap();
    fs::rename(top.join("away"), top.join(".config")).unwrap();
    let sandbox = stage.started(&spec).await;
    for life in ["first", "second"] {
        assert_eq!(
            ok(&sandbox, "cat /top/seen /fixed/seen && echo x > /top/.config/other").await,
            "seenseen",
            "{life}"
        );
        ok(&sandbox, "mkdir -p /top/a/b && mv /top/a /top/c && rm -r /top/c").await;
        for script in [
            "cat /top/.config/kennel/config.toml",
            "cat /fixed/.config/kennel/config.toml",
            "echo x > /top/.config/kennel/config.toml",
            "echo x > /top/.config/kennel/new",
            "mkdir /top/.config/kennel/new",
            "mv /top/.config /top/away",
            "mv /top/.config/kennel /top/away",
            "rmdir /top/.config/kennel",
            "rm -rf /top/.config",
        ] {
            assert!(!sh(&sandbox, script).await.status.success(), "{script}, in its {life} life");
        }
        assert_eq!(fs::read(settings.join("config.toml")).unwrap(), b"secret");
        assert_eq!(fs::read_dir(&settings).unwrap().count(), 1);
        sandbox.stop(Duration::ZERO).await.unwrap();
        sandbox.start().await.unwrap();
    }
}

/// A directory of Kennel's that does not exist yet cannot be created inside.
pub async fn missing_kennel_directory_cannot_be_created(stage: &Stage) {
    let (spec, top, settings) = mounting(stage);
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    assert!(!settings.exists());
    let sandbox = stage.started(&spec).await;
    let make = |dir: &str| format!("mkdir -p /top/{dir} && echo x > /top/{dir}/config.toml");
    assert!(!sh(&sandbox, &make(".config/kennel")).await.status.success());
    assert!(!settings.join("config.toml").exists());
    ok(&sandbox, &make(".other/kennel")).await;
    assert_eq!(fs::read(top.join(".other/kennel/config.toml")).unwrap(), b"x\n");
}

/// A mount of one of Kennel's own directories, or of a path in one, is refused.
pub async fn mount_of_kennel_directory_is_refused(stage: &Stage) {
    let (spec, _, settings) = mounting(stage);
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    fs::create_dir_all(settings.join("below")).unwrap();
    for host in [settings.clone(), settings.join("below"), stage.home().state(), "/".into(), "/proc".into()] {
        for read_only in [false, true] {
            let spec = SandboxSpec { mounts: vec![mount(&host, "/x", read_only)], ..stage.spec() };
            assert_eq!(code(stage.try_create(&spec).await), ErrorCode::InvalidConfig, "{}", host.display());
        }
    }
}

/// Listens on a socket, and sends the same reply to every request.
fn serve(path: &Path, answer: &'static str) {
    let listener = UnixListener::bind(path).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
}

/// A process that listens on a socket under a given program name. It is killed when this is dropped.
struct Listening(Child);

impl Listening {
    fn start(program: &Path, socket: &Path) -> Self {
        programs::compile(programs::KNOCK, program);
        let listening = Self(Command::new(program).arg("listen").arg(socket).spawn().unwrap());
        assert!(within_blocking(crate::inside::SOON, || UnixStream::connect(socket).is_ok()));
        fs::set_permissions(socket, PermissionsExt::from_mode(0o777)).unwrap();
        listening
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sockets of container engines are masked. They are recognised by their replies or by the program that listens. Other
/// sockets can be used.
pub async fn engine_sockets_are_masked(stage: &Stage) {
    let top = stage.home().path().join("sockets");
    fs::create_dir_all(top.join("run")).unwrap();
    let (docker, engine, app) = (top.join("run/docker.sock"), top.join("engine.sock"), top.join("app.sock"));
    let spec = SandboxSpec { mounts: vec![mount(&top, "/top", false)], ..stage.spec() };
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    programs::compile(programs::KNOCK, &top.join("knock"));
    serve(&docker, "HTTP/1.0 200 OK\r\nApi-Version: 1.41\r\n\r\nOK");
    serve(&app, "hello");
    let _engine = Listening::start(&stage.home().path().join("dockerd"), &engine);
    let sandbox = stage.started(&spec).await;
    let knock = |path: &str| format!("echo hello | /top/knock {path}");
    assert_eq!(ok(&sandbox, &knock("/top/app.sock")).await, "hello");
    for socket in ["run/docker.sock", "engine.sock"] {
        UnixStream::connect(top.join(socket)).expect("whoever is not in a sandbox can connect");
        assert!(!sh(&sandbox, &knock(&format!("/top/{socket}"))).await.status.success(), "{socket}");
        // The mask moves with the socket's directory.
        sh(&sandbox, "mv /top/run /top/away").await;
        assert!(!sh(&sandbox, &knock("/top/away/docker.sock")).await.status.success());
        sh(&sandbox, "mv /top/away /top/run").await;
    }
    for socket in [&docker, &engine] {
        let spec = SandboxSpec { mounts: vec![mount(socket, "/socket", false)], ..stage.spec() };
        let error = stage.try_create(&spec).await.err().expect("it is refused");
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
        assert!(error.to_string().contains("engine"), "{error}");
    }
    let mounts = vec![mount(&top, "/top", true), mount(&app, "/app.sock", false)];
    let sandbox = stage.started(&SandboxSpec { mounts, ..stage.spec() }).await;
    assert_eq!(ok(&sandbox, &knock("/app.sock")).await, "hello");
}
