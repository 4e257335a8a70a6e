//! Chores of the project. `cargo xtask test` does all set-up, checks the code and runs most tests; `cargo xtask extended` runs the
//! rest. `cargo xtask bench` measures Kennel beside its peers; `cargo xtask fuzz` feeds garbage to what reads from inside a
//! sandbox; `cargo xtask guest` tests native in a virtual machine with another kernel.
//!
//! Nothing is left out quietly: what cannot be done here is said loudly, and in CI it is a failure.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "chores tell people how they go")]

#[cfg(feature = "bench")]
mod bench;
mod engine;
mod extended;
mod fuzz;
mod ground;
mod guest;
mod launch;
mod machine;
mod runner;
mod stage;
mod tally;
mod test;

use clap::Parser;
use std::process::ExitCode;

/// Chores of the project.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
enum Chore {
    /// Set up what is needed, check formatting and lints, and run the tests
    Test(test::Test),
    /// Run what `test` leaves out: rare engines, documentation, another kernel, fuzzing
    Extended,
    /// Measure Kennel beside its peers, in one run
    Bench(Bench),
    /// The part of it that is built for speed
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    Measure(Bench),
    /// Feed garbage to what reads from inside a sandbox
    Fuzz(fuzz::Fuzz),
    /// Test native in a virtual machine with Debian's kernel and control groups of version 2
    Guest,
}

/// What to measure, and how to tell it.
#[derive(Debug, clap::Args)]
struct Bench {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Fail if a promise is not held; what fails is measured a second time, and longer
    #[arg(long)]
    check: bool,
    /// Fewer samples
    #[arg(long)]
    quick: bool,
    /// Only what has this word in its name
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
}

fn main() -> ExitCode {
    let done = match Chore::parse() {
        Chore::Test(chore) => chore.run(),
        Chore::Extended => extended::run(),
        Chore::Bench(options) => launch::bench(&options),
        #[cfg(feature = "bench")]
        Chore::Measure(options) => bench::run(&options),
        Chore::Fuzz(chore) => chore.run(),
        Chore::Guest => guest::run(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Chore::command().debug_assert();
    }

    /// The lines of a table in a manifest, without comments.
    fn table<'a>(manifest: &'a str, heading: &str) -> Vec<&'a str> {
        let (_, table) = manifest.split_once(&format!("\n[{heading}]\n")).unwrap_or_else(|| panic!("no {heading}"));
        let lines = table.lines().take_while(|line| !line.starts_with('['));
        lines.map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty()).collect()
    }

    /// Only the keeper and the jail have a table of their own, since they may be `unsafe`. The rest of it is the same.
    #[test]
    fn all_crates_have_the_same_lints() {
        let read = |path: &str| std::fs::read_to_string(stage::root().join(path)).expect("a manifest can be read");
        let workspace = read("Cargo.toml");
        let mut rust = table(&workspace, "workspace.lints.rust");
        let clippy = table(&workspace, "workspace.lints.clippy");
        assert!(clippy.contains(&"disallowed_methods = \"deny\"") && clippy.contains(&"print_stdout = \"deny\""));
        let members =
            workspace.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).expect("members").0;
        let (own, common): (Vec<&str>, Vec<&str>) = members
            .split('"')
            .skip(1)
            .step_by(2)
            .partition(|dir| ["kennel-keeper", "jail"].iter().any(|it| dir.ends_with(it)));
        for dir in common {
            assert_eq!(table(&read(&format!("{dir}/Cargo.toml")), "lints"), ["workspace = true"], "{dir}");
        }
        rust.retain(|line| *line != "unsafe_code = \"forbid\"");
        rust.push("unsafe_op_in_unsafe_fn = \"deny\"");
        assert_eq!(own.len(), 2);
        for dir in own {
            let manifest = read(&format!("{dir}/Cargo.toml"));
            assert_eq!(table(&manifest, "lints.rust"), rust, "{dir}");
            assert_eq!(table(&manifest, "lints.clippy"), clippy, "{dir}");
        }
    }

    /// The lints compile the example; this makes sure that it is the one people read.
    #[test]
    fn the_readme_shows_the_example_as_it_is() {
        let (_, code) = include_str!("../examples/library.rs").split_once("\n\n").expect("a line of words, then code");
        assert!(
            include_str!("../../README.md").contains(&format!("```rust\n{code}```")),
            "README.md shows another example"
        );
    }
}
