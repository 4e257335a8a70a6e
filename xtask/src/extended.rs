//! `cargo xtask extended`: what `cargo xtask test` leaves out, and only that. Tests on rare engines, the documentation, a guest
//! with another kernel, and fuzzing.

use crate::engine::SERVICES;
use crate::ground::Ground;
use crate::runner::{self, Runner, Tier};
use crate::stage::{Stages, cargo};
use crate::{fuzz, guest};
use anyhow::Result;

/// Returns whether everything passed.
pub(crate) fn run() -> Result<bool> {
    let mut stages = Stages::default();
    let mut runner = Runner::default();
    let mut ground = Ground::prepare(&mut stages, SERVICES)?;
    runner::build(&mut stages)?;
    runner.tier(&mut stages, &ground, Tier::Extended)?;
    runner.examples(&mut stages, &ground)?;
    let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
    stages.run("documentation", doc.env("RUSTDOCFLAGS", "--deny warnings"))?;
    guest::stage(&mut ground.machine, &mut stages)?;
    fuzz::Fuzz::default().stages(&mut ground.machine, &mut stages)?;
    ground.conclude(stages, runner.tally)
}
