//! Runs tests and counts them. `.config/nextest.toml` decides to which tier a test belongs.

use crate::stage::{Stages, cargo};
use crate::tally::{Tally, TestRunner};
use crate::test_environment::TestEnvironment;
use anyhow::Result;
use std::process::Command;

/// The providers that the contract suite runs on.
const CONTRACT: [&str; 4] = ["kennel-mock", "kennel-local", "kennel-native", "kennel-docker"];

/// Runs all tests except those in the documentation. Both tiers use the same build options, so that the tests are built
/// only once.
const ALL: [&str; 4] = ["nextest", "run", "--workspace", "--all-features"];

/// A set of tests, which is a profile of nextest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The tests of `cargo xtask test`.
    Test,
    /// The tests of `cargo xtask extended`.
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

/// Runs tests and counts their results.
#[derive(Default)]
pub(crate) struct Runner {
    pub(crate) tally: Tally,
}

impl Runner {
    /// Runs the tests of a tier.
    pub(crate) fn tier(&mut self, stages: &mut Stages, environment: &TestEnvironment, tier: Tier) -> Result<()> {
        let mut command = cargo(&ALL);
        command.args(["--profile", tier.profile(), "--no-fail-fast", "--failure-output", "immediate-final"]);
        leave_out(environment, &mut command);
        self.run(stages, environment, "tests", command)
    }

    /// Runs the contract suite on every provider and engine.
    pub(crate) fn contract(&mut self, stages: &mut Stages, environment: &TestEnvironment, name: &str) -> Result<()> {
        let mut command = cargo(&["nextest", "run", "--no-fail-fast", "--test", "contract*"]);
        for package in CONTRACT.into_iter().filter(|package| !is_left_out(environment, package)) {
            command.args(["--package", package]);
        }
        self.run(stages, environment, name, command)
    }

    /// Runs the examples in the documentation, which nextest does not run.
    pub(crate) fn examples(&mut self, stages: &mut Stages, environment: &TestEnvironment) -> Result<()> {
        let mut command = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
        environment.tell(&mut command);
        stages.measure("examples", &mut command, |command| self.tally.run(command, TestRunner::Libtest))
    }

    fn run(
        &mut self,
        stages: &mut Stages,
        environment: &TestEnvironment,
        name: &str,
        mut command: Command,
    ) -> Result<()> {
        environment.tell(&mut command);
        stages.measure(name, &mut command, |command| self.tally.run(command, TestRunner::Nextest))
    }
}

/// Builds all tests.
pub(crate) fn build(stages: &mut Stages) -> Result<()> {
    stages.run("build", cargo(&ALL).arg("--no-run"))
}

fn is_left_out(environment: &TestEnvironment, package: &str) -> bool {
    match package {
        "kennel-native" => !environment.machine.root,
        "kennel-docker" => environment.engine.is_none(),
        _ => false,
    }
}

/// Excludes the tests of providers and engines that are missing. The tests of a provider are in its crate, or in a
/// module with its name.
fn leave_out(environment: &TestEnvironment, command: &mut Command) {
    let providers = ["native", "docker"].into_iter().filter(|name| is_left_out(environment, &format!("kennel-{name}")));
    let not = |name| format!("not (package(kennel-{name}) & kind(test)) & not test(/(^|::){name}::/)");
    // The filters are joined to one expression, because a test needs to match only one of several expressions.
    let mut wanted: Vec<String> = providers.map(not).collect();
    let not = |tests| format!("not binary(/{tests}/) & not test(/{tests}/)");
    wanted.extend(environment.services.missing.iter().map(not));
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
