//! The log of the main process, as it grows.

use super::lines::{self, Pieces, unless_ending};
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
use kennel_api::stream::LogLine;
use kennel_core::LogOptions;
use schemars::JsonSchema;
use serde::Deserialize;

/// Which part of the log comes first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Follow {
    /// Only the last lines of what is there already.
    #[serde(default)]
    tail: Option<u32>,
    /// Also return what is printed from now on, until the sandbox ends; defaults to true.
    #[serde(default)]
    follow: Option<bool>,
}

pub(super) async fn follow(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    Query(follow): Query<Follow>,
    headers: HeaderMap,
) -> Outcome<Response> {
    let sandbox = app.sandbox(&identity, &sandbox).await?;
    let tail = follow.tail.map(|lines| lines as usize);
    let chunks = sandbox.logs(LogOptions { tail, follow: follow.follow.unwrap_or(true) }).await?;
    let state = (chunks, [Pieces::default(), Pieces::default()], app.stream_end(&identity), false);
    let lines = stream::unfold(state, move |(mut chunks, mut pieces, mut ending, done)| {
        let id = id.clone();
        async move {
            if done {
                return None;
            }
            let next = match unless_ending(&mut ending, chunks.next()).await {
                Ok(next) => next,
                Err(error) => Some(Err(error)),
            };
            let output = |channel, (_, piece): (u64, lines::Piece)| {
                let (text, base64) = piece.fields();
                LogLine::Output { channel: lines::channel(channel), text, base64 }
            };
            let (found, done): (Vec<LogLine>, bool) = match next {
                Some(Ok(chunk)) => {
                    let index = usize::from(chunk.channel == kennel_proto::Channel::Stderr);
                    (
                        pieces[index]
                            .push(&chunk.bytes)
                            .map(|piece| output(chunk.channel, piece))
                            .into_iter()
                            .collect(),
                        false,
                    )
                }
                Some(Err(error)) => (vec![LogLine::Error { error: api_error(&error, id.as_str()) }], true),
                None => {
                    let channels = [kennel_proto::Channel::Stdout, kennel_proto::Channel::Stderr];
                    let rest = channels.into_iter().zip(&mut pieces);
                    let rest = rest.filter_map(|(channel, pieces)| Some(output(channel, pieces.finish()?)));
                    (rest.chain([LogLine::End]).collect(), true)
                }
            };
            Some((stream::iter(found), (chunks, pieces, ending, done)))
        }
    });
    Ok(lines::response(&headers, lines.flatten()))
}
