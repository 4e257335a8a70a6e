//! Images of all kinds, volumes, and a read-only root filesystem: on Docker and on Podman.

mod engines;

use engines::{ALL, Fixture, alone, on_every_engine};
use kennel_core::{ImageBuild, LogOptions, Provider, RemoveOptions, Sandbox};
use kennel_testkit::{docker, inside};
use kennel_types::{Cache, ErrorCode, ExecSpec, Mount, Owner, SandboxSpec, Status};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

const KEEP: RemoveOptions = RemoveOptions { volumes: false, force: true };

on_every_engine!(
    an_image_without_a_shell_runs_its_program,
    the_images_user_runs_commands,
    the_images_own_command_is_the_main_process,
    the_images_stop_signal_is_sent,
    a_read_only_root_is_not_written,
    a_data_volume_outlives_its_sandbox,
    a_cache_is_shared_and_stays,
    an_unknown_runtime_is_refused,
    an_oom_kill_is_reported,
    an_image_is_built,
    a_keeper_on_a_noexec_mount_is_copied,
    an_image_of_another_architecture_has_a_keeper,
);

async fn run(sandbox: &Sandbox, argv: &[&str]) -> String {
    let output = sandbox.run(&ExecSpec::argv(argv.iter().copied()), None, 10_000).await.unwrap();
    format!("{}{}", output.stdout_text(), output.stderr_text()).trim().to_owned()
}

async fn an_image_without_a_shell_runs_its_program(fixture: &Fixture) {
    let sandbox = fixture.started(&fixture.with_image(&["prog/busybox"], &[])).await;
    assert_eq!(run(&sandbox, &["/prog/busybox", "echo", "hello"]).await, "hello");
    let error = sandbox.run(&ExecSpec::shell("true"), None, 10).await.unwrap_err();
    assert_eq!((error.code(), error.exit_status()), (ErrorCode::ExecFailed, 127), "{error}");
    let files = inside::files(&sandbox).await;
    files.write("/made/by-call", b"x", kennel_core::WriteOptions::default()).await.unwrap();
    assert_eq!(files.read("/made/by-call", 10).await.unwrap(), b"x");
    fixture.clean(true).await;
}

async fn the_images_user_runs_commands(fixture: &Fixture) {
    let sandbox = fixture.started(&fixture.with_image(&["bin/sh", "bin/id"], &["USER 1234:1235"])).await;
    assert_eq!(run(&sandbox, &["sh", "-c", "id -u; id -g"]).await, "1234\n1235");
    let other = fixture.started(&SandboxSpec { user: Some("0".into()), ..sandbox_spec(&sandbox, fixture) }).await;
    assert_eq!(run(&other, &["id", "-u"]).await, "0");
    fixture.clean(true).await;
}

fn sandbox_spec(sandbox: &Sandbox, fixture: &Fixture) -> SandboxSpec {
    SandboxSpec { image: sandbox.info().image.clone(), ..fixture.spec() }
}

async fn the_images_own_command_is_the_main_process(fixture: &Fixture) {
    let changes = [r#"ENTRYPOINT ["/bin/echo", "entry"]"#, r#"CMD ["and", "command"]"#];
    let spec = fixture.with_image(&["bin/echo", "bin/sh"], &changes);
    let own = SandboxSpec { image_main: true, ..spec.clone() };
    let sandbox = fixture.started(&own).await;
    let (out, _) = inside::log(&sandbox, LogOptions { tail: None, follow: true }).await;
    assert_eq!(out, "entry and command\n");
    kennel_testkit::eventually("it ends with it", async || {
        let info = sandbox.inspect().await.unwrap();
        (info.status, info.exit_code) == (Status::Stopped, Some(0))
    })
    .await;
    // By default it waits for commands, and a given command is run unchanged.
    let waits = fixture.started(&spec).await;
    assert_eq!(waits.inspect().await.unwrap().status, Status::Running);
    assert_eq!(run(&waits, &["echo", "given"]).await, "given");
    let none = SandboxSpec { image_main: true, image: Some(own_or(fixture)), ..fixture.spec() };
    assert!(
        fixture.provider.create(&kennel_core::new_id().unwrap(), &none).await.is_ok(),
        "the test image has a command"
    );
    fixture.clean(true).await;
}

fn own_or(fixture: &Fixture) -> String {
    fixture.image.clone()
}

async fn the_images_stop_signal_is_sent(fixture: &Fixture) {
    let script =
        "trap 'echo quit; exit 7' QUIT; trap 'echo term; exit 8' TERM; echo ready; while :; do sleep 0.1; done";
    let command = serde_json::json!(["/bin/sh", "-c", script]);
    let context = fixture.home.path().join("context");
    std::fs::create_dir(&context).unwrap();
    std::fs::write(context.join("Dockerfile"), format!("FROM {}\nSTOPSIGNAL SIGQUIT\nCMD {command}\n", fixture.image))
        .unwrap();
    let tag = format!("kennel-test/own-{}", fixture.home.mark().to_lowercase());
    let build = ImageBuild { context, tag: tag.clone(), ..alone() };
    fixture.provider.build_image(&build, &|_| {}).await.unwrap();
    let spec = SandboxSpec { image: Some(tag), ..fixture.spec() };
    let sandbox = fixture.started(&SandboxSpec { image_main: true, ..spec }).await;
    kennel_testkit::eventually("it is ready", async || {
        inside::log(&sandbox, LogOptions { tail: None, follow: false }).await.0.contains("ready")
    })
    .await;
    sandbox.stop(Duration::from_secs(10)).await.unwrap();
    let (out, _) = inside::log(&sandbox, LogOptions { tail: None, follow: false }).await;
    assert_eq!(out, "ready\nquit\n");
    assert_eq!(sandbox.inspect().await.unwrap().exit_code, Some(7));
    fixture.clean(true).await;
}

async fn a_read_only_root_is_not_written(fixture: &Fixture) {
    for owner in [Owner { uid: 0, gid: 0 }, Owner { uid: 4321, gid: 4321 }] {
        let spec = SandboxSpec { read_only: true, owner: Some(owner), ..fixture.spec() };
        let sandbox = fixture.started(&spec).await;
        for place in ["/", "/etc", "/bin", "/root"] {
            let script = format!("echo x > {place}/new");
            assert!(!inside::sh(&sandbox, &script).await.status.success(), "{place} as {owner:?}");
        }
        inside::ok(&sandbox, "echo x > /tmp/new && echo x > new && pwd && id -u").await;
        // It cannot be written from outside either.
        let error = inside::files(&sandbox).await.write("/etc/new", b"x", kennel_core::WriteOptions::default()).await;
        assert!(error.is_err());
    }
    // Its volumes can be written, by their users.
    let (owner, name) = (Some(Owner { uid: 4321, gid: 4322 }), Some(format!("read-only-{}", fixture.mark())));
    let caches = vec![Cache::new("c", "/cache/deep")];
    let spec = SandboxSpec { read_only: true, data: true, caches, owner, name, ..fixture.spec() };
    let sandbox = fixture.started(&spec).await;
    let script = "echo x > /.data/file && echo x > /cache/deep/file && stat -c %u:%g /.data/file /cache/deep";
    assert_eq!(inside::ok(&sandbox, script).await, "4321:4322\n4321:4322");
    sandbox.remove(ALL).await.unwrap();
    fixture.volumes().iter().for_each(|volume| drop(fixture.ask(&["volume", "rm", volume])));
    let mounts = vec![Mount { host: fixture.home.workspace(), target: "/mnt/it".into(), read_only: false }];
    let workspace = Some(fixture.home.workspace());
    let sandbox = fixture.started(&SandboxSpec { read_only: true, mounts, workspace, ..fixture.spec() }).await;
    inside::ok(&sandbox, "echo x > by-workspace && echo x > /mnt/it/by-mount").await;
    assert!(
        fixture.home.workspace().join("by-workspace").exists() && fixture.home.workspace().join("by-mount").exists()
    );
    fixture.clean(false).await;
}

async fn a_data_volume_outlives_its_sandbox(fixture: &Fixture) {
    let name = format!("volume-{}", fixture.home.mark().to_lowercase());
    let owner = Some(Owner { uid: 4321, gid: 4322 });
    let spec = SandboxSpec { name: Some(name), data: true, owner, ..fixture.spec() };
    let sandbox = fixture.started(&spec).await;
    inside::ok(&sandbox, "echo kept > /.data/file && id -u").await;
    sandbox.remove(KEEP).await.unwrap();
    assert_eq!(fixture.volumes().len(), 1, "{:?}", fixture.volumes());
    // A later sandbox of the same name finds it.
    let again = fixture.started(&spec).await;
    assert_eq!(
        inside::ok(&again, "cat /.data/file; stat -c %u:%g /.data /.data/file").await,
        "kept\n4321:4322\n4321:4322"
    );
    again.remove(ALL).await.unwrap();
    assert_eq!(fixture.volumes(), [""; 0]);
    let nameless = SandboxSpec { data: true, tied: true, ..fixture.spec() };
    assert_eq!(
        fixture.provider.create(&kennel_core::new_id().unwrap(), &nameless).await.unwrap_err().code(),
        ErrorCode::InvalidConfig
    );
    fixture.clean(false).await;
}

async fn a_cache_is_shared_and_stays(fixture: &Fixture) {
    let cache = |target: &str| Cache::new("npm", target);
    let spec = |target: &str| SandboxSpec { caches: vec![cache(target)], ..fixture.spec() };
    let (one, other) = (fixture.started(&spec("/root/.npm")).await, fixture.started(&spec("/cache")).await);
    inside::ok(&one, "echo shared > /root/.npm/file").await;
    assert_eq!(inside::ok(&other, "cat /cache/file").await, "shared");
    for sandbox in [one, other] {
        sandbox.remove(ALL).await.unwrap();
    }
    let volumes = fixture.volumes();
    assert_eq!(volumes.len(), 1, "it outlives them: {volumes:?}");
    docker::docker(&fixture.socket, &["volume", "rm", &volumes[0]]);
    let twice = SandboxSpec { caches: vec![cache("/a"), cache("//a/")], ..fixture.spec() };
    assert_eq!(
        fixture.provider.create(&kennel_core::new_id().unwrap(), &twice).await.unwrap_err().code(),
        ErrorCode::InvalidConfig
    );
    for bad in ["relative", "/", "/.kennel/run"] {
        let error = fixture.provider.create(&kennel_core::new_id().unwrap(), &spec(bad)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{bad}: {error}");
    }
    fixture.clean(false).await;
}

async fn an_unknown_runtime_is_refused(fixture: &Fixture) {
    let spec = SandboxSpec { runtime: Some("no-such-runtime".into()), ..fixture.spec() };
    let made = async {
        let sandbox = Sandbox::create(fixture.provider.clone(), &spec).await?;
        sandbox.start().await
    };
    let error = made.await.unwrap_err();
    assert!(error.to_string().contains("no-such-runtime"), "{error}");
    fixture.clean(false).await;
}

async fn an_oom_kill_is_reported(fixture: &Fixture) {
    let mut spec = fixture.spec();
    spec.limits.memory = Some(kennel_types::ByteSize(32 << 20));
    let sandbox = fixture.started(&spec).await;
    let output = inside::sh(&sandbox, "tail /dev/zero").await;
    assert_eq!(output.status.signal, Some(9), "{output:?}");
    assert!(sandbox.stats().await.unwrap().oom_kills.is_some_and(|kills| kills > 0));
    assert_eq!(sandbox.inspect().await.unwrap().status, Status::Running, "the command ended it, not a stop");
    fixture.clean(false).await;
}

async fn an_image_is_built(fixture: &Fixture) {
    let context = fixture.home.path().join("context");
    std::fs::create_dir_all(context.join("src")).unwrap();
    std::fs::write(context.join("src/word"), "sent").unwrap();
    std::fs::write(context.join("src/secret"), "hidden").unwrap();
    std::fs::write(context.join(".dockerignore"), "**/secret\n").unwrap();
    let image = &fixture.image;
    let file = |steps: &str| std::fs::write(context.join("Containerfile"), format!("FROM {image}\n{steps}\n")).unwrap();
    file("ARG WORD=none\nCOPY src /src\nRUN echo $WORD > /word && echo said-aloud\nUSER 77");
    let tag = format!("kennel-test/own-{}", fixture.home.mark().to_lowercase());
    let mut build = ImageBuild { context: context.clone(), tag: tag.clone(), ..alone() };
    build.args.insert("WORD".into(), "given".into());
    build.limits.memory = Some(kennel_types::ByteSize(512 << 20));
    let told = Mutex::new(Vec::new());
    let tell = |line: String| told.lock().unwrap().push(line);
    fixture.provider.build_image(&build, &tell).await.unwrap();
    let said = told.lock().unwrap().join("\n");
    assert!(said.contains("said-aloud") && said.to_lowercase().contains("step 3/"), "{said}");
    let sandbox = fixture.started(&SandboxSpec { image: Some(tag.clone()), ..fixture.spec() }).await;
    assert_eq!(inside::ok(&sandbox, "cat /word /src/word; ls /src; id -u").await, "given\nsentword\n77");
    // The first step, because the engine would keep the results of earlier ones.
    file("RUN echo before; exit 3\nRUN true");
    let error = fixture.provider.build_image(&build, &tell).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ExecFailed);
    assert!(error.to_string().contains("echo before; exit 3"), "the failed step is named: {error}");
    for (bad, said) in [(fixture.home.state(), "no Dockerfile"), (context.join("absent"), "No such file or directory")]
    {
        let error =
            fixture.provider.build_image(&ImageBuild { context: bad, ..build.clone() }, &tell).await.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
    fixture.clean(true).await;
}

/// A tmpfs from which no program can run, as long as this value lives.
struct NoExec(PathBuf);

impl NoExec {
    fn at(dir: PathBuf) -> Self {
        std::fs::create_dir(&dir).unwrap();
        rustix::mount::mount("tmpfs", &dir, "tmpfs", rustix::mount::MountFlags::NOEXEC, c"mode=755").unwrap();
        Self(dir)
    }
}

impl Drop for NoExec {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

async fn a_keeper_on_a_noexec_mount_is_copied(fixture: &Fixture) {
    let programs = NoExec::at(fixture.home.path().join("programs"));
    let provider = fixture.open_from(&programs.0);
    let workspace = Some(fixture.home.workspace());
    let spec = SandboxSpec { workspace, read_only: true, ..fixture.spec() };
    let sandbox = Sandbox::create(provider, &spec).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(inside::ok(&sandbox, "echo hello | tee made").await, "hello");
    assert_eq!(std::fs::read_to_string(fixture.home.workspace().join("made")).unwrap(), "hello\n");
    let name = format!("kennel-{}", sandbox.inspect().await.unwrap().name);
    let format = r#"{{range .Mounts}}{{if eq .Destination "/.kennel"}}{{.Name}}{{end}}{{end}}"#;
    let volume = fixture.ask(&["inspect", "--format", format, &name]);
    let is_there = || fixture.ask(&["volume", "ls", "--quiet"]).lines().any(|line| line == volume.trim());
    assert!(is_there(), "{volume}");
    // Its content does not matter: it is written again before each start.
    sandbox.stop(Duration::from_secs(5)).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(inside::ok(&sandbox, "cat made").await, "hello");
    sandbox.remove(ALL).await.unwrap();
    assert!(!is_there(), "it is removed with its sandbox");
    fixture.clean(false).await;
}

async fn an_image_of_another_architecture_has_a_keeper(fixture: &Fixture) {
    // The first bytes of a program for 64-bit ARM. The rest is never read.
    let mut foreign = b"\x7fELF\x02\x01\x01".to_vec();
    foreign.resize(16, 0);
    foreign.extend([2, 0, 183, 0, 1, 0, 0, 0]);
    foreign.resize(120, 0);
    let root = fixture.home.path().join("image");
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::write(root.join("bin/true"), foreign).unwrap();
    std::fs::set_permissions(root.join("bin/true"), PermissionsExt::from_mode(0o755)).unwrap();
    let sandbox = fixture.started(&fixture.with_image(&["bin/echo"], &[])).await;
    assert_eq!(run(&sandbox, &["/bin/echo", "hello"]).await, "hello");
    let error = sandbox.run(&ExecSpec::argv(["/bin/true"]), None, 10).await.unwrap_err();
    assert_eq!((error.code(), error.exit_status()), (ErrorCode::ExecFailed, 126), "{error}");
    fixture.clean(true).await;
}
