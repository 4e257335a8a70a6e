//! `cargo xtask extended`: runs only what `cargo xtask test` leaves out: tests on rare engines, the documentation, a
//! guest with another kernel, and fuzzing.

use crate::engine::SERVICES;
use crate::runner::{self, Runner, Tier};
use crate::stage::{Stages, cargo};
use crate::test_environment::{Report, TestEnvironment};
use crate::{fuzz, guest};
use anyhow::Result;

/// Runs the extended tests. Returns whether everything passed.
pub(crate) fn run(report: &Report) -> Result<bool> {
    let mut stages = Stages::default();
    let mut runner = Runner::default();
    let mut environment = TestEnvironment::prepare(&mut stages, SERVICES)?;
    runner::build(&mut stages)?;
    runner.tier(&mut stages, &environment, Tier::Extended)?;
    runner.examples(&mut stages, &environment)?;
    let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
    stages.run("documentation", doc.env("RUSTDOCFLAGS", "--deny warnings"))?;
    guest::stage(&mut environment.machine, &mut stages)?;
    fuzz::Fuzz::default().stages(&mut environment.machine, &mut stages)?;
    environment.conclude(stages, &runner.tally, report)
}
