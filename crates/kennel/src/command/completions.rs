//! `kennel completions` and `kennel man`.

use crate::cli::Cli;
use crate::completion;
use crate::output::{print, print_plain};
use crate::report;
use clap::CommandFactory;
use kennel_core::Error;
use std::path::PathBuf;

const COMPLETIONS: &str = "\
Examples:
  source <(kennel completions bash)              in ~/.bashrc
  source <(kennel completions zsh)               in ~/.zshrc, after compinit
  kennel completions fish | source               in ~/.config/fish/config.fish";

/// Print shell completions
///
/// Completes commands, options and names of sandboxes. Load the completions again after an update of Kennel.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct Completions {
    /// The shell to complete for
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> u8 {
        match completion::registration(&self.shell.to_string()) {
            Ok(text) => print_plain(&text),
            Err(error) => report::failed(&Error::io(format!("write completions for {}", self.shell), error)),
        }
    }
}

const MAN: &str = "\
Examples:
  kennel man | man -l -
  kennel man --dir /usr/local/share/man/man1";

/// Print the manual page
///
/// With --dir, writes one page per command to that directory.
#[derive(Debug, clap::Args)]
#[command(after_help = MAN)]
pub(crate) struct Man {
    /// Write all pages to this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(&self) -> u8 {
        if let Some(dir) = &self.dir {
            let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
            return match written {
                Ok(()) => print(&kennel_core::printable_path(dir)),
                Err(error) => report::failed(&Error::io(format!("write manual pages to {}", dir.display()), error)),
            };
        }
        let mut text = Vec::new();
        match clap_mangen::Man::new(Cli::command()).render(&mut text) {
            Ok(()) => print_plain(&text),
            Err(error) => report::failed(&Error::io("write the manual page", error)),
        }
    }
}
