//! Checks the headers `Host` and `Origin`, so that no page in a browser can call the server: neither by a name that its
//! owner lets point to this machine, nor from another origin.

use crate::auth::Peer;
use crate::error::Failure;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use kennel_core::Error;
use kennel_types::ErrorCode;
use std::net::SocketAddr;

/// Refuses requests with a foreign host or origin.
pub(crate) async fn check(request: Request, next: Next) -> Response {
    match refusal(&request) {
        Some(failure) => failure.into_response(),
        None => next.run(request).await,
    }
}

fn refusal(request: &Request) -> Option<Failure> {
    // A browser does not connect to unix sockets.
    let Peer::Tcp { local } = *request.extensions().get::<Peer>()? else { return None };
    let text = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST).or_else(|| request.uri().authority().map(axum::http::uri::Authority::as_str));
    match host {
        Some(host) if is_own(host, local) => {}
        _ => return Some(refused(StatusCode::MISDIRECTED_REQUEST, "the header `host` does not name this server")),
    }
    if let Some(origin) = text(header::ORIGIN) {
        let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !own.is_some_and(|host| is_own(host, local)) {
            let message = "the header `origin` names another origin than this server";
            return Some(refused(StatusCode::FORBIDDEN, message));
        }
    }
    None
}

/// Whether a host with an optional port is this server's address.
fn is_own(host: &str, local: SocketAddr) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, Some(80)),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let named = name.eq_ignore_ascii_case("localhost") && local.ip().is_loopback();
    port == Some(local.port()) && (named || name.parse().is_ok_and(|ip: std::net::IpAddr| ip == local.ip()))
}

fn refused(status: StatusCode, message: &str) -> Failure {
    Failure::with_status(status, Error::new(ErrorCode::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_server_count() {
        let local: SocketAddr = "127.0.0.1:7070".parse().unwrap();
        for own in ["127.0.0.1:7070", "localhost:7070", "LOCALHOST:7070"] {
            assert!(is_own(own, local), "{own}");
        }
        for foreign in [
            "",
            "localhost",
            "127.0.0.1",
            "localhost:7071",
            "evil.example:7070",
            "localhost.evil:7070",
            "127.0.0.2:7070",
        ] {
            assert!(!is_own(foreign, local), "{foreign}");
        }
        assert!(is_own("[::1]:7070", "[::1]:7070".parse().unwrap()));
        assert!(is_own("localhost", "127.0.0.1:80".parse().unwrap()));
    }
}
