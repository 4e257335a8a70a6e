//! Stages of a chore: each is a command, said before it runs. One that fails does not stop the next, so that one run tells
//! everything.

use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::process::Command;
use std::time::Instant;

/// What has run so far.
#[derive(Default)]
pub(crate) struct Stages {
    done: Vec<(String, bool, f64)>,
}

impl Stages {
    /// Runs a command to its end.
    pub(crate) fn run(&mut self, name: &str, command: &mut Command) -> Result<()> {
        self.measure(name, command, |command| Ok(command.status()?.success()))
    }

    /// Runs a command in a way of the caller's own.
    pub(crate) fn measure(
        &mut self,
        name: &str,
        command: &mut Command,
        how: impl FnOnce(&mut Command) -> Result<bool>,
    ) -> Result<()> {
        let what = shown(command);
        self.check(name, &what, || how(command).with_context(|| format!("run {what}")))
    }

    /// Looks at something, which is a stage as well.
    pub(crate) fn check(&mut self, name: &str, what: &str, how: impl FnOnce() -> Result<bool>) -> Result<()> {
        eprintln!("\n== {name}: {what}");
        let start = Instant::now();
        let passed = how()?;
        self.done.push((name.to_owned(), passed, start.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Prints what took how long; answers whether all passed.
    pub(crate) fn conclude(&self) -> bool {
        eprintln!();
        for (name, passed, seconds) in &self.done {
            eprintln!("{} {name} ({seconds:.0} s)", if *passed { "passed" } else { "FAILED" });
        }
        self.done.iter().all(|(_, passed, _)| *passed)
    }
}

/// The cargo that runs us.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// The top of the project.
pub(crate) fn root() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the project")
}

fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words: Vec<_> = std::iter::once(program).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}
