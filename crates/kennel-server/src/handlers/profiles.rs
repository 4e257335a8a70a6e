//! Profiles: look at them, start and stop their sandboxes. `profile_edit.rs` creates and changes them.

use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::Path;
use crate::routes::{Content, Operation, Routes, schema};
use axum::extract::State;
use axum::http::Method;
use axum::{Extension, Json};
use kennel_api::{List, ProfileView, Scope};
use kennel_core::{Error, printable};
use kennel_engine::ProfileStatus;
use kennel_engine::profiles::ProfileUse;
use kennel_types::{ErrorCode, NextStep};

pub(super) fn add(routes: Routes) -> Routes {
    let change = |path, id, scope, summary| Operation {
        response: (200, Content::Json(schema::<ProfileView>)),
        ..operation(Method::POST, path, id, scope, summary)
    };
    routes
        .add(
            Operation {
                response: (200, Content::Json(schema::<List<ProfileView>>)),
                ..operation(Method::GET, "/v1/profiles", "listProfiles", Scope::Read, "The profiles.")
            },
            list,
        )
        .add(
            Operation {
                response: (200, Content::Json(schema::<ProfileView>)),
                ..operation(Method::GET, "/v1/profiles/{profile}", "getProfile", Scope::Read, "A profile.")
            },
            get,
        )
        .add(
            change(
                "/v1/profiles/{profile}/start",
                "startProfile",
                Scope::Create,
                "Starts the sandbox of a profile, and creates it if it does not exist.",
            ),
            start,
        )
        .add(
            change(
                "/v1/profiles/{profile}/stop",
                "stopProfile",
                Scope::Exec,
                "Stops the sandbox of a profile. It is no error if it is stopped.",
            ),
            stop,
        )
}

/// A token that is bound to a project sees no profiles, because they belong to the server's user.
pub(super) fn check(identity: &Identity, name: &str) -> Outcome<()> {
    if identity.project().is_none() {
        return Ok(());
    }
    let message = format!("there is no profile {}", printable(name));
    Err(Error::new(ErrorCode::NotFound, message).suggest(NextStep::ListProfiles).into())
}

pub(super) fn view(found: ProfileUse) -> ProfileView {
    let (status, exit_code) = match found.status {
        ProfileStatus::Stopped => ("stopped", None),
        ProfileStatus::Running => ("running", None),
        ProfileStatus::Paused => ("paused", None),
        ProfileStatus::Error { exit_code, .. } => ("error", exit_code),
    };
    ProfileView {
        name: found.profile.name,
        status: status.to_owned(),
        sandbox: found.sandbox.map(|info| info.id.to_string()),
        exit_code,
        image_changed: found.image_changed,
    }
}

async fn list(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
) -> Outcome<Json<List<ProfileView>>> {
    let mut items = Vec::new();
    if identity.project().is_none() {
        let profiles = app.engine.profiles()?;
        for name in profiles.names()? {
            items.push(view(profiles.status(&name).await?));
        }
    }
    Ok(Json(List { items }))
}

async fn get(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<ProfileView>> {
    check(&identity, &name)?;
    Ok(Json(view(app.engine.profiles()?.status(&name).await?)))
}

async fn start(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<ProfileView>> {
    check(&identity, &name)?;
    let task = tokio::spawn(async move {
        let profiles = app.engine.profiles()?;
        let _counting = super::profile_edit::may_create(&app, &identity, &profiles, &name).await?;
        profiles.start(&name, None, &|_| {}).await?;
        Ok(Json(view(profiles.status(&name).await?)))
    });
    task.await.unwrap_or_else(|error| Err(cut_off(&error)))
}

async fn stop(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<ProfileView>> {
    check(&identity, &name)?;
    let profiles = app.engine.profiles()?;
    profiles.stop(&name).await?;
    Ok(Json(view(profiles.status(&name).await?)))
}

/// The error for a task that panicked or was cut off.
pub(super) fn cut_off(error: &tokio::task::JoinError) -> Failure {
    Error::new(ErrorCode::Internal, format!("the request ended early: {error}")).into()
}
