//! Changes of files.

use super::lines::{self, unless_ending};
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Outcome, api_error};
use crate::extract::{Path, Query};
use crate::request_id::RequestId;
use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use kennel_api::stream::WatchLine;
use kennel_types::WatchKind;
use schemars::JsonSchema;
use serde::Deserialize;

/// What is watched.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Watch {
    /// The file or directory. A relative path is below the sandbox's working directory.
    path: String,
    /// Also watch everything below it.
    #[serde(default)]
    recursive: bool,
    /// The user whose rights count; defaults to the sandbox's own user.
    #[serde(default)]
    user: Option<String>,
}

pub(super) async fn watch(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    Query(watch): Query<Watch>,
    headers: HeaderMap,
) -> Outcome<Response> {
    let sandbox = app.sandbox(&identity, &sandbox).await?;
    let changes = sandbox.files(watch.user.as_deref()).await?.watch(&watch.path, watch.recursive).await?;
    let state = (changes, app.stream_end(&identity), false);
    let lines = stream::unfold(state, move |(mut changes, mut ending, done)| {
        let id = id.clone();
        async move {
            if done {
                return None;
            }
            let next = unless_ending(&mut ending, changes.next()).await.and_then(|next| next);
            let (line, done) = match next {
                Ok(Some(event)) => {
                    let path = String::from_utf8_lossy(&event.path).into_owned();
                    let line = match event.kind {
                        WatchKind::Created => WatchLine::Created { path },
                        WatchKind::Modified => WatchLine::Modified { path },
                        WatchKind::Removed => WatchLine::Removed { path },
                        WatchKind::Missed => WatchLine::Missed,
                    };
                    (line, false)
                }
                Ok(None) => (WatchLine::End, true),
                Err(error) => (WatchLine::Error { error: api_error(&error, id.as_str()) }, true),
            };
            Some((line, (changes, ending, done)))
        }
    });
    Ok(lines::response(&headers, stream::iter([WatchLine::Watching]).chain(lines)))
}
