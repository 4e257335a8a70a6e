//! The command to run in a sandbox, and how it is connected to this process.

use crate::interact::Interaction;
use crate::next_step::Hint;
use crate::{environment, input, terminal};
use kennel_core::{Error, Result};
use kennel_types::{Command, ErrorCode, ExecSpec};

/// Options of `run` and `exec`.
#[derive(Debug, clap::Args)]
pub(crate) struct ProgramOptions {
    /// Pass terminal input to the command; a pipe or file on standard input is always passed
    #[arg(short, long)]
    interactive: bool,
    /// Run the command on a terminal
    #[arg(short, long)]
    tty: bool,
    /// Run this string in the sandbox's shell
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "argv")]
    shell: Option<String>,
    /// Command and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    argv: Vec<String>,
}

/// A command and how it is connected to the terminal.
pub(crate) struct Program {
    pub(crate) command: Command,
    /// Whether the command runs on a terminal.
    pub(crate) tty: bool,
    pub(crate) interaction: Interaction,
}

impl ProgramOptions {
    /// Whether the command will run on a terminal: on request, or if no command is given and this process has one.
    pub(crate) fn wants_tty(&self) -> bool {
        self.tty || (self.is_empty() && terminal::is_here())
    }

    /// Whether no command was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.shell.is_none() && self.argv.is_empty()
    }

    /// Returns the program to run: the given command, else the image's command, else a shell if there is a terminal.
    pub(crate) fn program(&self, image_command: Option<&[String]>) -> Result<Program> {
        let tty = self.wants_tty();
        let command = if let Some(script) = &self.shell {
            Command::Shell(script.clone())
        } else if !self.argv.is_empty() {
            Command::Argv(self.argv.clone())
        } else if let Some(own) = image_command.filter(|own| !own.is_empty()) {
            Command::Argv(own.to_vec())
        } else if tty {
            Command::LoginShell
        } else {
            return Err(Error::new(ErrorCode::InvalidConfig, "there is no command to run")
                .hint("put it after --, for example: -- ls -l; or pass a string to the shell with -c"));
        };
        let kind = input::kind();
        let input = match kind {
            input::StdinKind::Terminal => self.interactive || tty,
            input::StdinKind::Content => true,
            input::StdinKind::Nothing => false,
        };
        let raw = tty && kind == input::StdinKind::Terminal;
        Ok(Program { command, tty, interaction: Interaction { input, raw, ..Interaction::default() } })
    }

    /// Adds a hint to the error for a command that was not found, if it was probably meant for a shell.
    pub(crate) fn explain(&self, error: Error, how: &str) -> Error {
        match self.argv.as_slice() {
            [one] if error.exit_status() == 127 && one.contains(char::is_whitespace) => {
                error.hint(format!("{how} -c '{}'", one.replace('\'', r"'\''")))
            }
            _ => error,
        }
    }
}

impl Program {
    /// Converts the program to the library's specification.
    pub(crate) fn spec(&self) -> ExecSpec {
        let mut spec = ExecSpec::new(self.command.clone());
        spec.stdin = self.interaction.input;
        if self.tty {
            spec.tty = Some(terminal::size());
            spec.env.extend(environment::term().map(|term| ("TERM".to_owned(), term)));
        }
        spec
    }
}
