//! Limits: they are enforced or refused.

use crate::inside::{code, ok, run, sh};
use crate::{Stage, host};
use kennel_core::RemoveOptions;
use kennel_types::{ByteSize, ErrorCode, ExecSpec, Limits, SandboxSpec, Support};
use std::time::Duration;

const GRACE: Duration = Duration::from_secs(2);
const FORCE: RemoveOptions = RemoveOptions { volumes: false, force: true };

const MEMORY: Limits = Limits { memory: Some(ByteSize(64 << 20)), millicpus: None, pids: None, disk: None };
const PROCESSES: Limits = Limits { memory: None, millicpus: None, pids: Some(24), disk: None };
const CPU: Limits = Limits { memory: None, millicpus: Some(500), pids: None, disk: None };

fn limited(stage: &Stage, limits: Limits) -> SandboxSpec {
    SandboxSpec { limits, ..stage.spec() }
}

/// Whether the mode supports limits. If not, a request for one must be refused.
async fn are_given(stage: &Stage, limits: Limits) -> bool {
    if stage.mode().limits == Support::Given {
        return true;
    }
    stage.refuses(&limited(stage, limits)).await;
    false
}

/// A command that exceeds the memory limit is killed, and its status says so. Nothing else is killed.
pub async fn memory_limit_is_enforced(stage: &Stage) {
    if !are_given(stage, MEMORY).await {
        return;
    }
    let sandbox = stage.started(&limited(stage, MEMORY)).await;
    let greedy = ExecSpec::argv(["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"]);
    let output = run(&sandbox, &greedy).await;
    assert_eq!(output.status.signal, Some(9), "{:?}: {}", output.status, output.stderr_text());
    assert!(output.status.oom_killed, "{:?}", output.status);
    // A killed child is counted, even if its parent is not killed.
    let behind = sh(&sandbox, "dd if=/dev/zero of=/dev/null bs=200M count=1; exit 0").await;
    assert_eq!(behind.status.code, Some(0));
    assert_eq!(ok(&sandbox, "echo alive").await, "alive");
    assert!(!run(&sandbox, &ExecSpec::argv(["true"])).await.status.oom_killed);
    let stats = sandbox.stats().await.unwrap();
    assert!(stats.oom_kills.is_some_and(|kills| kills >= 2), "{stats:?}");
    assert_eq!(stats.memory_limit_bytes, Some(64 << 20));
}

/// At the process limit, the next fork fails, and existing processes continue.
pub async fn process_limit_is_enforced(stage: &Stage) {
    if !are_given(stage, PROCESSES).await {
        return;
    }
    let sandbox = stage.started(&limited(stage, PROCESSES)).await;
    let mut forks = ExecSpec::shell("i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done");
    let mark = stage.mark(&mut forks, "forks");
    let output = run(&sandbox, &forks).await;
    assert_ne!(output.status.code, Some(0));
    assert!(output.stderr_text().to_lowercase().contains("fork"), "{}", output.stderr_text());
    let alive = host::marked(&mark).len();
    assert!((5..24).contains(&alive), "{alive} processes");
    sandbox.stats().await.expect("the keeper still answers");
}

/// Limits change while the sandbox runs and while it does not, or the change is refused and has no effect.
pub async fn limits_can_be_changed(stage: &Stage) {
    let limits = Limits { memory: MEMORY.memory, millicpus: CPU.millicpus, ..PROCESSES };
    let wider = Limits { memory: Some(ByteSize(400 << 20)), millicpus: Some(700), pids: Some(48), disk: None };
    if stage.mode().limits != Support::Given {
        let sandbox = stage.running().await;
        assert_eq!(code(sandbox.change_limits(wider).await), ErrorCode::Unsupported);
        assert_eq!(sandbox.inspect().await.unwrap().enforcement.limits.memory, None);
        return;
    }
    let sandbox = stage.started(&limited(stage, limits)).await;
    let disk = Limits { disk: Some(ByteSize(1 << 30)), ..Limits::default() };
    assert_eq!(code(sandbox.change_limits(disk).await), ErrorCode::Unsupported);
    let now = async || sandbox.inspect().await.unwrap().enforcement.limits;
    let greedy = ExecSpec::argv(["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"]);
    assert!(run(&sandbox, &greedy).await.status.oom_killed);
    let changed = sandbox.change_limits(wider).await;
    if changed.as_ref().is_err_and(|error| error.code() == ErrorCode::Unsupported) {
        // An old engine that has no such call.
        assert_eq!(now().await, limits);
        return;
    }
    changed.unwrap();
    assert_eq!(now().await, wider);
    assert_eq!(run(&sandbox, &greedy).await.status.code, Some(0), "the memory limit did not change");
    // A limit that is not named stays.
    sandbox.change_limits(Limits { pids: Some(50), ..Limits::default() }).await.unwrap();
    assert_eq!(now().await, Limits { pids: Some(50), ..wider });
    sandbox.stop(GRACE).await.unwrap();
    sandbox.change_limits(limits).await.unwrap();
    assert_eq!(now().await, limits);
    sandbox.start().await.unwrap();
    assert!(run(&sandbox, &greedy).await.status.oom_killed, "a start undid the change");
    sandbox.remove(FORCE).await.unwrap();
    assert_eq!(code(sandbox.change_limits(wider).await), ErrorCode::NotFound);
}

/// The CPU limit is set in the cgroup of a command's processes.
pub async fn cpu_limit_is_enforced(stage: &Stage) {
    if !are_given(stage, CPU).await {
        return;
    }
    let sandbox = stage.started(&limited(stage, CPU)).await;
    let mut sleep = ExecSpec::argv(["sleep", "1000"]);
    let mark = stage.mark(&mut sleep, "cpu");
    let _exec = sandbox.exec(&sleep).await.unwrap();
    crate::eventually("the process is there", async || !host::marked(&mark).is_empty()).await;
    for pid in host::marked(&mark) {
        let limit = host::cpu_limit(pid).expect("its cgroup has a quota");
        assert!((limit - 0.5).abs() < 0.001, "{limit} CPUs");
    }
}

/// `inspect` reports the enforced limits.
pub async fn limits_are_reported(stage: &Stage) {
    let limits = Limits { memory: Some(ByteSize(128 << 20)), millicpus: Some(1500), pids: Some(100), disk: None };
    if !are_given(stage, limits).await {
        return;
    }
    let sandbox = stage.create(&limited(stage, limits)).await;
    assert_eq!(sandbox.inspect().await.unwrap().enforcement.limits, limits);
    let plain = stage.create(&stage.spec()).await;
    // An engine may have its own limit on processes.
    let unasked = Limits { pids: None, ..plain.inspect().await.unwrap().enforcement.limits };
    assert_eq!(unasked, Limits::default());
}

/// Writes beyond the disk limit fail inside. The sandbox keeps working.
pub async fn disk_limit_is_enforced(stage: &Stage) {
    let spec = limited(stage, Limits { disk: Some(ByteSize(16 << 20)), ..Limits::default() });
    if stage.mode().disk == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let sandbox = stage.started(&spec).await;
    let output = sh(&sandbox, "dd if=/dev/zero of=/fill bs=1M count=40").await;
    assert!(!output.status.success() && output.stderr_text().contains("No space left"), "{}", output.stderr_text());
    assert_eq!(ok(&sandbox, "echo full > /fill && echo kept > /kept && echo w > written && cat /fill").await, "full");
    sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(ok(&sandbox, "cat /kept").await, "kept");
    assert_eq!(sandbox.inspect().await.unwrap().enforcement.limits.disk, spec.limits.disk);
}
