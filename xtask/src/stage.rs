//! The stages of a task. Each is a command, which is printed before it runs. A failed stage does not stop the next one,
//! so that one run reports all failures.

use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

/// The stages that have run so far.
#[derive(Default)]
pub(crate) struct Stages {
    done: Vec<Stage>,
}

struct Stage {
    name: String,
    passed: bool,
    took: Duration,
}

impl Stages {
    /// Runs a command as a stage.
    pub(crate) fn run(&mut self, name: &str, command: &mut Command) -> Result<()> {
        self.measure(name, command, |command| Ok(command.status()?.success()))
    }

    /// Runs a command as a stage, by calling `how`.
    pub(crate) fn measure(
        &mut self,
        name: &str,
        command: &mut Command,
        how: impl FnOnce(&mut Command) -> Result<bool>,
    ) -> Result<()> {
        let what = shown(command);
        self.check(name, &what, || how(command).with_context(|| format!("run {what}")))
    }

    /// Runs a check as a stage. It returns whether it passed.
    pub(crate) fn check(&mut self, name: &str, what: &str, how: impl FnOnce() -> Result<bool>) -> Result<()> {
        let (passed, took) = timed(name, what, how)?;
        self.done.push(Stage { name: name.to_owned(), passed, took });
        Ok(())
    }

    /// Runs a stage that returns a value. A failure ends the whole task.
    pub(crate) fn time<T>(&mut self, name: &str, what: &str, how: impl FnOnce() -> Result<T>) -> Result<T> {
        let (made, took) = timed(name, what, how)?;
        self.done.push(Stage { name: name.to_owned(), passed: true, took });
        Ok(made)
    }

    /// Prints all stages with their durations. Returns whether all passed.
    pub(crate) fn conclude(&self) -> bool {
        eprint!("\n{}", self.table());
        self.have_passed()
    }

    /// Returns whether all stages passed.
    pub(crate) fn have_passed(&self) -> bool {
        self.done.iter().all(|stage| stage.passed)
    }

    /// Returns a table of all stages with their durations.
    pub(crate) fn table(&self) -> String {
        let width = self.done.iter().map(|stage| stage.name.len()).max().unwrap_or_default().max("stage".len());
        let line = |name: &str, result: &str, time: &str| format!("{name:width$}  {result:6}  {time:>5}\n");
        let mut lines = vec![line("stage", "result", "min:s")];
        for Stage { name, passed, took } in &self.done {
            lines.push(line(name, if *passed { "passed" } else { "FAILED" }, &minutes(*took)));
        }
        let all = self.done.iter().map(|stage| stage.took).sum();
        lines.push(line("all", "", &minutes(all)));
        lines.concat()
    }
}

fn timed<T>(name: &str, what: &str, how: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    eprintln!("\n== {name}: {what}");
    let start = Instant::now();
    let made = how()?;
    Ok((made, start.elapsed()))
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// Returns a command of the same cargo that runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(kennel_testkit::environment::variable("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Returns the root directory of the project.
pub(crate) fn root() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the project")
}

fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words: Vec<_> = std::iter::once(program).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_stage_and_the_sum() {
        let mut stages = Stages::default();
        for (name, passed, seconds) in [("format", true, 1), ("tests", false, 725)] {
            stages.done.push(Stage { name: name.into(), passed, took: Duration::from_secs(seconds) });
        }
        let table = "stage   result  min:s\nformat  passed   0:01\ntests   FAILED  12:05\nall             12:06\n";
        assert_eq!(stages.table(), table);
        assert!(!stages.have_passed());
    }
}
