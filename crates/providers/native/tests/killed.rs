//! Programs that are killed at any moment: a later process finds what is left, and removes it.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::{Home, NOBODYS_IDS, become_ordinary_user, host, within};
use kennel_types::{ExecSpec, Limits, SandboxSpec};
use std::sync::Arc;
use std::time::Duration;

fn native(home: &Home) -> Arc<dyn Provider> {
    Arc::new(Native::new(home.state(), home.path().join("programs")))
}

/// Returns all processes of sandboxes of this home: jails, and the processes inside.
fn kill_all(home: &Home) {
    for pid in host::processes(&home.mark()) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Kills everything after each delay, at whatever step of the start, and cleans up.
async fn killed_at_any_moment(home: &Home, limits: Limits) {
    let mut ids = Vec::new();
    for delay in (0..60).map(|step| Duration::from_micros(step * 400)) {
        for tied in [false, true] {
            let maker = native(home);
            let spec = SandboxSpec { tied, limits, workspace: Some(home.workspace()), ..SandboxSpec::default() };
            let sandbox = Sandbox::create(maker.clone(), &spec).await.unwrap();
            let id = sandbox.id().clone();
            ids.push(id.to_string());
            let starting = tokio::spawn(async move {
                sandbox.start().await?;
                sandbox.run(&ExecSpec::shell("mkdir -p /opt/a/b; chmod 0 /opt/a; sleep 1000"), None, 100).await
            });
            #[expect(clippy::disallowed_methods, reason = "the test is about the moment of the kill")]
            tokio::time::sleep(delay).await;
            kill_all(home);
            starting.abort();
            let _ = starting.await;
            kill_all(home);
            drop(maker);
            // A later process finds everything.
            let later = native(home);
            for left in later.list().await.unwrap() {
                later.remove(&left.id, RemoveOptions { force: true, volumes: true }).await.unwrap();
            }
            let dir = home.state().join(id.as_str());
            let gone = within(Duration::from_secs(90), async || {
                kill_all(home);
                later.sweep(kennel_core::Sweep::Remove).await.unwrap();
                !dir.exists()
            });
            assert!(gone.await, "{} stays: {:?}", dir.display(), host::walk(&dir, false));
        }
    }
    let left = host::leftovers(&home.mark(), &ids, &home.state());
    assert!(left.is_empty(), "{left:#?}");
    let names: Vec<_> = std::fs::read_dir(home.state()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    let belongs_to_no_sandbox = |name: &std::ffi::OsString| [".swept", "names"].iter().any(|own| name == own);
    assert!(names.iter().all(belongs_to_no_sandbox), "{names:?}");
}

#[tokio::test]
async fn a_killed_start_by_root_leaves_nothing() {
    let home = Home::new();
    killed_at_any_moment(&home, Limits { pids: Some(100), ..Limits::default() }).await;
}

#[tokio::test]
async fn a_killed_start_by_an_ordinary_user_leaves_nothing() {
    become_ordinary_user(NOBODYS_IDS);
    let home = Home::new();
    killed_at_any_moment(&home, Limits::default()).await;
}
