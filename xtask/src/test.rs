//! `cargo xtask test`: set-up, formatting, lints and every test that needs neither a rare engine nor an emulated machine.
//! Those are left to `cargo xtask extended`.

use crate::engine::{PODMAN, SERVICES};
use crate::ground::Ground;
use crate::runner::{self, Runner, Tier};
use crate::stage::{Stages, cargo};
use anyhow::Result;

/// Which tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Test {
    /// Run the contract suites on all engines this many times in a row, and nothing else
    #[arg(long, value_name = "TIMES")]
    repeat: Option<u32>,
}

impl Test {
    /// Returns whether everything passed.
    pub(crate) fn run(&self) -> Result<bool> {
        let mut stages = Stages::default();
        let mut runner = Runner::default();
        let ground = match self.repeat {
            None => {
                let ground = Ground::prepare(&mut stages, [PODMAN])?;
                stages.run("format", &mut cargo(&["fmt", "--all", "--check"]))?;
                let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"];
                stages.run("lints", &mut cargo(&clippy))?;
                runner::build(&mut stages)?;
                runner.tier(&mut stages, &ground, Tier::Test)?;
                ground
            }
            Some(times) => {
                let ground = Ground::prepare(&mut stages, SERVICES)?;
                for round in 1..=times {
                    runner.contract(&mut stages, &ground, &format!("contract suites, {round} of {times}"))?;
                }
                ground
            }
        };
        ground.conclude(stages, runner.tally)
    }
}
