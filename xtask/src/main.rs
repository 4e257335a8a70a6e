//! Development tasks.
//!
//! - `cargo xtask test` sets up the machine, checks the code and runs most tests.
//! - `cargo xtask extended` runs the other tests.
//! - `cargo xtask bench` compares Kennel's speed with that of similar tools.
//! - `cargo xtask fuzz` fuzzes the parsers of untrusted input.
//! - `cargo xtask guest` tests the native provider in a virtual machine with another kernel.
//!
//! A task never skips a part silently: it reports what it cannot do on this machine, and in CI that is a failure.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "tasks report their progress")]

#[cfg(feature = "bench")]
mod bench;
mod bench_launch;
mod engine;
mod extended;
mod fuzz;
mod guest;
mod machine;
mod runner;
mod stage;
mod tally;
mod test;
mod test_environment;

use clap::Parser;
use std::process::ExitCode;

/// Tasks for the development of Kennel.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
enum Task {
    /// Set up what is needed, check formatting and lints, and run the tests
    Test(test::Test),
    /// Run what `test` leaves out: rare engines, documentation, another kernel, fuzzing
    Extended(test_environment::Report),
    /// Measure Kennel and comparable programs, in one run
    Bench(Bench),
    /// The part that is built with optimizations
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    Measure(Bench),
    /// Feed random input to the code that parses data from inside a sandbox
    Fuzz(fuzz::Fuzz),
    /// Test native in a virtual machine with Debian's kernel and cgroup v2
    Guest,
}

/// What to measure, and how to print it.
#[derive(Debug, clap::Args)]
struct Bench {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Fail if a promise is not kept; a row that fails is measured a second time, and longer
    #[arg(long)]
    check: bool,
    /// Fewer samples
    #[arg(long)]
    quick: bool,
    /// Measure only rows whose name contains this word
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
}

fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Test(task) => task.run(),
        Task::Extended(report) => extended::run(&report),
        Task::Bench(options) => bench_launch::bench(&options),
        #[cfg(feature = "bench")]
        Task::Measure(options) => bench::run(&options),
        Task::Fuzz(task) => task.run(),
        Task::Guest => guest::run(),
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
    fn the_command_line_definition_is_valid() {
        Task::command().debug_assert();
    }

    /// Returns the lines of a table in a `Cargo.toml`, without comments.
    fn table<'a>(manifest: &'a str, heading: &str) -> Vec<&'a str> {
        let (_, table) = manifest.split_once(&format!("\n[{heading}]\n")).unwrap_or_else(|| panic!("no {heading}"));
        let lines = table.lines().take_while(|line| !line.starts_with('['));
        lines.map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty()).collect()
    }

    /// All crates inherit the lints of the workspace, except the keeper and the jail, which may contain `unsafe` code.
    /// Their own tables differ only in that.
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

    /// Checks that README.md contains exactly the code of the example, which Clippy compiles.
    #[test]
    fn the_readme_contains_the_example() {
        let (_, code) = include_str!("../../crates/kennel-engine/examples/library.rs")
            .split_once("\n\n")
            .expect("a line of words, then code");
        assert!(
            include_str!("../../README.md").contains(&format!("```rust\n{code}```")),
            "README.md shows another example"
        );
    }
}
