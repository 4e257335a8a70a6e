//! What can be typed. Each command describes its own options in its own file.

use crate::command::{attach, cp, create, exec, inspect, logs, ls, rm, run, start, stop};
use crate::providers::{ProviderName, Providers};
use clap::CommandFactory;

const EXAMPLES: &str = "\
Examples:
  kennel run -- make test                run a command here, in a sandbox of its own
  kennel run                             a shell in a sandbox
  kennel run --network none -c 'a | b'   a shell command, without network
  kennel create --name box --start       a sandbox that stays
  kennel exec box -- ls -l               a command in it
  kennel ls                              what runs

`kennel COMMAND --help` tells more.";

/// Let your agents off the leash, inside the kennel.
#[derive(clap::Parser)]
#[command(name = "kennel", version, after_help = EXAMPLES, disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// Which engine to use; found by itself if not given
    #[arg(long, global = true, value_enum, value_name = "NAME", help_heading = "Global options")]
    provider: Option<ProviderName>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(run::Run),
    Create(create::Create),
    Start(start::Start),
    Stop(stop::Stop),
    Rm(rm::Rm),
    Ls(ls::Ls),
    Inspect(inspect::Inspect),
    Exec(exec::Exec),
    Attach(attach::Attach),
    Logs(logs::Logs),
    Cp(cp::Cp),
}

impl Cli {
    /// Does what was typed; answers the exit status.
    pub(crate) async fn run(self) -> u8 {
        let providers = Providers::new(self.provider);
        let Some(command) = self.command else {
            return crate::output::print(&Cli::command().render_help().ansi().to_string());
        };
        match command {
            Command::Run(command) => command.run(&providers).await,
            Command::Create(command) => command.run(&providers).await,
            Command::Start(command) => command.run(&providers).await,
            Command::Stop(command) => command.run(&providers).await,
            Command::Rm(command) => command.run(&providers).await,
            Command::Ls(command) => command.run(&providers).await,
            Command::Inspect(command) => command.run(&providers).await,
            Command::Exec(command) => command.run(&providers).await,
            Command::Attach(command) => command.run(&providers).await,
            Command::Logs(command) => command.run(&providers).await,
            Command::Cp(command) => command.run(&providers).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("kennel "), "{} has no examples", command.get_name());
        }
    }
}
