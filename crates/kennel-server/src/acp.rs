//! ACP: the agents of sessions, for clients that speak the Agent Client Protocol over a WebSocket or over HTTP.
//!
//! The relay is in `kennel-acp`. It stores every message, and this room only carries them. So a server that is killed loses
//! nothing: a client connects again, and says after which message it continues.

mod http;
mod socket;

pub(crate) use http::Connections;

use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::{Path, Query};
use crate::handlers::sessions::find;
use crate::routes::{Access, Content, Operation, Query as QuerySchema, Routes, fields};
use crate::streams::OpenStream;
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::response::Response;
use kennel_acp::{Join, LINE, SessionRelay};
use kennel_api::Scope;
use schemars::JsonSchema;
use serde::Deserialize;

/// The id of a connection, in a header of the first response and of all later requests.
pub(super) static CONNECTION: HeaderName = HeaderName::from_static("acp-connection-id");
/// The position of the last message before the first one that the client gets.
pub(super) static POSITION: HeaderName = HeaderName::from_static("kennel-acp-position");

/// A frame may be longer than a message, so that its sender gets an error, and the next one passes.
const FRAME: usize = 2 * LINE;

const PATH: &str = "/v1/sessions/{session}/acp";

pub(crate) fn add(routes: Routes) -> Routes {
    let route = |method, id, summary, response| Operation {
        method,
        path: PATH,
        id,
        access: Access::Scope(Scope::Exec),
        summary,
        query: QuerySchema::None,
        request: Content::Empty,
        response,
        creates: false,
    };
    routes
        .add(
            Operation {
                query: QuerySchema::Of(fields::<From>),
                ..route(
                    Method::GET,
                    "connectAcp",
                    "The agent of a session, over a WebSocket: one message per text frame. With the header \
                     `Acp-Connection-Id`, its messages as server-sent events.",
                    (101, Content::WebSocket("")),
                )
            },
            connect,
        )
        .add(
            Operation {
                request: Content::Bytes,
                ..route(
                    Method::POST,
                    "sendAcp",
                    "Sends one message to the agent of a session. `initialize` opens a connection.",
                    (202, Content::Empty),
                )
            },
            http::send,
        )
        .add(
            route(Method::DELETE, "closeAcp", "Closes a connection to the agent of a session.", (202, Content::Empty)),
            http::close,
        )
}

/// Where the messages of a client begin.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct From {
    /// Continue after this position: the number of messages of the agent that clients have seen. 0 is the beginning. Without
    /// it, the messages begin now.
    after: Option<u64>,
    /// Only watch: get all messages of the agent, and send nothing.
    watch: bool,
}

/// Returns the relay of a session that the caller can see.
async fn relay(app: &AppState, identity: &Identity, name: &str) -> Outcome<SessionRelay> {
    let (_, session) = find(app, identity, name).await?;
    Ok(app.relays().await?.open(session.summary.id.as_str()).await?)
}

async fn connect(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(from): Query<From>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Outcome<Response> {
    let Ok(upgrade) = upgrade else {
        return http::receive(app, identity, &name, &headers).await;
    };
    let relay = relay(&app, &identity, &name).await?;
    let client = relay.join(Join { after: from.after, watch: from.watch });
    let (open, end) = (OpenStream::new(&app), app.stream_end(&identity));
    let upgrade = upgrade.max_message_size(FRAME).max_frame_size(FRAME);
    let position = client.position();
    let mut response = upgrade.on_upgrade(move |socket| async move {
        socket::serve(socket, client, end).await;
        // The relay goes on in the server.
        drop((open, relay));
    });
    response.headers_mut().insert(POSITION.clone(), HeaderValue::from(position));
    response.headers_mut().insert(CONNECTION.clone(), http::connection_id()?);
    Ok(response)
}

/// Whether a client accepts server-sent events.
fn accepts_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        matches!(kind, "text/event-stream" | "text/*" | "*/*")
    })
}

/// The error of a request without an agent's relay.
fn missing(message: &str) -> Failure {
    Failure::invalid(message)
}
