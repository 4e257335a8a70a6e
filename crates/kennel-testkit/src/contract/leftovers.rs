//! A removed sandbox leaves nothing behind.

use crate::inside::{SOON, ok};
use crate::{Stage, eventually, host, within};
use kennel_core::{RemoveOptions, WriteOptions};
use kennel_types::{ExecSpec, SandboxSpec, Support};

/// No processes, mounts, cgroups, containers or files are left after a sandbox is removed. The state directory does not
/// grow with every sandbox.
pub async fn leaves_nothing_behind(stage: &Stage) {
    let mut counts = Vec::new();
    for name in ["first", "second", "third"] {
        live(stage, name).await;
        assert!(within(SOON, async || stage.leftovers().is_empty()).await, "{}", stage.leftovers().join("\n"));
        counts.push(host::walk(&stage.home().state(), false).len());
    }
    assert_eq!(counts[1], counts[2], "the state directory grows with every sandbox");
}

/// Creates, uses and removes a sandbox. Commands still run when it is removed.
async fn live(stage: &Stage, name: &str) {
    let command = Some(vec!["sleep".to_owned(), "1000".to_owned()]);
    let spec = SandboxSpec { name: Some(stage.name(name)), command, ..stage.spec() };
    let sandbox = stage.started(&spec).await;
    assert_eq!(ok(&sandbox, "echo living").await, "living");
    let exec = sandbox.exec(&ExecSpec { detached: true, ..ExecSpec::argv(["sleep", "1000"]) }).await.unwrap();
    if stage.mode().processes == Support::Given {
        ok(&sandbox, "(setsid sleep 1000 >/dev/null 2>&1 &)").await;
        // The control: running processes are found.
        eventually("the living are seen", async || host::processes(&stage.home().mark()).len() >= 3).await;
    }
    let files = sandbox.files(None).await.unwrap();
    let mode = WriteOptions::default();
    files.write(crate::inside::at(&sandbox, "left/file"), b"x", mode).await.unwrap();
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
    drop((files, exec));
}
