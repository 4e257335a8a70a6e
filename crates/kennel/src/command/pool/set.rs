//! `kennel pool set`.

use crate::command::profile::profiles;
use crate::completion;
use crate::lifecycle::Deadline;
use crate::next_step::Hint;
use crate::options::SandboxOptions;
use crate::output::{print, print_json};
use crate::report;
use crate::sandboxes::{choose, settings};
use kennel_config::SandboxOverrides;
use kennel_core::{Error, Provider, Result, printable};
use kennel_engine::{Engine, Pool, SessionMembers, request};
use kennel_types::{ErrorCode, ProviderKind, SandboxSpec};
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  kennel pool set quick --min 4
  kennel pool set quick --min 2 --max 20             grows while many sandboxes are created
  kennel pool set dev --profile dev --min 2
  kennel pool set shared --network host
  kennel pool set web --image node:22 --min 2        containers: for `create --image node:22 --no-workspace`
  kennel pool set work --image node:22 --session     containers for `session create`";

/// Create a pool, or change it
///
/// A member of a native pool has created its namespaces and waits for the rest: image, workspace, environment, labels,
/// limits and so on belong to the sandbox that uses it. So a member fits every native sandbox whose network is of the same
/// kind: that of the host, or a separate one. A member of a pool on Docker or Podman is a container that runs: it fits a
/// sandbox with the same options, and with --no-workspace or the same --workspace. Sessions need members that were made for
/// sessions: use --session. With --profile, only sandboxes of that profile use the pool.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Set {
    /// Name of the pool
    #[arg(id = "pool", value_name = "NAME", add = completion::pools())]
    name: String,
    /// How many members always wait
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    min: u32,
    /// How many members wait at most: as many as were claimed in the last minute [default: the same as --min]
    #[arg(long, value_name = "COUNT")]
    max: Option<u32>,
    /// The profile whose sandboxes use the pool
    #[arg(long, value_name = "PROFILE", add = completion::profiles())]
    profile: Option<String>,
    /// Make containers for sessions; only sessions use them
    #[arg(long)]
    session: bool,
    /// Make a new directory as the workspace of each session
    #[arg(long, requires = "session", conflicts_with_all = ["workspace", "no_workspace"])]
    own_workspace: bool,
    /// Print the pool as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

impl Set {
    pub(super) async fn run(&self, engine: &Engine) -> Result<u8> {
        let (provider, spec) = Deadline::begin(None)?.unless_ended(self.members(engine)).await?;
        let workspaces = self.own_workspace.then(|| Ok(engine.directories()?.workspaces()));
        let pool = Pool {
            name: self.name.clone(),
            min: self.min,
            max: self.max.unwrap_or_else(|| self.min.max(1)),
            provider: provider.mode().key.provider,
            profile: self.profile.clone(),
            sessions: self.session.then_some(SessionMembers { workspaces: workspaces.transpose()? }),
            spec,
        };
        let pools = engine.pools()?;
        pools.set(&pool).await?;
        let all = pools.list().await?;
        let status = all.iter().find(|status| status.name == pool.name);
        if status.is_some_and(|status| status.ready.is_none()) {
            report::note("the members are made while `kennel serve` runs");
        }
        Ok(if self.json { print_json(&status) } else { print(&printable(&pool.name)) })
    }

    /// Describes the sandboxes that the pool is for.
    async fn members(&self, engine: &Engine) -> Result<(Arc<dyn Provider>, SandboxSpec)> {
        let (provider, spec, given) = if let Some(name) = &self.profile {
            let profiles = profiles(engine)?;
            let given = self.sandbox.overrides(engine, profiles.settings())?;
            let sandbox = profiles.for_session(name, given.clone(), true).await?;
            (sandbox.provider, sandbox.spec, given)
        } else {
            let mut settings = settings(engine)?;
            let image = self.sandbox.image(&settings).map(ToOwned::to_owned);
            let provider = choose(engine, &mut settings, image.as_deref()).await?;
            let mut given = self.sandbox.overrides(engine, &settings)?;
            let spec = if self.own_workspace {
                // Such a session belongs to the project of the directory in which it is created.
                self.sandbox.spec(engine, &settings, provider.mode())?
            } else {
                // Nobody knows yet in which directory a member will be used.
                given.no_workspace = given.workspace.is_none().then_some(true);
                request::spec(&settings, &given, given.workspace.clone(), engine.caller(), provider.mode())?
            };
            (provider, spec, SandboxOverrides { no_workspace: None, ..given })
        };
        if provider.mode().key.provider == ProviderKind::Native
            && (SandboxOverrides { network: None, ..given }) != SandboxOverrides::default()
        {
            let message = "a member of a native pool fits every sandbox with the same kind of network";
            return Err(Error::new(ErrorCode::InvalidConfig, message)
                .hint("leave out the options of the sandbox, except --network"));
        }
        let workspace = spec.workspace.clone().filter(|_| !self.own_workspace);
        // The main process is started by the sandbox that uses the member.
        Ok((provider, SandboxSpec { name: None, command: None, image_main: false, workspace, ..spec }))
    }
}
