//! Starts, stops, pauses, resumes and renames sandboxes, and waits for their end.

use super::operation;
use super::sandboxes::view;
use crate::app::{AppState, joined};
use crate::auth::Identity;
use crate::convert;
use crate::error::{Failure, Outcome};
use crate::extract::{Json as Body, OptionalJson, Path, Query};
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::extract::State;
use axum::http::Method;
use axum::{Extension, Json};
use futures_util::StreamExt as _;
use kennel_api::{RenameRequest, SandboxView, Scope, StopRequest, WaitResult};
use kennel_core::{Error, Result, Sandbox};
use kennel_engine::STOP_GRACE;
use kennel_types::ErrorCode;
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;

/// The longest time between TERM and KILL.
const LONGEST_GRACE: Duration = Duration::from_mins(10);
/// How long a request waits if the client does not say.
const WAIT: u64 = 30_000;
/// The longest time that a request may wait.
const LONGEST_WAIT: u64 = 600_000;

pub(super) fn add(routes: Routes) -> Routes {
    let change = |path, id, scope, summary| Operation {
        response: (200, Content::Json(schema::<SandboxView>)),
        ..operation(Method::POST, path, id, scope, summary)
    };
    routes
        .add(
            change(
                "/v1/sandboxes/{sandbox}/start",
                "startSandbox",
                Scope::Exec,
                "Starts a sandbox. It is no error if it runs.",
            ),
            start,
        )
        .add(
            Operation {
                request: Content::OptionalJson(schema::<StopRequest>),
                ..change(
                    "/v1/sandboxes/{sandbox}/stop",
                    "stopSandbox",
                    Scope::Exec,
                    "Ends all processes of a sandbox. It is no error if it is stopped.",
                )
            },
            stop,
        )
        .add(
            change(
                "/v1/sandboxes/{sandbox}/pause",
                "pauseSandbox",
                Scope::Exec,
                "Pauses all processes of a sandbox. It is no error if it is paused.",
            ),
            pause,
        )
        .add(
            change(
                "/v1/sandboxes/{sandbox}/resume",
                "resumeSandbox",
                Scope::Exec,
                "Resumes a paused sandbox. It is no error if it runs.",
            ),
            resume,
        )
        .add(
            Operation {
                request: Content::Json(schema::<RenameRequest>),
                ..change(
                    "/v1/sandboxes/{sandbox}/rename",
                    "renameSandbox",
                    Scope::Create,
                    "Gives a sandbox another name.",
                )
            },
            rename,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<WaitQuery>),
                response: (200, Content::Json(schema::<WaitResult>)),
                ..operation(
                    Method::GET,
                    "/v1/sandboxes/{sandbox}/wait",
                    "waitForSandbox",
                    Scope::Read,
                    "Waits until a sandbox ends, or the time is over.",
                )
            },
            wait,
        )
}

/// Changes a sandbox as a task, so that a client that is gone cannot cut the change off halfway.
async fn changed<F>(app: &AppState, sandbox: &Sandbox, change: impl FnOnce(Sandbox) -> F) -> Outcome<Json<SandboxView>>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    joined(tokio::spawn(change(sandbox.clone())).await)?;
    view(app, sandbox).await
}

async fn start(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<SandboxView>> {
    let sandbox = app.sandbox(&identity, &name).await?;
    let metrics = app.metrics.clone();
    changed(&app, &sandbox, |sandbox| async move { metrics.time_start(sandbox.start()).await }).await
}

async fn stop(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    OptionalJson(request): OptionalJson<StopRequest>,
) -> Outcome<Json<SandboxView>> {
    let grace = request.grace.map_or(STOP_GRACE, kennel_api::Millis::duration);
    if grace > LONGEST_GRACE {
        return Err(Failure::invalid("invalid grace: expected at most 10 minutes"));
    }
    let sandbox = app.sandbox(&identity, &name).await?;
    changed(&app, &sandbox, move |sandbox| async move { sandbox.stop(grace).await }).await
}

async fn pause(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<SandboxView>> {
    let sandbox = app.sandbox(&identity, &name).await?;
    let server = app.clone();
    let pause = |sandbox: Sandbox| async move {
        sandbox.pause().await?;
        server.paused.set(sandbox.id(), true);
        Ok(())
    };
    changed(&app, &sandbox, pause).await
}

async fn resume(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<SandboxView>> {
    let sandbox = app.sandbox(&identity, &name).await?;
    let server = app.clone();
    let resume = |sandbox: Sandbox| async move {
        sandbox.unpause().await?;
        server.paused.set(sandbox.id(), false);
        Ok(())
    };
    changed(&app, &sandbox, resume).await
}

async fn rename(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Body(request): Body<RenameRequest>,
) -> Outcome<Json<SandboxView>> {
    let sandbox = app.sandbox(&identity, &name).await?;
    changed(&app, &sandbox, |sandbox| async move { sandbox.rename(&request.name).await }).await
}

/// How long to wait.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct WaitQuery {
    /// How long to wait, in milliseconds; defaults to 30,000.
    #[schemars(range(max = 600_000))]
    timeout_ms: Option<u64>,
}

async fn wait(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Outcome<Json<WaitResult>> {
    let timeout = query.timeout_ms.unwrap_or(WAIT);
    if timeout > LONGEST_WAIT {
        return Err(Failure::invalid(format!("invalid timeoutMs {timeout}: expected at most {LONGEST_WAIT}")));
    }
    let sandbox = app.sandbox(&identity, &name).await?;
    let mut ending = app.ending.clone();
    tokio::select! {
        ended = end_of(&sandbox) => Ok(Json(ended?)),
        () = tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_millis(timeout)) => waiting(&sandbox).await,
        () = crate::serve::ended(&mut ending) => waiting(&sandbox).await,
    }
}

/// The result of a wait whose time is over.
async fn waiting(sandbox: &Sandbox) -> Outcome<Json<WaitResult>> {
    Ok(Json(match sandbox.inspect().await {
        Ok(info) => {
            let ended = !info.status.is_up();
            let exit_code = info.exit_code.filter(|_| ended);
            WaitResult { ended, exit_code, status: Some(convert::status(info.status)) }
        }
        Err(error) if error.code() == ErrorCode::NotFound => gone(),
        Err(error) => return Err(error.into()),
    }))
}

fn gone() -> WaitResult {
    WaitResult { ended: true, exit_code: None, status: None }
}

/// Waits until a sandbox ends.
async fn end_of(sandbox: &Sandbox) -> Result<WaitResult> {
    // Subscribe before the first look, so that no event in between is missed.
    let mut events = sandbox.provider().watch().await?;
    loop {
        match sandbox.inspect().await {
            Ok(info) if info.status.is_up() => {}
            Ok(info) => {
                let status = Some(convert::status(info.status));
                return Ok(WaitResult { ended: true, exit_code: info.exit_code, status });
            }
            Err(error) if error.code() == ErrorCode::NotFound => return Ok(gone()),
            Err(error) => return Err(error),
        }
        match events.next().await {
            Some(event) => drop(event?),
            None => return Err(Error::new(ErrorCode::NotAvailable, "the provider no longer reports events")),
        }
    }
}
