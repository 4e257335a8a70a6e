//! The environment of the tests: this machine with everything they need installed, and running engines.

use crate::engine::{Engine, Service, Services, is_nothing_left};
use crate::machine::{FOR_TESTS, Machine, install_tool};
use crate::stage::Stages;
use crate::tally::Tally;
use anyhow::Result;
use kennel_testkit::git_image::git_image_on;
use kennel_testkit::node_image::node_image_on;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// The machine and its engines, for the duration of a task.
pub(crate) struct TestEnvironment {
    pub(crate) machine: Machine,
    pub(crate) engine: Option<Engine>,
    pub(crate) services: Services,
}

impl TestEnvironment {
    /// Installs what is missing, and finds or starts Docker and the other engines.
    pub(crate) fn prepare(stages: &mut Stages, services: impl IntoIterator<Item = Service>) -> Result<Self> {
        stages.time("set-up", "programs, users and engines that the tests need", || {
            let mut machine = Machine::here();
            machine.install(FOR_TESTS)?;
            machine.install_bun()?;
            machine.install_acp()?;
            machine.install_python()?;
            install_tool("nextest", "cargo-nextest")?;
            machine.make_tester()?;
            machine.give_ids_to_podman()?;
            // Created here, so that they are no leftovers of a test.
            let engine = Engine::get(&mut machine, &[git_image_on, node_image_on])?;
            machine.open_tunnels()?;
            let services = Services::get(&mut machine, services)?;
            if !machine.root {
                let why = "its tests play root and ordinary users, which only root can";
                machine.leave_out("everything on native", why)?;
            }
            Ok(Self { machine, engine, services })
        })
    }

    /// Sets the variables that tell a command which engines to use.
    pub(crate) fn tell(&self, command: &mut Command) {
        Engine::tell(self.engine.as_ref(), command);
        self.services.tell(command);
    }

    /// Checks that nothing is left on the engines, ends those that this task started, and reports all stages with their
    /// durations. Returns whether everything passed.
    pub(crate) fn conclude(self, mut stages: Stages, tally: &Tally, report: &Report) -> Result<bool> {
        let Self { machine, engine, services } = self;
        let what = "what the engines have now, and had before";
        stages.check("nothing left", what, || Ok(is_nothing_left(engine.as_ref(), &services)))?;
        drop((engine, services));
        let mut lines = vec![format!("\n{}", stages.table().trim_end())];
        lines.extend(machine.left_out().iter().map(|what| format!("LEFT OUT {what}")));
        lines.push(format!("{} passed, {} failed\n", tally.passed, tally.failed));
        let end = lines.join("\n");
        print!("{end}");
        report.append(&format!("{}\n{end}", tally.failures.join("\n")))?;
        Ok(stages.have_passed())
    }
}

/// A file that receives the result of a task, for a caller that runs several and wants to print all results together.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Report {
    /// Append the failed tests and the result of each stage to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl Report {
    fn append(&self, text: &str) -> Result<()> {
        let Some(path) = &self.report else { return Ok(()) };
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(file.write_all(text.as_bytes())?)
    }
}
