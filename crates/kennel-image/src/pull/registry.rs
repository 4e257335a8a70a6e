//! The part of a registry client that pulling needs: manifests, blobs, and tokens.
//!
//! Kennel has its own client on top of an HTTP library. The existing crates read replies of any size into memory, panic
//! on a token that is not a valid header, follow redirects from HTTPS to HTTP, and take proxies from the environment. A
//! registry is not trusted enough for any of this.

use super::PullOptions;
use crate::credentials::Login;
use crate::error::{Error, Result, shown, unsound};
use crate::{Digest, Reference};
use base64::Engine;
use http_auth::ChallengeParser;
use kennel_types::{ErrorCode, LimitReason, NextStep};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, RANGE, WWW_AUTHENTICATE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, redirect};
use secrecy::ExposeSecret;
use serde::Deserialize;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::Mutex;

/// The host of Docker's own registry.
const HUB: &str = "registry-1.docker.io";
const CONNECT: Duration = Duration::from_secs(20);
/// The longest pause in the middle of a reply.
const SILENCE: Duration = Duration::from_mins(1);
const REDIRECTS: usize = 5;
/// Bytes in the largest manifest.
const MANIFEST: u64 = 4 << 20;
/// Bytes in the largest reply with a token or an error.
const ANSWER: u64 = 256 << 10;
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// A registry or mirror to request from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Host and port.
    host: String,
    /// The path in front of a repository's name.
    prefix: String,
    /// Whether certificates are not verified, and plain HTTP is allowed.
    insecure: bool,
    /// Whether it is a mirror of another registry.
    pub(crate) mirror: bool,
}

/// Returns the endpoints for an image, mirrors first.
pub(crate) fn endpoints(image: &Reference, options: &PullOptions) -> Result<Vec<Endpoint>> {
    let is_insecure = |host: &str| options.insecure.iter().any(|one| one == host) || is_loopback(host);
    let mut all = Vec::new();
    for text in options.mirrors.get(image.registry()).into_iter().flatten() {
        let (plain, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => (false, text.as_str()),
        };
        let (host, prefix) = rest.trim_end_matches('/').split_once('/').unwrap_or((rest.trim_end_matches('/'), ""));
        if host.is_empty() || Url::parse(&format!("https://{host}/{prefix}")).is_err() {
            let message = format!("invalid mirror {}", shown(text.as_bytes()));
            return Err(
                Error::new(ErrorCode::InvalidConfig, message).advise("use a URL such as https://mirror.example/path")
            );
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        all.push(Endpoint { host: host.to_owned(), prefix, insecure: plain || is_insecure(host), mirror: true });
    }
    let registry = image.registry();
    let host = if registry == "docker.io" { HUB } else { registry };
    all.push(Endpoint { host: host.to_owned(), prefix: String::new(), insecure: is_insecure(registry), mirror: false });
    Ok(all)
}

/// Whether a registry is on this machine, where nobody can intercept the traffic.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A client for one repository of a registry.
pub(crate) struct Registry {
    http: Client,
    /// The URL up to the repository's name.
    base: String,
    host: String,
    /// Whether the registry uses plain HTTP.
    plain: bool,
    repository: String,
    login: Option<Login>,
    authorization: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct Complaints {
    errors: Vec<Complaint>,
}

#[derive(Deserialize)]
struct Complaint {
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: String,
}

impl Registry {
    /// Creates a client.
    pub(crate) async fn connect(endpoint: Endpoint, image: &Reference, options: &PullOptions) -> Result<Self> {
        let Endpoint { host, prefix, insecure, mirror } = endpoint;
        let http = client(insecure, options)?;
        let registry = if mirror { host.as_str() } else { image.registry() };
        let login = options.credentials.find(registry, image).await?;
        let repository = format!("{prefix}{}", image.repository());
        let plain = insecure && speaks_plainly(&http, &host).await;
        let scheme = if plain { "http" } else { "https" };
        let base = format!("{scheme}://{host}/v2/{repository}");
        Ok(Self { http, base, host, plain, repository, login, authorization: Mutex::new(None) })
    }

    /// Requests a manifest or index by tag or digest. It is not verified.
    pub(crate) async fn manifest(&self, version: &str) -> Result<Vec<u8>> {
        let answer = self.get(&format!("manifests/{version}"), MANIFESTS, 0).await?;
        self.read(answer, MANIFEST).await
    }

    /// Requests a blob that must not be larger than `size`. It is not verified.
    pub(crate) async fn small_blob(&self, digest: &Digest, size: u64) -> Result<Vec<u8>> {
        let bytes = self.read(self.blob(digest, 0).await?, size).await?;
        if bytes.len() as u64 != size {
            return Err(unsound(format!("{digest} has {} bytes: expected {size}", bytes.len())));
        }
        Ok(bytes)
    }

    /// Requests a blob starting at a byte. The registry may still send all of it.
    pub(crate) async fn blob(&self, digest: &Digest, from: u64) -> Result<Response> {
        self.get(&format!("blobs/{digest}"), "*/*", from).await
    }

    async fn get(&self, path: &str, accept: &str, from: u64) -> Result<Response> {
        let mut authorized = false;
        loop {
            let mut request = self.http.get(format!("{}/{path}", self.base)).header(ACCEPT, accept);
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            let sent = self.authorization.lock().await.clone();
            if let Some(value) = &sent {
                request = request.header(AUTHORIZATION, value);
            }
            let answer = request.send().await.map_err(|error| self.unreachable(error))?;
            match answer.status() {
                StatusCode::UNAUTHORIZED if !std::mem::replace(&mut authorized, true) => {
                    self.authorize(&answer, sent.as_ref()).await?;
                }
                status if status.is_success() || (from > 0 && status == StatusCode::RANGE_NOT_SATISFIABLE) => {
                    return Ok(answer);
                }
                _ => return Err(self.refusal(answer).await),
            }
        }
    }

    /// Obtains the authorization that the registry demands.
    async fn authorize(&self, answer: &Response, sent: Option<&HeaderValue>) -> Result<()> {
        let mut authorization = self.authorization.lock().await;
        // Another request has just done this.
        if authorization.as_ref() != sent {
            return Ok(());
        }
        let headers = answer.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let mut basic = false;
        for header in headers {
            for challenge in ChallengeParser::new(header).flatten() {
                let value = |name: &str| {
                    let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                    found.map(|(_, value)| value.to_unescaped())
                };
                if challenge.scheme.eq_ignore_ascii_case("bearer")
                    && let Some(realm) = value("realm")
                {
                    *authorization = Some(self.token(&realm, value("service"), value("scope")).await?);
                    return Ok(());
                }
                basic |= challenge.scheme.eq_ignore_ascii_case("basic");
            }
        }
        if let (true, Some(Login::Basic { user, secret })) = (basic, &self.login) {
            *authorization = Some(basic_header(user, secret.expose_secret())?);
            return Ok(());
        }
        Err(self.not_allowed("it requires a login"))
    }

    async fn token(&self, realm: &str, service: Option<String>, scope: Option<String>) -> Result<HeaderValue> {
        if let Some(Login::Bearer(token)) = &self.login {
            return header(&format!("Bearer {}", token.expose_secret()));
        }
        let mut url =
            Url::parse(realm).map_err(|_| unsound("log in to the registry: its login address is not a valid URL"))?;
        // A password is never sent over a less secure connection than the registry's own.
        if url.scheme() != "https" && !(self.plain && url.scheme() == "http") {
            return Err(unsound(format!(
                "log in to the registry: it requests a login at {}, which does not use HTTPS",
                shown(realm.as_bytes())
            )));
        }
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
        let mut query = vec![("scope", scope)];
        query.extend(service.map(|service| ("service", service)));
        let request = match &self.login {
            Some(Login::Identity(token)) => {
                query.extend([("grant_type", "refresh_token".to_owned()), ("client_id", "kennel".to_owned())]);
                query.push(("refresh_token", token.expose_secret().to_owned()));
                let mut form = url.clone();
                form.query_pairs_mut().clear().extend_pairs(&query);
                let form = form.query().unwrap_or_default().to_owned();
                self.http.post(url).header("content-type", "application/x-www-form-urlencoded").body(form)
            }
            login => {
                url.query_pairs_mut().extend_pairs(&query);
                let request = self.http.get(url);
                match login {
                    Some(Login::Basic { user, secret }) => {
                        request.header(AUTHORIZATION, basic_header(user, secret.expose_secret())?)
                    }
                    _ => request,
                }
            }
        };
        let answer = send(request).await.map_err(|error| self.unreachable(error))?;
        if !answer.status().is_success() {
            return Err(self.refusal(answer).await);
        }
        let text = self.read(answer, ANSWER).await?;
        let wrong = || unsound("log in to the registry: its reply contains no token");
        let Token { token, access_token } = serde_json::from_slice(&text).map_err(|_| wrong())?;
        header(&format!("Bearer {}", token.or(access_token).ok_or_else(wrong)?))
    }

    /// Reads a reply that must not exceed a size.
    async fn read(&self, mut answer: Response, most: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|error| self.unreachable(error))? {
            if (bytes.len() + piece.len()) as u64 > most {
                return Err(Error::limit(
                    LimitReason::TooLarge,
                    format!("the reply of {} is too large: expected at most {most} bytes", self.host),
                ));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// Creates the error for an unsuccessful reply.
    async fn refusal(&self, answer: Response) -> Error {
        let status = answer.status();
        let text = self.read(answer, ANSWER).await.unwrap_or_default();
        let complaints = serde_json::from_slice::<Complaints>(&text).map(|all| all.errors).unwrap_or_default();
        let why = complaints.into_iter().next().map(|it| if it.message.is_empty() { it.code } else { it.message });
        let why = why.map_or_else(|| format!("HTTP status {status}"), |why| shown(why.as_bytes()));
        let host = &self.host;
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.not_allowed(&why),
            StatusCode::NOT_FOUND => Error::new(ErrorCode::ImageNotFound, format!("{host} does not have it: {why}"))
                .advise("check its name and tag"),
            StatusCode::TOO_MANY_REQUESTS => {
                let message = format!("{host} received too many requests: {why}");
                let steps = [NextStep::advice("wait"), self.log_in()];
                Error::limit(LimitReason::TooManyRequests, message).suggest(NextStep::either(steps))
            }
            status if status.is_server_error() => {
                Error::new(ErrorCode::NotAvailable, format!("{host} is not available now: {why}"))
                    .advise("try again later")
            }
            _ => unsound(format!("{host} refused the request: {why}")),
        }
    }

    fn not_allowed(&self, why: &str) -> Error {
        let host = &self.host;
        let message = format!("{host} denies access: {why}");
        let steps = [NextStep::advice("check its name"), self.log_in()];
        Error::new(ErrorCode::PermissionDenied, message).suggest(NextStep::either(steps))
    }

    /// The suggestion to log in.
    fn log_in(&self) -> NextStep {
        NextStep::LogIn { program: "docker".into(), registry: (self.host != HUB).then(|| self.host.clone()) }
    }

    /// Creates the error for a registry that cannot be reached.
    pub(crate) fn unreachable(&self, error: reqwest::Error) -> Error {
        let code = if error.is_timeout() { ErrorCode::Timeout } else { ErrorCode::NotAvailable };
        let error = error.without_url();
        // The outermost error has the least information.
        let mut why = vec![error.to_string()];
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            why.push(inner.to_string());
            cause = inner.source();
        }
        why.dedup();
        let why = shown(why.join(": ").as_bytes());
        let host = &self.host;
        let step = if self.plain || !why.contains("InvalidMessage") && !why.to_lowercase().contains("certificate") {
            NextStep::advice("check the network and try again; downloaded parts are kept")
        } else {
            NextStep::AllowInsecureRegistry { registry: host.clone() }
        };
        Error::new(code, format!("request to {host} failed: {why}")).suggest(step)
    }
}

/// Whether a registry that may use plain HTTP does so. Any reply counts.
async fn speaks_plainly(http: &Client, host: &str) -> bool {
    // On this machine plain HTTP is the usual case. Some plain servers wait forever for the rest of a TLS handshake.
    if is_loopback(host)
        && let Ok(answer) = http.get(format!("http://{host}/v2/")).send().await
    {
        // A server that expects TLS replies with this status.
        return answer.status() != StatusCode::BAD_REQUEST;
    }
    let secure = http.get(format!("https://{host}/v2/")).send().await;
    secure.is_err_and(|error| error.is_connect() || error.is_request())
}

async fn send(request: RequestBuilder) -> reqwest::Result<Response> {
    request.send().await
}

fn client(insecure: bool, options: &PullOptions) -> Result<Client> {
    // Do not override the choice of the program that uses this library.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let follow = redirect::Policy::custom(move |attempt| {
        let secure = |url: &Url| url.scheme() == "https";
        let downgrade = attempt.previous().last().is_some_and(secure) && !secure(attempt.url());
        if attempt.previous().len() > REDIRECTS {
            attempt.error("too many redirects")
        } else if downgrade && !insecure {
            attempt.error("the registry redirects from HTTPS to plain HTTP")
        } else {
            attempt.follow()
        }
    });
    let mut builder = Client::builder()
        .user_agent(concat!("kennel/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        .redirect(follow)
        .danger_accept_invalid_certs(insecure)
        // The caller decides about proxies, not the environment.
        .no_proxy();
    let none = || options.proxies.none.as_deref().and_then(reqwest::NoProxy::from_string);
    let wrong = |error: reqwest::Error| {
        Error::new(ErrorCode::InvalidConfig, format!("invalid proxy: {}", shown(error.to_string().as_bytes())))
    };
    if let Some(proxy) = &options.proxies.http {
        builder = builder.proxy(reqwest::Proxy::http(proxy).map_err(wrong)?.no_proxy(none()));
    }
    if let Some(proxy) = &options.proxies.https {
        builder = builder.proxy(reqwest::Proxy::https(proxy).map_err(wrong)?.no_proxy(none()));
    }
    builder.build().map_err(|error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        Error::new(ErrorCode::NotAvailable, format!("set up HTTPS connections: {why}"))
            .suggest(NextStep::run_on_host_to("install CA certificates", "apt-get install ca-certificates"))
    })
}

fn basic_header(user: &str, secret: &str) -> Result<HeaderValue> {
    let packed = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{secret}"));
    header(&format!("Basic {packed}"))
}

fn header(text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| unsound("log in to the registry: the credentials are not a valid HTTP header"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_registries_are_recognised() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.1.2.3", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example", "127.0.0.1.example", "128.0.0.1", "[::2]:5000", "example:127"] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn mirrors_are_tried_first() {
        let image: Reference = "debian".parse().unwrap();
        let mirrors =
            [("docker.io".to_owned(), vec!["https://a.example/hub/".to_owned(), "http://b.example:80".to_owned()])];
        let options = PullOptions { mirrors: mirrors.into(), ..PullOptions::default() };
        let all = endpoints(&image, &options).unwrap();
        let told: Vec<_> =
            all.iter().map(|it| (it.host.as_str(), it.prefix.as_str(), it.insecure, it.mirror)).collect();
        assert_eq!(
            told,
            [
                ("a.example", "hub/", false, true),
                ("b.example:80", "", true, true),
                ("registry-1.docker.io", "", false, false)
            ]
        );
        let wrong = [("docker.io".to_owned(), vec!["https://".to_owned()])];
        assert!(endpoints(&image, &PullOptions { mirrors: wrong.into(), ..PullOptions::default() }).is_err());
    }
}
