//! The idle time: what counts as use of a sandbox, and what does not.

use crate::inside::{SOON, at, code, files, ok, read_until, run};
use crate::{Stage, eventually, host};
use kennel_core::{IdleTime, Sandbox, WriteOptions};
use kennel_types::{ErrorCode, ExecSpec, SandboxSpec, Status, Support};
use std::time::{Duration, Instant};

async fn idle(sandbox: &Sandbox) -> IdleTime {
    sandbox.idle().await.expect("the keeper knows its idle time")
}

/// A sandbox is in use while a command runs or a stream is open. The idle time starts when that ends, and again when it
/// is reset. Asking for it is not use.
pub async fn commands_and_streams_are_use(stage: &Stage) {
    let sandbox = stage.running().await;
    eventually("nothing uses it", async || !idle(&sandbox).await.in_use).await;
    eventually("time passes", async || idle(&sandbox).await.idle >= Duration::from_millis(20)).await;

    let mut exec = sandbox.exec(&ExecSpec { stdin: true, ..ExecSpec::argv(["cat"]) }).await.unwrap();
    exec.stdin().write(b"x").await.unwrap();
    read_until(&mut exec, |seen| seen == b"x").await;
    assert_eq!(idle(&sandbox).await, IdleTime { in_use: true, idle: Duration::ZERO }, "a silent command runs");
    let started = Instant::now();
    drop(exec);
    eventually("the command has ended", async || !idle(&sandbox).await.in_use).await;
    assert!(idle(&sandbox).await.idle <= started.elapsed(), "it starts at the end of the use");

    let files = files(&sandbox).await;
    files.write(at(&sandbox, "file"), b"x", WriteOptions::default()).await.unwrap();
    let watch = files.watch(&sandbox.info().workdir, false).await.unwrap();
    assert!(idle(&sandbox).await.in_use, "a watch is open");
    drop(watch);
    eventually("the watch is closed", async || !idle(&sandbox).await.in_use).await;

    eventually("time passes again", async || idle(&sandbox).await.idle >= Duration::from_millis(20)).await;
    let reset = Instant::now();
    sandbox.reset_idle().await.unwrap();
    let after = idle(&sandbox).await;
    assert!(!after.in_use && after.idle <= reset.elapsed(), "{after:?}");
}

/// A sandbox with an idle time stops although a host keeps its connection and asks for the idle time.
pub async fn open_connection_is_not_use(stage: &Stage) {
    let sandbox = stage.started(&SandboxSpec { idle_seconds: Some(1), ..stage.spec() }).await;
    let keeper = sandbox.keeper().await.unwrap();
    keeper.welcome().await.unwrap();
    let asking = async {
        while sandbox.idle().await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, async { tokio::join!(keeper.closed(), asking) }).await.expect("it stops by itself");
    eventually("it is stopped", async || sandbox.inspect().await.unwrap().status == Status::Stopped).await;
}

/// A process that a finished command has left behind is not use, and the main process is.
pub async fn main_process_is_use_and_background_is_not(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let spec = SandboxSpec { command: Some(vec!["sleep".into(), "1000".into()]), ..stage.spec() };
    let main = stage.started(&spec).await;
    assert!(idle(&main).await.in_use);

    let sandbox = stage.running().await;
    let mut spec = ExecSpec::shell("sleep 1000 > /dev/null 2>&1 &");
    let mark = stage.mark(&mut spec, "background");
    assert!(run(&sandbox, &spec).await.status.success());
    eventually("only the background process is left", async || !idle(&sandbox).await.in_use).await;
    assert_eq!(host::marked(&mark).len(), 1, "it still runs");
}

/// The time in which a sandbox is paused does not count as idle time.
pub async fn paused_time_is_not_idle_time(stage: &Stage) {
    let other = stage.running().await;
    if stage.mode().pause == Support::Refused {
        assert_eq!(code(other.pause().await), ErrorCode::Unsupported);
        return;
    }
    let sandbox = stage.started(&SandboxSpec { idle_seconds: Some(2), ..stage.spec() }).await;
    sandbox.idle().await.unwrap();
    sandbox.pause().await.unwrap();
    // Longer than the idle time of the sandbox.
    ok(&other, "sleep 3").await;
    let resumed = Instant::now();
    sandbox.unpause().await.unwrap();
    let after = idle(&sandbox).await;
    assert!(after.idle <= resumed.elapsed(), "{after:?} although it was resumed {:?} ago", resumed.elapsed());
    eventually("it stops after its idle time", async || sandbox.inspect().await.unwrap().status == Status::Stopped)
        .await;
}
