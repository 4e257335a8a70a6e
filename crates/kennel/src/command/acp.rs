//! `kennel acp`: an agent in a sandbox, for an editor that runs it as if it were the agent.

use crate::agent::AgentOptions;
use crate::agent_log::AgentLog;
use crate::lifecycle::Deadline;
use crate::output::Stdout;
use crate::signals::{Signals, interrupted};
use crate::{input, report};
use kennel_acp::{ToClient, refuse, relay};
use kennel_core::Result;
use kennel_engine::{Engine, discard};
use kennel_types::Command;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kennel acp --agent claude-code                         what an editor runs instead of claude-agent-acp
  kennel acp -- ./my-agent --acp                         an agent by its command
  kennel acp --image my-agent                            the image's own command is the agent
  kennel acp --profile dev -e ANTHROPIC_API_KEY -- claude-agent-acp
  kennel acp --network none --memory 2g -- ./agent

docs/editors.md has the lines to paste for each editor.

Exit status: 0 if the editor has left; that of the agent if it failed; 125 if Kennel failed.";

/// Run an ACP agent in a sandbox, for an editor
///
/// Speaks the Agent Client Protocol on standard input and output. An editor runs this command as if it were the agent. Messages
/// pass unchanged, but the agent's requests for files and terminals are served from its sandbox, so it reads no file of this
/// machine through the editor. The current directory is mounted at its own path. Variables (-e) reach only the agent. Everything
/// ends with the editor. Without --agent and a command, starts the agent of the settings (`agent.command`), or the image's own command.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Acp {
    /// Let the editor serve the agent's requests for files or terminals, for paths in the workspace; the editor runs commands
    /// of the agent on this machine
    #[arg(long, value_name = "WHAT", value_enum, conflicts_with = "no_workspace")]
    to_editor: Vec<Passed>,
    #[command(flatten)]
    options: AgentOptions,
    /// Command of the agent
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "agent")]
    command: Vec<String>,
}

/// Requests of an agent that the editor serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Passed {
    /// Reading and writing text files, with changes that the editor has not saved
    Files,
    /// Running commands on this machine
    Terminals,
}

impl Acp {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        Box::pin(self.relay(engine)).await.unwrap_or_else(|error| report::failed(&error))
    }

    async fn relay(self, engine: &Engine) -> Result<u8> {
        let mut deadline = Deadline::begin(None)?;
        let command = Some(self.command.clone()).filter(|argv| !argv.is_empty()).map(Command::Argv);
        let mut ready = match Box::pin(self.options.start(engine, command, &mut deadline)).await {
            Ok(ready) => ready,
            Err(error) => {
                // An editor shows the response to its first request, and perhaps not what is on standard error.
                if input::kind() == input::StdinKind::Content {
                    refuse(input::open(), Stdout::default(), &error).await;
                }
                return Err(error);
            }
        };
        ready.agent.to_client = ready.workspace.clone().and_then(|workspace| self.passed(workspace));
        let mut signal = None;
        let log = AgentLog::start();
        let (client, to_client) = (input::open(), Stdout::default());
        let until = ended_by(&mut deadline.signals, &mut signal);
        let ended = relay(&ready.sandbox, &ready.agent, client, to_client, &log, until).await;
        let cleanup = discard(&ready.sandbox).await;
        log.finish().await;
        if let Some(signal) = signal {
            cleanup.err().iter().for_each(report::error);
            return Err(interrupted(signal));
        }
        ended?;
        cleanup.map(|()| 0)
    }

    /// Returns what is passed to the editor, if anything is.
    fn passed(&self, workspace: PathBuf) -> Option<ToClient> {
        let has = |passed| self.to_editor.contains(&passed);
        let (files, terminals) = (has(Passed::Files), has(Passed::Terminals));
        (files || terminals).then_some(ToClient { files, terminals, workspace })
    }
}

/// Waits for a signal that ends this program.
async fn ended_by(signals: &mut Signals, signal: &mut Option<i32>) {
    *signal = Some(signals.end().await);
}
