//! A paused sandbox whose jail is killed: frozen processes cannot end by themselves.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::{Home, Net, host, within};
use kennel_types::{ExecSpec, SandboxSpec};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn nothing_stays_frozen_when_its_jail_is_killed() {
    let (home, _net) = (Home::new(), Net::alone());
    let native: Arc<dyn Provider> = Arc::new(Native::new(home.state(), home.programs()));
    let env = [("KENNEL_TEST_COMMAND".to_owned(), home.mark())].into();
    let sandbox = Sandbox::create(native, &SandboxSpec { env, ..SandboxSpec::default() }).await.unwrap();
    sandbox.start().await.unwrap();
    sandbox.run(&ExecSpec::shell("sleep 1000 > /dev/null 2>&1 &"), None, 100).await.unwrap();
    host::marked_soon(&home.mark()).await;
    sandbox.pause().await.unwrap();
    let lock = home.state().join(sandbox.id().as_str()).join("lock");
    let jail = std::fs::read_to_string(lock).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(jail).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    let freed = within(Duration::from_secs(90), async || sandbox.start().await.is_ok()).await;
    assert!(freed, "it can be started again");
    sandbox.hang_up().await;
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
    let gone = within(Duration::from_secs(90), async || host::marked(&home.mark()).is_empty()).await;
    assert!(gone, "{:?}", host::marked(&home.mark()));
    for group in ["freezer/kennel", "kennel"] {
        let group = Path::new("/sys/fs/cgroup").join(group).join(sandbox.id().as_str());
        assert!(!group.exists(), "{}", group.display());
    }
}
