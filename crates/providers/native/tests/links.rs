//! What is mounted is what was named: a link in its place leads nowhere.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::{Home, Net};
use kennel_types::{ErrorCode, Mount, SandboxSpec};
use std::os::unix::fs::symlink;
use std::sync::Arc;

#[tokio::test]
async fn a_link_in_place_of_a_mount_is_refused() {
    let (home, _net) = (Home::new(), Net::alone());
    let native: Arc<dyn Provider> = Arc::new(Native::new(home.state(), home.programs()));
    let (dir, link) = (home.workspace().join("dir"), home.workspace().join("link"));
    std::fs::create_dir(&dir).unwrap();
    symlink("/etc", &link).unwrap();
    let spec = |host: &std::path::Path| {
        let mount = Mount { host: host.to_owned(), target: "/data".into(), read_only: true };
        SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() }
    };
    let error = native.create(&spec(&link)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
    assert_eq!(error.next_step(), Some("name /etc"));
    // As a sandbox that shares the directory could do, once it was looked at.
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
