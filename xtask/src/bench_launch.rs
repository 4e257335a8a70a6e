//! Starts the measuring program, which is built with optimizations, after the set-up.

use crate::Bench;
use crate::engine::{Engine, PODMAN, Services};
use crate::machine::{FOR_BENCH, FOR_TESTS, Machine};
use crate::stage::cargo;
use anyhow::{Context, Result, bail};

/// Builds everything like a release (with the profile `dist`) and measures it. Returns whether all promises hold.
pub(crate) fn bench(options: &Bench) -> Result<bool> {
    let mut machine = Machine::here();
    if !machine.root {
        bail!("native sandboxes need root so far, and they are what is measured");
    }
    machine.install(FOR_TESTS)?;
    machine.install(FOR_BENCH)?;
    machine.make_tester()?;
    // The program is built alone, as users build it. Building other packages with it would change the features of its
    // dependencies.
    build(&["build", "--profile", "dist", "--package", "kennel"])?;
    let measure = ["--profile", "dist", "--package", "xtask", "--features", "bench"];
    build(&[&["build"], &measure[..]].concat())?;
    let engine = Engine::get(&mut machine, &[])?;
    let services = Services::get(&mut machine, [PODMAN])?;
    let mut command = cargo(&[&["run", "--quiet"], &measure[..], &["--", "measure"]].concat());
    for (flag, set) in [("--json", options.json), ("--check", options.check), ("--quick", options.quick)] {
        if set {
            command.arg(flag);
        }
    }
    if let Some(word) = &options.only {
        command.args(["--only", word]);
    }
    Engine::tell(engine.as_ref(), &mut command);
    services.tell(&mut command);
    Ok(command.status().context("run the benchmark")?.success())
}

fn build(arguments: &[&str]) -> Result<()> {
    if !cargo(arguments).status().context("run cargo")?.success() {
        bail!("cargo {} failed", arguments.join(" "));
    }
    Ok(())
}
