//! What goes to standard error: our own messages, and nothing raw from inside a sandbox.

use anstream::eprintln;
use kennel_core::{Error, Result, printable, printable_layout};
use kennel_types::ErrorCode;
use owo_colors::OwoColorize;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// What went wrong, and the next thing to type.
pub(crate) fn error(error: &Error) {
    eprintln!("{} {}", "kennel:".red().bold(), error.for_person());
    if let Some(hint) = error.next_step() {
        eprintln!("  {} {}", "try:".cyan(), printable(hint));
    }
}

/// Reports an error and answers the exit status for it.
pub(crate) fn failed(what: &Error) -> u8 {
    error(what);
    exit_status(what)
}

/// The exit status for an error.
pub(crate) fn exit_status(error: &Error) -> u8 {
    // What does not fit into a status is a failure of ours.
    u8::try_from(error.exit_status()).unwrap_or(ErrorCode::Internal.exit_status())
}

/// The same, for `main`.
pub(crate) fn failure(error: &Error) -> ExitCode {
    ExitCode::from(failed(error))
}

/// Something that is not as it should be, and stops nothing.
pub(crate) fn warning(text: &str) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    eprintln!("{} {}", "kennel:".yellow().bold(), printable(text));
}

/// Something that was asked for and is no data, laid out by Kennel, such as what is about to be done. What comes from outside must be
/// `printable` before it gets here.
pub(crate) fn say(text: &str) {
    eprintln!("{}", printable_layout(text));
}

/// What something long says as it goes on, unless nobody wants to know.
pub(crate) fn progress(line: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        eprintln!("{}", printable(line));
    }
}

/// Asks a person, and reads a line.
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

/// Whether nothing is to be said that is not an error, a warning, or what was asked for.
pub(crate) fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether warnings are left out too: the shell that asks for completions shows nobody what is said.
pub(crate) fn set_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether there is a person on standard error who wants to know how things go.
pub(crate) fn is_watched() -> bool {
    !QUIET.load(Ordering::Relaxed) && std::io::stderr().is_terminal()
}

/// Something good to know. Only for people: a program that reads standard error finds the command's own there.
pub(crate) fn note(text: &str) {
    if is_watched() {
        eprintln!("{} {}", "kennel:".bold(), printable(text));
    }
}

/// What clap has to say: help and version are no errors, everything else is one of ours.
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
