//! Pools of members that wait for new sandboxes. They use resources of the host all the time, so only an admin sets them.

use super::create::{self, Wanted};
use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::{OptionalJson, Path};
use crate::permissions;
use crate::routes::{Content, Operation, Routes, schema};
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::{Extension, Json};
use kennel_api::{CreateSandbox, List, PoolView, Scope, SetPool};
use kennel_config::SandboxOverrides;
use kennel_core::{Error, Provider};
use kennel_engine::{Pool, PoolStatus, SessionMembers};
use kennel_types::{ErrorCode, ProviderKind, SandboxSpec};
use std::sync::Arc;

pub(super) fn add(routes: Routes) -> Routes {
    const PATH: &str = "/v1/pools/{pool}";
    routes
        .add(
            Operation {
                response: (200, Content::Json(schema::<List<PoolView>>)),
                ..operation(Method::GET, "/v1/pools", "listPools", Scope::Read, "The pools, by name.")
            },
            list,
        )
        .add(
            Operation {
                request: Content::OptionalJson(schema::<SetPool>),
                response: (200, Content::Json(schema::<PoolView>)),
                ..operation(
                    Method::PUT,
                    PATH,
                    "setPool",
                    Scope::Admin,
                    "Creates a pool, or replaces it. The server makes its members.",
                )
            },
            set,
        )
        .add(
            operation(Method::DELETE, PATH, "removePool", Scope::Admin, "Removes a pool. The members that wait end."),
            remove,
        )
}

fn view(pool: PoolStatus) -> PoolView {
    PoolView {
        name: pool.name,
        provider: pool.provider.name().to_owned(),
        profile: pool.profile,
        sessions: pool.sessions,
        min: pool.min,
        max: pool.max,
        ready: pool.ready,
        problem: pool.problem,
    }
}

async fn list(State(app): State<AppState>, Extension(identity): Extension<Identity>) -> Outcome<Json<List<PoolView>>> {
    // Like profiles, pools belong to the server's user.
    let pools = if identity.project().is_some() { Vec::new() } else { app.engine.pools()?.list().await? };
    Ok(Json(List { items: pools.into_iter().map(view).collect() }))
}

async fn set(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    OptionalJson(asked): OptionalJson<SetPool>,
) -> Outcome<Json<PoolView>> {
    if asked.own_workspace && !asked.sessions {
        return Err(Failure::invalid("ownWorkspace needs sessions"));
    }
    let min = asked.min.unwrap_or(1);
    let (max, profile) = (asked.max.unwrap_or_else(|| min.max(1)), asked.profile.clone());
    let workspaces = asked.own_workspace.then(|| app.engine.directories().map(|dirs| dirs.workspaces())).transpose()?;
    let sessions = asked.sessions.then_some(SessionMembers { workspaces });
    let (provider, spec) = members(&app, &identity, asked).await?;
    let pool = Pool { name, min, max, provider: provider.mode().key.provider, profile, sessions, spec };
    let pools = app.engine.pools()?;
    pools.set(&pool).await?;
    let found = pools.list().await?.into_iter().find(|status| status.name == pool.name);
    let gone = || Error::new(ErrorCode::NotFound, format!("pool {} was removed meanwhile", pool.name));
    Ok(Json(view(found.ok_or_else(gone)?)))
}

/// Describes the sandboxes that a pool is for.
async fn members(app: &AppState, identity: &Identity, asked: SetPool) -> Outcome<(Arc<dyn Provider>, SandboxSpec)> {
    let own_workspace = asked.own_workspace;
    let sandbox = asked.sandbox.unwrap_or_default();
    for (given, field) in [
        (sandbox.name.is_some(), "name"),
        (sandbox.ttl.is_some(), "ttl"),
        (sandbox.auto_remove, "autoRemove"),
        (!sandbox.start, "start"),
        (sandbox.project.is_some(), "project"),
        (sandbox.command.is_some(), "command"),
        (sandbox.image_command.is_some(), "imageCommand"),
        (sandbox.workspace.is_some() && own_workspace, "workspace"),
    ] {
        if given {
            return Err(Failure::invalid(format!("sandbox.{field} is not possible in this pool")));
        }
    }
    let given = create::overrides(identity, CreateSandbox { workspace: None, ..sandbox.clone() }, None)?;
    let is_plain = SandboxOverrides { no_workspace: None, network: None, ..given } == SandboxOverrides::default()
        && sandbox.workspace.is_none();
    let (provider, spec) = if let Some(name) = &asked.profile {
        if sandbox.provider.is_some() {
            return Err(Failure::invalid("sandbox.provider is not possible with a profile, which names its own"));
        }
        let profiles = app.engine.profiles()?;
        let known = profiles.get(name)?;
        let named = sandbox.workspace.as_deref().map(|path| permissions::resolve(identity, path)).transpose()?;
        let workspace = named.or_else(|| known.overrides.workspace.filter(|_| !own_workspace));
        let changes = create::overrides(identity, sandbox, workspace)?;
        let made = profiles.for_session(name, changes, true).await?;
        (made.provider, made.spec)
    } else {
        let Wanted { provider, spec, .. } = Wanted::new(app, identity, sandbox).await?;
        (provider, spec)
    };
    if provider.mode().key.provider == ProviderKind::Native && !is_plain {
        let message = "a member of a native pool fits every sandbox with the same kind of network: leave out everything \
                       of sandbox, except network";
        return Err(Failure::invalid(message));
    }
    // The main process is started by the sandbox that uses the member.
    Ok((provider, SandboxSpec { name: None, command: None, image_main: false, ..spec }))
}

async fn remove(State(app): State<AppState>, Path(name): Path<String>) -> Outcome<StatusCode> {
    app.engine.pools()?.remove(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
