//! An engine on a machine where our programs do not run: it runs plain commands itself, reports this, and refuses the
//! rest.

use kennel_core::{ListenAt, Provider, RemoveOptions, Sandbox, Target, WriteOptions};
use kennel_docker::{Docker, DockerOptions, EngineKind, NamePrefix, TcpDialer, Tls};
use kennel_testkit::docker::Private;
use kennel_testkit::front::Front;
use kennel_testkit::{Home, docker, inside};
use kennel_types::{ErrorCode, ExecSpec, FileKind, NetworkMode, SandboxSpec, Status, TermSize};
use std::sync::Arc;
use std::time::Duration;

const FORCE: RemoveOptions = RemoveOptions { volumes: true, force: true };

/// A real engine that sees another architecture.
struct Elsewhere {
    home: Home,
    engine: Private,
    provider: Arc<Docker>,
    spec: SandboxSpec,
    _front: Front,
}

impl Elsewhere {
    fn new() -> Self {
        let home = Home::new();
        let engine = Private::start_as("i686");
        let image = docker::image_on(&engine.socket());
        let front = Front::start(engine.socket());
        let tls = Tls { authorities: front.authority(), identity: Some(front.identity()) };
        let options = DockerOptions {
            state_dir: home.state(),
            program_dir: home.programs(),
            expected: EngineKind::Docker,
            installation: home.mark(),
            name_prefix: NamePrefix::default(),
        };
        let dialer = TcpDialer::with_tls("localhost", front.port(), tls).unwrap();
        let provider = Arc::new(Docker::new(options, Arc::new(dialer)));
        let spec = SandboxSpec { image: Some(image), network: Some(NetworkMode::None), ..SandboxSpec::default() };
        Self { home, engine, provider, spec, _front: front }
    }

    async fn started(&self, spec: &SandboxSpec) -> Sandbox {
        let sandbox = Sandbox::create(self.provider.clone(), spec).await.unwrap();
        sandbox.start().await.unwrap();
        sandbox
    }
}

async fn code<T>(call: impl Future<Output = kennel_core::Result<T>>) -> Option<ErrorCode> {
    call.await.err().map(|error| error.code())
}

#[test]
fn without_a_keeper_the_engine_runs_plain_commands_and_says_so() {
    // It blocks, so it is created before the runtime.
    let elsewhere = Elsewhere::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(plain_commands(&elsewhere));
}

async fn plain_commands(elsewhere: &Elsewhere) {
    let spec = &elsewhere.spec;
    assert!(elsewhere.provider.probe().await.available);
    let sandbox = elsewhere.started(&SandboxSpec { name: Some("plain".into()), ..spec.clone() }).await;
    let info = sandbox.inspect().await.unwrap();
    assert_eq!((info.status, info.enforcement.mode.as_str()), (Status::Running, "docker, root, remote, no keeper"));
    commands(&sandbox).await;
    files(&sandbox).await;
    refused(&sandbox).await;

    // Later processes find it, and it is stopped and started as usual.
    let again = Sandbox::find(elsewhere.provider.clone(), "plain").await.unwrap();
    assert_eq!(inside::ok(&again, "cat /made/file").await, "content");
    sandbox.stop(Duration::from_secs(30)).await.unwrap();
    assert_eq!(code(sandbox.exec(&ExecSpec::argv(["true"]))).await, Some(ErrorCode::Stopped));
    sandbox.start().await.unwrap();
    assert_eq!(inside::ok(&sandbox, "cat /made/file").await, "content");
    sandbox.remove(FORCE).await.unwrap();
    assert_eq!(code(sandbox.exec(&ExecSpec::argv(["true"]))).await, Some(ErrorCode::NotFound));

    // A tied sandbox cannot be promised.
    for asked in [SandboxSpec { tied: true, ..spec.clone() }, SandboxSpec { idle_seconds: Some(5), ..spec.clone() }] {
        let error = elsewhere.provider.create(&kennel_core::new_id().unwrap(), &asked).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unsupported);
        assert!(error.to_string().contains("no keeper runs on that engine's machine"), "{error}");
    }
    let main = Some(["sh", "-c", "echo main; id -u; exec sleep 1000"].map(ToOwned::to_owned).into());
    let sandbox = elsewhere.started(&SandboxSpec { command: main, user: Some("7:7".into()), ..spec.clone() }).await;
    kennel_testkit::eventually("its main process has begun", async || {
        let options = kennel_core::LogOptions { tail: None, follow: false };
        inside::log(&sandbox, options).await.0 == "main\n7\n"
    })
    .await;
    sandbox.remove(FORCE).await.unwrap();
    assert_eq!(
        docker::leftovers(&elsewhere.engine.socket(), &format!("kennel.installation={}", elsewhere.home.mark())),
        [""; 0]
    );
}

async fn commands(sandbox: &Sandbox) {
    let script = "echo out; echo err >&2; pwd; echo $WORD $FROM_IMAGE; id -u; cat; exit 7";
    let mut spec = ExecSpec { user: Some("42".into()), cwd: Some("/tmp".into()), ..ExecSpec::shell(script) };
    spec.env.insert("WORD".into(), "given".into());
    let output = sandbox.run(&spec, Some(b"in"), 1000).await.unwrap();
    assert_eq!(output.stdout_text(), "out\n/tmp\ngiven yes\n42\nin");
    assert_eq!((output.stderr_text().as_ref(), output.status.code), ("err\n", Some(7)));
    assert_eq!(inside::ok(sandbox, "pwd").await, "/workspace");
    // More than any flow control window, in both directions.
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    let output = sandbox.run(&ExecSpec::argv(["cat"]), Some(&bytes), bytes.len()).await.unwrap();
    assert!(output.stdout == bytes && output.status.success(), "{}", output.stdout.len());
    let output = sandbox.run(&ExecSpec::argv(["no-such-program"]), None, 1000).await.unwrap();
    assert!(matches!(output.status.code, Some(126 | 127)), "{output:?}");
}

async fn files(sandbox: &Sandbox) {
    let files = inside::files(sandbox).await;
    let with_parents = WriteOptions { parents: true, ..WriteOptions::default() };
    files.write("/made/file", b"content", with_parents).await.unwrap();
    assert_eq!(inside::ok(sandbox, "cat /made/file").await, "content");
    assert_eq!(files.read("/made/file", 100).await.unwrap(), b"content");
    let stat = files.stat("/made/file", false).await.unwrap();
    assert_eq!((stat.kind, stat.size, stat.mode), (FileKind::File, 7, 0o644));
    let set_id = WriteOptions { mode: Some(0o6755), ..with_parents };
    files.write("/made/set-id", b"x", set_id).await.unwrap();
    assert_eq!(files.stat("/made/set-id", false).await.unwrap().mode, 0o755);
    inside::ok(sandbox, "head -c 3000000 /dev/urandom > /made/large; chmod 600 /made/large").await;
    let large = files.read("/made/large", 4_000_000).await.unwrap();
    files.write("/made/copy", &large, WriteOptions::default()).await.unwrap();
    inside::ok(sandbox, "cmp /made/large /made/copy").await;
    // docs/engines.md says so.
    let huge = vec![7; (64 << 20) + 1];
    let error = files.write("/made/huge", &huge, WriteOptions::default()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::LimitExceeded);
    assert!(error.to_string().contains("larger than 64 MiB"), "{error}");
    assert_eq!(code(files.stat("/made/huge", false)).await, Some(ErrorCode::NotFound));
    files.mkdir("/made/dir", false).await.unwrap();
    assert_eq!(files.stat("/made/dir", true).await.unwrap().kind, FileKind::Directory);
    assert_eq!(code(files.read("/made/none", 10)).await, Some(ErrorCode::NotFound));
    assert_eq!(
        code(files.write("/none/file", b"", WriteOptions { parents: false, ..with_parents })).await,
        Some(ErrorCode::NotFound)
    );
    assert_eq!(code(files.read("/made", 10)).await, Some(ErrorCode::PermissionDenied));
    assert_eq!(code(files.read("/made/../etc/passwd", 10)).await, Some(ErrorCode::InvalidConfig));
}

/// Everything that needs a keeper.
async fn refused(sandbox: &Sandbox) {
    let none = Some(ErrorCode::Unsupported);
    let plain = ExecSpec::argv(["true"]);
    let asked = [
        ExecSpec { timeout: Some(Duration::from_secs(5)), ..plain.clone() },
        ExecSpec { tty: Some(TermSize { rows: 24, cols: 80 }), ..plain.clone() },
        ExecSpec { detached: true, ..plain.clone() },
        ExecSpec { last: true, ..plain.clone() },
        ExecSpec { tag: Some("tag".into()), ..plain.clone() },
        ExecSpec { hold: true, ..plain.clone() },
        ExecSpec { linger: Some(Duration::from_secs(5)), ..plain.clone() },
    ];
    for spec in &asked {
        assert_eq!(code(sandbox.run(spec, None, 10)).await, none, "{spec:?}");
    }
    let error = sandbox.run(&asked[0], None, 10).await.unwrap_err();
    assert!(error.to_string().contains("timeouts: there is no keeper in this sandbox"), "{error}");
    let files = inside::files(sandbox).await;
    assert_eq!(code(files.list("/")).await, none);
    assert_eq!(code(files.list_tree("/", 2)).await, none);
    assert_eq!(code(files.write_at("/made/copy", 1, &b"x"[..], WriteOptions::default())).await, none);
    assert_eq!(code(files.remove("/made/copy", false)).await, none);
    assert_eq!(code(sandbox.processes()).await, none);
    assert_eq!(code(sandbox.kill(1, 15)).await, none);
    assert_eq!(code(sandbox.stats()).await, none);
    assert_eq!(code(sandbox.connect(&Target::Tcp(80), None)).await, none);
    assert_eq!(code(sandbox.connect(&Target::Unix(b"/tmp/socket".to_vec()), None)).await, none);
    assert_eq!(code(sandbox.listen(&ListenAt::Tcp(80), None)).await, none);
    assert_eq!(code(sandbox.listen_datagrams(53)).await, none);
    assert_eq!(code(sandbox.idle()).await, none);
    let mut exec = sandbox.exec(&ExecSpec::argv(["sleep", "1"])).await.unwrap();
    exec.signal(15);
    assert_eq!(code(exec.next()).await, none, "it is not told that the command was ended");
}
