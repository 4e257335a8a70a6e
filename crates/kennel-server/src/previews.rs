//! Ports of sandboxes under a host name of their own, for browsers: `PORT-ID.localhost`.
//!
//! Each port is an origin of its own, so pages from inside can use everything that a page can: cookies, storage, service
//! workers. A browser gets access by a link that can be opened once. The link sets a cookie for that host, and every
//! request needs the cookie. Neither the cookie nor a token of Kennel gets inside.

use crate::app::AppState;
use crate::auth::{Identity, Peer};
use crate::error::{Failure, Outcome};
use crate::extract::{Json, Path};
use crate::one_time::Secrets;
use crate::ports::proxy;
use crate::routes::{Access, Content, Operation, Query, Routes, schema};
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use kennel_api::{Preview, PreviewRequest, Scope};
use kennel_core::Error;
use kennel_types::{ErrorCode, NextStep, SandboxId};
use std::sync::OnceLock;
use std::time::Duration;

/// How long a link can be opened.
const LINK: Duration = Duration::from_mins(5);
/// How long a browser has access.
const ACCESS: Duration = Duration::from_hours(12);
/// The path of a link. No program inside gets requests to it.
const ENTER: &str = "/.well-known/kennel/enter";
/// The name of the cookie.
const COOKIE: &str = "kennel-preview";
/// What the tokens of Kennel begin with.
const TOKEN: &str = "kennel_";

/// The browsers that have access to ports, and the links that were not opened yet.
#[derive(Default)]
pub(crate) struct Previews {
    links: Secrets<Link>,
    browsers: Secrets<Allowed>,
    /// The TCP port at which the server listens.
    port: OnceLock<u16>,
}

impl Previews {
    /// Says at which TCP port the server listens. Only the first one counts.
    pub(crate) fn listen_at(&self, port: u16) {
        self.port.get_or_init(|| port);
    }
}

/// What a browser has access to.
#[derive(Clone)]
struct Allowed {
    identity: Identity,
    sandbox: SandboxId,
    port: u16,
}

#[derive(Clone)]
struct Link {
    allowed: Allowed,
    path: String,
}

/// Adds the route that creates links.
pub(crate) fn add(routes: Routes) -> Routes {
    routes.add(
        Operation {
            method: Method::POST,
            path: "/v1/sandboxes/{sandbox}/previews",
            id: "createPreview",
            access: Access::Scope(Scope::Exec),
            summary: "A link with which a browser gets access to a port of the sandbox.",
            query: Query::None,
            request: Content::Json(schema::<PreviewRequest>),
            response: (201, Content::Json(schema::<Preview>)),
            creates: false,
        },
        create,
    )
}

async fn create(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(sandbox): Path<String>,
    Json(request): Json<PreviewRequest>,
) -> Outcome<(StatusCode, axum::Json<Preview>)> {
    let PreviewRequest { port, path } = request;
    let path = path.unwrap_or_else(|| "/".into());
    // `//host` would be another host, and a header has no line breaks.
    if port == 0 || !path.starts_with('/') || path.starts_with("//") || path.contains('\\') || !is_plain(&path) {
        return Err(Failure::invalid("expected a port from 1 to 65535, and a path that starts with one /"));
    }
    let sandbox = app.sandbox(&identity, &sandbox).await?;
    let Some(listen) = app.previews.port.get() else {
        let error = Error::new(ErrorCode::Unsupported, "open a preview: this server listens only at a unix socket")
            .suggest(NextStep::advice("let the server also listen at a TCP address of this machine"));
        return Err(error.into());
    };
    let domain = app.options.preview_domain.as_deref().unwrap_or("localhost");
    let scheme = if app.options.certificate.is_some() { "https" } else { "http" };
    let origin = format!("{scheme}://{port}-{}.{domain}:{listen}", sandbox.id());
    let allowed = Allowed { identity, sandbox: sandbox.id().clone(), port };
    let (secret, expires_ms) = app.previews.links.create(Link { allowed, path }, LINK)?;
    let url = format!("{origin}{ENTER}?link={secret}");
    Ok((StatusCode::CREATED, axum::Json(Preview { url, origin, expires_ms })))
}

/// Whether a text can be in a header and an address as it is.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Serves the requests to host names of ports. All others go on to the API.
pub(crate) async fn serve(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    let domain = app.options.preview_domain.as_deref().unwrap_or("localhost");
    let named = host.and_then(|host| parse_host(host, domain));
    match named {
        // A browser does not connect to unix sockets.
        Some((port, id)) if matches!(request.extensions().get::<Peer>(), Some(Peer::Tcp { .. })) => {
            match respond(&app, port, &id, request).await {
                Ok(response) => response,
                Err(failure) => failure.into_response(),
            }
        }
        _ => next.run(request).await,
    }
}

/// The port and the sandbox of a host name such as `8080-5d62cjq11syx.localhost:7070`.
fn parse_host(host: &str, domain: &str) -> Option<(u16, SandboxId)> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).to_ascii_lowercase();
    let label = name.strip_suffix(domain)?.strip_suffix('.')?;
    let (port, id) = label.split_once('-')?;
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((port.parse().ok().filter(|port| *port > 0)?, SandboxId::new(id).ok()?))
}

async fn respond(app: &AppState, port: u16, id: &SandboxId, mut request: Request) -> Outcome<Response> {
    let denied = || {
        let error = Error::new(ErrorCode::PermissionDenied, "this browser has no access to this port")
            .suggest(NextStep::advice("create a link with POST /v1/sandboxes/SANDBOX/previews, and open it"));
        Failure::with_status(StatusCode::UNAUTHORIZED, error)
    };
    if request.uri().path() == ENTER {
        return enter(app, port, id, &request).ok_or_else(denied);
    }
    check_origin(request.headers())?;
    let secret = cookie(request.headers());
    let allowed = secret.as_deref().and_then(|secret| app.previews.browsers.get(secret));
    let allowed = allowed.filter(|it| it.port == port && it.sandbox == *id).ok_or_else(denied)?;
    // A browser loses its access with the token that gave it.
    if let Some(token) = allowed.identity.token()
        && !app.tokens().list().await?.iter().any(|known| known.id == token.id)
    {
        if let Some(secret) = &secret {
            app.previews.browsers.remove(secret);
        }
        return Err(denied());
    }
    let sandbox = app.sandbox(&allowed.identity, id.as_str()).await?;
    let path = request.uri().path_and_query().map_or_else(|| "/".into(), ToString::to_string);
    keep_outside(request.headers_mut());
    let mut response = proxy::forward(app, &allowed.identity, &sandbox, port, &path, request).await?;
    narrow_cookies(response.headers_mut());
    Ok(response)
}

/// Opens a link: the browser gets a cookie, and continues at the link's path.
fn enter(app: &AppState, port: u16, id: &SandboxId, request: &Request) -> Option<Response> {
    let secret = request.uri().query()?.split('&').find_map(|part| part.strip_prefix("link="))?;
    let link = app.previews.links.take(secret)?;
    if request.method() != Method::GET || link.allowed.port != port || link.allowed.sandbox != *id {
        return None;
    }
    let (cookie, _) = app.previews.browsers.create(link.allowed, ACCESS).ok()?;
    let secure = if app.options.certificate.is_some() { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Lax; Max-Age={}{secure}", ACCESS.as_secs());
    let headers = [
        (header::SET_COOKIE, cookie),
        (header::LOCATION, link.path),
        (header::CACHE_CONTROL, "no-store".into()),
        (header::REFERRER_POLICY, "no-referrer".into()),
    ];
    Some((StatusCode::SEE_OTHER, headers).into_response())
}

/// Refuses requests that a page of another origin makes. Hosts of ports are one site, so cookies alone do not tell them
/// apart.
fn check_origin(headers: &HeaderMap) -> Outcome<()> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    let own = origin.split_once("://").map(|(_, host)| host);
    if own.is_some() && own.map(str::to_ascii_lowercase) == text(header::HOST).map(str::to_ascii_lowercase) {
        return Ok(());
    }
    let message = "the header `origin` names another origin than this port";
    Err(Failure::with_status(StatusCode::FORBIDDEN, Error::new(ErrorCode::PermissionDenied, message)))
}

/// The value of Kennel's cookie.
fn cookie(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value.to_owned())
}

/// Removes Kennel's own cookie and tokens from a request.
fn keep_outside(headers: &mut HeaderMap) {
    let others: Vec<String> = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .map(str::trim)
        .filter(|pair| !pair.is_empty() && pair.split('=').next() != Some(COOKIE))
        .map(ToOwned::to_owned)
        .collect();
    headers.remove(header::COOKIE);
    if let Ok(others) = HeaderValue::from_str(&others.join("; "))
        && !others.is_empty()
    {
        headers.insert(header::COOKIE, others);
    }
    let is_own = |value: &HeaderValue| value.to_str().map_or(true, |text| text.contains(TOKEN));
    if headers.get_all(header::AUTHORIZATION).iter().any(is_own) {
        headers.remove(header::AUTHORIZATION);
    }
}

/// Limits the cookies of a response to this host, and removes those with the name of Kennel's.
fn narrow_cookies(headers: &mut HeaderMap) {
    let all: Vec<HeaderValue> = headers.get_all(header::SET_COOKIE).iter().cloned().collect();
    headers.remove(header::SET_COOKIE);
    for value in all {
        // A cookie that is not text could hide an attribute.
        let Ok(text) = value.to_str() else { continue };
        if text.split(['=', ';']).next().is_none_or(|name| name.trim() == COOKIE) {
            continue;
        }
        let is_domain = |part: &&str| {
            let name = part.split('=').next().unwrap_or_default();
            name.trim().eq_ignore_ascii_case("domain")
        };
        let kept: Vec<&str> = text.split(';').filter(|part| !is_domain(part)).collect();
        if let Ok(value) = HeaderValue::from_str(&kept.join(";")) {
            headers.append(header::SET_COOKIE, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_ports_have_a_port_and_an_id() {
        let of = |host: &str| parse_host(host, "localhost").map(|(port, id)| (port, id.to_string()));
        assert_eq!(of("8080-abc.localhost:7070"), Some((8080, "abc".into())));
        assert_eq!(of("80-a-b.LOCALHOST"), Some((80, "a-b".into())));
        for other in [
            "localhost:7070",
            "127.0.0.1:7070",
            "x-abc.localhost",
            "0-abc.localhost",
            "70000-abc.localhost",
            "+1-abc.localhost",
            "80-abc.localhost.evil",
            "80-abc.evil",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn cookies_of_kennel_stay_outside_and_others_stay_at_their_host() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=1; kennel-preview=secret; b=2"));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer kennel_abc"));
        assert_eq!(cookie(&headers).as_deref(), Some("secret"));
        keep_outside(&mut headers);
        assert_eq!(headers[header::COOKIE], "a=1; b=2");
        assert!(!headers.contains_key(header::AUTHORIZATION));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Basic eDp5"));
        keep_outside(&mut headers);
        assert_eq!(headers[header::AUTHORIZATION], "Basic eDp5", "that of the program inside");

        let mut headers = HeaderMap::new();
        for value in ["a=1; Domain=localhost; Path=/", "kennel-preview=x", "b=2; dOmAiN = .localhost;Secure", "c"] {
            headers.append(header::SET_COOKIE, HeaderValue::from_static(value));
        }
        narrow_cookies(&mut headers);
        let kept: Vec<_> = headers.get_all(header::SET_COOKIE).iter().collect();
        assert_eq!(kept, ["a=1; Path=/", "b=2;Secure", "c"]);
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let of = |host, origin| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            check_origin(&headers).is_ok()
        };
        assert!(of("80-abc.localhost:7070", "http://80-abc.localhost:7070"));
        assert!(!of("80-abc.localhost:7070", "http://81-abc.localhost:7070"));
        assert!(!of("80-abc.localhost:7070", "null"));
    }
}
