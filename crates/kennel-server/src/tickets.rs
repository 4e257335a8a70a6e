//! Tickets: one request that a browser may make without a token, because it cannot send an `Authorization` header with a
//! WebSocket, an EventSource or a download. A ticket is valid once, for 30 seconds, and for exactly one request.

use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::Json;
use crate::one_time::Secrets;
use crate::routes::{Access, Content, Operation, Query, Routes, schema};
use axum::Extension;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use kennel_api::{Scope, Ticket, TicketRequest};
use std::sync::OnceLock;
use std::time::Duration;

/// How long a ticket is valid.
const VALID: Duration = Duration::from_secs(30);

/// The id of the operation that creates a ticket. A ticket for a ticket would be valid for longer.
const CREATE: &str = "createTicket";

/// The tickets that were not used yet.
#[derive(Default)]
pub(crate) struct Tickets(Secrets<Allowed>);

/// What a ticket allows.
#[derive(Clone)]
struct Allowed {
    identity: Identity,
    operation: &'static str,
    /// The path and query, without the ticket.
    path: String,
}

impl Tickets {
    /// Returns who created the ticket of this request, and the request's address without the ticket. The ticket is used up,
    /// also by a request that it does not allow. `None` if the request has no ticket.
    pub(crate) fn redeem(&self, operation: &str, uri: &Uri) -> Option<Outcome<(Identity, Uri)>> {
        let (secret, rest) = split(uri)?;
        let allowed = self.0.take(&secret).filter(|it| it.operation == operation && it.path == rest);
        let rest = rest.parse().ok();
        Some(match (allowed, rest) {
            (Some(allowed), Some(rest)) => Ok((allowed.identity, rest)),
            _ => Err(Failure::unauthenticated("the ticket has been used, has expired, or is for another request")),
        })
    }
}

/// Splits the parameter `ticket` from a path and query.
fn split(uri: &Uri) -> Option<(String, String)> {
    let mut secret = None;
    let rest: Vec<&str> = uri
        .query()?
        .split('&')
        .filter(|part| {
            let Some(value) = part.strip_prefix("ticket=") else { return true };
            secret = Some(value.to_owned());
            false
        })
        .collect();
    let mark = if rest.is_empty() { "" } else { "?" };
    Some((secret?, format!("{}{mark}{}", uri.path(), rest.join("&"))))
}

/// Adds the route of tickets.
pub(crate) fn add(routes: Routes) -> Routes {
    routes.add(
        Operation {
            method: Method::POST,
            path: "/v1/tickets",
            id: CREATE,
            access: Access::Scope(Scope::Read),
            summary: "A ticket for one request without a token, within 30 seconds, for browsers.",
            query: Query::None,
            request: Content::Json(schema::<TicketRequest>),
            response: (201, Content::Json(schema::<Ticket>)),
            creates: false,
        },
        create,
    )
}

async fn create(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Json(request): Json<TicketRequest>,
) -> Outcome<(StatusCode, axum::Json<Ticket>)> {
    let TicketRequest { operation, path } = request;
    static OPERATIONS: OnceLock<Vec<Operation>> = OnceLock::new();
    let operations = OPERATIONS.get_or_init(Routes::described);
    let found = operations.iter().find(|known| known.id == operation && known.id != CREATE);
    let Some(found) = found else {
        let message = format!("invalid operation {operation:?}: expected the id of an operation that needs a token");
        return Err(Failure::invalid(message));
    };
    if let Access::Scope(needed) = found.access
        && identity.scope() < needed
    {
        let message = format!("{operation} needs the scope {needed}, and this token has {}", identity.scope());
        return Err(Failure::forbidden(message));
    }
    let uri: Uri = path.parse().map_err(|error| Failure::invalid(format!("invalid path {path:?}: {error}")))?;
    if !path.starts_with("/v1/") || path.contains('#') || split(&uri).is_some() {
        return Err(Failure::invalid(format!("invalid path {path:?}: expected a path below /v1, with its query")));
    }
    let allowed = Allowed { identity, operation: found.id, path: path.clone() };
    let (ticket, expires_ms) = app.tickets.0.create(allowed, VALID)?;
    let mark = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{mark}ticket={ticket}");
    Ok((StatusCode::CREATED, axum::Json(Ticket { ticket, path, expires_ms })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticket_is_split_from_the_query() {
        let of = |text: &str| split(&text.parse().unwrap());
        assert_eq!(of("/v1/x?ticket=abc"), Some(("abc".into(), "/v1/x".into())));
        assert_eq!(of("/v1/x?a=1&ticket=abc&b=2"), Some(("abc".into(), "/v1/x?a=1&b=2".into())));
        assert_eq!(of("/v1/x?a=ticket"), None);
        assert_eq!(of("/v1/x"), None);
    }
}
