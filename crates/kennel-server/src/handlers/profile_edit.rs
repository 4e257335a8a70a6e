//! Creates, changes, restarts and deletes profiles. They belong to the server's user, who may use them on the command line,
//! too. So a caller without the scope `admin` cannot make a profile what it could not create as a sandbox.

use super::create;
use super::logs::{self, LogQuery};
use super::operation;
use super::profiles::{check, cut_off, view};
use crate::app::{App, AppState};
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::{self, Json as Body, OptionalJson, Path, Query};
use crate::idempotent;
use crate::permissions;
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::{Extension, Json};
use kennel_api::{ChangeProfile, CreateProfile, CreateSandbox, ProfileView, ProviderName, RestartProfile, Scope};
use kennel_config::SandboxOverrides;
use kennel_core::{Error, printable};
use kennel_engine::{Profiles, request};
use kennel_types::{ErrorCode, ProviderKind, SandboxSpec};
use schemars::JsonSchema;
use serde::Deserialize;

const CREATE: &str = "createProfile";
const PATH: &str = "/v1/profiles/{profile}";

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                request: Content::Json(schema::<CreateProfile>),
                response: (201, Content::Json(schema::<ProfileView>)),
                creates: true,
                ..operation(Method::POST, "/v1/profiles", CREATE, Scope::Create, "Creates a profile.")
            },
            create,
        )
        .add(
            Operation {
                request: Content::Json(schema::<ChangeProfile>),
                response: (200, Content::Json(schema::<ProfileView>)),
                ..operation(
                    Method::PATCH,
                    PATH,
                    "changeProfile",
                    Scope::Create,
                    "Changes a profile. A restart applies the change to its sandbox.",
                )
            },
            change,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<DeleteQuery>),
                ..operation(Method::DELETE, PATH, "deleteProfile", Scope::Create, "Deletes a profile and its sandbox.")
            },
            delete,
        )
        .add(
            Operation {
                request: Content::OptionalJson(schema::<RestartProfile>),
                response: (200, Content::Json(schema::<ProfileView>)),
                ..operation(
                    Method::POST,
                    "/v1/profiles/{profile}/restart",
                    "restartProfile",
                    Scope::Create,
                    "Restarts the sandbox of a profile. If the profile has changed, the sandbox is created again.",
                )
            },
            restart,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<LogQuery>),
                response: (200, Content::Bytes),
                ..operation(
                    Method::GET,
                    "/v1/profiles/{profile}/logs",
                    "getProfileLogs",
                    Scope::Read,
                    "The log of the main process of a profile's sandbox, up to now.",
                )
            },
            read_logs,
        )
}

async fn create(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    request: Request,
) -> Outcome<Response> {
    let headers = request.headers().clone();
    let bytes = extract::json_bytes(request).await?;
    let asked: CreateProfile = extract::parse(&bytes)?;
    if identity.project().is_some() {
        return Err(Failure::forbidden("a token that is bound to a project has no profiles"));
    }
    let (server, caller) = (app.clone(), identity.clone());
    idempotent::once(&app, &identity, &headers, &[CREATE.as_bytes(), &bytes], move |creation| async move {
        let profiles = server.engine.profiles()?;
        if creation.resumed
            && let Ok(found) = profiles.status(&asked.name).await
        {
            return Ok(view(found));
        }
        let overrides = overrides(&caller, asked.sandbox.unwrap_or_default())?;
        allowed(&server, &caller, &profiles, &overrides).await?;
        profiles.create(&asked.name, overrides).await?;
        Ok(view(profiles.status(&asked.name).await?))
    })
    .await
}

/// Converts what a request says about the sandbox of a profile.
fn overrides(identity: &Identity, asked: CreateSandbox) -> Outcome<SandboxOverrides> {
    for (given, field) in [
        (asked.name.is_some(), "name"),
        (asked.project.is_some(), "project"),
        (asked.ttl.is_some(), "ttl"),
        (asked.auto_remove, "autoRemove"),
        (!asked.start, "start"),
    ] {
        if given {
            return Err(Failure::invalid(format!("sandbox.{field} is not possible in a profile")));
        }
    }
    let provider = asked.provider.map(|name| match name {
        ProviderName::Native => kennel_config::Provider::Native,
        ProviderName::Podman => kennel_config::Provider::Podman,
        ProviderName::Docker => kennel_config::Provider::Docker,
        ProviderName::Local => kennel_config::Provider::Local,
    });
    let image_command = asked.image_command;
    let workspace = asked.workspace.as_deref().map(|path| permissions::resolve(identity, path)).transpose()?;
    let overrides = create::overrides(identity, asked, workspace)?;
    Ok(SandboxOverrides { provider, image_command, ..overrides })
}

/// Checks that the caller could create the sandbox of a profile with these settings.
async fn allowed(app: &App, identity: &Identity, profiles: &Profiles<'_>, overrides: &SandboxOverrides) -> Outcome<()> {
    let mut settings = profiles.settings().clone();
    settings.sandbox.provider = overrides.provider.unwrap_or(settings.sandbox.provider);
    let image = overrides.image.clone().or_else(|| settings.sandbox.image.clone());
    let choice = app.engine.choose(&mut settings, image.as_deref()).await?;
    let caller = app.engine.caller();
    let workspace = request::workspace(&settings, overrides, caller)?;
    let mut spec = request::spec(&settings, overrides, workspace, caller, choice.provider.mode())?;
    fits(identity, choice.provider.mode().key.provider, &mut spec)
}

/// Checks the sandbox of a profile. Limits of the token are no defaults here, because they would become part of the profile.
fn fits(identity: &Identity, provider: ProviderKind, spec: &mut SandboxSpec) -> Outcome<()> {
    let limits = spec.limits;
    permissions::check(identity, provider, spec)?;
    if spec.limits == limits {
        return Ok(());
    }
    Err(Failure::forbidden("this token limits memory or CPU, so the profile must have such a limit, too"))
}

/// Checks that the caller may create the sandbox of a profile, if it has none yet. The caller keeps the guard until the
/// sandbox is created.
pub(super) async fn may_create<'a>(
    app: &'a App,
    identity: &Identity,
    profiles: &Profiles<'_>,
    name: &str,
) -> Outcome<Option<tokio::sync::MutexGuard<'a, ()>>> {
    if profiles.status(name).await?.sandbox.is_some() {
        return Ok(None);
    }
    may_create_again(app, identity, profiles, name).await
}

/// Checks that the caller may create the sandbox of a profile, also if it has one.
async fn may_create_again<'a>(
    app: &'a App,
    identity: &Identity,
    profiles: &Profiles<'_>,
    name: &str,
) -> Outcome<Option<tokio::sync::MutexGuard<'a, ()>>> {
    create::may_add(app, identity, &would_be(identity, profiles, name).await?).await
}

/// Describes the sandbox that a profile would get, if the caller may create it.
async fn would_be(identity: &Identity, profiles: &Profiles<'_>, name: &str) -> Outcome<SandboxSpec> {
    let mut made = profiles.for_session(name, SandboxOverrides::default(), true).await?;
    fits(identity, made.provider.mode().key.provider, &mut made.spec).map_err(|_| too_much(name))?;
    Ok(made.spec)
}

fn too_much(name: &str) -> Failure {
    // A message with the reason would name paths of the profile.
    Failure::forbidden(format!("profile {} gives a sandbox more of the host than this token allows", printable(name)))
}

async fn change(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Body(asked): Body<ChangeProfile>,
) -> Outcome<Json<ProfileView>> {
    check(&identity, &name)?;
    let profiles = app.engine.profiles()?;
    let known = profiles.get(&name)?;
    let names_workspace = asked.sandbox.workspace.is_some();
    let mut changes = overrides(&identity, asked.sandbox)?;
    if !names_workspace {
        changes.no_workspace = None;
    }
    let after = request::merge(known.overrides, changes.clone());
    match allowed(&app, &identity, &profiles, &after).await {
        Err(failure) if failure.status() == StatusCode::FORBIDDEN => {
            // What the caller itself asks for may be in the message. What the profile says may not.
            allowed(&app, &identity, &profiles, &request::merge(no_workspace(), changes)).await?;
            return Err(too_much(&name));
        }
        done => done?,
    }
    profiles.edit(&name, changes).await?;
    Ok(Json(view(profiles.status(&name).await?)))
}

fn no_workspace() -> SandboxOverrides {
    SandboxOverrides { no_workspace: Some(true), ..SandboxOverrides::default() }
}

/// How a profile is deleted.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct DeleteQuery {
    /// Also remove the data volume of its sandbox.
    volumes: bool,
}

async fn delete(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Outcome<StatusCode> {
    check(&identity, &name)?;
    // As a task: a removal that is cut off halfway would leave something behind.
    let task = tokio::spawn(async move {
        let profiles = app.engine.profiles()?;
        if !identity.is_admin() {
            allowed(&app, &identity, &profiles, &profiles.get(&name)?.overrides).await.map_err(|_| too_much(&name))?;
        }
        let sandbox = profiles.status(&name).await?.sandbox;
        profiles.delete(&name, query.volumes).await?;
        if let Some(sandbox) = sandbox {
            app.forget_id(sandbox.id.as_str());
        }
        Ok(StatusCode::NO_CONTENT)
    });
    task.await.unwrap_or_else(|error| Err(cut_off(&error)))
}

async fn restart(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    OptionalJson(asked): OptionalJson<RestartProfile>,
) -> Outcome<Json<ProfileView>> {
    check(&identity, &name)?;
    let task = tokio::spawn(async move {
        let profiles = app.engine.profiles()?;
        let before = profiles.status(&name).await?.sandbox;
        let _counting = if before.is_some() {
            // The sandbox may be created again, but there is not one more of them.
            would_be(&identity, &profiles, &name).await?;
            None
        } else {
            may_create_again(&app, &identity, &profiles, &name).await?
        };
        profiles.restart(&name, asked.pull, &|_| {}).await?;
        if let Some(sandbox) = before {
            app.forget_id(sandbox.id.as_str());
        }
        Ok(Json(view(profiles.status(&name).await?)))
    });
    task.await.unwrap_or_else(|error| Err(cut_off(&error)))
}

async fn read_logs(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<LogQuery>,
) -> Outcome<Response> {
    check(&identity, &name)?;
    let sandbox = app.engine.profiles()?.sandbox(&name).await?;
    if !identity.sees(sandbox.info()) {
        return Err(Error::new(ErrorCode::NotFound, format!("profile {} has no sandbox", printable(&name))).into());
    }
    logs::respond(&sandbox, query).await
}
