//! The sandbox of an agent, and the agent itself, for the commands that start one.

mod install;
mod logins;
mod secret;

use crate::command::agent::preset;
use crate::command::profile::profiles;
use crate::completion;
use crate::lifecycle::{Deadline, create};
use crate::next_step::Hint;
use crate::options::{SandboxOptions, TimeLimit};
use crate::progress::{pull, while_waiting};
use crate::report;
use crate::sandboxes::{choose, settings};
use install::Package;
use kennel_acp::{Agent, AgentImage, PathMap, Preset, Served, at_chosen_path, at_own_path};
use kennel_config::{AgentContainer, AgentMode, AgentSection, SandboxOverrides};
use kennel_core::{Error, Keeper, Provider, Result, Sandbox};
use kennel_engine::caller::{DOCKER_HOST, HOME, PATH};
use kennel_engine::profiles::SessionSandbox;
use kennel_engine::{Caller, Claimed, Engine, Settings, request};
use kennel_types::{Command, ErrorCode, ExecSpec, ProviderKind, Pull, SandboxSpec, Support};
use logins::{Login, Logins};
use secret::Secret;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

/// How long an agent may take to reply to the first message.
pub(crate) const STARTUP: Duration = Duration::from_secs(10);

/// Options of the commands that start an agent.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentOptions {
    /// Use the settings of this profile; the agent has its own sandbox
    #[arg(long, value_name = "NAME", add = completion::profiles())]
    profile: Option<String>,
    /// The agent, by its name; see `kennel agent ls` [default: the agent of the settings]
    #[arg(long, value_name = "NAME", add = completion::agents())]
    agent: Option<String>,
    /// How long the agent may take to reply to the first message, for example 30s, or `none` [default: 10s]
    #[arg(long, value_name = "TIME")]
    startup_timeout: Option<TimeLimit>,
    /// Set a variable of the agent to a secret from a variable, a file, or the output of a command of this machine
    #[arg(long = "secret", value_name = "NAME[=env:NAME|file:PATH|command:LINE]")]
    secrets: Vec<Secret>,
    /// Who shares the logins that the agent named by --agent keeps in a volume [default: user]
    #[arg(long, value_name = "WHO", value_enum, hide_default_value = true, default_value_t)]
    login: Login,
    /// Path of the workspace inside; paths in messages are rewritten [default: its own path]
    #[arg(long, value_name = "PATH")]
    workspace_path: Option<String>,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

/// An agent that can be started in its sandbox, which runs.
pub(crate) struct Ready {
    pub(crate) sandbox: Sandbox,
    pub(crate) agent: Agent,
    /// The working directory inside.
    pub(crate) directory: String,
    /// The workspace on the host.
    pub(crate) workspace: Option<PathBuf>,
    /// The connection that the sandbox is tied to.
    _line: Keeper,
}

/// What is known about an agent before its sandbox exists.
struct Wanted {
    /// The command, if it is not that of the image.
    command: Option<Command>,
    env: BTreeMap<String, String>,
    startup: Duration,
    served: Served,
    /// What the settings say about its sandbox.
    overrides: SandboxOverrides,
    secrets: Vec<Secret>,
    /// What is known about it, if it was named.
    preset: Option<Preset>,
    /// The path of the workspace inside, if it is not its own.
    workspace_path: Option<String>,
    /// How paths are rewritten.
    paths: Option<PathMap>,
}

impl AgentOptions {
    /// Creates and starts the sandbox of an agent. `command` is the one that the user gave; otherwise it is that of the named
    /// agent, that of the settings, or that of the image.
    pub(crate) async fn start(
        &self,
        engine: &Engine,
        command: Option<Command>,
        deadline: &mut Deadline,
    ) -> Result<Ready> {
        let (mut wanted, own_engine) = self.wanted(engine, command)?;
        let engine = own_engine.as_ref().unwrap_or(engine);
        let SessionSandbox { provider, mut spec, pull: when } =
            deadline.unless_ended(self.sandbox(engine, &mut wanted)).await?;
        secret::read(&wanted.secrets, engine.caller(), &mut wanted.env).await?;
        match &wanted.workspace_path {
            Some(path) => wanted.paths = Some(at_chosen_path(&mut spec, provider.mode(), path)?),
            None => at_own_path(&mut spec, provider.mode())?,
        }
        let (mut when, mut package, mut logins) = (when, None, None);
        if let Some(preset) = &wanted.preset {
            if is_without_image(&spec, &*provider) {
                let image = deadline.unless_ended(image_of(preset, &*provider)).await?;
                when = if image.is_some() { Pull::Never } else { when };
                spec.image = image;
            }
            if spec.image.is_none() && provider.mode().key.provider == ProviderKind::Native {
                package = Package::of(preset);
            }
            if provider.mode().volumes == Support::Given {
                logins = Logins::of(preset, self.login);
            }
        }
        if let (Some(package), Some(preset)) = (&package, &wanted.preset) {
            spec.caches.push(package.volume(true));
            wanted.command = Some(Package::command(preset.command.clone()));
        }
        if let Some(logins) = &logins {
            logins.add_to(&mut spec);
        }
        // The agent ends with this program, even if the program is killed.
        spec.tied = true;
        (spec.command, spec.image_main) = (None, false);
        if provider.mode().layers.is_empty() {
            report::warning("the agent runs without isolation, as a process of this machine");
        }
        if let Some(image) = &spec.image {
            deadline.unless_ended(pull(&*provider, image, when)).await?;
        }
        let (sandbox, _) = create(Claimed::none()?, provider, &spec, deadline).await?;
        let directory = spec.workdir.clone().unwrap_or_else(|| "/workspace".to_owned());
        let ready = async {
            let line = while_waiting("starting the sandbox", deadline.unless_ended(sandbox.launch())).await?;
            if let Some(logins) = &logins {
                deadline.unless_ended(logins.link(&sandbox)).await?;
            }
            if let Some(package) = &package {
                Box::pin(package.install(&sandbox, &spec, deadline)).await?;
            }
            Ok((line, self.agent(wanted, &sandbox)?))
        };
        match ready.await {
            Ok((line, agent)) => {
                Ok(Ready { sandbox, agent, directory, workspace: spec.workspace.clone(), _line: line })
            }
            Err(error) => {
                let _ = kennel_engine::discard(&sandbox).await;
                Err(error)
            }
        }
    }

    /// Returns what is known about the agent, and the engine to use if it is not the usual one.
    fn wanted(&self, engine: &Engine, command: Option<Command>) -> Result<(Wanted, Option<Engine>)> {
        let mut wanted = Wanted {
            command,
            env: BTreeMap::new(),
            startup: STARTUP,
            served: Served::default(),
            overrides: SandboxOverrides::default(),
            secrets: self.secrets.clone(),
            preset: None,
            workspace_path: self.workspace_path.clone(),
            paths: None,
        };
        if wanted.command.is_some() {
            return Ok((wanted, None));
        }
        if let Some(name) = &self.agent {
            let preset = preset(engine, name)?;
            let variable =
                |name: &str| engine.caller().variables.get(OsStr::new(name))?.to_str().map(ToOwned::to_owned);
            wanted.env = preset.variables(variable);
            wanted.startup = Duration::from_secs(preset.startup_seconds);
            wanted.served = Served { files: preset.files, terminals: preset.terminals };
            wanted.command = Some(Command::Argv(preset.command.clone()));
            wanted.preset = Some(preset);
            return Ok((wanted, None));
        }
        let AgentSection { mode, command, args, env, secrets, container } =
            Settings::agent(engine.caller(), &engine.directories()?)?;
        wanted.command = command.map(|program| Command::Argv([program].into_iter().chain(args).collect()));
        wanted.env = env;
        let of_settings = secrets.iter().map(|(name, source)| {
            let invalid = |why| Error::new(ErrorCode::InvalidConfig, format!("agent.secrets.{name}: {why}"));
            Secret::new(name, source).map_err(invalid)
        });
        // Those of the options win.
        wanted.secrets = of_settings.chain(self.secrets.iter().cloned().map(Ok)).collect::<Result<_>>()?;
        wanted.startup = container.startup_timeout.0;
        let chosen = engine.named().is_some() || self.profile.is_some() || self.sandbox.image.is_some();
        if chosen {
            return Ok((wanted, None));
        }
        if mode == AgentMode::Process {
            if wanted.command.is_none() {
                return Err(no_agent());
            }
            return Ok((wanted, Some(Engine::new(engine.caller().clone()).only(ProviderKind::Local))));
        }
        let own_engine = container.docker_host.clone().map(|host| {
            let mut caller = engine.caller().clone();
            caller.variables.insert(DOCKER_HOST.into(), host.into());
            Engine::new(caller).only(ProviderKind::Docker)
        });
        wanted.workspace_path = wanted.workspace_path.or_else(|| container.workspace_container_path.clone());
        wanted.overrides = of_container(container)?;
        Ok((wanted, own_engine))
    }

    /// Describes the sandbox, from the options, the profile and the settings. Moves the variables of the options to the
    /// agent: they may be secrets, and the specification of a sandbox is stored.
    async fn sandbox(&self, engine: &Engine, wanted: &mut Wanted) -> Result<SessionSandbox> {
        let base = std::mem::take(&mut wanted.overrides);
        let mut take = |mut given: SandboxOverrides| {
            wanted.env.append(&mut given.env);
            request::merge(base.clone(), given)
        };
        if let Some(name) = &self.profile {
            let profiles = profiles(engine)?;
            let changes = take(self.sandbox.overrides(engine, profiles.settings())?);
            let mut sandbox = profiles.for_session(name, changes, false).await?;
            // It is not the sandbox of the profile.
            sandbox.spec.profile = None;
            return Ok(sandbox);
        }
        let mut settings = settings(engine)?;
        let overrides = take(self.sandbox.overrides(engine, &settings)?);
        let image = overrides.image.clone().or_else(|| settings.sandbox.image.clone());
        let provider = choose(engine, &mut settings, image.as_deref()).await?;
        let workspace = request::workspace(&settings, &overrides, engine.caller())?;
        let spec = request::spec(&settings, &overrides, workspace, engine.caller(), provider.mode())?;
        if provider.mode().layers.is_empty() {
            inherit(engine.caller(), &mut wanted.env);
        }
        Ok(SessionSandbox { provider, spec, pull: overrides.pull.unwrap_or(settings.sandbox.pull) })
    }

    /// Returns the agent to start in a sandbox.
    fn agent(&self, wanted: Wanted, sandbox: &Sandbox) -> Result<Agent> {
        let of_image = || sandbox.info().image_command.clone().filter(|own| !own.is_empty()).map(Command::Argv);
        let command = wanted.command.or_else(of_image).ok_or_else(no_agent)?;
        // The sandbox ends with the agent, and with it everything that the agent has left behind.
        let spec = ExecSpec { env: wanted.env, last: true, ..ExecSpec::new(command) };
        let startup = match self.startup_timeout {
            None => wanted.startup,
            Some(TimeLimit(limit)) => limit.unwrap_or(Duration::MAX),
        };
        Ok(Agent { spec, startup, served: wanted.served, paths: wanted.paths, to_client: None })
    }
}

/// Whether a sandbox needs an image, and has none.
fn is_without_image(spec: &SandboxSpec, provider: &dyn Provider) -> bool {
    spec.image.is_none() && matches!(provider.mode().key.provider, ProviderKind::Docker | ProviderKind::Podman)
}

/// Returns the image of an agent, which must have been built. Returns `None` if Kennel cannot build one.
async fn image_of(preset: &Preset, provider: &dyn Provider) -> Result<Option<String>> {
    if preset.npm.is_none() {
        return Ok(None);
    }
    let tag = AgentImage::of(preset)?.tag;
    if provider.image_id(&tag).await?.is_some() {
        return Ok(Some(tag));
    }
    let message = format!("the agent {} has no image on {}: {tag} does not exist", preset.name, provider.name());
    Err(Error::new(ErrorCode::ImageNotFound, message).hint(format!("build it: kennel agent image {}", preset.name)))
}

/// Converts the container of the settings to what overrides the section `sandbox`. What cannot be kept is refused.
fn of_container(container: AgentContainer) -> Result<SandboxOverrides> {
    let unsupported = |what: &str| Err(Error::new(ErrorCode::Unsupported, format!("agent.container.{what}")));
    if !container.auto_remove {
        return unsupported("autoRemove: the sandbox of an agent is always removed when the agent ends");
    }
    if container.workspace_host_base.is_some() {
        report::warning("agent.container.workspaceHostBase has no effect here: the workspace is the current directory");
    }
    Ok(SandboxOverrides {
        image: container.image,
        network: Some(container.network),
        memory: container.memory,
        cpus: container.cpus,
        pids: container.pids,
        startup_timeout: Some(container.startup_timeout),
        ..SandboxOverrides::default()
    })
}

/// Adds the variables without which an agent finds neither its programs nor its files, if it is a process of the host.
pub(crate) fn inherit(caller: &Caller, env: &mut BTreeMap<String, String>) {
    for name in [PATH, HOME] {
        let value = caller.variables.get(OsStr::new(name)).and_then(|value| value.to_str());
        if let Some(value) = value {
            env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
}

fn no_agent() -> Error {
    Error::new(ErrorCode::InvalidConfig, "there is no agent to start")
        .hint("name one with --agent, give its command, or set agent.command in kennel.toml")
}
