//! A command or terminal over a WebSocket.

use super::{OpenStream, session};
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::Path;
use crate::request_id::RequestId;
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::StatusCode;
use axum::response::Response;
use kennel_api::stream::{CONTROL, SUBPROTOCOL};
use kennel_core::Error;
use kennel_types::{ErrorCode, NextStep};
use tracing::{Instrument as _, Span};

pub(super) async fn stream(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Outcome<Response> {
    let sandbox = app.sandbox(&identity, &sandbox).await?;
    let upgrade = upgrade.map_err(|rejection| {
        let error = Error::new(ErrorCode::InvalidConfig, format!("open a WebSocket: {}", rejection.body_text()))
            .suggest(NextStep::advice("without a WebSocket: POST /v1/sandboxes/SANDBOX/exec/stream"));
        Failure::with_status(StatusCode::UPGRADE_REQUIRED, error)
    })?;
    let upgrade = upgrade.protocols([SUBPROTOCOL]).max_message_size(CONTROL).max_frame_size(CONTROL);
    if upgrade.selected_protocol().is_none() {
        return Err(Failure::invalid(format!("the WebSocket must have the subprotocol {SUBPROTOCOL}")));
    }
    let (open, end) = (OpenStream::new(&app), app.stream_end(&identity));
    let span = Span::current();
    Ok(upgrade.on_upgrade(move |socket| {
        let serving = async move {
            session::serve(socket, app, sandbox, id, end).await;
            drop(open);
        };
        serving.instrument(span)
    }))
}
