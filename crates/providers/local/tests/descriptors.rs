//! A keeper without a free descriptor for a new connection waits until it has one.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_local::Local;
use kennel_testkit::inside::ok;
use kennel_testkit::{Home, eventually};
use kennel_types::SandboxSpec;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// It sleeps meanwhile, and accepts the connection afterwards.
#[tokio::test]
async fn a_keeper_without_free_descriptors_waits() {
    let home = Home::new();
    let provider: Arc<dyn Provider> = Arc::new(Local::new(home.state(), home.programs()));
    let sandbox = Sandbox::create(provider.clone(), &SandboxSpec::default()).await.unwrap();
    sandbox.start().await.unwrap();
    // From now on it serves requests. It reports that it runs before that.
    assert_eq!(ok(&sandbox, "echo up").await, "up");
    let dir = home.state().join(sandbox.id().as_str());
    let pid: i32 = std::fs::read_to_string(dir.join("lock")).unwrap().trim().parse().unwrap();
    let keeper = Pid::from_raw(pid).unwrap();
    // Once its listening socket is not polled any more, it has noticed the connection. A keeper that polls in a loop
    // would never sleep.
    let waits_for = || {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
        let infos = fds.map(|fd| std::fs::read_to_string(fd.path()).unwrap_or_default());
        infos
            .flat_map(|info| {
                info.lines().filter(|line| line.starts_with("tfd:")).map(str::to_owned).collect::<Vec<_>>()
            })
            .count()
    };
    let waited_for = waits_for();
    let none = Rlimit { current: Some(0), ..getrlimit(Resource::Nofile) };
    let before = prlimit(Some(keeper), Resource::Nofile, none).unwrap();
    let knocking = UnixStream::connect(dir.join("sock")).unwrap();
    eventually("it lets the connection wait", async || waits_for() < waited_for).await;
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    eventually("it sleeps", async || stat().rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))).await;
    prlimit(Some(keeper), Resource::Nofile, before).unwrap();
    assert_eq!(ok(&sandbox, "echo in").await, "in");
    drop(knocking);
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
}
