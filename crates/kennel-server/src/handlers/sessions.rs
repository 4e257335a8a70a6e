//! Sessions: look at them, start, stop and remove them. `session_create.rs` opens them.

use super::operation;
use crate::app::{AppState, joined};
use crate::auth::Identity;
use crate::convert::name_of;
use crate::error::{Failure, Outcome};
use crate::extract::{OptionalJson, Path, Query};
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::{Extension, Json};
use kennel_api::{Page, Scope, SessionView, StopRequest};
use kennel_core::{Error, RemoveOptions, printable};
use kennel_engine::{STOP_GRACE, Session, SessionFilter, SessionState, SessionSummary, Sessions};
use kennel_types::{ErrorCode, NextStep};
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;

/// How many sessions a page has if the client does not say.
const PAGE: usize = 100;

pub(super) fn add(routes: Routes) -> Routes {
    let change = |path, id, summary| Operation {
        response: (200, Content::Json(schema::<SessionView>)),
        ..operation(Method::POST, path, id, Scope::Exec, summary)
    };
    routes
        .add(
            Operation {
                query: QuerySchema::Of(fields::<ListQuery>),
                response: (200, Content::Json(schema::<Page<SessionView>>)),
                ..operation(Method::GET, "/v1/sessions", "listSessions", Scope::Read, "The sessions, newest first.")
            },
            list,
        )
        .add(
            Operation {
                response: (200, Content::Json(schema::<SessionView>)),
                ..operation(Method::GET, "/v1/sessions/{session}", "getSession", Scope::Read, "A session.")
            },
            get,
        )
        .add(
            change(
                "/v1/sessions/{session}/start",
                "startSession",
                "Starts the sandbox of a session. It is no error if it runs.",
            ),
            start,
        )
        .add(
            Operation {
                request: Content::OptionalJson(schema::<StopRequest>),
                ..change(
                    "/v1/sessions/{session}/stop",
                    "stopSession",
                    "Ends all processes of a session. It is no error if it is stopped.",
                )
            },
            stop,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<RemoveQuery>),
                ..operation(
                    Method::DELETE,
                    "/v1/sessions/{session}",
                    "removeSession",
                    Scope::Create,
                    "Removes a session and its sandbox. Its workspace stays.",
                )
            },
            remove,
        )
}

/// What a list of sessions contains.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ListQuery {
    /// Only sessions of this profile.
    profile: Option<String>,
    /// Only sessions in this state: `creating`, `running`, `stopped`, `completed`, `failed` or `removing`.
    #[schemars(regex(pattern = "^(creating|running|stopped|completed|failed|removing)$"))]
    state: Option<String>,
    /// How many sessions the page has at most; defaults to 100.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// Where the page begins: `nextCursor` of the page before.
    cursor: Option<String>,
}

pub(super) async fn sessions(app: &AppState) -> Outcome<Sessions> {
    Ok(app.engine.sessions().await?.0)
}

/// Returns a session that the caller can see.
pub(crate) async fn find(app: &AppState, identity: &Identity, name: &str) -> Outcome<(Sessions, Session)> {
    let sessions = sessions(app).await?;
    let session = sessions.show(name).await?;
    if identity.sees_project(session.summary.project.as_deref())
        && (identity.is_admin() || session.summary.provider != "local")
    {
        return Ok((sessions, session));
    }
    let message = format!("there is no session {}", printable(name));
    Err(Error::new(ErrorCode::NotFound, message).suggest(NextStep::ListSessions).into())
}

async fn list(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Query(query): Query<ListQuery>,
) -> Outcome<Json<Page<SessionView>>> {
    let limit = query.limit.unwrap_or(PAGE);
    if !(1..=1000).contains(&limit) {
        return Err(Failure::invalid(format!("invalid limit {limit}: expected 1 to 1000")));
    }
    let before = query.cursor.map(|cursor| cursor.parse::<u64>()).transpose();
    let before = before.map_err(|_| Failure::invalid("invalid cursor: expected the nextCursor of a page"))?;
    if before.is_some_and(|before| i64::try_from(before).is_err()) {
        return Err(Failure::invalid("invalid cursor: expected the nextCursor of a page"));
    }
    let state = query.state.as_deref().map(|state| {
        let unknown = || Failure::invalid(format!("invalid state {state:?}: expected for example running or failed"));
        SessionState::named(state).ok_or_else(unknown)
    });
    let filter = SessionFilter {
        states: state.transpose()?.into_iter().collect(),
        project: identity.project().map(ToOwned::to_owned),
        profile: query.profile,
        limit: Some(limit + 1),
        before,
    };
    let mut found = sessions(&app).await?.list(&filter).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found.last().filter(|_| more).map(|last| last.number.to_string());
    found.retain(|session| identity.is_admin() || session.provider != "local");
    Ok(Json(Page { items: found.into_iter().map(summary).collect(), next_cursor, silent: Vec::new() }))
}

fn summary(session: SessionSummary) -> SessionView {
    SessionView {
        id: session.id.to_string(),
        name: session.name,
        state: name_of(&session.state),
        provider: session.provider,
        sandbox: session.sandbox.to_string(),
        project: session.project,
        profile: session.profile,
        workspace: session.workspace.map(|path| path.display().to_string()),
        created_ms: session.created_ms,
        changed_ms: session.changed_ms,
        cause: name_of(&session.cause),
        exit_code: session.exit_code,
        source: None,
        error: None,
        log: None,
    }
}

pub(super) fn described(session: Session) -> SessionView {
    SessionView { error: session.error, log: session.log, source: session.source, ..summary(session.summary) }
}

fn view(session: Session) -> Json<SessionView> {
    Json(described(session))
}

async fn get(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<SessionView>> {
    Ok(view(find(&app, &identity, &name).await?.1))
}

async fn start(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<SessionView>> {
    let (sessions, session) = find(&app, &identity, &name).await?;
    let task = tokio::spawn(async move { sessions.start(session.summary.id.as_str()).await });
    Ok(view(joined(task.await)?))
}

async fn stop(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    OptionalJson(request): OptionalJson<StopRequest>,
) -> Outcome<Json<SessionView>> {
    let grace = request.grace.map_or(STOP_GRACE, kennel_api::Millis::duration);
    if grace > Duration::from_mins(10) {
        return Err(Failure::invalid("invalid grace: expected at most 10 minutes"));
    }
    let (sessions, session) = find(&app, &identity, &name).await?;
    let task = tokio::spawn(async move { sessions.stop(session.summary.id.as_str(), grace).await });
    Ok(view(joined(task.await)?))
}

/// How a session is removed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct RemoveQuery {
    /// Also remove a session that runs.
    force: bool,
    /// Also remove its data volume.
    volumes: bool,
}

async fn remove(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Outcome<StatusCode> {
    let (sessions, session) = find(&app, &identity, &name).await?;
    let options = RemoveOptions { force: query.force, volumes: query.volumes };
    let task = tokio::spawn(async move { sessions.remove(session.summary.id.as_str(), options).await });
    joined(task.await)?;
    Ok(StatusCode::NO_CONTENT)
}
