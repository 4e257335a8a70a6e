//! Process trees: which processes end with a command, and which survive it. The host finds them by a mark in their
//! environment.

use crate::inside::{SOON, ok, read_to_end, read_until, run};
use crate::{Stage, eventually, host};
use kennel_core::{Sandbox, WriteOptions};
use kennel_types::{ErrorCode, ExecSpec, IsolationLayer};
use std::time::Duration;

async fn gone(mark: &str) {
    eventually(&format!("processes of {mark} are gone"), async || host::marked(mark).is_empty()).await;
}

/// A timeout ends all processes of a command, also those that have their own session, ignore SIGTERM and keep forking.
pub async fn a_timeout_ends_the_whole_tree(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let mut spec = ExecSpec::shell(
        "trap '' TERM; echo printed; \
         (setsid sh -c 'while :; do (sleep 1000 &); sleep 0.1; done' &); \
         sleep 1000",
    );
    // Long enough for all processes to start on a busy machine.
    spec.timeout = Some(Duration::from_secs(2));
    let mark = stage.mark(&mut spec, "tree");
    let output = run(&sandbox, &spec).await;
    assert!(output.status.timed_out, "{:?}", output.status);
    assert_eq!(output.stdout_text(), "printed\n");
    gone(&mark).await;
    assert_eq!(ok(&sandbox, "echo alive").await, "alive");
}

/// A background process, as of `nohup server &`, survives its command, and does not delay the end of the command.
pub async fn background_process_survives_its_command(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let mut spec = ExecSpec::shell("trap '' HUP; sleep 1000 & echo started");
    let mark = stage.mark(&mut spec, "nohup");
    let output = tokio::time::timeout(SOON, run(&sandbox, &spec)).await.expect("the command itself ends");
    assert!(output.status.success(), "{:?}", output.status);
    assert!(output.stdout_text().contains("started\n"), "{:?}", output.stdout_text());
    for number in 0..20 {
        assert_eq!(ok(&sandbox, &format!("echo {number}")).await, number.to_string());
    }
    assert_eq!(host::marked(&mark).len(), 1, "it lives on; {}", output.stderr_text());
    sandbox.hang_up().await;
    assert_eq!(ok(&stage.again(stage.reopen(), &sandbox).await, "echo hi").await, "hi");
    assert_eq!(host::marked(&mark).len(), 1, "also without a connection");
}

/// Starts a command whose processes ignore SIGTERM and carry their own mark.
async fn stubborn(stage: &Stage, sandbox: &Sandbox, word: &str, detached: bool) -> (kennel_core::Exec, String) {
    let mut spec = ExecSpec { detached, ..ExecSpec::shell("trap '' TERM; (setsid sleep 1000 &); echo up; sleep 1000") };
    let mark = stage.mark(&mut spec, word);
    let mut exec = sandbox.exec(&spec).await.unwrap();
    read_until(&mut exec, |seen| seen.ends_with(b"up\n")).await;
    eventually("the whole tree is up", async || host::marked(&mark).len() >= 2).await;
    (exec, mark)
}

/// Dropping the handle of a tied command ends it.
pub async fn a_tied_command_dies_with_its_handle(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let (exec, mark) = stubborn(stage, &sandbox, "handle", false).await;
    drop(exec);
    gone(&mark).await;
}

/// A tied command ends when its connection is cut.
pub async fn a_tied_command_dies_with_its_connection(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let wire = stage.wire();
    let wired = stage.again(wire.clone(), &sandbox).await;
    let (mut exec, mark) = stubborn(stage, &wired, "connection", false).await;
    wire.cut();
    let error = tokio::time::timeout(SOON, exec.next()).await.expect("the reader learns of it").unwrap_err();
    assert_eq!(error.code(), ErrorCode::Stopped);
    gone(&mark).await;
}

/// A detached command keeps running when its connection is cut.
pub async fn detached_command_survives_its_connection(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let wire = stage.wire();
    let wired = stage.again(wire.clone(), &sandbox).await;
    let (exec, mark) = stubborn(stage, &wired, "detached", true).await;
    let (tied, tied_mark) = stubborn(stage, &wired, "beside", false).await;
    let process = exec.process();
    wire.cut();
    drop((exec, tied));
    gone(&tied_mark).await;
    assert!(host::marked(&mark).len() >= 2, "the detached one goes on");
    let known = sandbox.processes().await.unwrap();
    assert!(known.iter().any(|info| info.process == process && info.running && !info.attached), "{known:?}");
    sandbox.kill(process, 9).await.unwrap();
    gone(&mark).await;
}

/// Ending a command sends SIGTERM and, after the grace period, SIGKILL to all its processes.
pub async fn ending_a_command_ends_its_tree(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let (mut exec, mark) = stubborn(stage, &sandbox, "ended", true).await;
    sandbox.kill(exec.process(), 0).await.unwrap();
    let (_, status) = read_to_end(&mut exec).await;
    assert!(status.signal.is_some() && !status.timed_out, "{status:?}");
    gone(&mark).await;
    assert_eq!(sandbox.kill(1_000_000, 15).await.unwrap_err().code(), ErrorCode::NotFound);
}

/// All running commands are listed, with their properties.
pub async fn commands_are_listed(stage: &Stage) {
    let sandbox = stage.running().await;
    let spec = ExecSpec { detached: true, ..ExecSpec::argv(["sleep", "1000"]) };
    let exec = sandbox.exec(&spec).await.unwrap();
    let find = async || sandbox.processes().await.unwrap().into_iter().find(|info| info.process == exec.process());
    let info = find().await.expect("it is listed");
    assert!(info.running && info.attached && info.detached && !info.tty, "{info:?}");
    assert!(info.program.ends_with(b"sleep"), "{info:?}");
    exec.signal(15);
    eventually("it is seen to end", async || find().await.is_none_or(|info| !info.running)).await;
}

/// The keeper reaps orphans, so that no zombies are left.
pub async fn orphans_are_reaped(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    run(&sandbox, &ExecSpec::shell("i=0; while [ $i -lt 20 ]; do (sleep 0.05 &); i=$((i+1)); done")).await;
    if !stage.mode().layers.contains(&IsolationLayer::PidNamespace) {
        // Without a pid namespace only the host shows them, and a zombie has no mark there.
        eventually("the orphans end", async || host::processes(&stage.home().mark()).len() < 20).await;
        return;
    }
    let states = "for f in /proc/[0-9]*/status; do grep State: $f; done 2>/dev/null; true";
    eventually("no zombie is left", async || !ok(&sandbox, states).await.contains("Z (zombie)")).await;
}

/// A signal also reaches the children that a shell waits for, because they are in its process group.
pub async fn signal_reaches_the_process_group(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let script = b"trap 'echo caught; exit 5' USR1\necho ready\nwhile :; do sleep 0.1; done\n";
    let path = crate::inside::at(&sandbox, "trap.sh");
    crate::inside::files(&sandbox).await.write(&path, script, WriteOptions::default()).await.unwrap();
    let mut exec = sandbox.exec(&ExecSpec::argv(["sh", &path])).await.unwrap();
    read_until(&mut exec, |seen| seen.ends_with(b"ready\n")).await;
    exec.signal(10);
    let (printed, status) = read_to_end(&mut exec).await;
    assert!(String::from_utf8_lossy(&printed).contains("caught\n"));
    assert_eq!(status.code, Some(5));
}
