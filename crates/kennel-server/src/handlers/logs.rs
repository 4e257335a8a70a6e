//! The log of a sandbox's main process.

use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::Outcome;
use crate::extract::{Path, Query};
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use kennel_api::Scope;
use kennel_core::{LogOptions, Sandbox};
use kennel_proto::Channel;
use schemars::JsonSchema;
use serde::Deserialize;

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(
        Operation {
            query: QuerySchema::Of(fields::<LogQuery>),
            response: (200, Content::Bytes),
            ..operation(
                Method::GET,
                "/v1/sandboxes/{sandbox}/logs",
                "getLogs",
                Scope::Read,
                "The log of a sandbox's main process, up to now.",
            )
        },
        logs,
    )
}

/// A part of a log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct LogQuery {
    /// Only the last lines.
    tail: Option<usize>,
    /// Only one stream; by default both, in the order in which they were written.
    stream: Option<LogStreamName>,
}

/// A stream of the main process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum LogStreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

async fn logs(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<LogQuery>,
) -> Outcome<Response> {
    respond(&app.sandbox(&identity, &name).await?, query).await
}

/// Returns a part of the log of a sandbox.
pub(super) async fn respond(sandbox: &Sandbox, query: LogQuery) -> Outcome<Response> {
    let chunks = sandbox.logs(LogOptions { tail: query.tail, follow: false }).await?;
    let wanted = move |channel: Channel| match query.stream {
        None => true,
        Some(LogStreamName::Stdout) => channel != Channel::Stderr,
        Some(LogStreamName::Stderr) => channel == Channel::Stderr,
    };
    let chunks = chunks.filter_map(move |chunk| {
        std::future::ready(match chunk {
            Ok(chunk) => wanted(chunk.channel).then_some(Ok(chunk.bytes)),
            Err(error) => Some(Err(std::io::Error::other(error))),
        })
    });
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(chunks)).into_response())
}
