//! Ports of sandboxes below `/v1/sandboxes/{sandbox}/ports/{port}/`, for programs.
//!
//! The pages have the same origin as the API, so nothing that comes from inside may act there: responses are sandboxed
//! (`Content-Security-Policy: sandbox`), and set neither cookies nor service workers. For people, see [`crate::previews`].

pub(crate) mod proxy;

use crate::app::AppState;
use crate::auth::Identity;
use crate::error::Outcome;
use crate::extract::Path;
use crate::routes::{Access, Content, Operation, Query, Routes};
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::response::Response;
use kennel_api::Scope;
use serde::Deserialize;
use std::num::NonZeroU16;

/// Headers of a response that would concern the whole origin, which is the API's.
const OF_ORIGIN: [&str; 9] = [
    "set-cookie",
    "set-cookie2",
    "clear-site-data",
    "service-worker-allowed",
    "strict-transport-security",
    "alt-svc",
    "origin-agent-cluster",
    "report-to",
    "nel",
];

/// The ids of the operations for each method: of the port itself, and of a path below it.
const METHODS: [(Method, &str, &str); 7] = [
    (Method::GET, "portGetRoot", "portGet"),
    (Method::HEAD, "portHeadRoot", "portHead"),
    (Method::POST, "portPostRoot", "portPost"),
    (Method::PUT, "portPutRoot", "portPut"),
    (Method::PATCH, "portPatchRoot", "portPatch"),
    (Method::DELETE, "portDeleteRoot", "portDelete"),
    (Method::OPTIONS, "portOptionsRoot", "portOptions"),
];

/// Adds the routes of ports.
pub(crate) fn add(routes: Routes) -> Routes {
    METHODS.into_iter().fold(routes, |routes, (method, root, below)| {
        let operation = |path, id| Operation {
            method: method.clone(),
            path,
            id,
            access: Access::Scope(Scope::Exec),
            summary: "A request to a server that listens inside on this port; also upgrades to WebSocket.",
            query: Query::None,
            request: Content::Inside,
            response: (200, Content::Inside),
            creates: false,
        };
        routes
            .add(operation("/v1/sandboxes/{sandbox}/ports/{port}/", root), forward)
            .add(operation("/v1/sandboxes/{sandbox}/ports/{port}/{*path}", below), forward)
    })
}

/// The parameters of the path.
#[derive(Deserialize)]
struct Port {
    sandbox: String,
    port: NonZeroU16,
}

async fn forward(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(Port { sandbox, port }): Path<Port>,
    mut request: Request,
) -> Outcome<Response> {
    let sandbox = app.sandbox(&identity, &sandbox).await?;
    let inside = path_inside(request.uri());
    let headers = request.headers_mut();
    for own in [header::AUTHORIZATION, header::COOKIE, header::ORIGIN, header::REFERER] {
        headers.remove(own);
    }
    let host = format!("localhost:{port}");
    if let Ok(host) = HeaderValue::from_str(&host) {
        headers.insert(header::HOST, host);
    }
    let mut response = proxy::forward(&app, &identity, &sandbox, port.get(), &inside, request).await?;
    confine(response.headers_mut());
    Ok(response)
}

/// Removes from a response what would concern the API, whose origin it has.
fn confine(headers: &mut HeaderMap) {
    for name in OF_ORIGIN {
        headers.remove(name);
    }
    headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// The path and query below the port, exactly as the client has sent them.
fn path_inside(uri: &Uri) -> String {
    // `/v1/sandboxes/ID/ports/PORT` has six parts, of which the first is empty.
    let path = uri.path();
    let start = path.match_indices('/').nth(5).map_or(path.len(), |(at, _)| at);
    let below = if start == path.len() { "/" } else { &path[start..] };
    match uri.query() {
        Some(query) => format!("{below}?{query}"),
        None => below.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_inside_is_not_changed() {
        let of = |text: &str| path_inside(&text.parse().unwrap());
        assert_eq!(of("/v1/sandboxes/box/ports/80/"), "/");
        assert_eq!(of("/v1/sandboxes/box/ports/80"), "/");
        assert_eq!(of("/v1/sandboxes/box/ports/80/a%2Fb/../c//d?x=%20&y"), "/a%2Fb/../c//d?x=%20&y");
    }

    #[test]
    fn what_concerns_the_origin_is_removed() {
        let mut headers = HeaderMap::new();
        for name in OF_ORIGIN {
            headers.insert(name, HeaderValue::from_static("x"));
        }
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'self'"));
        headers.insert("x-own", HeaderValue::from_static("kept"));
        confine(&mut headers);
        let policies: Vec<_> = headers.get_all(header::CONTENT_SECURITY_POLICY).iter().collect();
        assert_eq!(policies, ["default-src 'self'", "sandbox"], "both hold");
        assert_eq!(headers.get("x-own").unwrap(), "kept");
        assert_eq!(headers.len(), 4);
    }
}
