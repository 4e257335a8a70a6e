//! Who calls, and what they may do.
//!
//! A caller is known by a bearer token, or on the unix socket by its user id: the server's own user and root may do
//! everything. What a caller may not see does not exist for it: it gets 404, as for an id that was never used.

use crate::app::AppState;
use crate::error::Failure;
use crate::routes::Access;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use kennel_api::Scope;
use kennel_engine::{TokenInfo, labels};
use kennel_types::{ProviderKind, SandboxInfo};
use std::net::SocketAddr;
use std::sync::Arc;

/// What the route that is called needs.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(crate) app: AppState,
    pub(crate) access: Access,
    pub(crate) operation: &'static str,
}

/// Where a connection comes from. Each request has it as an extension.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    /// The unix socket, and the user id of the process at the other end.
    Unix { uid: u32 },
    /// A TCP connection, with or without TLS.
    Tcp { local: SocketAddr, tls: bool },
}

/// The caller of an operation. Handlers take it as `Extension<Identity>`. Public operations have none.
#[derive(Clone, Debug)]
pub(crate) struct Identity(Arc<Known>);

#[derive(Debug)]
struct Known {
    /// `None` for the server's own user and root on the unix socket.
    token: Option<TokenInfo>,
}

impl Identity {
    /// The server's own user, or root.
    pub(crate) fn owner() -> Self {
        Self(Arc::new(Known { token: None }))
    }

    /// The holder of a token.
    pub(crate) fn of_token(token: TokenInfo) -> Self {
        Self(Arc::new(Known { token: Some(token) }))
    }

    /// The token, if the caller has one.
    pub(crate) fn token(&self) -> Option<&TokenInfo> {
        self.0.token.as_ref()
    }

    /// A name of the caller for the store and the log: the id of its token.
    pub(crate) fn key(&self) -> &str {
        self.token().map_or("owner", |token| &token.id)
    }

    /// The caller's scope.
    pub(crate) fn scope(&self) -> Scope {
        self.token().map_or(Scope::Admin, |token| token.scope)
    }

    /// Whether the caller may do everything.
    pub(crate) fn is_admin(&self) -> bool {
        self.scope() == Scope::Admin
    }

    /// The only project that the caller can see.
    pub(crate) fn project(&self) -> Option<&str> {
        self.token().and_then(|token| token.project.as_deref())
    }

    /// Whether the caller can see a sandbox. Commands and files in a sandbox of the local provider are the host's own, so
    /// only an admin sees it.
    pub(crate) fn sees(&self, sandbox: &SandboxInfo) -> bool {
        let is_local = sandbox.provider == ProviderKind::Local.name();
        (self.is_admin() || !is_local) && self.sees_project(sandbox.labels.get(labels::PROJECT).map(String::as_str))
    }

    /// Whether the caller can see what belongs to this project.
    pub(crate) fn sees_project(&self, project: Option<&str>) -> bool {
        self.project().is_none_or(|own| project == Some(own))
    }
}

/// Finds out who calls, and refuses the call if the caller's scope is too small. Each route has this layer.
pub(crate) async fn authorize(State(needs): State<Needs>, mut request: Request, next: Next) -> Response {
    let Access::Scope(needed) = needs.access else { return next.run(request).await };
    let redeemed = if request.headers().contains_key(header::AUTHORIZATION) {
        None
    } else {
        needs.app.tickets.redeem(needs.operation, request.uri())
    };
    let identity = match redeemed {
        Some(Ok((identity, uri))) => {
            *request.uri_mut() = uri;
            still_valid(&needs.app, identity).await
        }
        Some(Err(failure)) => Err(failure),
        None => identify(&needs.app, request.headers(), request.extensions().get::<Peer>().copied()).await,
    };
    let identity = match identity {
        Ok(identity) => identity,
        Err(failure) => return failure.into_response(),
    };
    if identity.token().is_some()
        && let Err(failure) = needs.app.limits.count(identity.key())
    {
        return failure.into_response();
    }
    if identity.scope() < needed {
        let message = format!("{} needs the scope {needed}, and this token has {}", needs.operation, identity.scope());
        return Failure::forbidden(message).into_response();
    }
    request.extensions_mut().insert(identity);
    let response = next.run(request).await;
    needs.app.metrics.answered(needs.operation, response.status().as_u16());
    response
}

/// Refuses a caller whose token was revoked after it got a ticket.
async fn still_valid(app: &AppState, identity: Identity) -> Result<Identity, Failure> {
    match identity.token() {
        Some(token) if !app.tokens().list().await?.iter().any(|known| known.id == token.id) => {
            Err(Failure::unauthenticated("the token of this ticket was revoked"))
        }
        _ => Ok(identity),
    }
}

/// Returns who calls. A token counts more than the user id, so that a user can try out a token on the unix socket.
pub(crate) async fn identify(app: &AppState, headers: &HeaderMap, peer: Option<Peer>) -> Result<Identity, Failure> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let secret = value.to_str().ok().and_then(|text| text.split_once(' '));
        let secret =
            secret.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, secret)| secret.trim());
        let Some(secret) = secret else {
            return Err(Failure::unauthenticated("the header `authorization` is not `Bearer TOKEN`"));
        };
        let token = app.tokens().verify(secret).await?;
        let token = token.ok_or_else(|| Failure::unauthenticated("the token is unknown, or was revoked"))?;
        return Ok(Identity::of_token(token));
    }
    match peer {
        Some(Peer::Unix { uid }) if uid == 0 || uid == app.engine.caller().uid => Ok(Identity::owner()),
        _ => Err(Failure::unauthenticated("this request needs a token")),
    }
}
