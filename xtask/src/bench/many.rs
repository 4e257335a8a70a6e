//! Whether a sandbox costs more where many live already, and what hundreds of them take.

use super::Effort;
use super::arena::Arena;
use super::memory::all_of;
use super::row::Row;
use super::sample::{Samples, once, succeed, take_turns};
use anyhow::{Result, bail};
use kennel_core::Sandbox;
use std::time::Instant;

/// Live at once; a tenth where less will do.
const LIVE: usize = 500;
/// Made in one moment.
const AT_ONCE: usize = 100;

/// Hundreds made one after another, each spoken to; a listing of them; a crowd made at once; and all of them removed.
pub(super) fn live(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let (live, at_once) = if effort.is_small() { (LIVE / 10, AT_ONCE / 10) } else { (LIVE, AT_ONCE) };
    let mut sandboxes = Vec::new();
    let mut took = Vec::new();
    while sandboxes.len() < live {
        let began = Instant::now();
        sandboxes.push(arena.sandbox(arena.native(), None)?);
        took.push(began.elapsed());
    }
    let edge = live / 10;
    let (first, last) = (Samples::of(&took[..edge]), Samples::of(&took[live - edge..]));
    let mut memory = 0;
    for sandbox in &sandboxes {
        memory += all_of(arena, sandbox)?;
    }
    let [listing, host] = take_turns(
        effort.times(20),
        [once(|| succeed(&mut arena.kennel(&["--provider", "native", "ls"]))), once(|| arena.host_true())],
    )?;
    remove(arena, sandboxes)?;
    let crowd = crowd(arena, at_once)?;
    Ok(vec![
        Row::times(&format!("create and start at {live} live ones (native)"), &last, "the same at none", &first)
            .at_most(1.5),
        Row::size(&format!("a sandbox of {live} (native), PSS of all its processes"), memory / live as u64)
            .at_most_bytes(1_500_000),
        Row::times(&format!("kennel ls at {live}"), &listing, "spawn on the host", &host).at_most_more(100.0),
        Row::times(&format!("create and start, {at_once} at once (native)"), &crowd, "one after another", &first),
    ])
}

/// All made in one moment: how long each took until it could be spoken to.
fn crowd(arena: &Arena, count: usize) -> Result<Samples> {
    let began = Instant::now();
    let made = arena.wait(async {
        let each = (0..count).map(|_| async {
            let sandbox = arena.begin(arena.native(), None).await?;
            Ok((sandbox, began.elapsed()))
        });
        futures_util::future::try_join_all(each).await
    })?;
    let (sandboxes, took): (Vec<Sandbox>, Vec<_>) = made.into_iter().unzip();
    remove(arena, sandboxes)?;
    Ok(Samples::of(&took))
}

fn remove(arena: &Arena, sandboxes: Vec<Sandbox>) -> Result<()> {
    for sandbox in &sandboxes {
        arena.remove(sandbox)?;
    }
    let ids: Vec<String> = sandboxes.iter().map(|sandbox| sandbox.id().to_string()).collect();
    drop(sandboxes);
    if !arena.is_gone(&ids) {
        bail!("something of the sandboxes that were removed is left: see {}", arena.native_state().display());
    }
    Ok(())
}
