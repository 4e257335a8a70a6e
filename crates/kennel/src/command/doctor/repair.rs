//! Runs the steps of a fix: shows them, asks the user, and runs them one by one. A command runs as root only with a
//! `sudo` that the user has seen.

use super::fix::Step;
use crate::next_step::Hint;
use crate::{report, terminal};
use kennel_core::{Error, Result, printable};
use kennel_types::ErrorCode;
use owo_colors::OwoColorize;
use std::process::{Command, Stdio};

/// Runs the steps that can be run, and shows the others. Returns whether anything was run. `unasked` is the command to
/// suggest if the user cannot be asked.
pub(super) fn all(steps: &[Step], yes: bool, unasked: &str) -> Result<bool> {
    let (commands, others): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(|step| matches!(step, Step::Run(_)));
    show("Steps that only you can take", &others);
    show("Commands to run", &commands);
    if commands.is_empty() {
        let rest = if others.is_empty() {
            "nothing that is required is missing"
        } else {
            "there is nothing that Kennel can run for you"
        };
        report::say(&format!("\n{rest}"));
        return Ok(false);
    }
    if !yes && !agreed(unasked)? {
        report::say("nothing was run");
        return Ok(false);
    }
    for step in commands {
        run(step)?;
    }
    Ok(true)
}

fn show(title: &str, steps: &[&Step]) {
    if !steps.is_empty() {
        let lines: Vec<String> = steps.iter().map(|step| format!("  {}", printable(&step.line()))).collect();
        report::say(&format!("\n{}\n{}", title.bold(), lines.join("\n")));
    }
}

fn agreed(unasked: &str) -> Result<bool> {
    if !terminal::is_asking() {
        return Err(
            Error::new(ErrorCode::InvalidConfig, "cannot ask for confirmation: this is not a terminal").hint(unasked)
        );
    }
    let answer = report::ask("\nRun these? [y/N] ")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Runs one step. Its output goes to the terminal.
fn run(step: &Step) -> Result<()> {
    let Step::Run(words) = step else { return Ok(()) };
    let line = step.line();
    report::say(&format!("\n{} {}", "$".bold(), printable(&line)));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    if !terminal::is_asking() {
        // Standard input may belong to the caller, for example a shell that reads a script from it.
        command.stdin(Stdio::null());
    }
    let failed = |how: String| {
        Err(Error::new(ErrorCode::NotAvailable, format!("{line}: {how}; the commands after it were not run"))
            .hint(&line))
    };
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => failed(format!("ended with {status}")),
        Err(error) => failed(format!("could not be run: {error}")),
    }
}
