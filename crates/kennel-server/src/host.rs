//! Checks the headers `Host` and `Origin`, so that no page in a browser can call the server: neither by a name that its
//! owner lets point to this machine, nor from another origin.

use crate::app::AppState;
use crate::auth::Peer;
use crate::error::Failure;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use kennel_core::Error;
use kennel_types::ErrorCode;
use std::net::{IpAddr, SocketAddr};

/// Refuses requests with a foreign host or origin.
pub(crate) async fn check(State(app): State<AppState>, request: Request, next: Next) -> Response {
    match refusal(&request, &app.options.names) {
        Some(failure) => failure.into_response(),
        None => next.run(request).await,
    }
}

fn refusal(request: &Request, names: &[String]) -> Option<Failure> {
    // A browser does not connect to unix sockets.
    let Peer::Tcp { local, tls } = *request.extensions().get::<Peer>()? else { return None };
    let own = Own { local, tls, names };
    let text = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST).or_else(|| request.uri().authority().map(axum::http::uri::Authority::as_str));
    match host {
        Some(host) if own.has(host) => {}
        _ => return Some(refused(StatusCode::MISDIRECTED_REQUEST, "the header `host` does not name this server")),
    }
    if let Some(origin) = text(header::ORIGIN) {
        let host = origin.strip_prefix(if tls { "https://" } else { "http://" });
        if !host.is_some_and(|host| own.has(host)) {
            let message = "the header `origin` names another origin than this server";
            return Some(refused(StatusCode::FORBIDDEN, message));
        }
    }
    None
}

/// The address at which a request has arrived, and the other names of the server.
struct Own<'a> {
    local: SocketAddr,
    tls: bool,
    names: &'a [String],
}

impl Own<'_> {
    /// Whether a host with an optional port is this server's.
    fn has(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
            _ => (host, Some(if self.tls { 443 } else { 80 })),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        // A name may lead to another port, which is forwarded to this one.
        if self.names.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return true;
        }
        // A socket for both versions of IP shows addresses of version 4 as addresses of version 6.
        let ip = self.local.ip().to_canonical();
        let named = name.eq_ignore_ascii_case("localhost") && ip.is_loopback();
        port == Some(self.local.port()) && (named || name.parse().is_ok_and(|named: IpAddr| named.to_canonical() == ip))
    }
}

fn refused(status: StatusCode, message: &str) -> Failure {
    Failure::with_status(status, Error::new(ErrorCode::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_server_count() {
        let is_own = |host: &str, local: &str, tls, names: &[String]| {
            Own { local: local.parse().unwrap(), tls, names }.has(host)
        };
        for own in ["127.0.0.1:7070", "localhost:7070", "LOCALHOST:7070"] {
            assert!(is_own(own, "127.0.0.1:7070", false, &[]), "{own}");
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
            assert!(!is_own(foreign, "127.0.0.1:7070", false, &[]), "{foreign}");
        }
        assert!(is_own("[::1]:7070", "[::1]:7070", false, &[]));
        assert!(is_own("localhost", "127.0.0.1:80", false, &[]));
        assert!(is_own("10.0.0.5", "10.0.0.5:443", true, &[]));
        assert!(is_own("10.0.0.5:7443", "[::ffff:10.0.0.5]:7443", true, &[]));
        assert!(!is_own("localhost:7443", "10.0.0.5:7443", true, &[]));
        let names = ["box.example".to_owned()];
        assert!(is_own("Box.example:8443", "10.0.0.5:7443", true, &names));
        assert!(!is_own("evil.box.example:7443", "10.0.0.5:7443", true, &names));
    }
}
