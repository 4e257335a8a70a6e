//! The command line of Kennel. Thin: it reads what the user typed, calls the library, and shows what came back.
//!
//! This is the only crate that touches terminal, environment and exit codes. Nothing slow happens before a command
//! starts: a cold `kennel run` is measured in milliseconds.

mod cli;
mod command;
mod completion;
mod drive;
mod engines;
mod environment;
mod help;
mod input;
mod life;
mod options;
mod output;
mod places;
mod progress;
mod providers;
#[cfg(test)]
mod reference;
mod report;
mod result;
mod settings;
mod signals;
mod terminal;
mod triggers;

use std::process::ExitCode;

fn main() -> ExitCode {
    completion::answer_the_shell();
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match cli::Cli::read(&arguments) {
        Ok(cli) => cli,
        Err(error) => return report::usage(&error),
    };
    let providers = cli.providers();
    // One thread is enough for one command, and a second would cost more than the work it could do.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report::failure(&kennel_core::Error::io("start the runtime", error)),
    };
    let status = runtime.block_on(cli.run(&providers));
    // Everything is let go of at once. A thread may still wait for standard input, or for a slow reader of our output:
    // nobody waits for it.
    #[expect(clippy::disallowed_methods, reason = "the main function of the program ends the process")]
    std::process::exit(status.into())
}
