//! `cargo xtask test`: all set-up, then everything that can fail.

use crate::engine::{Engine, SERVICES, Services, is_nothing_left};
use crate::machine::{FOR_TESTS, Machine, works};
use crate::stage::{Stages, cargo};
use crate::tally::{Speaks, Tally};
use crate::{fuzz, guest};
use anyhow::Result;
use std::process::Command;

/// The providers that the contract suite runs on.
const CONTRACT: [&str; 4] = ["kennel-mock", "kennel-local", "kennel-native", "kennel-docker"];

/// Which tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Test {
    /// Leave out the documentation and the fuzzing
    #[arg(long)]
    quick: bool,
    /// Run the contract suites this many times in a row, and nothing else
    #[arg(long, value_name = "TIMES", conflicts_with = "quick")]
    repeat: Option<u32>,
}

impl Test {
    /// Answers whether everything passed.
    pub(crate) fn run(&self) -> Result<bool> {
        let mut machine = Machine::here();
        machine.install(FOR_TESTS)?;
        machine.make_tester()?;
        machine.give_ids_to_podman()?;
        let engine = Engine::get(&mut machine)?;
        machine.open_tunnels()?;
        let services = Services::get(&mut machine, SERVICES)?;
        let mut runner = Runner::find(&mut machine, engine.as_ref(), &services)?;
        let mut stages = Stages::default();
        match self.repeat {
            Some(times) => {
                for round in 1..=times {
                    runner.contract(&mut stages, &format!("contract suites, {round} of {times}"))?;
                }
            }
            None => self.everything(&mut machine, &mut stages, &mut runner)?,
        }
        let tally = runner.tally;
        let what = "what the engines have now, and had before";
        stages.check("nothing left", what, || Ok(is_nothing_left(engine.as_ref(), &services)))?;
        drop((engine, services));
        let passed = stages.conclude();
        for what in machine.left_out() {
            eprintln!("LEFT OUT {what}");
        }
        println!("{} passed, {} failed", tally.passed, tally.failed);
        Ok(passed)
    }

    fn everything(&self, machine: &mut Machine, stages: &mut Stages, runner: &mut Runner<'_>) -> Result<()> {
        stages.run("format", &mut cargo(&["fmt", "--all", "--check"]))?;
        let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"];
        stages.run("lints", &mut cargo(&clippy))?;
        runner.all(stages)?;
        if self.quick {
            return Ok(());
        }
        runner.documentation(stages)?;
        let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
        stages.run("documentation", doc.env("RUSTDOCFLAGS", "--deny warnings"))?;
        guest::stage(machine, stages)?;
        fuzz::Fuzz::default().stages(machine, stages)
    }
}

/// Runs tests and counts them.
struct Runner<'a> {
    nextest: bool,
    engine: Option<&'a Engine>,
    services: &'a Services,
    root: bool,
    tally: Tally,
}

impl<'a> Runner<'a> {
    fn find(machine: &mut Machine, engine: Option<&'a Engine>, services: &'a Services) -> Result<Self> {
        let nextest = works("cargo", &["nextest", "--version"]);
        if !nextest {
            let why = "cargo-nextest is not there (cargo install --locked cargo-nextest); cargo test stands in for it";
            machine.leave_out("the time limit on each test, and each test in a process of its own", why)?;
        }
        if !machine.root {
            machine.leave_out("everything on native", "its tests play root and ordinary users, which only root can")?;
        }
        Ok(Self { nextest, engine, services, root: machine.root, tally: Tally::default() })
    }

    /// All tests but those in the documentation.
    fn all(&mut self, stages: &mut Stages) -> Result<()> {
        let mut command = if self.nextest {
            cargo(&["nextest", "run", "--workspace", "--all-features", "--no-fail-fast"])
        } else {
            cargo(&["test", "--workspace", "--all-features", "--all-targets", "--no-fail-fast"])
        };
        self.leave_out(&mut command);
        self.run(stages, "tests", command)
    }

    /// The contract suite on every provider.
    fn contract(&mut self, stages: &mut Stages, name: &str) -> Result<()> {
        let mut command = if self.nextest {
            cargo(&["nextest", "run", "--no-fail-fast", "--test", "contract*"])
        } else {
            cargo(&["test", "--no-fail-fast", "--test", "contract*"])
        };
        for package in CONTRACT.into_iter().filter(|package| !self.is_left_out(package)) {
            command.args(["--package", package]);
        }
        self.run(stages, name, command)
    }

    /// The examples in the documentation, which nextest does not run.
    fn documentation(&mut self, stages: &mut Stages) -> Result<()> {
        let mut command = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
        Engine::tell(self.engine, &mut command);
        stages.measure("examples", &mut command, |command| self.tally.run(command, Speaks::Stdout))
    }

    fn run(&mut self, stages: &mut Stages, name: &str, mut command: Command) -> Result<()> {
        Engine::tell(self.engine, &mut command);
        self.services.tell(&mut command);
        let speaks_on = if self.nextest { Speaks::Stderr } else { Speaks::Stdout };
        stages.measure(name, &mut command, |command| self.tally.run(command, speaks_on))
    }

    fn is_left_out(&self, package: &str) -> bool {
        match package {
            "kennel-native" => !self.root,
            "kennel-docker" => self.engine.is_none(),
            _ => false,
        }
    }

    /// Leaves out what was said to be left out: the tests of a provider are in its crate, or in a module of its name.
    fn leave_out(&self, command: &mut Command) {
        let providers = ["native", "docker"].into_iter().filter(|name| self.is_left_out(&format!("kennel-{name}")));
        let providers: Vec<&str> = providers.collect();
        if self.nextest {
            // One expression: of several, a test has to match only one.
            let not = |name| format!("not (package(kennel-{name}) & kind(test)) & not test(/(^|::){name}::/)");
            let mut wanted: Vec<String> = providers.into_iter().map(not).collect();
            let not = |tests| format!("not binary(/{tests}/) & not test(/{tests}/)");
            wanted.extend(self.services.missing.iter().map(not));
            if !wanted.is_empty() {
                command.args(["--filterset", &wanted.join(" & ")]);
            }
            return;
        }
        for name in &providers {
            command.args(["--exclude", &format!("kennel-{name}")]);
        }
        command.arg("--");
        for name in &providers {
            command.args(["--skip", &format!("{name}::")]);
        }
        for tests in &self.services.missing {
            command.args(["--skip", tests]);
        }
    }
}
