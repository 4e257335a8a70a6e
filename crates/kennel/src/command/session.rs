//! `kennel session`: units of work with a sandbox, a workspace and a record of what happened.

mod acp;
mod agent;
mod manage;
mod messages;
mod open;
mod show;

use crate::output::{print, print_json};
use crate::report;
use crate::result::JsonError;
use crate::sandboxes::report_silent;
use kennel_core::{Error, Result, printable};
use kennel_engine::{Engine, Session, Sessions};

const EXAMPLES: &str = "\
Examples:
  kennel session create --name fix -- ./agent               in the current directory
  kennel session create --clone https://example.org/a.git   in a new directory with a clone
  kennel session create --name pair --agent claude-code     with an ACP agent, for clients of `kennel serve`
  kennel session ls
  kennel session exec fix -- git status
  kennel session show fix                                   also after its sandbox is gone
  kennel session events fix
  kennel session stop fix
  kennel session rm fix";

/// Open and manage sessions
///
/// A session is a unit of work: a sandbox, its workspace, and a record of what was requested and what happened. The record
/// keeps the exit code and the last 50 lines of the log, also after the sandbox is gone.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct SessionCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Create(Box<open::Create>),
    Ls(show::Ls),
    Show(show::Show),
    Events(show::Events),
    Export(messages::Export),
    Acp(acp::Acp),
    Exec(manage::Exec),
    Start(manage::Start),
    Stop(manage::Stop),
    Rm(manage::Rm),
    Adopt(manage::Adopt),
}

impl SessionCommand {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let json = match &self.action {
            Action::Exec(_) | Action::Acp(_) => false,
            Action::Create(command) => command.json,
            Action::Ls(command) => command.json,
            Action::Show(_) | Action::Export(_) => true,
            Action::Events(command) => command.json,
            Action::Start(command) => command.json,
            Action::Stop(command) => command.json,
            Action::Rm(command) => command.json,
            Action::Adopt(command) => command.json,
        };
        let done = match self.action {
            Action::Exec(command) => return command.run(engine).await,
            Action::Create(command) => Box::pin(command.run(engine)).await,
            Action::Ls(command) => command.run(engine).await,
            Action::Show(command) => command.run(engine).await,
            Action::Events(command) => command.run(engine).await,
            Action::Export(command) => command.run(engine).await,
            Action::Acp(command) => command.run(engine).await,
            Action::Start(command) => Box::pin(command.run(engine)).await,
            Action::Stop(command) => command.run(engine).await,
            Action::Rm(command) => command.run(engine).await,
            Action::Adopt(command) => command.run(engine).await,
        };
        done.unwrap_or_else(|error| failed(&error, json))
    }
}

/// Reports an error, as JSON if the output is JSON.
fn failed(error: &Error, json: bool) -> u8 {
    if json {
        print_json(&serde_json::json!({ "error": JsonError::from_error(error) }));
        return report::exit_status(error);
    }
    report::failed(error)
}

/// Opens the store of sessions.
async fn sessions(engine: &Engine) -> Result<Sessions> {
    let (sessions, silent) = engine.sessions().await?;
    report_silent(&silent);
    Ok(sessions)
}

/// Prints the name of a session, or the session as JSON.
fn print_session(session: &Session, json: bool) -> u8 {
    if json { print_json(session) } else { print(&printable(session.summary.label())) }
}
