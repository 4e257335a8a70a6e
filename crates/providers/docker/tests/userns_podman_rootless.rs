//! The user namespace `keep-id` of a rootless Podman: the user has the same id inside.

mod engines;

use engines::EngineKind;
use kennel_core::{Provider, Sandbox};
use kennel_docker::{Docker, DockerOptions, NamePrefix, UnixDialer};
use kennel_testkit::podman::{Service, image_on};
use kennel_testkit::{Home, become_ordinary_user, inside, testers_ids};
use kennel_types::{ErrorCode, ExecSpec, IsolationLayer, NetworkMode, SandboxSpec};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Switches this thread to an ordinary user, and uses that user's Podman.
fn of_a_user() -> (Home, Arc<Docker>, SandboxSpec) {
    let socket = Service::User.socket();
    let image = image_on(&socket);
    become_ordinary_user(testers_ids());
    let home = Home::new();
    let options = DockerOptions {
        state_dir: home.state(),
        program_dir: home.path().join("programs"),
        expected: EngineKind::Podman,
        installation: home.mark().to_lowercase(),
        name_prefix: NamePrefix::default(),
    };
    let provider = Docker::new(options, Arc::new(UnixDialer::new(&socket)));
    let spec = SandboxSpec { image: Some(image), network: Some(NetworkMode::None), ..SandboxSpec::default() };
    (home, Arc::new(provider), spec)
}

#[tokio::test]
async fn a_user_is_the_same_inside_and_owns_the_workspace() {
    let (home, provider, spec) = of_a_user();
    let (user, group) = testers_ids();
    let workspace = home.path().join("project");
    std::fs::create_dir(&workspace).unwrap();
    std::fs::write(workspace.join("from-outside"), "out").unwrap();
    let spec = SandboxSpec { workspace: Some(workspace.clone()), userns: Some("keep-id".into()), ..spec };
    let sandbox = Sandbox::create(provider.clone(), &spec).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(inside::ok(&sandbox, "id -u; id -g").await.trim(), format!("{user}\n{group}"));
    // The host id of root inside, from the id map of its process.
    let map = inside::ok(&sandbox, "cat /proc/self/uid_map").await;
    let mut map = map.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert!(map.any(|line| line[0] == "0" && line[1] != "0"), "root is one of the range");
    inside::ok(&sandbox, "test \"$(cat from-outside)\" = out && echo in > from-inside").await;
    let made = std::fs::metadata(workspace.join("from-inside")).unwrap();
    assert_eq!((made.uid(), made.gid()), (user, group));
    // The user has a writable home directory and a name.
    inside::ok(&sandbox, "cd \"$HOME\" && echo x > file && whoami").await;
    let root = ExecSpec { user: Some("0".into()), ..ExecSpec::argv(["id", "-u"]) };
    assert_eq!(sandbox.run(&root, None, 100).await.unwrap().stdout_text().trim(), "0");
    let enforced = sandbox.inspect().await.unwrap().enforcement;
    assert!(enforced.mode.ends_with("userns keep-id"), "{enforced:?}");
    assert!(enforced.layers.contains(&IsolationLayer::UserNamespace), "{enforced:?}");
    sandbox.remove(engines::ALL).await.unwrap();
    let error = provider
        .create(&kennel_core::new_id().unwrap(), &SandboxSpec { userns: Some("auto".into()), ..spec })
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unsupported, "{error}");
}
