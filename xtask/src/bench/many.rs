//! Whether a sandbox costs more where many live already.

use super::Effort;
use super::arena::Arena;
use super::row::Row;
use super::sample::{once, take_turns};
use anyhow::Result;

const LIVE: usize = 50;

/// Made, started, spoken to and removed: alone, and beside fifty others. Only told: fifty are not many.
pub(super) fn create(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let turns = effort.times(20);
    let life = || arena.remove(&arena.sandbox(arena.native(), None)?);
    let [alone] = take_turns(turns, [once(life)])?;
    let others = (0..LIVE).map(|_| arena.sandbox(arena.native(), None)).collect::<Result<Vec<_>>>()?;
    let [beside_others] = take_turns(turns, [once(life)])?;
    for sandbox in &others {
        arena.remove(sandbox)?;
    }
    let what = format!("create, start and remove at {LIVE} live ones (native)");
    Ok(vec![Row::times(&what, &beside_others, "the same at none", &alone)])
}
