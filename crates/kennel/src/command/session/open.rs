//! `kennel session create`.

use super::agent::{AgentOfSession, Chosen};
use super::{print_session, sessions};
use crate::command::profile::profiles;
use crate::completion;
use crate::git_credentials::HostCredentials;
use crate::lifecycle::{Deadline, say_idle_pause};
use crate::options::{LastingOptions, PoolOptions};
use crate::progress::Bars;
use crate::sandboxes::{choose, settings};
use kennel_core::Result;
use kennel_engine::profiles::SessionSandbox;
use kennel_engine::{Cancel, Engine, OpenProgress, OpenSession, PoolResult, PoolUse, SessionWorkspace};
use std::sync::{Arc, Mutex, PoisonError};

const EXAMPLES: &str = "\
Examples:
  kennel session create --name fix                      in the current directory
  kennel session create --image node:22 -- npm test     record the result of a main process
  kennel session create --own-workspace --rm -- ./job   in a new directory, which is kept
  kennel session create --profile dev                   with the settings of a profile
  kennel session create --clone https://example.org/project.git
  kennel session create --agent claude-code             with an ACP agent, for clients of `kennel serve`
  kennel session create --acp -- ./agent                with an agent by its command

Every process in the sandbox finds the session's id in KENNEL_SESSION and its secret in
KENNEL_SESSION_SECRET. The session and its sandbox have the same name.";

/// Open a session
///
/// Records the session, creates its sandbox with the options of `kennel run`, and starts it. With --clone, a git repository
/// is cloned into a new directory first. The clone runs in a sandbox. Your git credential helper runs on the host.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Create {
    /// Clone this git repository into a new directory, which becomes the workspace
    #[arg(long, value_name = "URL", conflicts_with_all = ["workspace", "no_workspace", "own_workspace"])]
    clone: Option<String>,
    /// Use a new directory as the workspace; it is kept when the session is removed
    #[arg(long, conflicts_with_all = ["workspace", "no_workspace"])]
    own_workspace: bool,
    /// Remove the sandbox when it has ended; the record is kept
    #[arg(long)]
    rm: bool,
    /// Use the settings of this profile; options override them
    #[arg(long, value_name = "NAME", add = completion::profiles())]
    profile: Option<String>,
    /// Print the session as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    agent: AgentOfSession,
    /// Main process and its arguments; with --acp, the agent
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
    #[command(flatten)]
    options: LastingOptions,
}

impl Create {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let mut deadline = Deadline::begin(None)?;
        let (SessionSandbox { provider, mut spec, pull }, agent) = deadline.unless_ended(self.sandbox(engine)).await?;
        spec.auto_remove = self.rm;
        let base = engine.directories()?.workspaces();
        let workspace = match (&self.clone, self.own_workspace) {
            (Some(url), _) => {
                let credentials = Some(Arc::new(HostCredentials) as _);
                SessionWorkspace::Clone { base, url: url.clone(), credentials }
            }
            (None, true) => SessionWorkspace::Own { base },
            (None, false) => SessionWorkspace::AsSpecified,
        };
        let bars = Arc::new(Bars::new("opening the session".to_owned()));
        let from_pool: Arc<Mutex<Option<PoolResult>>> = Arc::default();
        let progress = {
            let (bars, from_pool) = (bars.clone(), from_pool.clone());
            Arc::new(move |progress| match progress {
                OpenProgress::Pull(progress) => bars.show(progress),
                OpenProgress::Clone(line) => bars.doing(&line),
                OpenProgress::Pool(result) => {
                    *from_pool.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                }
            })
        };
        let cancel = Cancel::default();
        let pauses = spec.idle_pause_ms.is_some();
        let request = OpenSession {
            id: None,
            name: spec.name.clone(),
            provider: provider.name().to_owned(),
            pull,
            pool: self.pool.usage(PoolUse::Prefer),
            spec,
            workspace,
            progress: Some(progress),
            cancel: cancel.clone(),
        };
        let sessions = sessions(engine).await?;
        let session = deadline.or_cancel(&cancel, bars.wait(Box::pin(sessions.open(request)))).await?;
        drop(bars);
        if let Some(agent) = agent {
            Box::pin(agent.start(&sessions, &session, &mut deadline)).await?;
        }
        self.pool.report(from_pool.lock().unwrap_or_else(PoisonError::into_inner).as_ref());
        say_idle_pause(engine, pauses);
        Ok(print_session(&session, self.json))
    }

    /// Describes the sandbox, from the options, the profile and the settings.
    async fn sandbox(&self, engine: &Engine) -> Result<(SessionSandbox, Option<Chosen>)> {
        let options = &self.options.sandbox;
        let main = if self.agent.is_wanted() { &[] } else { self.command.as_slice() };
        let Some(name) = &self.profile else {
            let mut settings = settings(engine)?;
            let image = options.image(&settings).map(ToOwned::to_owned);
            let provider = choose(engine, &mut settings, image.as_deref()).await?;
            let mut spec = options.spec(engine, &settings, provider.mode())?;
            self.options.complete(&mut spec, main, false)?;
            let agent = self.agent.choose(engine, &settings, options, &self.command, &*provider, &mut spec)?;
            return Ok((SessionSandbox { provider, spec, pull: options.pull(&settings) }, agent));
        };
        let profiles = profiles(engine)?;
        let changes = options.overrides(engine, profiles.settings())?;
        let other_workspace = self.clone.is_some() || self.own_workspace;
        let mut sandbox = profiles.for_session(name, changes, other_workspace).await?;
        self.options.complete(&mut sandbox.spec, main, false)?;
        let SessionSandbox { provider, spec, .. } = &mut sandbox;
        let agent = self.agent.choose(engine, profiles.settings(), options, &self.command, &**provider, spec)?;
        Ok((sandbox, agent))
    }
}
