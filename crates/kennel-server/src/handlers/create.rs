//! Creates sandboxes.

use super::operation;
use crate::app::{App, AppState};
use crate::auth::Identity;
use crate::convert;
use crate::error::{Failure, Outcome};
use crate::extract;
use crate::idempotent::{self, Creation};
use crate::permissions;
use crate::routes::{Content, Operation, Routes, schema};
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use kennel_api::{CreateSandbox, Network, ProviderName, PullPolicy, SandboxView, Scope};
use kennel_config::{SandboxOverrides, Time, Volume};
use kennel_core::{Error, Provider, Sandbox, VolumeOptions};
use kennel_engine::caller::KENNEL_HOME;
use kennel_engine::{Caller, Settings, create_sandbox_with_id, discard, request};
use kennel_types::{
    ByteSize, ErrorCode, Field, LimitReason, NetworkMode, NextStep, Protocol, Pull, SandboxSpec, VolumeKind,
};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ID: &str = "createSandbox";

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(
        Operation {
            request: Content::OptionalJson(schema::<CreateSandbox>),
            response: (201, Content::Json(schema::<SandboxView>)),
            creates: true,
            ..operation(Method::POST, "/v1/sandboxes", ID, Scope::Create, "Creates a sandbox, and starts it.")
        },
        create,
    )
}

async fn create(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    request: Request,
) -> Outcome<Response> {
    let headers = request.headers().clone();
    let bytes = extract::json_bytes(request).await?;
    let asked: CreateSandbox = extract::parse(if bytes.is_empty() { b"{}" } else { &bytes })?;
    let (server, caller) = (app.clone(), identity.clone());
    idempotent::once(&app, &identity, &headers, &[ID.as_bytes(), &bytes], move |creation| async move {
        make(&server, &caller, asked, creation).await
    })
    .await
}

async fn make(app: &AppState, identity: &Identity, asked: CreateSandbox, creation: Creation) -> Outcome<SandboxView> {
    if creation.resumed
        && let Ok(sandbox) = app.engine.find(creation.id.as_str()).await
    {
        return started(app, sandbox, asked.start, &creation).await;
    }
    let began = Instant::now();
    let wanted = Wanted::new(app, identity, asked).await?;
    let _counting = may_add(app, identity, &wanted.spec).await?;
    if let Some(image) = &wanted.spec.image {
        wanted.provider.pull(image, wanted.pull, &|_| {}).await?;
    }
    // Before the sandbox exists: one whose server is killed now expires too.
    app.expiry.set(&app.engine, &creation.id, wanted.ttl)?;
    let created = create_sandbox_with_id(wanted.provider, &creation.id, &wanted.spec, &creation.cancel).await;
    let sandbox = created.or_else(|error| {
        app.expiry.set(&app.engine, &creation.id, None)?;
        Err(error)
    })?;
    app.metrics.create_took(began.elapsed());
    started(app, sandbox, wanted.start, &creation).await
}

/// Starts a new sandbox, if that was requested. If it fails, or the client is gone, the sandbox is removed.
async fn started(app: &AppState, sandbox: Sandbox, start: bool, creation: &Creation) -> Outcome<SandboxView> {
    let done = if start { app.metrics.time_start(sandbox.start()).await } else { Ok(()) };
    let done = match done {
        Ok(()) if creation.cancel.is_cancelled() => Err(Error::new(ErrorCode::Aborted, "the client is gone")),
        done => done,
    };
    if let Err(error) = done {
        if let Err(error) = discard(&sandbox).await {
            tracing::warn!(sandbox = %sandbox.id(), %error, "a sandbox that could not be started is left");
        }
        return Err(error.into());
    }
    let sandbox = app.keep(sandbox);
    match app.inspect(&sandbox).await {
        // Its main process has already ended, so it was removed.
        Err(error) if error.code() == ErrorCode::NotFound => Ok(convert::sandbox(sandbox.info().clone())),
        info => Ok(convert::sandbox(info?)),
    }
}

/// A sandbox that a caller may create.
pub(super) struct Wanted {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) spec: SandboxSpec,
    pub(super) pull: Pull,
    start: bool,
    /// The time after which it is removed.
    ttl: Option<Duration>,
}

impl Wanted {
    pub(super) async fn new(app: &App, identity: &Identity, asked: CreateSandbox) -> Outcome<Self> {
        let start = asked.start;
        let ttl = asked.ttl.map(kennel_api::Millis::duration).filter(|ttl| !ttl.is_zero());
        let workspace = asked.workspace.as_deref().map(|path| permissions::resolve(identity, path)).transpose()?;
        let caller = caller_at(app, workspace.as_deref());
        let mut settings = Settings::load(&caller, &app.engine.directories()?)?;
        choose_named(app, &mut settings, asked.provider)?;
        let image = asked.image.as_deref().or(settings.sandbox.image.as_deref()).map(ToOwned::to_owned);
        let choice = app.engine.choose(&mut settings, image.as_deref()).await?;
        if let Some(directly) = choice.directly {
            let message = format!("{}: this server creates no sandbox without isolation", directly.reason);
            return Err(Error::new(ErrorCode::NotAvailable, message).into());
        }
        let provider = choice.provider;
        let auto_remove =
            asked.auto_remove || settings.said("sandbox.autoRemove", settings.sandbox.auto_remove).unwrap_or(false);
        let (image_command, project) = (asked.image_command, asked.project.clone());
        let overrides = overrides(identity, asked, workspace)?;
        let pull = overrides.pull.unwrap_or(settings.sandbox.pull);
        let workspace = request::workspace(&settings, &overrides, &caller)?;
        let mut spec = request::spec(&settings, &overrides, workspace, &caller, provider.mode())?;
        complete_command(&mut spec, &overrides, image_command, settings.sandbox.image_command)?;
        spec.auto_remove = auto_remove;
        spec.project = project_of(identity, project, spec.project)?;
        separate_caches(&mut spec);
        permissions::check(identity, provider.mode().key.provider, &mut spec)?;
        Ok(Self { provider, spec, pull, start, ttl })
    }
}

/// Checks that the caller may have one more sandbox, and this one's data volume. The caller keeps the guard until the
/// sandbox is created, so that no other request is counted at the same time.
pub(super) async fn may_add<'a>(
    app: &'a App,
    identity: &Identity,
    spec: &SandboxSpec,
) -> Outcome<Option<tokio::sync::MutexGuard<'a, ()>>> {
    if let (Some(own), true, Some(name)) = (identity.project(), spec.data, &spec.name) {
        let volume = VolumeKind::Data.volume(name);
        let listing = app.engine.volumes(VolumeOptions::default()).await?;
        let foreign = |found: &kennel_engine::FoundVolume| {
            found.info.name == volume && found.info.project.as_deref() != Some(own)
        };
        if listing.found.iter().any(foreign) {
            let message = format!("the data volume of {name} belongs to another project");
            return Err(Error::new(ErrorCode::AlreadyExists, message).suggest(NextStep::set(Field::Name)).into());
        }
    }
    let Some(most) = identity.token().and_then(|token| token.limits.sandboxes) else { return Ok(None) };
    let guard = app.counting.lock().await;
    let count = app.engine.list().await?.found.iter().filter(|info| identity.sees(info)).count();
    if count >= most as usize {
        let message = format!("this token allows {most} sandboxes, and there are {count}");
        return Err(Error::limit(LimitReason::Exhausted, message).into());
    }
    Ok(Some(guard))
}

/// The caller whose settings apply: the server's user, in the directory of the workspace. Without a workspace, no
/// project's settings apply.
pub(super) fn caller_at(app: &App, workspace: Option<&Path>) -> Caller {
    let server = app.engine.caller();
    let mut variables = server.variables.clone();
    if let Some(home) = variables.get_mut(std::ffi::OsStr::new(KENNEL_HOME)).filter(|home| !home.is_empty()) {
        *home = server.current_dir.join(&*home).into();
    }
    Caller { variables, current_dir: workspace.unwrap_or(Path::new("/")).to_owned(), uid: server.uid }
}

/// Uses the provider that the request names.
fn choose_named(app: &App, settings: &mut Settings, asked: Option<ProviderName>) -> Outcome<()> {
    use kennel_config::Provider as Setting;
    let Some(asked) = asked else { return Ok(()) };
    let (name, setting) = match asked {
        ProviderName::Native => ("native", Setting::Native),
        ProviderName::Podman => ("podman", Setting::Podman),
        ProviderName::Docker => ("docker", Setting::Docker),
        ProviderName::Local => ("local", Setting::Local),
    };
    if let Some(only) = app.engine.named().filter(|only| only.name() != name) {
        return Err(Failure::invalid(format!("provider {name}: this server uses only {}", only.name())));
    }
    settings.sandbox.provider = setting;
    Ok(())
}

pub(super) fn overrides(
    identity: &Identity,
    asked: CreateSandbox,
    workspace: Option<PathBuf>,
) -> Outcome<SandboxOverrides> {
    let mut volumes = Vec::new();
    for mount in asked.mounts {
        let host = permissions::resolve(identity, &mount.host)?;
        volumes.push(Volume { host, container: mount.target, readonly: mount.read_only });
    }
    let time = |millis: kennel_api::Millis| Time(millis.duration());
    if asked.ports.iter().any(|port| port.inside == 0 || port.host == Some(0)) {
        return Err(Failure::invalid("invalid port 0: expected 1 to 65535"));
    }
    if asked.pids == Some(0) {
        return Err(Failure::invalid("invalid pids 0: expected at least 1"));
    }
    let ports = asked.ports.iter().map(|port| kennel_config::Port {
        host: port.host,
        container: port.inside,
        protocol: if port.udp { Protocol::Udp } else { Protocol::Tcp },
    });
    Ok(SandboxOverrides {
        name: asked.name,
        image: asked.image,
        pull: asked.pull.map(|pull| match pull {
            PullPolicy::Always => Pull::Always,
            PullPolicy::Missing => Pull::Missing,
            PullPolicy::Never => Pull::Never,
        }),
        command: asked.command,
        read_only: asked.read_only,
        runtime: asked.runtime,
        userns: asked.userns,
        workdir: asked.workdir,
        env: asked.env,
        labels: asked.labels,
        user: asked.user,
        no_workspace: workspace.is_none().then_some(true),
        workspace,
        ports: ports.collect(),
        volumes,
        data: asked.data,
        caches: asked.caches,
        network: asked.network.map(|network| {
            kennel_config::Network(match network {
                Network::Bridge => NetworkMode::Bridge,
                Network::Host => NetworkMode::Host,
                Network::None => NetworkMode::None,
            })
        }),
        memory: asked.memory.map(|bytes| ByteSize(bytes.0)),
        cpus: asked.cpus.map(|cpus| kennel_config::Cpus(cpus.0)),
        pids: asked.pids,
        disk: asked.disk.map(|bytes| ByteSize(bytes.0)),
        nesting: asked.nesting,
        protect_git: asked.protect_git,
        startup_timeout: asked.startup_timeout.map(time),
        idle_timeout: asked.idle_timeout.map(time),
        idle_pause: asked.idle_pause.map(time),
        ..SandboxOverrides::default()
    })
}

/// Decides what the main process is: the requested command, the image's own, or that of the settings.
fn complete_command(
    spec: &mut SandboxSpec,
    overrides: &SandboxOverrides,
    asked: Option<bool>,
    by_default: bool,
) -> Outcome<()> {
    if overrides.command.as_ref().is_some_and(Vec::is_empty) {
        return Err(Failure::invalid("the command is empty: expected at least the program"));
    }
    if overrides.command.is_some() {
        if asked == Some(true) {
            return Err(Failure::invalid("expected either command or imageCommand"));
        }
        return Ok(());
    }
    if asked == Some(true) {
        if spec.image.is_none() {
            return Err(Failure::invalid("imageCommand needs an image"));
        }
        spec.command = None;
    }
    spec.image_main = spec.command.is_none() && spec.image.is_some() && asked.unwrap_or(by_default);
    Ok(())
}

/// Returns the project of a new sandbox. A token that is bound to a project creates sandboxes of no other.
pub(super) fn project_of(identity: &Identity, asked: Option<String>, found: Option<String>) -> Outcome<Option<String>> {
    match (identity.project(), asked) {
        (Some(own), Some(asked)) if asked != own => {
            Err(Failure::forbidden(format!("this token is bound to the project {own:?}")))
        }
        (Some(own), _) => Ok(Some(own.to_owned())),
        (None, Some(asked)) if asked.is_empty() || asked.len() > 1024 || asked.chars().any(char::is_control) => {
            Err(Failure::invalid("invalid project: expected 1 to 1024 bytes without control characters"))
        }
        (None, Some(asked)) => Ok(Some(asked)),
        (None, None) => Ok(found),
    }
}

/// Separates the caches of projects that have no workspace. With one, the engine has done so already.
pub(super) fn separate_caches(spec: &mut SandboxSpec) {
    let (None, Some(project)) = (&spec.workspace, &spec.project) else { return };
    let hash = Sha256::digest(project.as_bytes());
    for cache in &mut spec.caches {
        cache.name = format!("{:02x}{:02x}{:02x}{:02x}-{}", hash[0], hash[1], hash[2], hash[3], cache.name);
    }
}
