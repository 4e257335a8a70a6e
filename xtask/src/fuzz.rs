//! `cargo xtask fuzz`: runs the fuzz targets, which feed mutated seeds to the parsers of untrusted input.

use crate::machine::{Machine, install_tool, works};
use crate::stage::{Stages, root};
use anyhow::{Context, Result};
use std::process::Command;

/// A fuzz target with its limits. Inputs are small, so a large allocation means that a parser trusted a length in the
/// input.
struct Target {
    name: &'static str,
    /// The largest allowed allocation, in megabytes.
    allocation: u32,
    /// How long the target runs by default.
    until: Until,
}

#[derive(Clone, Copy)]
enum Until {
    Inputs(u64),
    Seconds(u64),
}

const TARGETS: [Target; 4] = [
    Target { name: "frames", allocation: 4, until: Until::Inputs(1_000_000) },
    // This target is slow, because each input is a whole connection.
    Target { name: "keeper_answers", allocation: 4, until: Until::Seconds(60) },
    // This input does not come from a sandbox, but from the author of a project's files.
    Target { name: "config", allocation: 64, until: Until::Seconds(30) },
    // This input comes from registries and archives. A zstd stream may use a window of 128 MiB.
    Target { name: "image_layer", allocation: 160, until: Until::Seconds(30) },
];

/// How long to fuzz.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Fuzz {
    /// Inputs for each target [default: a million frames, a minute of keepers, half a minute of settings and of images]
    #[arg(long, value_name = "COUNT")]
    runs: Option<u64>,
    /// Only this target
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
}

impl Fuzz {
    /// Runs the fuzz targets. Returns whether they found nothing.
    pub(crate) fn run(&self) -> Result<bool> {
        let mut stages = Stages::default();
        self.stages(&mut Machine::here(), &mut stages)?;
        Ok(stages.conclude())
    }

    /// Runs each fuzz target as one stage.
    pub(crate) fn stages(&self, machine: &mut Machine, stages: &mut Stages) -> Result<()> {
        if !works("cargo", &["+nightly", "--version"]) {
            return machine.leave_out("fuzzing", "there is no nightly compiler (rustup toolchain install nightly)");
        }
        install_tool("fuzz", "cargo-fuzz")?;
        for target in TARGETS.iter().filter(|target| self.target.as_deref().is_none_or(|name| name == target.name)) {
            let until = self.runs.map_or(target.until, Until::Inputs);
            stages.run(&format!("fuzz {}", target.name), &mut command(target, until)?)?;
        }
        Ok(())
    }
}

fn command(target: &Target, until: Until) -> Result<Command> {
    let name = target.name;
    let found = format!("fuzz/corpus/{name}");
    std::fs::create_dir_all(root().join(&found)).with_context(|| format!("make {found}"))?;
    // Start rustup's `cargo`, not the one that runs this program, because fuzzing needs the nightly toolchain.
    let mut command = Command::new("cargo");
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN").current_dir(root());
    command.args(["+nightly", "fuzz", "run", name, &found, &format!("fuzz/seeds/{name}"), "--"]);
    command.args(["-max_len=4096", "-rss_limit_mb=1024", "-timeout=10", "-print_final_stats=1", "-verbosity=0"]);
    command.arg(format!("-malloc_limit_mb={}", target.allocation));
    command.arg(match until {
        Until::Inputs(count) => format!("-runs={count}"),
        Until::Seconds(seconds) => format!("-max_total_time={seconds}"),
    });
    Ok(command)
}
