//! Runs tests and counts them. Which test is in which tier is said in `.config/nextest.toml`, once.

use crate::ground::Ground;
use crate::stage::{Stages, cargo};
use crate::tally::{Speaks, Tally};
use anyhow::Result;
use std::process::Command;

/// The providers that the contract suite runs on.
const CONTRACT: [&str; 4] = ["kennel-mock", "kennel-local", "kennel-native", "kennel-docker"];

/// All tests but those in the documentation, built in the same way for both tiers, so that they are built once.
const ALL: [&str; 4] = ["nextest", "run", "--workspace", "--all-features"];

/// Which tests belong together: a profile of nextest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Those of `cargo xtask test`.
    Test,
    /// The rest.
    Extended,
}

impl Tier {
    const fn profile(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Extended => "extended",
        }
    }
}

/// A runner of tests.
#[derive(Default)]
pub(crate) struct Runner {
    pub(crate) tally: Tally,
}

impl Runner {
    /// Runs the tests of a tier.
    pub(crate) fn tier(&mut self, stages: &mut Stages, ground: &Ground, tier: Tier) -> Result<()> {
        let mut command = cargo(&ALL);
        command.args(["--profile", tier.profile(), "--no-fail-fast"]);
        leave_out(ground, &mut command);
        self.run(stages, ground, "tests", command)
    }

    /// Runs the contract suite on every provider and engine.
    pub(crate) fn contract(&mut self, stages: &mut Stages, ground: &Ground, name: &str) -> Result<()> {
        let mut command = cargo(&["nextest", "run", "--no-fail-fast", "--test", "contract*"]);
        for package in CONTRACT.into_iter().filter(|package| !is_left_out(ground, package)) {
            command.args(["--package", package]);
        }
        self.run(stages, ground, name, command)
    }

    /// Runs the examples in the documentation, which nextest does not run.
    pub(crate) fn examples(&mut self, stages: &mut Stages, ground: &Ground) -> Result<()> {
        let mut command = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
        ground.tell(&mut command);
        stages.measure("examples", &mut command, |command| self.tally.run(command, Speaks::Stdout))
    }

    fn run(&mut self, stages: &mut Stages, ground: &Ground, name: &str, mut command: Command) -> Result<()> {
        ground.tell(&mut command);
        stages.measure(name, &mut command, |command| self.tally.run(command, Speaks::Stderr))
    }
}

/// Builds all tests.
pub(crate) fn build(stages: &mut Stages) -> Result<()> {
    stages.run("build", cargo(&ALL).arg("--no-run"))
}

fn is_left_out(ground: &Ground, package: &str) -> bool {
    match package {
        "kennel-native" => !ground.machine.root,
        "kennel-docker" => ground.engine.is_none(),
        _ => false,
    }
}

/// Leaves out what was said to be left out: the tests of a provider are in its crate, or in a module of its name.
fn leave_out(ground: &Ground, command: &mut Command) {
    let providers = ["native", "docker"].into_iter().filter(|name| is_left_out(ground, &format!("kennel-{name}")));
    let not = |name| format!("not (package(kennel-{name}) & kind(test)) & not test(/(^|::){name}::/)");
    // One expression: of several, a test has to match only one.
    let mut wanted: Vec<String> = providers.map(not).collect();
    let not = |tests| format!("not binary(/{tests}/) & not test(/{tests}/)");
    wanted.extend(ground.services.missing.iter().map(not));
    if !wanted.is_empty() {
        command.args(["--filterset", &wanted.join(" & ")]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test that is in no tier would never run, and one that is in both would run twice.
    #[test]
    fn every_test_is_in_one_tier() {
        let settings = include_str!("../../.config/nextest.toml");
        let filter = |tier: Tier| {
            let heading = format!("[profile.{}]\n", tier.profile());
            let (_, section) = settings.split_once(&heading).expect("each tier has a profile");
            let section = section.split("\n[").next().unwrap_or_default();
            let mut filters =
                section.lines().filter_map(|line| line.strip_prefix("default-filter = '")?.strip_suffix('\''));
            filters.next().expect("a profile has a filter")
        };
        assert_eq!(filter(Tier::Test), format!("not {}", filter(Tier::Extended)));
    }
}
