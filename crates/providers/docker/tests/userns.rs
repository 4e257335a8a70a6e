//! User namespaces that an engine creates for each sandbox: their ids, and what is refused with them.

mod engines;

use engines::{EngineKind, Fixture};
use kennel_core::{Provider, Sandbox, WriteOptions};
use kennel_testkit::docker::Private;
use kennel_testkit::{inside, testers_ids};
use kennel_types::{Cache, ErrorCode, Field, IsolationLayer, Mount, NetworkMode, NextStep, ProviderKind, SandboxSpec};

fn with(spec: SandboxSpec, userns: &str) -> SandboxSpec {
    SandboxSpec { userns: Some(userns.into()), ..spec }
}

/// Returns the host id of root inside, from the id map of its process.
async fn root_of(sandbox: &Sandbox) -> u32 {
    let map = inside::ok(sandbox, "cat /proc/self/uid_map").await;
    let root = map.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|line| line[0] == "0");
    root.unwrap_or_else(|| panic!("root is nobody: {map}"))[1].parse().unwrap()
}

#[tokio::test]
async fn sandboxes_with_userns_auto_have_separate_ids() {
    let fixture = Fixture::new(EngineKind::Podman);
    let one = fixture.started(&with(fixture.spec(), "auto")).await;
    let other = fixture.started(&with(fixture.spec(), "auto")).await;
    let (first, second) = (root_of(&one).await, root_of(&other).await);
    assert!(first > 0 && second > 0 && first != second, "{first} {second}");
    let enforced = one.inspect().await.unwrap().enforcement;
    assert_eq!(enforced.mode, "podman, root, userns auto");
    assert!(enforced.layers.contains(&IsolationLayer::UserNamespace), "{enforced:?}");
    // Root can change the files inside, and they are the same after a restart.
    inside::ok(&one, "id -u | grep -qx 0 && echo kept > file").await;
    one.stop(std::time::Duration::from_secs(5)).await.unwrap();
    one.start().await.unwrap();
    assert_eq!(inside::ok(&one, "cat file").await.trim(), "kept");
    assert_eq!(root_of(&one).await, first);
    // By default there is no user namespace, and none is reported.
    let plain = fixture.started(&with(fixture.spec(), "host")).await;
    assert_eq!(root_of(&plain).await, 0);
    assert!(!plain.inspect().await.unwrap().enforcement.layers.contains(&IsolationLayer::UserNamespace));
    fixture.clean(false).await;
}

#[tokio::test]
async fn mounts_are_refused_with_userns_auto() {
    let fixture = Fixture::new(EngineKind::Podman);
    let refused = async |spec: SandboxSpec| {
        let error = fixture.provider.create(&kennel_core::new_id().unwrap(), &with(spec, "auto")).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unsupported, "{error}");
        let steps = error.next_step().map(|step| step.options().to_vec()).unwrap_or_default();
        (error.to_string(), steps)
    };
    let dir = fixture.home.path().to_owned();
    let (said, steps) = refused(SandboxSpec { workspace: Some(dir.clone()), ..fixture.spec() }).await;
    assert!(said.contains("the user namespace auto"), "{said}");
    assert_eq!(steps, [NextStep::CopyInstead { field: Field::Workspace }]);
    let mount = Mount { host: dir, target: "/there".into(), read_only: true };
    refused(SandboxSpec { mounts: vec![mount], ..fixture.spec() }).await;
    refused(SandboxSpec { caches: vec![Cache::new("a", "/a")], ..fixture.spec() }).await;
    refused(SandboxSpec { network: Some(NetworkMode::Host), ..fixture.spec() }).await;
    let error =
        fixture.provider.create(&kennel_core::new_id().unwrap(), &with(fixture.spec(), "keep-id")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unsupported, "{error}");
    let error = fixture
        .provider
        .create(&kennel_core::new_id().unwrap(), &with(fixture.spec(), "ns:/proc/1/ns/user"))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
    fixture.clean(false).await;
}

#[tokio::test]
async fn docker_refuses_userns_auto_and_keep_id() {
    let fixture = Fixture::new(EngineKind::Docker);
    for userns in ["auto", "keep-id"] {
        let error =
            fixture.provider.create(&kennel_core::new_id().unwrap(), &with(fixture.spec(), userns)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unsupported, "{error}");
    }
    let sandbox = fixture.started(&with(fixture.spec(), "host")).await;
    assert_eq!(root_of(&sandbox).await, 0);
    fixture.clean(false).await;
}

#[tokio::test]
async fn sandboxes_on_a_remapping_engine_have_its_ids() {
    let _ = testers_ids(); // a user with subordinate ids
    let engine = Private::start_with(&["--userns-remap", "kennel-tester"]);
    let fixture = Fixture::on(EngineKind::Docker, engine.socket());
    let spec = SandboxSpec { network: Some(NetworkMode::None), ..fixture.spec() };
    let caches = vec![Cache::new("shared", "/shared")];
    let spec = SandboxSpec { data: true, caches, ..spec };
    let sandbox = fixture.started(&spec).await;
    assert!(root_of(&sandbox).await > 0);
    let enforced = sandbox.inspect().await.unwrap().enforcement;
    assert_eq!(enforced.mode, "docker, root, userns remap");
    assert!(enforced.layers.contains(&IsolationLayer::UserNamespace), "{enforced:?}");
    inside::ok(&sandbox, "id -u | grep -qx 0 && echo kept > file && echo all > /shared/file").await;
    let files = sandbox.files(None).await.unwrap();
    files.write("/tmp/by-call", b"called", WriteOptions::default()).await.unwrap();
    assert_eq!(inside::ok(&sandbox, "cat /tmp/by-call").await, "called");
    sandbox.stop(std::time::Duration::from_secs(5)).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(inside::ok(&sandbox, "cat file").await.trim(), "kept");
    let other = fixture.started(&spec).await;
    assert_eq!(inside::ok(&other, "cat /shared/file").await.trim(), "all");
    // Mounts whose files would belong to nobody are refused with a suggestion, and so are modes that would leave the
    // range.
    let workspace = SandboxSpec { workspace: Some(fixture.home.path().to_owned()), ..fixture.spec() };
    let error = fixture.provider.create(&kennel_core::new_id().unwrap(), &workspace).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unsupported, "{error}");
    let steps = [NextStep::CopyInstead { field: Field::Workspace }, NextStep::use_provider([ProviderKind::Native])];
    assert_eq!(error.next_step(), Some(&NextStep::either(steps)), "{error}");
    let error =
        fixture.provider.create(&kennel_core::new_id().unwrap(), &with(fixture.spec(), "host")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unsupported, "{error}");
    fixture.clean(false).await;
}
