//! Changes the labels and limits of sandboxes, and when they expire.

use super::operation;
use super::sandboxes::view;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::{Json as Body, Path};
use crate::permissions;
use crate::routes::{Content, Operation, Routes, schema};
use axum::extract::State;
use axum::http::Method;
use axum::{Extension, Json};
use kennel_api::{ChangeSandbox, RenewRequest, SandboxView, Scope};
use kennel_types::{ByteSize, Limits};

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                request: Content::Json(schema::<ChangeSandbox>),
                response: (200, Content::Json(schema::<SandboxView>)),
                ..operation(
                    Method::PATCH,
                    "/v1/sandboxes/{sandbox}",
                    "changeSandbox",
                    Scope::Create,
                    "Changes the labels and limits of a sandbox. Limits that its provider cannot change are refused.",
                )
            },
            change,
        )
        .add(
            Operation {
                request: Content::Json(schema::<RenewRequest>),
                response: (200, Content::Json(schema::<SandboxView>)),
                ..operation(
                    Method::POST,
                    "/v1/sandboxes/{sandbox}/renew",
                    "renewSandbox",
                    Scope::Create,
                    "Changes when a sandbox expires.",
                )
            },
            renew,
        )
}

async fn change(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Body(asked): Body<ChangeSandbox>,
) -> Outcome<Json<SandboxView>> {
    if asked == ChangeSandbox::default() {
        return Err(Failure::invalid("nothing to change: expected labels, memory, cpus, pids or disk"));
    }
    if asked.pids == Some(0) {
        return Err(Failure::invalid("invalid pids 0: expected at least 1"));
    }
    let limits = Limits {
        memory: asked.memory.map(|bytes| ByteSize(bytes.0)),
        millicpus: asked.cpus.map(|cpus| cpus.0),
        pids: asked.pids,
        disk: asked.disk.map(|bytes| ByteSize(bytes.0)),
    };
    permissions::check_limits(&identity, &limits)?;
    let sandbox = app.sandbox(&identity, &name).await?;
    // The description also says whether the sandbox still exists.
    app.inspect(&sandbox).await?;
    let amendments = app.engine.amendments()?;
    let before = amendments.get(sandbox.id());
    if !asked.labels.is_empty() {
        amendments.change(sandbox.id(), |amendment| amendment.labels.extend(asked.labels))?;
    }
    if !limits.is_empty()
        && let Err(error) = sandbox.change_limits(limits).await
    {
        // A request that is refused changes nothing.
        amendments.change(sandbox.id(), |amendment| amendment.labels = before.labels)?;
        return Err(error.into());
    }
    view(&app, &sandbox).await
}

async fn renew(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Body(request): Body<RenewRequest>,
) -> Outcome<Json<SandboxView>> {
    let sandbox = app.sandbox(&identity, &name).await?;
    app.inspect(&sandbox).await?;
    let ttl = Some(request.ttl.duration()).filter(|ttl| !ttl.is_zero());
    app.expiry.set(&app.engine, sandbox.id(), ttl)?;
    view(&app, &sandbox).await
}
