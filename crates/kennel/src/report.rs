//! Kennel's own messages on standard error. Text from a sandbox is escaped.

use crate::next_step::hint;
use anstream::eprintln;
use kennel_core::{Error, Result, printable, printable_layout};
use kennel_types::ErrorCode;
use owo_colors::OwoColorize;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints an error and its hint.
pub(crate) fn error(error: &Error) {
    eprintln!("{} {}", "kennel:".red().bold(), error.for_person());
    if let Some(hint) = hint(error) {
        eprintln!("  {} {}", "try:".cyan(), printable(&hint));
    }
}

/// Prints an error, and returns its exit status.
pub(crate) fn failed(what: &Error) -> u8 {
    error(what);
    exit_status(what)
}

/// Returns the exit status for an error.
pub(crate) fn exit_status(error: &Error) -> u8 {
    // A number that does not fit into an exit status is an internal error.
    u8::try_from(error.exit_status()).unwrap_or(ErrorCode::Internal.exit_status())
}

/// Prints an error, and returns its exit code for `main`.
pub(crate) fn failure(error: &Error) -> ExitCode {
    ExitCode::from(failed(error))
}

/// Prints a warning.
pub(crate) fn warning(text: &str) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    eprintln!("{} {}", "kennel:".yellow().bold(), printable(text));
}

/// Prints requested text that is not data, such as the commands that are about to run. The caller must escape untrusted
/// parts with `printable`.
pub(crate) fn say(text: &str) {
    eprintln!("{}", printable_layout(text));
}

/// Prints a line of progress, unless `--quiet` is set.
pub(crate) fn progress(line: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        eprintln!("{}", printable(line));
    }
}

/// Asks the user a question, and reads the reply from standard input.
pub(crate) fn ask(question: &str) -> Result<String> {
    let failed = |error| Error::io("ask", error);
    let mut out = anstream::stderr().lock();
    out.write_all(question.as_bytes()).and_then(|()| out.flush()).map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(failed)?;
    Ok(answer)
}

static QUIET: AtomicBool = AtomicBool::new(false);
static SILENT: AtomicBool = AtomicBool::new(false);

/// Sets whether progress and notes are omitted (`--quiet`).
pub(crate) fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Also omits warnings, because a shell that requests completions does not show them.
pub(crate) fn set_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether notes and progress are shown: standard error is a terminal, and `--quiet` is not set.
pub(crate) fn is_watched() -> bool {
    !QUIET.load(Ordering::Relaxed) && std::io::stderr().is_terminal()
}

/// Prints a note, only if standard error is a terminal. A program that reads standard error expects only the command's
/// own output there.
pub(crate) fn note(text: &str) {
    if is_watched() {
        eprintln!("{} {}", "kennel:".bold(), printable(text));
    }
}

/// Prints clap's message, and returns its exit code. Help and version are not errors.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if error.use_stderr() {
        ExitCode::from(ErrorCode::InvalidConfig.exit_status())
    } else if printed.is_err() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
