//! Measures whether a sandbox takes longer if many others exist, and what hundreds of them need.

use super::Effort;
use super::environment::BenchEnvironment;
use super::memory::all_of;
use super::row::Row;
use super::sample::{Samples, once, succeed, take_turns};
use anyhow::{Result, bail};
use kennel_core::Sandbox;
use std::time::Instant;

/// The number of sandboxes that exist at the same time; a tenth of it with `--quick`.
const LIVE: usize = 500;
/// The number of sandboxes that are created at the same time.
const AT_ONCE: usize = 100;

/// Measures hundreds of sandboxes: creating them one after another, listing them, creating many at the same time, and
/// removing all.
pub(super) fn live(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let (live, at_once) = if effort.is_small() { (LIVE / 10, AT_ONCE / 10) } else { (LIVE, AT_ONCE) };
    let mut sandboxes = Vec::new();
    let mut took = Vec::new();
    while sandboxes.len() < live {
        let began = Instant::now();
        sandboxes.push(environment.sandbox(environment.native(), None)?);
        took.push(began.elapsed());
    }
    let edge = live / 10;
    let (first, last) = (Samples::from_times(&took[..edge]), Samples::from_times(&took[live - edge..]));
    let mut memory = 0;
    for sandbox in &sandboxes {
        memory += all_of(environment, sandbox)?;
    }
    let [listing, host] = take_turns(
        effort.times(20),
        [once(|| succeed(&mut environment.kennel(&["--provider", "native", "ls"]))), once(|| environment.host_true())],
    )?;
    remove(environment, sandboxes)?;
    let crowd = crowd(environment, at_once)?;
    Ok(vec![
        Row::times(&format!("create and start at {live} live ones (native)"), &last, "the same at none", &first)
            .at_most(1.5),
        Row::size(&format!("a sandbox of {live} (native), PSS of all its processes"), memory / live as u64)
            .at_most_bytes(1_500_000),
        Row::times(&format!("kennel ls at {live}"), &listing, "spawn on the host", &host).at_most_more(100.0),
        Row::times(&format!("create and start, {at_once} at once (native)"), &crowd, "one after another", &first),
    ])
}

/// Compares creating many sandboxes of an ordinary user at the same time and one after another.
pub(super) fn user(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let at_once = if effort.is_small() { AT_ONCE / 10 } else { AT_ONCE };
    environment.as_user(|environment| {
        let mut took = Vec::new();
        for _ in 0..at_once / 2 {
            let began = Instant::now();
            let sandbox = environment.sandbox(environment.native(), None)?;
            took.push(began.elapsed());
            remove(environment, vec![sandbox])?;
        }
        let (crowd, alone) = (crowd(environment, at_once)?, Samples::from_times(&took));
        let what = format!("create and start, {at_once} at once ({})", environment.who());
        Ok(vec![Row::times(&what, &crowd, "one after another", &alone)])
    })
}

/// Creates sandboxes at the same time. Returns how long each took until it was connected.
fn crowd(environment: &BenchEnvironment, count: usize) -> Result<Samples> {
    let began = Instant::now();
    let made = environment.wait(async {
        let each = (0..count).map(|_| async {
            let sandbox = environment.begin(environment.native(), None).await?;
            Ok((sandbox, began.elapsed()))
        });
        futures_util::future::try_join_all(each).await
    })?;
    let (sandboxes, took): (Vec<Sandbox>, Vec<_>) = made.into_iter().unzip();
    remove(environment, sandboxes)?;
    Ok(Samples::from_times(&took))
}

fn remove(environment: &BenchEnvironment, sandboxes: Vec<Sandbox>) -> Result<()> {
    for sandbox in &sandboxes {
        environment.remove(sandbox)?;
    }
    let ids: Vec<String> = sandboxes.iter().map(|sandbox| sandbox.id().to_string()).collect();
    drop(sandboxes);
    if !environment.is_gone(&ids) {
        bail!("something of the sandboxes that were removed is left: see {}", environment.native_state().display());
    }
    Ok(())
}
