//! `cargo xtask test`: set-up, formatting, lints, and all tests that need neither a rare engine nor an emulated
//! machine. `cargo xtask extended` runs the others.

use crate::engine::{PODMAN, SERVICES};
use crate::runner::{self, Runner, Tier};
use crate::stage::{Stages, cargo};
use crate::test_environment::{Report, TestEnvironment};
use anyhow::Result;

/// Which tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Test {
    /// Run the contract suites on all engines this many times in a row, and nothing else
    #[arg(long, value_name = "TIMES")]
    repeat: Option<u32>,
    #[command(flatten)]
    report: Report,
}

impl Test {
    /// Runs the tests. Returns whether everything passed.
    pub(crate) fn run(&self) -> Result<bool> {
        let mut stages = Stages::default();
        let mut runner = Runner::default();
        let environment = match self.repeat {
            None => {
                let environment = TestEnvironment::prepare(&mut stages, [PODMAN])?;
                stages.run("format", &mut cargo(&["fmt", "--all", "--check"]))?;
                let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"];
                stages.run("lints", &mut cargo(&clippy))?;
                runner::build(&mut stages)?;
                runner.tier(&mut stages, &environment, Tier::Test)?;
                environment
            }
            Some(times) => {
                let environment = TestEnvironment::prepare(&mut stages, SERVICES)?;
                for round in 1..=times {
                    runner.contract(&mut stages, &environment, &format!("contract suites, {round} of {times}"))?;
                }
                environment
            }
        };
        environment.conclude(stages, &runner.tally, &self.report)
    }
}
