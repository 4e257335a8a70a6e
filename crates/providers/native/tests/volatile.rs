//! What a sandbox writes reaches the disk only if the sandbox can be started again. Otherwise the kernel would write the
//! whole filesystem of the host to disk at the end of each `kennel run`.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::{Home, NOBODYS_IDS, become_ordinary_user, host, within};
use kennel_types::{ExecSpec, SandboxSpec};
use std::sync::Arc;
use std::time::Duration;

/// Returns the overlays that a sandbox sees, after it has written something.
async fn overlays(provider: &Arc<dyn Provider>, spec: &SandboxSpec) -> Vec<String> {
    let sandbox = Sandbox::create(provider.clone(), spec).await.unwrap();
    // A tied sandbox ends with the connection of its creator.
    let _keeper = sandbox.launch().await.unwrap();
    let command = ExecSpec::shell("echo x > /etc/written && sync /etc/written && cat /proc/self/mountinfo");
    let output = sandbox.run(&command, None, 100_000).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let overlays: Vec<_> =
        output.stdout_text().lines().filter(|line| line.contains("upperdir=")).map(String::from).collect();
    assert!(!overlays.is_empty(), "{}", output.stdout_text());
    sandbox.remove(RemoveOptions { force: true, volumes: true }).await.unwrap();
    overlays
}

async fn only_overlays_of_sandboxes_that_stay_are_synced(home: &Home) {
    let provider: Arc<dyn Provider> = Arc::new(Native::new(home.state(), home.path().join("programs")));
    for (tied, auto_remove) in [(true, false), (false, true), (false, false)] {
        let spec = SandboxSpec { tied, auto_remove, ..SandboxSpec::default() };
        for overlay in overlays(&provider, &spec).await {
            let volatile = overlay.contains("volatile");
            assert_eq!(volatile, tied || auto_remove, "tied {tied}, removed at its end {auto_remove}: {overlay}");
        }
    }
    let gone = within(Duration::from_secs(90), async || host::leftovers(&home.mark(), &[], &home.state()).is_empty());
    assert!(gone.await, "{:?}", host::leftovers(&home.mark(), &[], &home.state()));
}

#[tokio::test]
async fn as_root() {
    only_overlays_of_sandboxes_that_stay_are_synced(&Home::new()).await;
}

#[tokio::test]
async fn as_an_ordinary_user() {
    become_ordinary_user(NOBODYS_IDS);
    only_overlays_of_sandboxes_that_stay_are_synced(&Home::new()).await;
}
