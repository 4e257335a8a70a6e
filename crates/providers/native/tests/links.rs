//! A mount is what the user named: a symlink in its place is not followed. Masks apply to the real path.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::{Home, Net, docker, inside};
use kennel_types::{ErrorCode, Mount, NetworkMode, NextStep, SandboxSpec};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

#[tokio::test]
async fn a_symlink_in_place_of_a_mount_is_refused() {
    let (home, _net) = (Home::new(), Net::alone());
    let native: Arc<dyn Provider> = Arc::new(Native::new(home.state(), home.programs()));
    let (dir, link) = (home.workspace().join("dir"), home.workspace().join("link"));
    std::fs::create_dir(&dir).unwrap();
    symlink("/etc", &link).unwrap();
    let spec = |host: &std::path::Path| {
        let mount = Mount { host: host.to_owned(), target: "/data".into(), read_only: true };
        SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() }
    };
    let error = native.create(&kennel_core::new_id().unwrap(), &spec(&link)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
    assert_eq!(error.next_step(), Some(&NextStep::UsePath { path: "/etc".into() }));
    // As a sandbox that shares the directory could do after the check.
    let sandbox = Sandbox::create(native, &spec(&dir)).await.unwrap();
    std::fs::remove_dir(&dir).unwrap();
    symlink("/etc", &dir).unwrap();
    let error = sandbox.start().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::StartFailed, "{error}");
    std::fs::remove_file(&dir).unwrap();
    std::fs::create_dir(&dir).unwrap();
    sandbox.start().await.unwrap();
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
}

#[tokio::test]
async fn kennels_directories_are_masked_at_the_target_of_a_symlink() {
    let (home, _net) = (Home::new(), Net::alone());
    // A host directory that sandboxes see.
    let real = tempfile::Builder::new().prefix("kennel-test-").tempdir_in("/var/cache").unwrap();
    std::fs::set_permissions(real.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let linked = home.path().join("linked");
    symlink(real.path(), &linked).unwrap();
    std::fs::create_dir(linked.join("config")).unwrap();
    std::fs::write(linked.join("config/config.toml"), "secret").unwrap();
    std::fs::write(linked.join("seen"), "").unwrap();
    let native = Native::new(linked.join("state/native"), linked.join("programs")).hiding([linked.join("config")]);
    let native: Arc<dyn Provider> = Arc::new(native);
    let spec = SandboxSpec { network: Some(NetworkMode::None), ..SandboxSpec::default() };
    for spec in [spec.clone(), SandboxSpec { workspace: Some(real.path().to_owned()), ..spec }] {
        let sandbox = Sandbox::create(native.clone(), &spec).await.unwrap();
        sandbox.start().await.unwrap();
        let shown = if spec.workspace.is_some() { "/workspace".into() } else { real.path().display().to_string() };
        let left = inside::ok(&sandbox, &format!("cd {shown}; find . ! -type d")).await;
        assert_eq!(left.trim(), "./seen", "in {shown}");
        sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
    }
}

#[tokio::test]
async fn a_path_that_cannot_be_masked_is_refused() {
    let home = Home::new();
    let odd = home.path().join(std::ffi::OsStr::from_bytes(b"\xff"));
    let native = Native::new(home.state(), home.programs()).hiding([odd]);
    let error = native.create(&kennel_core::new_id().unwrap(), &SandboxSpec::default()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
    assert!(error.to_string().contains("cannot be kept from sandboxes"), "{error}");
}

#[tokio::test]
async fn the_socket_of_a_running_engine_is_refused() {
    let socket = docker::socket().canonicalize().unwrap();
    let home = Home::new();
    // The same file by another path.
    let link = home.path().join("other");
    std::fs::hard_link(&socket, &link).unwrap();
    let native = Native::new(home.state(), home.programs());
    for host in [socket, link] {
        std::os::unix::net::UnixStream::connect(&host).expect("whoever is not in a sandbox can connect");
        let mounts = vec![Mount { host, target: "/socket".into(), read_only: true }];
        let error = native
            .create(&kennel_core::new_id().unwrap(), &SandboxSpec { mounts, ..SandboxSpec::default() })
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
        assert!(error.to_string().contains("engine"), "{error}");
    }
}
