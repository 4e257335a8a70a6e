//! Kennel's command line. It parses the arguments, calls the library and prints the results.
//!
//! Only this crate uses the terminal, environment variables and exit codes. Nothing slow may happen before a command
//! starts, because a cold `kennel run` takes only milliseconds.

mod agent;
mod agent_log;
mod cli;
mod clock;
mod command;
mod completion;
mod environment;
mod git_credentials;
mod help;
mod input;
mod interact;
mod lifecycle;
mod next_step;
mod options;
mod output;
mod progress;
mod provider_name;
#[cfg(test)]
mod reference;
mod remote;
mod report;
mod result;
mod sandboxes;
mod serve_bridges;
mod signals;
mod terminal;
mod triggers;

use kennel_engine::{EarlyJail, ForkedJail};
use std::ffi::CStr;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else, so that there is no second thread yet, and nothing in memory that a sandbox must not have.
    let forked = ForkedJail::start_if(|words| cli::is_native_run(words.map(CStr::to_bytes)));
    let early = forked.and_then(EarlyJail::begin);
    completion::answer_the_shell();
    let arguments: Vec<_> = std::env::args_os().collect();
    if serve_bridges::is_asked(&arguments) {
        return serve_bridges::main();
    }
    let cli = match cli::Cli::read(&arguments) {
        Ok(cli) => cli,
        Err(error) => return report::usage(&error),
    };
    let engine = match cli.engine(early) {
        Ok(engine) => engine,
        Err(error) => return report::failure(&error),
    };
    // One thread is enough for one command. Starting a second one would cost more than it saves.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report::failure(&kennel_core::Error::io("start the runtime", error)),
    };
    let status = runtime.block_on(cli.run(&engine));
    // Exit without waiting for threads: one may still be blocked on standard input, or on a slow reader of the output.
    #[expect(clippy::disallowed_methods, reason = "the main function of the program ends the process")]
    std::process::exit(status.into())
}
