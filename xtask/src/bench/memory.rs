//! Measures the memory of idle sandboxes, and the memory that much output needs if it is read slowly.

use super::Effort;
use super::environment::BenchEnvironment;
use super::row::Row;
use anyhow::{Context, Result, bail};
use kennel_core::{ExecEvent, Sandbox};
use kennel_keeper_bin::{JAIL, KEEPER};
use kennel_types::ExecSpec;
use std::time::Duration;

const MIB: u64 = 1024 * 1024;

/// Measures the memory of all processes of twenty idle sandboxes, and the size of the programs on disk.
pub(super) fn idle(environment: &BenchEnvironment, _effort: Effort) -> Result<Vec<Row>> {
    const LIVE: u64 = 20;
    let sandboxes = (0..LIVE).map(|_| environment.sandbox(environment.native(), None)).collect::<Result<Vec<_>>>()?;
    let mut all = 0;
    for sandbox in &sandboxes {
        all += all_of(environment, sandbox)?;
    }
    for sandbox in &sandboxes {
        environment.remove(sandbox)?;
    }
    Ok(vec![
        Row::size("idle sandbox (native), PSS of all its processes", all / LIVE).at_most_bytes(1_500_000),
        Row::size("the keeper on disk", KEEPER.bytes().len() as u64).at_most_bytes(2_000_000),
        Row::size("the jail on disk", JAIL.bytes().len() as u64).at_most_bytes(2_000_000),
    ])
}

/// Returns the memory of all processes of a sandbox, in bytes: their proportional set size (PSS).
pub(super) fn all_of(environment: &BenchEnvironment, sandbox: &Sandbox) -> Result<u64> {
    let mut all = 0;
    for pid in processes(environment, sandbox)? {
        all += kilobytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:")? * 1024;
    }
    Ok(all)
}

/// Measures the memory while a command prints a gibibyte, and the client pauses after each chunk that it reads.
pub(super) fn slow_reader(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let total = if effort.is_small() { 128 * MIB } else { 1024 * MIB };
    let sandbox = environment.sandbox(environment.native(), None)?;
    let keeper = *processes(environment, &sandbox)?.last().context("find the keeper")?;
    std::fs::write("/proc/self/clear_refs", "5").context("start to count our own peak afresh")?;
    let before = kilobytes("/proc/self/status", "VmRSS:")?;
    let spec = ExecSpec::argv([
        environment.busybox().to_owned(),
        "head".into(),
        "-c".into(),
        total.to_string(),
        "/dev/zero".into(),
    ]);
    let read = environment.wait(async {
        let mut pause = tokio::time::interval(Duration::from_millis(1));
        let mut exec = sandbox.exec(&spec).await?;
        let mut read = 0;
        while let ExecEvent::Output(_, bytes) = exec.next().await? {
            read += bytes.len() as u64;
            pause.tick().await;
        }
        Ok(read)
    })?;
    if read != total {
        bail!("{read} bytes arrived of {total}");
    }
    let growth = kilobytes("/proc/self/status", "VmHWM:")?.saturating_sub(before);
    let held = kilobytes(&format!("/proc/{keeper}/status"), "VmHWM:")?;
    environment.remove(&sandbox)?;
    let what = format!("{} MiB printed and read slowly", total / MIB);
    Ok(vec![
        Row::size(&format!("{what}: host, growth"), growth * 1024).at_most_bytes(64 * MIB),
        Row::size(&format!("{what}: keeper, peak"), held * 1024).at_most_bytes(8 * MIB),
    ])
}

/// Returns the processes of an idle native sandbox: first the jail outside, then its descendants. The last is the
/// keeper.
fn processes(environment: &BenchEnvironment, sandbox: &Sandbox) -> Result<Vec<u32>> {
    let lock = environment.native_state().join(sandbox.id().as_str()).join("lock");
    let text = std::fs::read_to_string(&lock).with_context(|| format!("read {}", lock.display()))?;
    let mut found = vec![text.trim().parse().with_context(|| format!("read a process id in {}", lock.display()))?];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        next += 1;
    }
    if found.len() < 2 {
        bail!("the jail {} has nobody below it", found[0]);
    }
    Ok(found)
}

/// Returns a field, in kilobytes, of a file in `/proc`.
fn kilobytes(path: &str, field: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix("kB")?.trim().parse().ok());
    value.with_context(|| format!("find {field} in {path}"))
}
