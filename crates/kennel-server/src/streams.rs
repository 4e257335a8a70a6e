//! Streams: commands over a WebSocket, and commands, logs, file changes and events as lines or server-sent events.

pub(crate) mod begin;
mod command;
mod events;
mod exec;
pub(crate) mod lines;
mod logs;
mod outbox;
mod session;
mod watch;

use crate::app::AppState;
use crate::routes::{Access, Content, Operation, Query, Routes, fields, schema};
use axum::http::Method;
use kennel_api::stream::{EventData, ExecLine, LogLine, SUBPROTOCOL, WatchLine};
use kennel_api::{ExecRequest, Scope};

/// The streams that are open.
pub(crate) struct Streams {
    writers: begin::Writers,
    open: tokio::sync::watch::Sender<usize>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { writers: begin::Writers::default(), open: tokio::sync::watch::Sender::new(0) }
    }
}

impl Streams {
    /// Waits until no stream is open that is not part of a request: WebSockets and upgraded connections.
    pub(crate) async fn closed(&self) {
        // The sender is in `self`, so the wait cannot fail.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }
}

/// An open stream. It counts until it is dropped.
pub(crate) struct OpenStream(AppState);

impl OpenStream {
    pub(crate) fn new(app: &AppState) -> Self {
        app.streams.open.send_modify(|open| *open += 1);
        Self(app.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.open.send_modify(|open| *open -= 1);
    }
}

/// Adds the routes of streams, ports and tickets.
pub(crate) fn add_all(routes: Routes) -> Routes {
    let routes = add(routes);
    let routes = crate::ports::add(routes);
    let routes = crate::previews::add(routes);
    crate::tickets::add(routes)
}

fn add(routes: Routes) -> Routes {
    let get = |path, id, scope, summary, query, response| Operation {
        method: Method::GET,
        path,
        id,
        access: Access::Scope(scope),
        summary,
        query,
        request: Content::Empty,
        response: (200, response),
        creates: false,
    };
    routes
        .add(
            Operation {
                response: (101, Content::WebSocket(SUBPROTOCOL)),
                ..get(
                    "/v1/sandboxes/{sandbox}/stream",
                    "streamCommand",
                    Scope::Exec,
                    "A command or terminal, over a WebSocket: start one, or attach to one that runs.",
                    Query::None,
                    Content::Empty,
                )
            },
            command::stream,
        )
        .add(
            Operation {
                method: Method::POST,
                request: Content::Json(schema::<ExecRequest>),
                ..get(
                    "/v1/sandboxes/{sandbox}/exec/stream",
                    "execStream",
                    Scope::Exec,
                    "Runs a command, and returns its output as it is printed. The command ends with the connection.",
                    Query::None,
                    Content::Lines(schema::<ExecLine>),
                )
            },
            exec::stream,
        )
        .add(
            get(
                "/v1/events",
                "streamEvents",
                Scope::Read,
                "What happens to sandboxes, as server-sent events.",
                Query::Of(fields::<events::After>),
                Content::Events(schema::<EventData>),
            ),
            events::stream,
        )
        .add(
            get(
                "/v1/sandboxes/{sandbox}/logs/follow",
                "followLogs",
                Scope::Read,
                "The log of the main process, and what it prints from now on.",
                Query::Of(fields::<logs::Follow>),
                Content::Lines(schema::<LogLine>),
            ),
            logs::follow,
        )
        .add(
            get(
                "/v1/sandboxes/{sandbox}/files/watch",
                "watchFiles",
                Scope::Read,
                "Changes of a file or directory.",
                Query::Of(fields::<watch::Watch>),
                Content::Lines(schema::<WatchLine>),
            ),
            watch::watch,
        )
}
