//! Sandboxes: look at them, list them, remove them.

use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::convert;
use crate::error::{Failure, Outcome};
use crate::extract::{Path, Query, RawQuery};
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::{Extension, Json};
use kennel_api::{Page, SandboxStats, SandboxView, Scope, SilentProvider};
use kennel_core::{RemoveOptions, Sandbox};
use kennel_engine::Filter;
use kennel_types::SandboxInfo;
use schemars::JsonSchema;
use serde::Deserialize;

/// How many sandboxes a page has if the client does not say.
const PAGE: usize = 100;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                query: QuerySchema::Of(fields::<ListQuery>),
                response: (200, Content::Json(schema::<Page<SandboxView>>)),
                ..operation(
                    Method::GET,
                    "/v1/sandboxes",
                    "listSandboxes",
                    Scope::Read,
                    "The sandboxes, oldest first, also those that do not run.",
                )
            },
            list,
        )
        .add(
            Operation {
                response: (200, Content::Json(schema::<SandboxView>)),
                ..operation(Method::GET, "/v1/sandboxes/{sandbox}", "getSandbox", Scope::Read, "A sandbox.")
            },
            get,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<RemoveQuery>),
                ..operation(
                    Method::DELETE,
                    "/v1/sandboxes/{sandbox}",
                    "removeSandbox",
                    Scope::Create,
                    "Removes a sandbox and its files.",
                )
            },
            remove,
        )
        .add(
            Operation {
                response: (200, Content::Json(schema::<SandboxStats>)),
                ..operation(
                    Method::GET,
                    "/v1/sandboxes/{sandbox}/stats",
                    "getStats",
                    Scope::Read,
                    "The resource usage of a sandbox.",
                )
            },
            stats,
        )
}

/// What a list contains.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ListQuery {
    /// `KEY` or `KEY=VALUE`: only sandboxes with this label. May be given several times.
    label: Vec<String>,
    /// Only sandboxes in this state: `created`, `running`, `paused` or `stopped`.
    status: Option<kennel_api::SandboxStatus>,
    /// Only sandboxes of this provider.
    provider: Option<String>,
    /// How many sandboxes the page has at most; defaults to 100.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// Where the page begins: `nextCursor` of the page before.
    cursor: Option<String>,
}

async fn list(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    query: RawQuery,
) -> Outcome<Json<Page<SandboxView>>> {
    let (label, query) = query.without("label");
    let query = ListQuery { label, ..crate::extract::query(&query)? };
    let limit = query.limit.unwrap_or(PAGE);
    if !(1..=1000).contains(&limit) {
        return Err(Failure::invalid(format!("invalid limit {limit}: expected 1 to 1000")));
    }
    let after = query.cursor.as_deref().map(position).transpose()?;
    let mut filters: Vec<Filter> = query
        .label
        .iter()
        .map(|label| format!("label={label}").parse())
        .collect::<Result<_, _>>()
        .map_err(Failure::invalid)?;
    filters.extend(query.provider.map(Filter::Provider));
    let listing = app.engine.list().await?;
    let key = |info: &SandboxInfo| (info.created_ms, info.id.to_string());
    let fits = |info: &SandboxInfo| {
        identity.sees(info)
            && filters.iter().all(|filter| filter.fits(info))
            && query.status.is_none_or(|status| convert::status(info.status) == status)
            && after.as_ref().is_none_or(|after| key(info) > *after)
    };
    let mut found: Vec<SandboxInfo> = listing.found.into_iter().filter(fits).collect();
    found.sort_by_key(key);
    let more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found.last().filter(|_| more).map(|last| format!("{}-{}", last.created_ms, last.id));
    let silent = listing.silent.into_iter().map(|silent| SilentProvider {
        provider: silent.provider.name().to_owned(),
        message: silent.error.to_string(),
    });
    Ok(Json(Page { items: found.into_iter().map(convert::sandbox).collect(), next_cursor, silent: silent.collect() }))
}

/// Parses a cursor: the time and the id of the last sandbox on the page before.
fn position(cursor: &str) -> Outcome<(u64, String)> {
    let parsed = cursor.split_once('-').and_then(|(time, id)| Some((time.parse().ok()?, id.to_owned())));
    parsed.ok_or_else(|| Failure::invalid("invalid cursor: expected the nextCursor of a page"))
}

async fn get(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<SandboxView>> {
    let sandbox = app.sandbox(&identity, &name).await?;
    view(&app, &sandbox).await
}

/// Returns the current description of a sandbox.
pub(super) async fn view(app: &AppState, sandbox: &Sandbox) -> Outcome<Json<SandboxView>> {
    Ok(Json(convert::sandbox(app.inspect(sandbox).await?)))
}

/// How a sandbox is removed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct RemoveQuery {
    /// Also remove a sandbox that runs.
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
    let sandbox = app.sandbox(&identity, &name).await?;
    let options = RemoveOptions { force: query.force, volumes: query.volumes };
    // As a task: a removal that is cut off halfway would leave something behind.
    let removed = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.remove(options).await }
    });
    crate::app::joined(removed.await)?;
    app.forget(&sandbox);
    Ok(StatusCode::NO_CONTENT)
}

async fn stats(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<SandboxStats>> {
    let sandbox = app.sandbox(&identity, &name).await?;
    Ok(Json(convert::stats(sandbox.stats().await?)))
}
