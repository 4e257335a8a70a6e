//! Passes an HTTP request on to a server inside a sandbox, through the keeper. So it works with every network, also `none`.

use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, FromInside, Outcome};
use crate::streams::OpenStream;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kennel_core::{Error, Sandbox, Target};
use kennel_types::ErrorCode;

/// Headers that concern one connection only.
const OF_CONNECTION: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Passes a request on to a port inside, and returns the response. The caller has removed what must not get inside.
pub(crate) async fn forward(
    app: &AppState,
    identity: &Identity,
    sandbox: &Sandbox,
    port: u16,
    path: &str,
    mut request: Request,
) -> Outcome<Response> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        let error = Error::new(ErrorCode::NotAvailable, format!("{what} port {port} inside: {error}"));
        Failure::with_status(StatusCode::BAD_GATEWAY, error)
    };
    let stream = sandbox.connect(&Target::Tcp(port), None).await.map_err(|error| match error.code() {
        // Otherwise it would look like a sandbox that does not exist.
        ErrorCode::NotFound => Failure::with_status(StatusCode::BAD_GATEWAY, error),
        _ => error.into(),
    })?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed("connect to", &error))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, port, "a connection to a port inside ended");
        }
    });
    let upgrade = wanted_upgrade(request.headers());
    let client: Option<OnUpgrade> = upgrade.as_ref().and_then(|_| request.extensions_mut().remove());
    prepare(request.headers_mut(), upgrade.as_ref());
    *request.uri_mut() = path.parse::<Uri>().map_err(|error| Failure::invalid(format!("the path: {error}")))?;
    request.extensions_mut().clear();
    *request.version_mut() = axum::http::Version::HTTP_11;
    let mut response = sender.send_request(request).await.map_err(|error| failed("no response from", &error))?;
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switched {
        let Some(client) = client else {
            return Err(failed("an upgrade that was not requested, from", &"101"));
        };
        let inside = hyper::upgrade::on(&mut response);
        let (open, mut end) = (OpenStream::new(app), app.stream_end(identity));
        tokio::spawn(async move {
            let joined = async {
                let (Ok(client), Ok(inside)) = tokio::join!(client, inside) else { return };
                let (mut client, mut inside) = (TokioIo::new(client), TokioIo::new(inside));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut inside).await;
            };
            tokio::select! {
                () = joined => {}
                _ = end.reached() => {}
            }
            drop(open);
        });
    }
    let named = switched.then(|| response.headers().get(header::UPGRADE).cloned()).flatten();
    remove_of_connection(response.headers_mut());
    if let Some(named) = named {
        response.headers_mut().insert(header::UPGRADE, named);
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
    response.extensions_mut().insert(FromInside);
    Ok(response.map(|body| crate::revocation::until_end(Body::new(body), app.stream_end(identity))))
}

/// The protocol that the client wants to switch to.
fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let connection = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let mut names = connection.flat_map(|value| value.split(',')).map(str::trim);
    let wanted = names.any(|name| name.eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| wanted).cloned()
}

/// Removes what concerns the connection of the client, and adds what concerns the one to the inside.
fn prepare(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    remove_of_connection(headers);
    // The server has agreed to the body already.
    headers.remove(header::EXPECT);
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade.clone());
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Removes the headers that concern one connection only, also those that `Connection` names.
fn remove_of_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in OF_CONNECTION {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_connection_do_not_pass() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("connection", "close, X-Own"), ("x-own", "1"), ("te", "trailers"), ("upgrade", "h2c"), ("x-other", "2")]
        {
            headers.insert(name, HeaderValue::from_static(value));
        }
        assert_eq!(wanted_upgrade(&headers), None, "`connection` does not name it");
        prepare(&mut headers, None);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-other"]);
    }

    #[test]
    fn an_upgrade_passes() {
        let mut headers = HeaderMap::new();
        headers.insert("connection", HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert("upgrade", HeaderValue::from_static("websocket"));
        let upgrade = wanted_upgrade(&headers);
        assert_eq!(upgrade, Some(HeaderValue::from_static("websocket")));
        prepare(&mut headers, upgrade.as_ref());
        assert_eq!(
            (headers.len(), &headers["connection"], &headers["upgrade"]),
            (2, &HeaderValue::from_static("upgrade"), &HeaderValue::from_static("websocket"))
        );
    }
}
