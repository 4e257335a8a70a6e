//! The agent of a session: `kennel session create --agent`.

use crate::agent::{STARTUP, inherit};
use crate::command::agent::preset;
use crate::completion;
use crate::lifecycle::Deadline;
use crate::next_step::Hint;
use crate::options::{SandboxOptions, TimeLimit};
use crate::progress::while_waiting;
use crate::report;
use kennel_acp::{Agent, NewAgent, Relays, Served, SessionAgent, at_own_path};
use kennel_core::{Error, Provider, Result, printable};
use kennel_engine::{Engine, Session, Sessions, Settings};
use kennel_types::{Command, ErrorCode, ExecSpec, SandboxSpec};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::Duration;

/// Options of a session with an agent.
#[derive(Debug, clap::Args)]
pub(super) struct AgentOfSession {
    /// Start this ACP agent in the session; see `kennel agent ls`. Clients reach it through `kennel serve`
    #[arg(long, value_name = "NAME", add = completion::agents(), conflicts_with_all = ["acp", "command"])]
    agent: Option<String>,
    /// The command is an ACP agent, and not the main process
    #[arg(long, requires = "command")]
    acp: bool,
    /// How long the agent may take to reply to the first message, for example 30s, or `none` [default: 10s]
    #[arg(long, value_name = "TIME")]
    startup_timeout: Option<TimeLimit>,
    /// Let clients begin the conversation with the agent, instead of Kennel
    #[arg(long)]
    no_initialize: bool,
}

/// An agent that was chosen, before its session exists.
pub(super) struct Chosen {
    name: String,
    agent: Agent,
    secrets: Vec<String>,
    opens: Option<String>,
}

impl AgentOfSession {
    /// Whether the session has an agent.
    pub(super) fn is_wanted(&self) -> bool {
        self.agent.is_some() || self.acp
    }

    /// Returns the agent, and adapts the sandbox to it. The variables of the options reach only the agent: they may be secrets,
    /// and the specification of a sandbox is stored.
    pub(super) fn choose(
        &self,
        engine: &Engine,
        settings: &Settings,
        options: &SandboxOptions,
        command: &[String],
        provider: &dyn Provider,
        spec: &mut SandboxSpec,
    ) -> Result<Option<Chosen>> {
        if !self.is_wanted() {
            if self.startup_timeout.is_some() || self.no_initialize {
                let message = "--startup-timeout and --no-initialize are for sessions with an agent";
                return Err(Error::new(ErrorCode::InvalidConfig, message).hint("name the agent with --agent"));
            }
            return Ok(None);
        }
        let mut env = options.overrides(engine, settings)?.env;
        for name in env.keys() {
            spec.env.remove(name);
        }
        let mut secrets: Vec<String> = env.values().cloned().collect();
        let (mut startup, mut served) = (STARTUP, Served::default());
        let (name, command) = match &self.agent {
            Some(name) => {
                let preset = preset(engine, name)?;
                let variable =
                    |name: &str| engine.caller().variables.get(OsStr::new(name))?.to_str().map(ToOwned::to_owned);
                let of_preset: BTreeMap<String, String> = preset.variables(variable);
                secrets.extend(preset.secrets.iter().filter_map(|name| of_preset.get(name).cloned()));
                for (name, value) in of_preset {
                    env.entry(name).or_insert(value);
                }
                startup = Duration::from_secs(preset.startup_seconds);
                served = Served { files: preset.files, terminals: preset.terminals };
                (name.clone(), preset.command)
            }
            None => (command.first().cloned().unwrap_or_default(), command.to_vec()),
        };
        if let Some(TimeLimit(limit)) = self.startup_timeout {
            startup = limit.unwrap_or(Duration::MAX);
        }
        at_own_path(spec, provider.mode())?;
        if provider.mode().layers.is_empty() {
            report::warning("the agent runs without isolation, as a process of this machine");
            inherit(engine.caller(), &mut env);
        }
        let directory = spec.workdir.clone().unwrap_or_else(|| "/workspace".to_owned());
        let exec = ExecSpec { env, ..ExecSpec::new(Command::Argv(command)) };
        let agent = Agent { spec: exec, startup, served, paths: None, to_client: None };
        Ok(Some(Chosen { name, agent, secrets, opens: (!self.no_initialize).then_some(directory) }))
    }
}

impl Chosen {
    /// Starts the agent in its session, and waits until the conversation has begun. If that fails, the session ends.
    pub(super) async fn start(self, sessions: &Sessions, session: &Session, deadline: &mut Deadline) -> Result<()> {
        let Self { name, agent, secrets, opens } = self;
        let relays = Relays::new(sessions.clone());
        let new = NewAgent { name, agent, opens, secrets };
        let begun = async {
            let relay = relays.start(&session.summary.id, new).await?;
            relay.ready().await
        };
        while_waiting("starting the agent", deadline.unless_ended(Box::pin(begun))).await?;
        let looked = SessionAgent::look(sessions, &sessions.show(session.summary.id.as_str()).await?).await?;
        if let Some(problem) = looked.and_then(|agent| agent.problem) {
            let why = problem.get("message").and_then(|message| message.as_str()).unwrap_or("it gave no reason");
            report::warning(&format!("the agent opened no session: {}", printable(why)));
        }
        Ok(())
    }
}
