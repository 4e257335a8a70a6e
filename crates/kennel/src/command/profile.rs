//! `kennel profile`: named sandboxes that stay.

mod define;
mod exec;
mod lifecycle;
mod show;

pub(crate) use exec::InProfile;
pub(crate) use lifecycle::start_profile;

use kennel_core::Result;
use kennel_engine::{Engine, Profiles};

const EXAMPLES: &str = "\
Examples:
  kennel profile create dev --image debian:12 --memory 2g   in the current directory
  kennel profile exec dev -- make test                      start it if needed, and run a command
  kennel run --profile dev -- make test                     the same
  kennel profile exec dev                                   open a shell
  kennel profile list
  kennel profile edit dev --memory 4g
  kennel profile restart dev                                apply the change
  kennel profile delete dev

A profile can also be a setting: `container.profiles` in kennel.toml.";

/// Create and use named sandboxes that stay
///
/// A profile describes a sandbox: its settings are the options of `kennel run`. Each profile has at most one sandbox. It is
/// created at the first use, and every later use finds it again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Profile {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Create(define::Create),
    List(show::List),
    Show(show::Show),
    Edit(define::Edit),
    Delete(define::Delete),
    Start(lifecycle::Start),
    Stop(lifecycle::Stop),
    Restart(lifecycle::Restart),
    Status(show::Status),
    Logs(lifecycle::Logs),
    Exec(exec::Exec),
}

impl Profile {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let done = match self.action {
            Action::Exec(command) => return command.run(engine).await,
            Action::Create(command) => command.run(engine).await,
            Action::List(command) => command.run(engine).await,
            Action::Show(command) => command.run(engine),
            Action::Edit(command) => command.run(engine).await,
            Action::Delete(command) => command.run(engine).await,
            Action::Start(command) => command.run(engine).await,
            Action::Stop(command) => command.run(engine).await,
            Action::Restart(command) => command.run(engine).await,
            Action::Status(command) => command.run(engine).await,
            Action::Logs(command) => command.run(engine).await,
        };
        done.unwrap_or_else(|error| crate::report::failed(&error))
    }
}

/// Returns the profiles, and prints the warnings about settings.
pub(crate) fn profiles(engine: &Engine) -> Result<Profiles<'_>> {
    let profiles = engine.profiles()?;
    crate::sandboxes::warn(profiles.settings());
    Ok(profiles)
}
