//! Commands in a session, what happened to it, and its secret.

use super::sessions::{find, sessions};
use super::{exec, operation};
use crate::app::{AppState, joined};
use crate::auth::Identity;
use crate::convert::name_of;
use crate::error::{Failure, Outcome};
use crate::extract::{Json as Body, Path, Query};
use crate::request_id::RequestId;
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::extract::State;
use axum::http::Method;
use axum::{Extension, Json};
use kennel_api::{ExecRequest, ExecResult, Page, Scope, SessionEventView, SessionSecret};
use kennel_engine::{EventFilter, SessionEvent};
use kennel_types::ErrorCode;
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Instant;

/// How many events a page has if the client does not say.
const PAGE: usize = 100;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                request: Content::Json(schema::<ExecRequest>),
                response: (200, Content::Json(schema::<ExecResult>)),
                ..operation(
                    Method::POST,
                    "/v1/sessions/{session}/exec",
                    "execInSession",
                    Scope::Exec,
                    "Runs a command in the sandbox of a session to its end, and returns its output.",
                )
            },
            run,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<EventsQuery>),
                response: (200, Content::Json(schema::<Page<SessionEventView>>)),
                ..operation(
                    Method::GET,
                    "/v1/sessions/{session}/events",
                    "listSessionEvents",
                    Scope::Read,
                    "What happened to a session, oldest first.",
                )
            },
            events,
        )
        .add(
            Operation {
                response: (200, Content::Json(schema::<SessionSecret>)),
                ..operation(
                    Method::GET,
                    "/v1/sessions/{session}/secret",
                    "getSessionSecret",
                    Scope::Exec,
                    "The secret that the processes of a session share with its owner.",
                )
            },
            secret,
        )
}

async fn run(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    Body(request): Body<ExecRequest>,
) -> Outcome<Json<ExecResult>> {
    let began = Instant::now();
    let (sessions, session) = find(&app, &identity, &name).await?;
    let session = session.summary.id;
    let sandbox = match sessions.sandbox(session.as_str()).await {
        Err(error) if error.code() == ErrorCode::Stopped && request.start => {
            let starting = sessions.clone();
            let id = session.clone();
            joined(tokio::spawn(async move { starting.start(id.as_str()).await }).await)?;
            sessions.sandbox(session.as_str()).await?
        }
        found => found?,
    };
    // The session was started here, and not only its sandbox.
    let request = ExecRequest { start: false, ..request };
    exec::collected(&app, &app.shared(sandbox), &request, &id, began).await
}

/// Which events of a session are listed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct EventsQuery {
    /// How many events the page has at most; defaults to 100.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// Only events after this one: `number` of the last event that the client has, or `nextCursor` of a page.
    cursor: Option<u64>,
}

async fn events(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<EventsQuery>,
) -> Outcome<Json<Page<SessionEventView>>> {
    let limit = query.limit.unwrap_or(PAGE);
    if !(1..=1000).contains(&limit) {
        return Err(Failure::invalid(format!("invalid limit {limit}: expected 1 to 1000")));
    }
    let after = query.cursor.unwrap_or(0);
    if i64::try_from(after).is_err() {
        return Err(Failure::invalid("invalid cursor: expected the number of an event"));
    }
    let (found, session) = find(&app, &identity, &name).await?;
    let filter = EventFilter { session: Some(session.summary.id), after, limit: Some(limit + 1) };
    let mut events = found.events(&filter).await?;
    let more = events.len() > limit;
    events.truncate(limit);
    let next_cursor = events.last().filter(|_| more).map(|last| last.number.to_string());
    Ok(Json(Page { items: events.into_iter().map(view).collect(), next_cursor, silent: Vec::new() }))
}

fn view(event: SessionEvent) -> SessionEventView {
    SessionEventView {
        number: event.number,
        sequence: event.sequence,
        time_ms: event.time_ms,
        from: event.from.as_ref().map(name_of),
        to: event.to.as_ref().map(name_of),
        cause: name_of(&event.cause),
        detail: event.detail,
    }
}

async fn secret(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<SessionSecret>> {
    let (_, session) = find(&app, &identity, &name).await?;
    let secret = sessions(&app).await?.secret(session.summary.id.as_str()).await?;
    Ok(Json(SessionSecret { secret }))
}
