//! What happens to sandboxes, as server-sent events with numbers. A client that names the last number it has seen misses
//! nothing: either it gets what came after, or it is told that events were missed.

use super::lines::{self, unless_ending};
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::Query;
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use kennel_engine::{EngineEvent, NumberedEvent};
use kennel_types::{EventKind, SandboxId};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

/// The header in which a browser sends the number of the last event.
static LAST: HeaderName = HeaderName::from_static("last-event-id");

/// How long a browser waits before it connects again.
const RETRY: Duration = Duration::from_secs(1);

/// Where the events start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct After {
    /// The number of the last event that the client has seen, if the header `Last-Event-ID` is absent. Without both, the
    /// events start now.
    #[serde(default)]
    after: Option<u64>,
}

pub(super) async fn stream(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Query(query): Query<After>,
    headers: HeaderMap,
) -> Outcome<Response> {
    let header = headers.get(&LAST).map(|value| {
        let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| Failure::invalid("the header `last-event-id` is not the number of an event"))
    });
    let after: Option<u64> = header.transpose()?.or(query.after);
    let reader = app.events.after(after);
    // Its id tells the client where it is, although nothing has happened yet. Without data, browsers show no event.
    let first = Event::default().id(reader.position().to_string()).retry(RETRY);
    let mut view = View::new(&app, &identity);
    view.learn().await;
    let state = (reader, view, app.stream_end(&identity));
    let events = stream::unfold(state, |(mut reader, mut view, mut ending)| async move {
        loop {
            let event = unless_ending(&mut ending, reader.next()).await.ok()?;
            let Some(NumberedEvent { number, event }) = view.filter(event).await else { continue };
            // Events consist of numbers and text, so they can be written.
            let data = serde_json::to_string(&event).unwrap_or_default();
            let event = Event::default().id(number.to_string()).data(data);
            return Some((Ok::<_, Infallible>(event), (reader, view, ending)));
        }
    });
    let events = stream::iter([Ok(first)]).chain(events);
    Ok(Sse::new(events).keep_alive(lines::keep_alive()).into_response())
}

/// The events that a caller may see.
struct View {
    app: AppState,
    identity: Identity,
    /// Sandboxes, and whether the caller can see them, for the event that one of them was removed.
    known: HashMap<SandboxId, bool>,
}

impl View {
    fn new(app: &AppState, identity: &Identity) -> Self {
        Self { app: app.clone(), identity: identity.clone(), known: HashMap::new() }
    }

    fn sees_all(&self) -> bool {
        self.identity.is_admin() && self.identity.project().is_none()
    }

    /// Finds out which sandboxes the caller can see.
    async fn learn(&mut self) {
        if !self.sees_all()
            && let Ok(listing) = self.app.engine.list().await
        {
            self.known.extend(listing.found.into_iter().map(|info| {
                let is_visible = self.identity.sees(&info);
                (info.id, is_visible)
            }));
        }
    }

    /// Returns the event, if the caller may see it. If nobody knows any more whose sandbox it was, events were missed.
    async fn filter(&mut self, event: NumberedEvent) -> Option<NumberedEvent> {
        if self.sees_all() {
            return Some(event);
        }
        let (id, removed) = match &event.event {
            EngineEvent::Happened(happened) => match &happened.sandbox {
                Some(id) => (id.clone(), happened.kind == EventKind::Removed),
                None => return Some(event),
            },
            EngineEvent::Listed(listed) => (listed.sandbox_id.clone(), false),
        };
        let known = if removed { self.known.remove(&id) } else { self.known.get(&id).copied() };
        match known {
            Some(is_visible) => is_visible.then_some(event),
            None => match self.app.engine.find(id.as_str()).await {
                Ok(sandbox) => {
                    let is_visible = self.identity.sees(sandbox.info());
                    self.known.insert(id, is_visible);
                    is_visible.then_some(event)
                }
                Err(_) => Some(missed(event)),
            },
        }
    }
}

/// The event that something was missed, in place of another.
fn missed(event: NumberedEvent) -> NumberedEvent {
    let NumberedEvent { number, event } = event;
    let time_ms = match event {
        EngineEvent::Happened(happened) => happened.time_ms,
        EngineEvent::Listed(listed) => listed.time_ms,
    };
    let event = kennel_types::Event {
        time_ms,
        provider: String::new(),
        sandbox: None,
        kind: EventKind::Missed,
        name: None,
        cause: None,
        exit_code: None,
    };
    NumberedEvent { number, event: EngineEvent::Happened(event) }
}
