//! What goes to standard error: our own messages, and nothing raw from inside a sandbox.

use anstream::eprintln;
use kennel_core::{Error, printable};
use kennel_types::ErrorCode;
use owo_colors::OwoColorize;
use std::io::IsTerminal;
use std::process::ExitCode;

/// What went wrong, and the next thing to type.
pub(crate) fn error(error: &Error) {
    eprintln!("{} {}", "kennel:".red().bold(), printable(&error.to_string()));
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
    eprintln!("{} {}", "kennel:".yellow().bold(), printable(text));
}

/// Something good to know. Only for people: a program that reads standard error finds the command's own there.
pub(crate) fn note(text: &str) {
    if std::io::stderr().is_terminal() {
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
