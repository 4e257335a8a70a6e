//! What is specific to this provider: other programs use the engine too, it may be down, and the test can query it
//! directly. What all providers have in common is in the contract suite.

use kennel_core::{Provider, RemoveOptions, Sandbox, Sweep, VolumeOptions};
use kennel_docker::{Docker, DockerOptions, EngineKind, NamePrefix, UnixDialer};
use kennel_testkit::{Home, docker, programs};
use kennel_types::{
    ErrorCode, ExecSpec, Leftover, Mount, NetworkMode, NextStep, Owner, SandboxId, SandboxSpec, Status,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const FORCE: RemoveOptions = RemoveOptions { volumes: true, force: true };

/// A provider in its own home.
struct Fixture {
    home: Home,
    provider: Arc<Docker>,
    socket: PathBuf,
    image: String,
}

impl Fixture {
    fn new() -> Self {
        let home = Home::new();
        let socket = docker::socket();
        let image = docker::image_on(&socket);
        let provider = Arc::new(Self::open(&home, &socket, NamePrefix::default()));
        Self { home, provider, socket, image }
    }

    fn open(home: &Home, socket: &Path, name_prefix: NamePrefix) -> Docker {
        let options = DockerOptions {
            state_dir: home.state(),
            program_dir: home.path().join("programs"),
            expected: EngineKind::Docker,
            installation: home.mark(),
            name_prefix,
        };
        Docker::new(options, Arc::new(UnixDialer::new(socket)))
    }

    /// Opens the same installation, with another prefix for new containers.
    fn with_prefix(&self, prefix: &str) -> Arc<Docker> {
        Arc::new(Self::open(&self.home, &self.socket, NamePrefix::new(prefix).unwrap()))
    }

    /// Returns a name that no other test uses, because tests share the engine.
    fn name(&self, word: &str) -> String {
        format!("{word}-{}", self.home.mark().to_lowercase())
    }

    fn spec(&self) -> SandboxSpec {
        SandboxSpec { image: Some(self.image.clone()), network: Some(NetworkMode::None), ..SandboxSpec::default() }
    }

    async fn started(&self, spec: &SandboxSpec) -> Sandbox {
        let sandbox = Sandbox::create(self.provider.clone(), spec).await.unwrap();
        sandbox.start().await.unwrap();
        sandbox
    }

    /// Queries the engine directly, not through the provider.
    fn docker(&self, arguments: &[&str]) -> String {
        docker::docker(&self.socket, arguments)
    }

    async fn clean(&self) {
        for info in self.provider.list().await.unwrap() {
            self.provider.remove(&info.id, FORCE).await.unwrap();
        }
        assert_eq!(run_dirs(&self.home), [""; 0]);
    }
}

fn run_dirs(home: &Home) -> Vec<String> {
    let entries = std::fs::read_dir(run_root(home)).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect()
}

/// Returns the directory with the engine's run directories.
fn run_root(home: &Home) -> PathBuf {
    let mut engines = std::fs::read_dir(home.state()).unwrap().flatten();
    let root = engines.next().map_or_else(|| home.state().join("none"), |entry| entry.path());
    assert!(engines.next().is_none(), "one engine has one directory");
    root
}

/// Opens a provider on the engine at this socket.
fn taken_for(expected: EngineKind, home: &Path, socket: &Path) -> Docker {
    let options = DockerOptions {
        state_dir: home.join("state"),
        program_dir: home.join("programs"),
        expected,
        installation: "x".into(),
        name_prefix: NamePrefix::default(),
    };
    Docker::new(options, Arc::new(UnixDialer::new(socket)))
}

async fn run(sandbox: &Sandbox, script: &str) -> String {
    let output = sandbox.run(&ExecSpec::shell(script), None, 100_000).await.unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)).trim().to_owned()
}

#[tokio::test]
async fn a_malformed_reply_of_the_engine_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("docker.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let answer = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
    });
    let provider = taken_for(EngineKind::Docker, home.path(), &socket);
    assert_eq!(provider.list().await.unwrap_err().code(), ErrorCode::NotAvailable);
    answer.await.unwrap();
}

#[tokio::test]
async fn another_installation_sees_and_touches_nothing() {
    let (ours, theirs) = (Fixture::new(), Fixture::new());
    let sandbox = ours.started(&ours.spec()).await;
    assert_eq!(theirs.provider.list().await.unwrap(), []);
    assert_eq!(theirs.provider.get(sandbox.id().as_str()).await.unwrap_err().code(), ErrorCode::NotFound);
    assert_eq!(theirs.provider.remove(sandbox.id(), FORCE).await.unwrap_err().code(), ErrorCode::NotFound);
    assert_eq!(run(&sandbox, "echo alive").await, "alive");
    ours.clean().await;
}

#[tokio::test]
async fn commands_run_as_the_owner_with_a_name_and_a_home() {
    let fixture = Fixture::new();
    let spec = SandboxSpec { owner: Some(Owner { uid: 4321, gid: 4322 }), ..fixture.spec() };
    let sandbox = fixture.started(&spec).await;
    assert_eq!(
        run(&sandbox, "id -u; id -g; echo $HOME; test -w $HOME && echo mine").await,
        "4321\n4322\n/home/kennel\nmine"
    );
    assert_eq!(run(&sandbox, "pwd; touch file && stat -c %u:%g file .").await, "/workspace\n4321:4322\n4321:4322");
    let mut root = ExecSpec::shell("id -u; echo $HOME");
    root.user = Some("root".into());
    let output = sandbox.run(&root, None, 1000).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n/root\n");
    fixture.clean().await;
}

#[tokio::test]
async fn kennels_directories_are_masked_below_a_mount() {
    let fixture = Fixture::new();
    let spec = SandboxSpec { workspace: Some(fixture.home.path().to_owned()), ..fixture.spec() };
    let sandbox = fixture.started(&spec).await;
    assert!(!run_dirs(&fixture.home).is_empty());
    assert_eq!(run(&sandbox, "ls -A state programs").await, "programs:\n\nstate:");
    assert!(run(&sandbox, "touch state/x").await.contains("Read-only"));
    fixture.clean().await;
}

/// Also if a proxy forwards the requests: the engine itself replies.
#[tokio::test]
async fn the_engines_socket_is_refused_and_masked() {
    let fixture = Fixture::new();
    let mounting = |host: &Path| {
        let mount = Mount { host: host.to_owned(), target: "/host".into(), read_only: true };
        SandboxSpec { mounts: vec![mount], ..fixture.spec() }
    };
    let dir = fixture.home.path().join("passed-on");
    std::fs::create_dir(&dir).unwrap();
    let listener = tokio::net::UnixListener::bind(dir.join("docker.sock")).unwrap();
    let engine = fixture.socket.clone();
    let passing_on = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut engine = tokio::net::UnixStream::connect(&engine).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut engine).await });
        }
    });
    for socket in [&fixture.socket, &dir.join("docker.sock")] {
        let error = fixture.provider.create(&kennel_core::new_id().unwrap(), &mounting(socket)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
    }
    let ping = "printf 'GET /_ping HTTP/1.0\r\n\r\n' | knock /host/docker.sock";
    let sandbox = fixture.started(&mounting(&dir)).await;
    assert!(!run(&sandbox, ping).await.contains("Api-Version"));
    // The control: without the mask, a container with the same mount reaches the engine.
    let (mount, image, socket) = (format!("{}:/host:ro", dir.display()), fixture.image.clone(), fixture.socket.clone());
    let plain = tokio::task::spawn_blocking(move || {
        docker::docker(&socket, &["run", "--rm", "--network", "none", "-v", &mount, &image, "sh", "-c", ping])
    });
    assert!(plain.await.unwrap().contains("Api-Version"));
    passing_on.abort();
    fixture.clean().await;
}

/// The engine's own filter would allow some of them, and no filter all of them.
#[tokio::test]
async fn kennels_seccomp_profile_allows_32_bit_programs() {
    use kennel_testkit::contract::isolation::{FILTERED, is_refusal};
    let fixture = Fixture::new();
    let program = fixture.home.workspace().join("calls");
    programs::compile(programs::SYSCALLS, &program);
    let plain = |words: &[&str]| {
        let mount = format!("{}:/workspace", fixture.home.workspace().display());
        let free = ["run", "--rm", "--network", "none", "--security-opt", "seccomp=unconfined", "-v", &mount];
        fixture.docker(&[&free[..], &[&fixture.image, "/workspace/calls"], words].concat())
    };
    let refused = |calls: &[&str], answers: &str| -> Vec<bool> {
        assert_eq!(answers.lines().count(), calls.len(), "{answers}");
        calls.iter().zip(answers.lines()).map(|(call, answer)| is_refusal(call, answer)).collect()
    };
    assert_eq!(refused(&FILTERED, &plain(&FILTERED)), [false; FILTERED.len()]);
    let sandbox = fixture.started(&SandboxSpec { workspace: Some(fixture.home.workspace()), ..fixture.spec() }).await;
    let answers = run(&sandbox, &format!("/workspace/calls {}", FILTERED.join(" "))).await;
    assert_eq!(refused(&FILTERED, &answers), [true; FILTERED.len()], "{answers}");
    // getpid, sockets of the families unix and vsock, socketcall, io_uring_setup.
    let narrow = ["32:20", "32:359:1:1", "32:359:40:1", "32:102", "32:425:1"];
    assert_eq!(refused(&narrow, &plain(&narrow)), [false; 5]);
    let answers = run(&sandbox, &format!("/workspace/calls {}", narrow.join(" "))).await;
    assert_eq!(refused(&narrow, &answers), [false, false, true, true, true], "{answers}");
    assert!(answers.starts_with("ok\nok\n"), "{answers}");
    fixture.clean().await;
}

#[tokio::test]
async fn a_refusal_of_the_engine_is_passed_on() {
    let fixture = Fixture::new();
    let mut spec = fixture.spec();
    spec.limits.millicpus = Some(1_000_000);
    let error = fixture.provider.create(&kennel_core::new_id().unwrap(), &spec).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
    assert!(error.to_string().contains("Docker says"), "{error}");
    fixture.clean().await;
}

#[tokio::test]
async fn leftovers_of_containers_that_are_gone_are_swept() {
    let fixture = Fixture::new();
    let sandbox = fixture.started(&fixture.spec()).await;
    let gone = run_root(&fixture.home).join("gone-long-ago");
    std::fs::create_dir(&gone).unwrap();
    let past = std::time::SystemTime::now() - Duration::from_mins(5);
    for dir in [&gone, &run_root(&fixture.home).join(sandbox.id().as_str())] {
        std::fs::File::open(dir).unwrap().set_modified(past).unwrap();
    }
    fixture.provider.list().await.unwrap();
    let id = SandboxId::new("gone-long-ago").unwrap();
    for action in [Sweep::Report, Sweep::Remove] {
        assert!(gone.exists(), "neither a listing nor a report removes anything");
        let found = fixture.provider.sweep(action).await.unwrap();
        assert_eq!(found, [Leftover::RunDirectory { id: id.clone() }]);
    }
    assert_eq!(run_dirs(&fixture.home), [sandbox.id().as_str()]);
    assert_eq!(run(&sandbox, "echo alive").await, "alive");
    fixture.clean().await;
}

#[tokio::test]
async fn a_sandbox_stops_without_its_keeper() {
    let fixture = Fixture::new();
    let sandbox = fixture.started(&fixture.spec()).await;
    sandbox.hang_up().await;
    let socket = run_root(&fixture.home).join(sandbox.id().as_str()).join("sock");
    std::fs::remove_file(&socket).unwrap();
    std::os::unix::fs::symlink(&fixture.socket, &socket).unwrap();
    let error = sandbox.exec(&ExecSpec::argv(["true"])).await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::PermissionDenied, "{error}");
    sandbox.stop(Duration::from_secs(2)).await.unwrap();
    assert_eq!(sandbox.inspect().await.unwrap().status, Status::Stopped);
    sandbox.start().await.unwrap();
    assert_eq!(run(&sandbox, "echo well again").await, "well again");
    fixture.clean().await;
}

#[tokio::test]
async fn a_container_is_found_whatever_its_name_begins_with() {
    let fixture = Fixture::new();
    let (dogs, cats) = (fixture.with_prefix("dog-"), fixture.with_prefix("Cat_"));
    let named = |word: &str| SandboxSpec { name: Some(fixture.name(word)), ..fixture.spec() };
    let container = |id: &str| fixture.docker(&["inspect", "--format", "{{.Name}}", id]);
    let sandbox = Sandbox::create(dogs.clone(), &named("box")).await.unwrap();
    sandbox.start().await.unwrap();
    let listed = fixture.docker(&["ps", "-q", "--filter", &format!("label=kennel.id={}", sandbox.id())]);
    assert_eq!(container(listed.trim()).trim(), format!("/dog-{}", fixture.name("box")));
    // A later process, with the same prefix or another, finds it by its id and its name, and can use it.
    for provider in [fixture.provider.clone(), cats.clone(), fixture.with_prefix("dog-")] {
        for text in [sandbox.id().as_str(), &fixture.name("box")] {
            let found = Sandbox::find(provider.clone(), text).await.unwrap();
            assert_eq!((found.id(), &found.info().name), (sandbox.id(), &fixture.name("box")));
            assert_eq!(run(&found, "echo hello").await, "hello");
        }
        assert_eq!(provider.list().await.unwrap().len(), 1);
        let dog = format!("dog-{}", fixture.name("box"));
        assert_eq!(
            provider.get(&dog).await.unwrap_err().code(),
            ErrorCode::NotFound,
            "this is not the name of a sandbox"
        );
    }
    // Another program renames the container, and keeps its prefix.
    cats.rename(sandbox.id(), &fixture.name("crate")).await.unwrap();
    assert_eq!(container(listed.trim()).trim(), format!("/dog-{}", fixture.name("crate")));
    assert_eq!(fixture.provider.get(&fixture.name("crate")).await.unwrap().id, *sandbox.id());
    assert_eq!(dogs.get(&fixture.name("box")).await.unwrap_err().code(), ErrorCode::NotFound);
    // A name belongs to one sandbox, whatever the prefix of its container.
    let error = cats.create(&kennel_core::new_id().unwrap(), &named("crate")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AlreadyExists, "{error}");
    assert!(error.to_string().contains(&format!("there is a container dog-{}", fixture.name("crate"))), "{error}");
    let other = cats.create(&kennel_core::new_id().unwrap(), &named("other")).await.unwrap();
    let error = cats.rename(&other.id, &fixture.name("crate")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AlreadyExists, "{error}");
    fixture.clean().await;
}

#[tokio::test]
async fn one_name_is_given_once_whatever_the_prefix() {
    let fixture = Fixture::new();
    let spec = SandboxSpec { name: Some(fixture.name("only-one")), ..fixture.spec() };
    for _ in 0..3 {
        let providers = ["a-", "b-", "c-", "d-"].map(|prefix| fixture.with_prefix(prefix));
        let attempts = futures_util::future::join_all(
            providers.iter().map(async |provider| provider.create(&kennel_core::new_id().unwrap(), &spec).await),
        )
        .await;
        let (made, refused): (Vec<_>, Vec<_>) = attempts.into_iter().partition(Result::is_ok);
        assert_eq!(made.len(), 1, "{made:?}");
        for error in refused.into_iter().map(Result::unwrap_err) {
            assert_eq!(error.code(), ErrorCode::AlreadyExists, "{error}");
        }
        assert_eq!(fixture.provider.list().await.unwrap().len(), 1);
        fixture.clean().await;
    }
}

#[tokio::test]
async fn a_silent_keeper_fails_the_start() {
    let fixture = Fixture::new();
    let program = kennel_keeper_bin::KEEPER.install(&fixture.home.path().join("programs")).unwrap();
    programs::replace(&program, "exec tail -f \"$0\"");
    // Shorter, and longer, than the engine's own time limit.
    for millis in [1, 2000] {
        let spec = SandboxSpec { startup_ms: Some(millis), ..fixture.spec() };
        let sandbox = Sandbox::create(fixture.provider.clone(), &spec).await.unwrap();
        let error = sandbox.start().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::StartFailed, "{error}");
        let within = Duration::from_millis(millis);
        assert_eq!(error.to_string(), format!("start sandbox {}: it took longer than {within:?}", sandbox.id()));
        assert!(matches!(error.next_step(), Some(NextStep::AllowLongerStart { .. })), "{error:?}");
        assert_eq!(sandbox.inspect().await.unwrap().status, Status::Stopped, "a failed start leaves it stopped");
    }
    fixture.clean().await;
}

#[tokio::test]
async fn collected_output_equals_that_of_docker_exec() {
    const SIZE: usize = 20 * 1024 * 1024;
    let fixture = Fixture::new();
    let name = fixture.name("same");
    let sandbox = fixture.started(&SandboxSpec { name: Some(name.clone()), ..fixture.spec() }).await;
    // All byte values, the same each time, on both output streams and from standard input.
    let input: Vec<u8> = (0..SIZE).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let script = "cat; head -c 1000000 /bin/busybox >&2";
    let ours = sandbox.run(&ExecSpec::shell(script), Some(&input), SIZE * 2).await.unwrap();
    assert_eq!(ours.status.code, Some(0));
    let file = fixture.home.path().join("input");
    std::fs::write(&file, &input).unwrap();
    let mut theirs = std::process::Command::new("docker");
    theirs.arg("--host").arg(format!("unix://{}", fixture.socket.display()));
    theirs.args(["exec", "-i", &format!("kennel-{name}"), "sh", "-c", script]);
    let theirs = theirs.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert!(ours.stdout == input && theirs.stdout == input, "{} and {} bytes", ours.stdout.len(), theirs.stdout.len());
    assert!(ours.stderr == theirs.stderr && !ours.stderr.is_empty());
    fixture.clean().await;
}

/// Docker measures volumes for one caller at a time, and refuses the others.
#[tokio::test]
async fn several_callers_measure_volumes_at_once() {
    let fixture = Fixture::new();
    let spec = SandboxSpec { name: Some(fixture.name("measured")), data: true, ..fixture.spec() };
    Sandbox::create(fixture.provider.clone(), &spec).await.unwrap();
    let all = (0..8).map(|_| fixture.provider.volumes(VolumeOptions { sizes: true }));
    for found in futures_util::future::join_all(all).await {
        let found = found.unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].size.is_some(), "{found:?}");
    }
    fixture.clean().await;
}
