//! Opens sessions.

use super::create::{self, Wanted};
use super::operation;
use super::sessions::{described, sessions};
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract;
use crate::idempotent::{self, Creation};
use crate::permissions;
use crate::routes::{Content, Operation, Routes, schema};
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use kennel_api::{CreateSandbox, CreateSession, PoolPolicy, Scope, SessionView};
use kennel_core::{Error, Provider, RemoveOptions};
use kennel_engine::profiles::SessionSandbox;
use kennel_engine::{EventFilter, OpenSession, PoolUse, Session, SessionId, SessionState, SessionWorkspace, Sessions};
use kennel_types::{ErrorCode, Pull, SandboxSpec};
use std::sync::Arc;

const ID: &str = "createSession";

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(
        Operation {
            request: Content::OptionalJson(schema::<CreateSession>),
            response: (201, Content::Json(schema::<SessionView>)),
            creates: true,
            ..operation(
                Method::POST,
                "/v1/sessions",
                ID,
                Scope::Create,
                "Opens a session: records it, makes its workspace and sandbox, and starts the sandbox.",
            )
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
    let asked: CreateSession = extract::parse(if bytes.is_empty() { b"{}" } else { &bytes })?;
    let (server, caller) = (app.clone(), identity.clone());
    idempotent::once(&app, &identity, &headers, &[ID.as_bytes(), &bytes], move |creation| async move {
        open(&server, &caller, asked, creation).await.map(described)
    })
    .await
}

async fn open(app: &AppState, identity: &Identity, asked: CreateSession, creation: Creation) -> Outcome<Session> {
    let sessions = sessions(app).await?;
    let id = SessionId::new(creation.id.as_str())?;
    if creation.resumed
        && let Some(session) = opened_before(app, &sessions, &id).await?
    {
        return Ok(session);
    }
    let workspace = workspace(app, &asked)?;
    let pool = match asked.pool.unwrap_or_default() {
        PoolPolicy::Prefer => PoolUse::Prefer,
        PoolPolicy::Require => PoolUse::Require,
        PoolPolicy::Never => PoolUse::Never,
    };
    let name = asked.name.clone();
    let made = sandbox(app, identity, asked, !matches!(workspace, SessionWorkspace::AsSpecified)).await?;
    let _counting = create::may_add(app, identity, &made.spec).await?;
    let request = OpenSession {
        id: creation.recorded.then_some(id),
        name,
        provider: made.provider.name().to_owned(),
        spec: made.spec,
        workspace,
        pull: made.pull,
        pool,
        progress: None,
        cancel: creation.cancel,
    };
    Ok(sessions.open(request).await?)
}

/// Returns the session that a request with the same key has opened. If the server was killed before it was open, what is left
/// of it is removed.
async fn opened_before(app: &AppState, sessions: &Sessions, id: &SessionId) -> Outcome<Option<Session>> {
    let session = match sessions.show(id.as_str()).await {
        Err(error) if error.code() == ErrorCode::NotFound => return Ok(None),
        found => found?,
    };
    let events = sessions.events(&EventFilter { session: Some(id.clone()), ..EventFilter::default() }).await?;
    if events.iter().any(|event| event.to == Some(SessionState::Running)) {
        return Ok(Some(session));
    }
    sessions.remove(id.as_str(), RemoveOptions { force: true, volumes: false }).await?;
    if let Some(own) = &session.summary.workspace
        && *own == app.engine.directories()?.workspaces().join(id.as_str())
    {
        // No process of the session has run in it.
        match std::fs::remove_dir_all(own) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(format!("remove {}", own.display()), error).into());
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Where the workspace comes from.
fn workspace(app: &AppState, asked: &CreateSession) -> Outcome<SessionWorkspace> {
    let count =
        usize::from(asked.workspace.is_some()) + usize::from(asked.own_workspace) + usize::from(asked.clone.is_some());
    if count > 1 {
        return Err(Failure::invalid("expected at most one of workspace, ownWorkspace and clone"));
    }
    let base = app.engine.directories()?.workspaces();
    Ok(match &asked.clone {
        // The git credentials of the server's user are not for whoever has a token.
        Some(url) => SessionWorkspace::Clone { base, url: url.clone(), credentials: None },
        None if asked.own_workspace => SessionWorkspace::Own { base },
        None => SessionWorkspace::AsSpecified,
    })
}

/// The sandbox of a new session.
struct Made {
    provider: Arc<dyn Provider>,
    spec: SandboxSpec,
    pull: Pull,
}

async fn sandbox(app: &AppState, identity: &Identity, asked: CreateSession, has_own: bool) -> Outcome<Made> {
    if asked.no_profile && asked.profile.is_some() {
        return Err(Failure::invalid("expected either profile or noProfile"));
    }
    let request = asked.sandbox.unwrap_or_default();
    for (given, field, instead) in [
        (request.name.is_some(), "name", "the name of the session is also that of its sandbox"),
        (request.workspace.is_some(), "workspace", "it belongs to the session"),
        (request.ttl.is_some(), "ttl", "a session does not expire"),
        (!request.start, "start", "a session starts its sandbox"),
    ] {
        if given {
            return Err(Failure::invalid(format!("sandbox.{field} is not possible in a session: {instead}")));
        }
    }
    let request = CreateSandbox { name: asked.name, workspace: asked.workspace, ..request };
    let named = asked.profile.as_deref();
    let default = app.options.profile.as_deref().filter(|_| !asked.no_profile);
    match (named, default) {
        (Some(profile), _) => {
            super::profiles::check(identity, profile)?;
            from_profile(app, identity, profile, request, has_own).await
        }
        (None, Some(profile)) => from_profile(app, identity, profile, request, has_own).await,
        (None, None) => {
            let auto_remove = request.auto_remove;
            let Wanted { provider, mut spec, pull, .. } = Wanted::new(app, identity, request).await?;
            // A session is kept unless the request says otherwise.
            spec.auto_remove = auto_remove;
            Ok(Made { provider, spec, pull })
        }
    }
}

/// The sandbox of a session with the settings of a profile.
async fn from_profile(
    app: &AppState,
    identity: &Identity,
    profile: &str,
    asked: CreateSandbox,
    has_own: bool,
) -> Outcome<Made> {
    if asked.provider.is_some() {
        return Err(Failure::invalid("sandbox.provider is not possible with a profile, which names its own"));
    }
    if asked.image_command == Some(true) && asked.command.is_some() {
        return Err(Failure::invalid("expected either command or imageCommand"));
    }
    let profiles = app.engine.profiles()?;
    let known = profiles.get(profile)?;
    let (auto_remove, project, image_command) = (asked.auto_remove, asked.project.clone(), asked.image_command);
    let has_command = asked.command.is_some();
    let given = asked.workspace.as_deref().map(|path| permissions::resolve(identity, path)).transpose()?;
    // The server's own current directory is nobody's workspace.
    let workspace = given.or_else(|| known.overrides.workspace.clone().filter(|_| !has_own));
    let mut changes = create::overrides(identity, asked, workspace)?;
    changes.image_command = image_command;
    let SessionSandbox { provider, mut spec, pull } = profiles.for_session(profile, changes, true).await?;
    if has_command {
        spec.image_main = false;
    }
    if image_command == Some(true) {
        spec.command = None;
    }
    spec.auto_remove = auto_remove;
    spec.project = create::project_of(identity, project, spec.project)?;
    create::separate_caches(&mut spec);
    let allowed = permissions::check(identity, provider.mode().key.provider, &mut spec);
    // The message would name paths of the profile.
    allowed.map_err(|failure| {
        tracing::debug!(error = %failure.error(), profile, "a session is refused");
        Failure::forbidden(format!("profile {profile} gives a sandbox more of the host than this token allows"))
    })?;
    Ok(Made { provider, spec, pull })
}
