//! A client of an agent over HTTP, as the SDKs do it: `POST initialize` opens a connection, each later `POST` sends a message
//! and returns 202 when it is stored, `GET` is a stream of server-sent events with what the agent sends, and `DELETE` closes
//! the connection.
//!
//! A connection is only in the memory of the server. After a restart, a client opens a new one, and its `Last-Event-ID` says
//! where it continues.

use super::{CONNECTION, POSITION, accepts_events, missing, relay, socket};
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::Path;
use crate::streams::OpenStream;
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use http_body_util::{BodyExt as _, Limited};
use kennel_acp::{Client, Join, LINE, Outgoing, Sender, SessionRelay};
use kennel_core::{Error, printable};
use kennel_types::{ErrorCode, LimitReason};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The connections that one server has at most.
const MOST: usize = 1000;
/// A connection that is not used for this long is closed.
const UNUSED: Duration = Duration::from_mins(10);
/// How long the agent may take to answer `initialize`.
const FIRST: Duration = Duration::from_mins(2);

/// The open connections, by id.
#[derive(Default)]
pub(crate) struct Connections(Mutex<HashMap<String, Arc<Connection>>>);

struct Connection {
    /// Who opened it. Others do not see it.
    owner: String,
    session: String,
    sender: Mutex<Sender>,
    relay: SessionRelay,
    /// The part that reads, while no `GET` has it.
    reader: tokio::sync::Mutex<Option<Reader>>,
    used: Mutex<Instant>,
}

/// What a connection still has to send.
struct Reader {
    client: Client,
    /// What arrived before the answer to `initialize`.
    before: VecDeque<Outgoing>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Connection>>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, id: String, connection: Connection) -> Outcome<()> {
        let mut all = self.lock();
        all.retain(|_, connection| {
            let used = *connection.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.elapsed() < UNUSED || connection.reader.try_lock().is_ok_and(|reader| reader.is_none())
        });
        if all.len() >= MOST {
            return Err(Failure::busy("too many ACP connections are open", 60));
        }
        all.insert(id, Arc::new(connection));
        Ok(())
    }

    /// Returns the connection that a request names, if its caller has opened it.
    fn find(&self, identity: &Identity, session: &str, headers: &HeaderMap) -> Outcome<(String, Arc<Connection>)> {
        let id = headers.get(&CONNECTION).ok_or_else(|| missing("the header `Acp-Connection-Id` is missing"))?;
        let id = id.to_str().unwrap_or_default().to_owned();
        let found = self.lock().get(&id).cloned();
        let found = found.filter(|connection| connection.owner == identity.key() && connection.session == session);
        let found = found.ok_or_else(|| {
            let message = format!("there is no ACP connection {}", printable(&id));
            Failure::from(Error::new(ErrorCode::NotFound, message))
        })?;
        *found.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok((id, found))
    }
}

/// Returns a random id of a connection.
pub(super) fn connection_id() -> Outcome<HeaderValue> {
    let id = kennel_core::new_id()?;
    Ok(HeaderValue::from_str(id.as_str()).unwrap_or_else(|_| HeaderValue::from_static("")))
}

pub(super) async fn send(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    request: Request,
) -> Outcome<Response> {
    let headers = request.headers().clone();
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let error = Error::new(ErrorCode::InvalidConfig, "the content type must be application/json");
        return Err(Failure::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    }
    let body = body(request.into_body()).await?;
    if headers.contains_key(&CONNECTION) {
        let (_, connection) = app.acp.find(&identity, &name, &headers)?;
        let sender = connection.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sender.send(body.to_vec()).await?;
        return Ok(StatusCode::ACCEPTED.into_response());
    }
    let id = match serde_json::from_slice::<Value>(&body) {
        Ok(message) if message["method"] == "initialize" && !message["id"].is_null() => message["id"].clone(),
        _ => return Err(missing("the first message of a connection must be `initialize`")),
    };
    let relay = relay(&app, &identity, &name).await?;
    let mut client = relay.join(Join::default());
    let sender = client.sender();
    sender.send(body.to_vec()).await?;
    let mut before = VecDeque::new();
    let answer = tokio::time::timeout(FIRST, answer(&mut client, &id, &mut before)).await.map_err(|_| {
        Error::new(ErrorCode::Timeout, format!("the agent did not answer `initialize` within {FIRST:?}"))
    })??;
    let (name_of_connection, position) = (connection_id()?, client.position());
    let connection = Connection {
        owner: identity.key().to_owned(),
        session: name,
        sender: Mutex::new(sender),
        relay,
        reader: tokio::sync::Mutex::new(Some(Reader { client, before })),
        used: Mutex::new(Instant::now()),
    };
    app.acp.insert(name_of_connection.to_str().unwrap_or_default().to_owned(), connection)?;
    let mut response = ([(header::CONTENT_TYPE, "application/json")], answer).into_response();
    response.headers_mut().insert(CONNECTION.clone(), name_of_connection);
    response.headers_mut().insert(POSITION.clone(), HeaderValue::from(position));
    Ok(response)
}

/// Reads the body of a message. One over the cap is an error to its sender.
async fn body(body: Body) -> Outcome<Bytes> {
    let body = Limited::new(body, LINE).collect().await.map_err(|error| {
        if error.downcast_ref::<http_body_util::LengthLimitError>().is_some() {
            let message = format!("the message is longer than {LINE} bytes");
            return Failure::from(Error::limit(LimitReason::TooLarge, message));
        }
        Failure::invalid(format!("read the message: {error}"))
    })?;
    Ok(body.to_bytes())
}

/// Waits for the response to a request.
async fn answer(client: &mut Client, id: &Value, before: &mut VecDeque<Outgoing>) -> Outcome<String> {
    loop {
        let message = client.next().await?.map_err(|_| Error::new(ErrorCode::Stopped, "the agent has ended"))?;
        let text = socket::text(&message);
        let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
        if parsed["id"] == *id && parsed.get("method").is_none() {
            return Ok(text);
        }
        before.push_back(message);
    }
}

/// The messages of the agent, as server-sent events. Their ids are positions.
pub(super) async fn receive(app: AppState, identity: Identity, name: &str, headers: &HeaderMap) -> Outcome<Response> {
    if !accepts_events(headers) {
        let error = Error::new(ErrorCode::InvalidConfig, "open a WebSocket, or accept text/event-stream");
        return Err(Failure::with_status(StatusCode::NOT_ACCEPTABLE, error));
    }
    let (_, connection) = app.acp.find(&identity, name, headers)?;
    let last = headers.get("last-event-id").map(|value| {
        let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| Failure::invalid("the header `last-event-id` is not the position of a message"))
    });
    let last: Option<u64> = last.transpose()?;
    let taken = connection.reader.lock().await.take();
    let Some(mut reader) = taken else {
        let error = Error::new(ErrorCode::Conflict, "another request reads the messages of this connection");
        return Err(error.into());
    };
    if let Some(after) = last {
        // It joins first, so that the turn stays with this client.
        let client = connection.relay.join(Join { after: Some(after), watch: false });
        *connection.sender.lock().unwrap_or_else(PoisonError::into_inner) = client.sender();
        reader = Reader { client, before: VecDeque::new() };
    }
    let stream =
        Events { reader: Some(reader), connection, end: app.stream_end(&identity), _open: OpenStream::new(&app) };
    let events = stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

/// An open stream of events. When it ends, the connection has its reader back.
struct Events {
    reader: Option<Reader>,
    connection: Arc<Connection>,
    end: crate::revocation::StreamEnd,
    _open: OpenStream,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        let reader = self.reader.as_mut()?;
        if let Some(message) = reader.before.pop_front() {
            return Some(event(&message));
        }
        let message = tokio::select! {
            next = reader.client.next() => next.ok()?.ok()?,
            _ = self.end.reached() => return None,
        };
        Some(event(&message))
    }
}

/// A message as an event, whose id is its position.
fn event(message: &Outgoing) -> Event {
    let event = Event::default().data(socket::text(message));
    match message.position {
        Some(position) => event.id(position.to_string()),
        None => event,
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Ok(mut reader) = self.connection.reader.try_lock() {
            *reader = self.reader.take();
        }
    }
}

pub(super) async fn close(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Outcome<StatusCode> {
    let (id, _) = app.acp.find(&identity, &name, &headers)?;
    app.acp.lock().remove(&id);
    Ok(StatusCode::ACCEPTED)
}
