//! Sends requests.

use crate::connection::{Connection, connect};
use crate::tls;
use crate::{ServerAddress, error};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use kennel_types::{Error, ErrorCode, Result};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, OnceLock};
use tokio_rustls::TlsConnector;

/// The largest response that is held in memory. Contents of files are streamed instead.
const MOST: usize = 64 << 20;

/// The body of a request.
pub(crate) type RequestBody = BoxBody<Bytes, std::io::Error>;

/// A client of a server. Clones share everything.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    address: ServerAddress,
    token: Option<SecretString>,
    /// What makes connections with TLS. It also remembers TLS sessions, so later handshakes are shorter.
    tls: OnceLock<TlsConnector>,
}

impl Client {
    /// A client of the server at this address. On a unix socket, the server's own user needs no token.
    pub fn new(address: ServerAddress, token: Option<SecretString>) -> Self {
        Self { shared: Arc::new(Shared { address, token, tls: OnceLock::new() }) }
    }

    /// Where the server is.
    pub fn address(&self) -> &ServerAddress {
        &self.shared.address
    }

    /// Connects to the server.
    pub(crate) async fn connect(&self) -> Result<Box<dyn Connection>> {
        let tls = match (self.address(), self.shared.tls.get()) {
            (ServerAddress::Https { .. }, Some(tls)) => Some(tls.clone()),
            (ServerAddress::Https { pin, .. }, None) => {
                let made = tls::connector(*pin)?;
                Some(self.shared.tls.get_or_init(|| made).clone())
            }
            _ => None,
        };
        // The handshake of TLS would make every future of a request large.
        Box::pin(connect(self.address(), tls)).await
    }

    /// The header that shows the token, if there is one.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>> {
        let Some(token) = &self.shared.token else { return Ok(None) };
        let value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()));
        let mut value = value.map_err(|_| Error::new(ErrorCode::InvalidConfig, "the token has invalid characters"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Sends a request, and returns the response if it has succeeded.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
        json: bool,
    ) -> Result<Response<Incoming>> {
        let address = self.address();
        let mut request = Request::builder().method(method).uri(path).header(HOST, address.host());
        if let Some(value) = self.authorization()? {
            request = request.header(AUTHORIZATION, value);
        }
        if json {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(body)
            .map_err(|error| Error::new(ErrorCode::InvalidConfig, format!("request {path}: {error}")))?;
        let stream = self.connect().await?;
        let broken = |error: hyper::Error| error::broken("call the server", error);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // It ends with the response.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status().as_u16();
        if status < 400 {
            return Ok(response);
        }
        Err(error::of_response(status, &whole(response).await?))
    }

    /// Sends a request without a body, and reads the response.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::GET, path, None::<&()>).await
    }

    /// Sends a request with a JSON body, and reads the response.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + ?Sized)>,
    ) -> Result<T> {
        error::json(&self.bytes(method, path, body).await?)
    }

    /// Sends a request with a JSON body, and ignores the response.
    pub(crate) async fn done(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + ?Sized)>,
    ) -> Result<()> {
        self.bytes(method, path, body).await.map(drop)
    }

    async fn bytes(&self, method: Method, path: &str, body: Option<&(impl Serialize + ?Sized)>) -> Result<Vec<u8>> {
        let sent = match body {
            Some(body) => {
                let json = serde_json::to_vec(body)
                    .map_err(|error| Error::new(ErrorCode::Internal, format!("write the request: {error}")))?;
                Full::new(Bytes::from(json)).map_err(|never| match never {}).boxed()
            }
            None => empty(),
        };
        whole(self.send(method, path, sent, body.is_some()).await?).await
    }
}

/// An empty body.
pub(crate) fn empty() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// Reads a whole response.
pub(crate) async fn whole(response: Response<Incoming>) -> Result<Vec<u8>> {
    let body = http_body_util::Limited::new(response.into_body(), MOST).collect().await;
    body.map(|body| body.to_bytes().to_vec()).map_err(|error| error::broken("read the response of the server", error))
}

/// A part of a path, in which every special character is escaped.
pub(crate) fn escape(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            escaped.push(byte.into());
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}

/// A query of the parameters that are there, with the question mark.
pub(crate) fn query(parameters: &[(&str, Option<String>)]) -> String {
    let set = parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", escape(value.as_deref()?))));
    let set: Vec<String> = set.collect();
    if set.is_empty() { String::new() } else { format!("?{}", set.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_escaped() {
        assert_eq!(escape("a/b?c é"), "a%2Fb%3Fc%20%C3%A9");
        assert_eq!(query(&[("a", None), ("b", Some("x&y".into())), ("c", Some("1".into()))]), "?b=x%26y&c=1");
        assert_eq!(query(&[("a", None)]), "");
    }
}
