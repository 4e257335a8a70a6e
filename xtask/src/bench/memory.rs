//! What a sandbox takes when nothing happens in it, and what a flood of output takes when nobody hurries to read it.

use super::Effort;
use super::arena::Arena;
use super::row::Row;
use anyhow::{Context, Result, bail};
use kennel_core::{ExecEvent, Sandbox};
use kennel_keeper_bin::{JAIL, KEEPER};
use kennel_types::ExecSpec;
use std::time::Duration;

const MIB: u64 = 1024 * 1024;

/// Twenty that idle, all their processes; and the programs on disk.
pub(super) fn idle(arena: &Arena, _effort: Effort) -> Result<Vec<Row>> {
    const LIVE: u64 = 20;
    let sandboxes = (0..LIVE).map(|_| arena.sandbox(arena.native(), None)).collect::<Result<Vec<_>>>()?;
    let mut all = 0;
    for sandbox in &sandboxes {
        all += all_of(arena, sandbox)?;
    }
    for sandbox in &sandboxes {
        arena.remove(sandbox)?;
    }
    Ok(vec![
        Row::size("idle sandbox (native), PSS of all its processes", all / LIVE).at_most_bytes(1_500_000),
        Row::size("the keeper on disk", KEEPER.bytes().len() as u64).at_most_bytes(2_000_000),
        Row::size("the jail on disk", JAIL.bytes().len() as u64).at_most_bytes(2_000_000),
    ])
}

/// The bytes that all processes of a sandbox have to themselves, and their part of what they share.
pub(super) fn all_of(arena: &Arena, sandbox: &Sandbox) -> Result<u64> {
    let mut all = 0;
    for pid in processes(arena, sandbox)? {
        all += kilobytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:")? * 1024;
    }
    Ok(all)
}

/// A command prints a gibibyte; we read it a piece at a time, with a pause after each.
pub(super) fn slow_reader(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let total = if effort.is_small() { 128 * MIB } else { 1024 * MIB };
    let sandbox = arena.sandbox(arena.native(), None)?;
    let keeper = *processes(arena, &sandbox)?.last().context("find the keeper")?;
    std::fs::write("/proc/self/clear_refs", "5").context("start to count our own peak afresh")?;
    let before = kilobytes("/proc/self/status", "VmRSS:")?;
    let spec =
        ExecSpec::argv([arena.busybox().to_owned(), "head".into(), "-c".into(), total.to_string(), "/dev/zero".into()]);
    let read = arena.wait(async {
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
    arena.remove(&sandbox)?;
    let what = format!("{} MiB printed and read slowly", total / MIB);
    Ok(vec![
        Row::size(&format!("{what}: host, growth"), growth * 1024).at_most_bytes(64 * MIB),
        Row::size(&format!("{what}: keeper, peak"), held * 1024).at_most_bytes(8 * MIB),
    ])
}

/// The processes of an idle native sandbox: the jail that watches outside, then all below it. The last is the keeper.
fn processes(arena: &Arena, sandbox: &Sandbox) -> Result<Vec<u32>> {
    let lock = arena.native_state().join(sandbox.id().as_str()).join("lock");
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

/// A field of a file in /proc that counts kilobytes.
fn kilobytes(path: &str, field: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix("kB")?.trim().parse().ok());
    value.with_context(|| format!("find {field} in {path}"))
}
