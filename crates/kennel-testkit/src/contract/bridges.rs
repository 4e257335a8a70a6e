//! Bridges: programs inside connect to Unix sockets of the host.

use super::sockets::{PROGRAM, put_program};
use crate::inside::{self, SOON, code, ok};
use crate::{Stage, eventually};
use kennel_core::{HostSocket, ListenAt, Sandbox, Target};
use kennel_types::{ErrorCode, ExecSpec, NetworkMode, SandboxSpec, SocketBridge, Support};
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

/// In a directory that does not exist, below one that only root inside may change.
const TARGET: &str = "/tmp/kennel-test/service.sock";

/// A directory of the host for sockets, whose path contains no symlinks.
fn dir(stage: &Stage) -> PathBuf {
    let dir = stage.home().path().join("sockets-of-the-host");
    std::fs::create_dir_all(&dir).unwrap();
    dir.canonicalize().unwrap()
}

fn spec(stage: &Stage, sockets: &[(&Path, &str)]) -> SandboxSpec {
    let bridge = |(host, target): &(&Path, &str)| SocketBridge { host: host.into(), target: (*target).into() };
    let network = if stage.mode().networks.contains(&NetworkMode::None) { Some(NetworkMode::None) } else { None };
    SandboxSpec { network, sockets: sockets.iter().map(bridge).collect(), ..stage.spec() }
}

/// A program of the host that sends everything back, with a word before it.
fn echo(path: &Path, word: &'static [u8]) -> tokio::task::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.write_all(word).await;
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    })
}

/// Creates and starts a sandbox with one bridge, and serves it. Returns `None` if the mode refuses bridges, as it must.
async fn bridged(stage: &Stage, host: &Path) -> Option<(Sandbox, tokio::task::JoinHandle<kennel_core::Error>)> {
    let spec = spec(stage, &[(host, TARGET)]);
    if stage.mode().sockets == Support::Refused {
        stage.refuses(&spec).await;
        return None;
    }
    let sandbox = stage.started(&spec).await;
    let serving = serve(&sandbox, host).await;
    put_program(stage, &sandbox).await;
    Some((sandbox, serving))
}

async fn serve(sandbox: &Sandbox, host: &Path) -> tokio::task::JoinHandle<kennel_core::Error> {
    let bridges = sandbox.bridge([(HostSocket::open(host).unwrap(), TARGET.to_owned())]).await.unwrap();
    tokio::spawn(bridges.serve())
}

/// Sends bytes from inside, and returns what comes back.
async fn send(sandbox: &Sandbox, bytes: &[u8], user: Option<&str>) -> (bool, Vec<u8>) {
    let spec =
        ExecSpec { user: user.map(ToOwned::to_owned), ..ExecSpec::argv([PROGRAM, "send", &format!("unix:{TARGET}")]) };
    let output = tokio::time::timeout(SOON, sandbox.run(&spec, Some(bytes), 8 << 20)).await.expect("it ends").unwrap();
    (output.status.success(), output.stdout)
}

/// Programs inside connect to a socket of the host without a network, as any user. Each side can close its direction first.
pub async fn programs_inside_use_a_socket_of_the_host(stage: &Stage) {
    let path = dir(stage).join("service.sock");
    let server = echo(&path, b"welcome ");
    let Some((sandbox, _serving)) = bridged(stage, &path).await else { return };
    assert_eq!(send(&sandbox, b"hello", None).await, (true, b"welcome hello".to_vec()));
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let (_, back) = send(&sandbox, &large, None).await;
    assert_eq!((back.len(), back[8..] == *large), (8 + large.len(), true), "every byte comes back");
    if stage.mode().users == Support::Given {
        let (succeeded, back) = send(&sandbox, b"other", Some("65534:65534")).await;
        assert_eq!((succeeded, back), (true, b"welcome other".to_vec()), "it is for every user inside");
    }
    let shown = &sandbox.inspect().await.unwrap().labels["kennel.sockets"];
    assert_eq!(*shown, format!("[\"{}:{TARGET}\"]", path.display()));
    let together: Vec<_> = (0..40)
        .map(|_| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { send(&sandbox, b"x", None).await })
        })
        .collect();
    for one in together {
        assert_eq!(one.await.unwrap(), (true, b"welcome x".to_vec()));
    }

    // Another socket at the same path is not used instead, and when nobody listens, the connection ends.
    server.abort();
    let _ = server.await;
    std::fs::remove_file(&path).unwrap();
    let other = echo(&path, b"other ");
    let (_, back) = send(&sandbox, b"hello", None).await;
    assert_eq!(back, b"", "the connection went to the other socket");

    // Served again after a restart, it is the socket that is there then.
    sandbox.stop(std::time::Duration::from_secs(10)).await.unwrap();
    sandbox.start().await.unwrap();
    let _serving = serve(&sandbox, &path).await;
    put_program(stage, &sandbox).await;
    assert_eq!(send(&sandbox, b"hello", None).await, (true, b"other hello".to_vec()));
    other.abort();
}

/// The socket inside goes away with whoever serves it, and serving ends with the sandbox.
pub async fn bridge_ends_with_its_sandbox(stage: &Stage) {
    let path = dir(stage).join("service.sock");
    let server = echo(&path, b"");
    let Some((sandbox, serving)) = bridged(stage, &path).await else { return };
    let files = inside::files(&sandbox).await;
    serving.abort();
    let gone = async || files.stat(TARGET, false).await.is_err_and(|error| error.code() == ErrorCode::NotFound);
    eventually("the socket inside is removed", gone).await;
    let serving = serve(&sandbox, &path).await;
    sandbox.stop(std::time::Duration::from_secs(10)).await.unwrap();
    tokio::time::timeout(SOON, serving).await.expect("it ends with the sandbox").unwrap();
    server.abort();
}

/// A socket on which the keeper listens is not use of the sandbox, and a connection to it is.
pub async fn bridge_is_not_use_and_its_connections_are(stage: &Stage) {
    let path = dir(stage).join("service.sock");
    let server = echo(&path, b"");
    let Some((sandbox, _serving)) = bridged(stage, &path).await else { return };
    let in_use = async || sandbox.idle().await.unwrap().in_use;
    eventually("nothing uses it", async || !in_use().await).await;
    // A process that a command has left behind is not use, but its open connection is.
    let script = format!("{PROGRAM} crowd unix:{TARGET} 1 >/dev/null 2>&1 & echo $!");
    let pid = ok(&sandbox, &script).await;
    eventually("the connection is open", async || in_use().await).await;
    ok(&sandbox, &format!("kill {pid}")).await;
    eventually("the connection is closed", async || !in_use().await).await;

    // Nobody accepts this one.
    let listener = sandbox.listen(&ListenAt::Unix { path: b"/tmp/waiting".to_vec(), mode: 0o600 }, None).await.unwrap();
    assert!(!in_use().await, "nobody is connected");
    let stream = sandbox.connect(&Target::Unix(b"/tmp/waiting".to_vec()), None).await.unwrap();
    drop(stream);
    eventually("a connection waits", async || in_use().await).await;
    drop(listener);
    eventually("nobody listens", async || !in_use().await).await;
    server.abort();
}

/// Bridges that cannot be served, or that would give the host away, are refused before anything is created.
pub async fn wrong_bridges_are_refused(stage: &Stage) {
    let dir = dir(stage);
    let path = dir.join("service.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    if stage.mode().sockets == Support::Refused {
        let spec = spec(stage, &[(&path, "/tmp/x.sock")]);
        let error = stage.try_create(&spec).await.err().expect("it is refused");
        assert_eq!(error.code(), ErrorCode::Unsupported);
        assert!(error.to_string().contains("/tmp/x.sock"), "{error}");
        return;
    }
    std::fs::write(dir.join("file"), "").unwrap();
    std::os::unix::fs::symlink("service.sock", dir.join("link")).unwrap();
    // Named like an engine's, and it does not say that it is none.
    let engine = UnixListener::bind(dir.join("docker.sock")).unwrap();
    let said = async |host: &Path, targets: &[&str]| {
        let sockets: Vec<(&Path, &str)> = targets.iter().map(|target| (host, *target)).collect();
        let error = stage.try_create(&spec(stage, &sockets)).await.err().expect("it is refused");
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
        error.to_string()
    };
    for (host, why) in [
        ("absent", "No such file"),
        ("file", "it is not a socket"),
        ("link", "it is not a socket"),
        ("docker.sock", "a container engine listens there"),
    ] {
        let message = said(&dir.join(host), &["/tmp/x.sock"]).await;
        assert!(message.contains(why) && message.contains(host), "{message}");
    }
    drop(engine);
    assert!(said(Path::new("service.sock"), &["/tmp/x"]).await.contains("must be absolute"));
    assert!(said(&path, &["x"]).await.contains("must be absolute"));
    assert!(said(&path, &["/tmp/"]).await.contains("end in a name"));
    assert!(said(&path, &["/tmp/../x"]).await.contains("must not contain"));
    assert!(said(&path, &["/tmp/x", "/tmp//x"]).await.contains("the same path inside"));
    let many: Vec<String> = (0..=SocketBridge::MOST).map(|number| format!("/tmp/{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(said(&path, &many).await.contains("at most 16"));
    assert!(stage.provider().list().await.unwrap().iter().all(|found| !found.labels.contains_key("kennel.sockets")));

    // What is in its place inside is not replaced.
    let sandbox = stage.started(&spec(stage, &[(&path, "/etc/passwd")])).await;
    let refused = sandbox.bridge([(HostSocket::open(&path).unwrap(), "/etc/passwd".to_owned())]).await;
    assert_eq!(code(refused), ErrorCode::AlreadyExists);
}
