//! The connection to the engine: a dialer opens byte streams, HTTP goes over them, and errors get a code.
//!
//! This module knows nothing about sandboxes. Docker and Podman have the same API. The engine is asked which of the two
//! it is; this is never guessed from its address.

use crate::dialer::Dialer;
use bollard::errors::Error as EngineError;
use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, BollardRequest, ClientVersion};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HOST, HeaderMap, HeaderValue};
use kennel_core::{Error, Result, printable};
use kennel_types::{ErrorCode, NextStep, ProviderKind};
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long the engine may take until it starts to reply.
const ANSWER_WITHIN: Duration = Duration::from_mins(2);
/// Bytes in the largest reply that is read as a whole.
const ANSWER_CAP: usize = 64 * 1024 * 1024;

/// The kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

impl EngineKind {
    /// The name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }

    /// The provider of its sandboxes.
    pub(crate) fn provider(self) -> ProviderKind {
        match self {
            Self::Docker => ProviderKind::Docker,
            Self::Podman => ProviderKind::Podman,
        }
    }

    /// The name of the engine's command line, which is also the name of the provider.
    pub(crate) fn word(self) -> &'static str {
        self.provider().name()
    }
}

/// The kind and the API version that an engine has reported.
struct Identity {
    kind: EngineKind,
    /// The newest version that it supports.
    version: ClientVersion,
}

impl Identity {
    /// Reads the headers that both engines add to every reply. Returns `None` if a proxy has removed them.
    fn in_headers(headers: &HeaderMap) -> Option<Self> {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let kind = match text("Server")?.split_once('/')?.0 {
            "Docker" => EngineKind::Docker,
            "Libpod" => EngineKind::Podman,
            _ => return None,
        };
        Some(Self { kind, version: parse_version(text("Api-Version")?)? })
    }

    /// Reads the reply to `/version`.
    fn in_version(version: &SystemVersion) -> Result<Self, EngineError> {
        let named = |name: &str| version.components.iter().flatten().any(|part| part.name.starts_with(name));
        let kind = if named("Podman") { EngineKind::Podman } else { EngineKind::Docker };
        let version = version.api_version.as_deref().and_then(parse_version);
        Ok(Self { kind, version: version.ok_or(EngineError::APIVersionParseError {})? })
    }

    /// The newest API version that both sides support.
    fn agreed(&self) -> ClientVersion {
        if self.version < *API_DEFAULT_VERSION { self.version } else { *API_DEFAULT_VERSION }
    }
}

/// An engine that may not be available.
pub(crate) struct Engine {
    line: Arc<Line>,
    /// The assumed kind, until the engine has replied.
    expected: EngineKind,
    known: OnceLock<Known>,
}

/// What is known about an engine that has replied. It holds no connection: each request opens its own.
struct Known {
    api: bollard::Docker,
    kind: EngineKind,
    /// The agreed API version.
    version: ClientVersion,
}

impl Engine {
    pub(crate) fn new(dialer: Arc<dyn Dialer>, expected: EngineKind) -> Self {
        Self { line: Arc::new(Line { dialer, idle: Mutex::default() }), expected, known: OnceLock::new() }
    }

    pub(crate) fn dialer(&self) -> &dyn Dialer {
        &*self.line.dialer
    }

    /// The kind of engine; the assumed kind until the engine has replied.
    pub(crate) fn kind(&self) -> EngineKind {
        self.known_kind().unwrap_or(self.expected)
    }

    /// The kind of engine, once the engine has replied.
    pub(crate) fn known_kind(&self) -> Option<EngineKind> {
        self.known.get().map(|known| known.kind)
    }

    /// The engine's API, in the newest version that both sides support.
    pub(crate) async fn api(&self) -> Result<&bollard::Docker> {
        let known = self.known().await.map_err(|error| self.error("agree on a version", error))?;
        Ok(&known.api)
    }

    /// Requests the engine's version information. This is slow: for it, engines run other programs and wait for them.
    pub(crate) async fn version(&self) -> Result<SystemVersion> {
        self.ask("/version").await.map_err(|error| self.error("read the engine's version", error))
    }

    async fn known(&self) -> Result<&Known, EngineError> {
        match self.known.get() {
            Some(known) => Ok(known),
            None => self.identify(self.line.ask("/_ping").await?.identity).await,
        }
    }

    /// Agrees on a version with the engine that has identified itself. If it has not, requests its version information.
    async fn identify(&self, identity: Option<Identity>) -> Result<&Known, EngineError> {
        let identity = match identity {
            Some(identity) => identity,
            None => Identity::in_version(&self.line.ask("/version").await?.parse()?)?,
        };
        let version = identity.agreed();
        let line = self.line.clone();
        let transport = move |request| {
            let line = line.clone();
            async move { line.send(request, version).await }
        };
        let api = bollard::Docker::connect_with_custom_transport(
            transport,
            Some("http://engine"),
            ANSWER_WITHIN.as_secs(),
            &version,
        )?;
        Ok(self.known.get_or_init(|| Known { api, kind: identity.kind, version }))
    }

    /// Sends a GET request to the engine's API, and parses the reply with a type of our own. This is for replies that
    /// the client library does not fully support.
    ///
    /// The first reply also identifies the engine. So a program that needs one reply sends one request.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        if self.known.get().is_none() {
            // A path without a version means the engine's newest one.
            let Reply { identity, body } = self.line.ask(path).await?;
            let newest = identity.as_ref().map(|identity| identity.version);
            let agreed = self.identify(identity).await?.version;
            // A failure does not count: engines may refuse paths without a version in the future.
            if newest == Some(agreed) && body.is_ok() {
                return Reply { identity: None, body }.parse();
            }
        }
        let version = self.known().await?.version;
        self.line.ask(&format!("/v{version}{path}")).await?.parse()
    }

    /// Sends a request with a body. The reply is read by the caller as it arrives.
    pub(crate) async fn post(&self, request: BollardRequest) -> Result<hyper::Response<Incoming>, EngineError> {
        let version = self.known().await?.version;
        let response = self.line.send(request, version).await?;
        if response.status().is_success() { Ok(response) } else { Err(refusal(response).await?) }
    }

    /// Sends a GET request to Podman's own API.
    pub(crate) async fn ask_podman<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        /// Every later version of Podman supports it.
        const VERSION: &str = "4.0.0";
        self.line.ask(&format!("/v{VERSION}/libpod{path}")).await?.parse()
    }

    /// Converts an error that occurred while doing `what`.
    pub(crate) fn error(&self, what: impl std::fmt::Display, error: EngineError) -> Error {
        let (engine, address) = (self.kind().title(), self.dialer().address());
        match error {
            EngineError::IOError { err } => self.unreachable(&what, err),
            EngineError::HyperResponseError { err } => {
                let message = format!("{what}: the connection to {engine} at {address} was lost: {err}");
                Error::new(ErrorCode::NotAvailable, message).suggest(self.try_by_hand()).caused_by(err)
            }
            EngineError::RequestTimeoutError => {
                let message = format!("{what}: {engine} at {address} did not reply within {ANSWER_WITHIN:?}");
                Error::new(ErrorCode::Timeout, message).suggest(self.try_by_hand())
            }
            EngineError::DockerResponseServerError { status_code, message } => {
                let code = match status_code {
                    400 => ErrorCode::InvalidConfig,
                    401 | 403 => ErrorCode::PermissionDenied,
                    404 => ErrorCode::NotFound,
                    409 => ErrorCode::Conflict,
                    _ => ErrorCode::Internal,
                };
                Error::new(code, format!("{what}: {engine} says: {}", printable(message.trim())))
            }
            error => Error::new(ErrorCode::Internal, format!("{what}: {error}")).caused_by(error),
        }
    }

    fn unreachable(&self, what: &dyn std::fmt::Display, error: std::io::Error) -> Error {
        let (engine, address) = (self.kind().title(), self.dialer().address());
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                let message = format!("Cannot connect to {engine} at {address}: {error}");
                let step = match self.kind() {
                    EngineKind::Docker => NextStep::run_on_host_to(
                        "join the group docker, then log in again",
                        "sudo usermod -aG docker \"$USER\"",
                    ),
                    EngineKind::Podman => {
                        NextStep::run_on_host_to("use your own socket", "systemctl --user enable --now podman.socket")
                    }
                };
                Error::new(ErrorCode::PermissionDenied, message).suggest(step)
            }
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                let message = format!("Cannot connect to {engine} at {address}. Is it running?");
                Error::new(ErrorCode::NotAvailable, message).suggest(self.try_by_hand())
            }
            // The kind of error for a certificate that was refused.
            std::io::ErrorKind::InvalidData => {
                let message = format!("Cannot connect to {engine} at {address}: {}", printable(&error.to_string()));
                Error::new(ErrorCode::PermissionDenied, message)
                    .advise("look at the certificates that DOCKER_CERT_PATH or the context names")
            }
            _ => {
                let message = format!("{what}: the connection to {engine} at {address} was lost: {error}");
                Error::new(ErrorCode::NotAvailable, message).suggest(self.try_by_hand())
            }
        }
        .caused_by(error)
    }

    fn try_by_hand(&self) -> NextStep {
        NextStep::run_on_host(match (self.kind(), self.dialer().address().as_str()) {
            (EngineKind::Docker, "/var/run/docker.sock" | "/run/docker.sock") => "docker ps".into(),
            (EngineKind::Docker, socket) if socket.starts_with('/') => format!("docker -H unix://{socket} ps"),
            (EngineKind::Docker, other) => format!("docker -H {other} ps"),
            (EngineKind::Podman, socket) if socket.starts_with('/') => format!("podman --url unix://{socket} ps"),
            (EngineKind::Podman, other) => format!("podman --url {other} ps"),
        })
    }
}

/// The HTTP status of an error reply.
pub(crate) fn status(error: &EngineError) -> Option<u16> {
    match error {
        EngineError::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Whether the first process of a container ended while the engine set it up. The container is left as it was, and the
/// next attempt succeeds.
///
/// - Docker runs a hook to keep the network namespace of a container: it bind-mounts `/proc/PID/ns/net`. That mount fails
///   with ENOENT about once in 500 starts if other programs mount at the same time (seen with Docker 20.10 on Linux
///   6.18). runc then ends the process, and reports either the hook or the process. Kennel configures no hooks.
/// - An engine that was killed and restarted still ends what an earlier run of the container has left.
/// - runc reports that the first process failed, without a reason, if that ended before it could say why (seen with
///   Podman 4.3 on a busy machine).
pub(crate) fn ended_in_setup(error: &EngineError) -> bool {
    const REPORTS: [&str; 4] = [
        "error running hook",
        "init-p: connection reset by peer",
        "init-p: broken pipe",
        "error during container init: %!w(<nil>)",
    ];
    let message = error.to_string();
    status(error).is_some() && REPORTS.iter().any(|report| message.contains(report))
}

/// Whether a container does not exist. Podman fails with another status if it is removed meanwhile.
pub(crate) fn is_gone(error: &EngineError) -> bool {
    let removed_meanwhile = || status(error) == Some(500) && error.to_string().contains("no such container");
    status(error) == Some(404) || removed_meanwhile()
}

/// Reads a whole reply.
async fn whole(response: hyper::Response<Incoming>) -> Result<Bytes, EngineError> {
    let body = Limited::new(response.into_body(), ANSWER_CAP).collect().await;
    Ok(body.map_err(|error| std::io::Error::other(error.to_string()))?.to_bytes())
}

/// Returns the reason for an error reply.
async fn refusal(response: hyper::Response<Incoming>) -> Result<EngineError, EngineError> {
    #[derive(serde::Deserialize)]
    struct Refusal {
        message: String,
    }
    let status_code = response.status().as_u16();
    let bytes = whole(response).await?;
    let said = serde_json::from_slice::<Refusal>(&bytes).map(|refusal| refusal.message);
    let message = said.unwrap_or_else(|_| String::from_utf8_lossy(&bytes[..bytes.len().min(1000)]).into());
    Ok(EngineError::DockerResponseServerError { status_code, message })
}

fn parse_version(text: &str) -> Option<ClientVersion> {
    let (major, minor) = text.split_once('.')?;
    Some(ClientVersion { major_version: major.parse().ok()?, minor_version: minor.parse().ok()? })
}

/// A reply that was read to its end.
struct Reply {
    /// What its headers report about the engine.
    identity: Option<Identity>,
    /// The body, or the reason why the engine refused.
    body: Result<Bytes, EngineError>,
}

impl Reply {
    fn parse<T: DeserializeOwned>(self) -> Result<T, EngineError> {
        Ok(serde_json::from_slice(&self.body?)?)
    }
}

/// What every request needs.
struct Line {
    dialer: Arc<dyn Dialer>,
    /// A connection whose last response was read to its end, for the next request.
    idle: Mutex<Option<GetConnection>>,
}

/// A connection for GET requests whose responses are read as a whole.
type GetConnection = SendRequest<Empty<Bytes>>;

impl Line {
    /// Sends one request over a new connection. The connection's task ends with the body of the response.
    async fn send(
        &self,
        mut request: BollardRequest,
        version: ClientVersion,
    ) -> Result<hyper::Response<Incoming>, EngineError> {
        // The client library leaves the version out of the path. The engine would then use its own newest version.
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = format!("/v{version}{path}").parse()?;
        let stream = self.dialer.dial().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
        tokio::spawn(connection.with_upgrades());
        request.headers_mut().insert(HOST, HeaderValue::from_static("engine"));
        Ok(sender.send_request(request).await?)
    }

    /// Sends a GET request and reads the whole reply.
    async fn ask(&self, path: &str) -> Result<Reply, EngineError> {
        let answer = async {
            let (response, connection) = self.get(path).await?;
            let identity = Identity::in_headers(response.headers());
            let success = response.status().is_success();
            let body = if success { Ok(whole(response).await?) } else { Err(refusal(response).await?) };
            *self.idle() = Some(connection);
            Ok(Reply { identity, body })
        };
        tokio::time::timeout(ANSWER_WITHIN, answer).await.unwrap_or(Err(EngineError::RequestTimeoutError))
    }

    /// Sends a GET request on the last connection if that is still open, else on a new one.
    async fn get(&self, path: &str) -> Result<(hyper::Response<Incoming>, GetConnection), EngineError> {
        let request = || hyper::Request::get(path).header(HOST, "engine").body(Empty::new());
        let idle = self.idle().take();
        // The engine may close it at any moment. A GET request can be sent again: it changes nothing.
        if let Some(mut connection) = idle
            && connection.ready().await.is_ok()
            && let Ok(response) = connection.send_request(request()?).await
        {
            return Ok((response, connection));
        }
        let stream = self.dialer.dial().await?;
        let (mut connection, task) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
        tokio::spawn(task);
        let response = connection.send_request(request()?).await?;
        Ok((response, connection))
    }

    fn idle(&self) -> MutexGuard<'_, Option<GetConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialer::UnixDialer;
    use kennel_core::ByteStream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const DOCKER: &str = "Api-Version: 1.41\r\nServer: Docker/20.10.24+dfsg1 (linux)\r\n";
    const PODMAN: &str = "Api-Version: 1.41\r\nLibpod-Api-Version: 4.3.1\r\nServer: Libpod/4.3.1 (linux)\r\n";
    const VERSION: &str = r#"{"ApiVersion": "1.41", "Version": "20.10.24"}"#;

    /// An engine in memory. It sends the same reply to every request, and records the requests.
    #[derive(Clone)]
    struct Fake {
        status: &'static str,
        headers: &'static str,
        body: &'static str,
        /// The number of requests on a connection before it is closed.
        requests: usize,
        /// The first lines of the requests, one list for each connection.
        asked: Arc<Mutex<Vec<Vec<String>>>>,
    }

    impl Fake {
        fn new(headers: &'static str, body: &'static str) -> Self {
            Self { status: "200 OK", headers, body, requests: 100, asked: Arc::default() }
        }

        fn engine(&self) -> Engine {
            Engine::new(Arc::new(self.clone()), EngineKind::Docker)
        }

        /// The first lines of all requests.
        fn asked(&self) -> Vec<String> {
            self.asked.lock().unwrap().concat()
        }

        fn connections(&self) -> usize {
            self.asked.lock().unwrap().len()
        }
    }

    #[async_trait::async_trait]
    impl Dialer for Fake {
        async fn dial(&self) -> std::io::Result<Box<dyn ByteStream>> {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            let Self { status, headers, body, requests, asked } = self.clone();
            let number = {
                let mut connections = asked.lock().unwrap();
                connections.push(Vec::new());
                connections.len() - 1
            };
            tokio::spawn(async move {
                for _ in 0..requests {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        request.push(theirs.read_u8().await?);
                    }
                    let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
                    asked.lock().unwrap()[number].push(line);
                    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
                    theirs.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
                }
                Ok::<_, std::io::Error>(())
            });
            Ok(Box::new(ours))
        }

        fn address(&self) -> String {
            "vm".into()
        }
    }

    #[tokio::test]
    async fn the_version_is_agreed_with_one_request() {
        let fake = Fake::new(DOCKER, VERSION);
        let engine = fake.engine();
        engine.ask::<SystemVersion>("/first").await.unwrap();
        assert_eq!(fake.asked(), ["GET /first HTTP/1.1"]);
        engine.ask::<SystemVersion>("/second").await.unwrap();
        engine.api().await.unwrap().version().await.unwrap();
        assert_eq!(fake.asked()[1..], ["GET /v1.41/second HTTP/1.1", "GET /v1.41/version HTTP/1.1"]);
        let fake = Fake::new(DOCKER, VERSION);
        fake.engine().api().await.unwrap().version().await.unwrap();
        assert_eq!(fake.asked(), ["GET /_ping HTTP/1.1", "GET /v1.41/version HTTP/1.1"]);
    }

    #[tokio::test]
    async fn a_reply_in_a_version_that_is_too_new_does_not_count() {
        let fake = Fake::new("Api-Version: 1.999\r\nServer: Docker/99.0.0 (linux)\r\n", VERSION);
        fake.engine().ask::<SystemVersion>("/first").await.unwrap();
        let agreed = format!("GET /v{}/first HTTP/1.1", *API_DEFAULT_VERSION);
        assert_eq!(fake.asked(), ["GET /first HTTP/1.1", &agreed]);
    }

    #[tokio::test]
    async fn a_refusal_of_a_path_without_a_version_does_not_count() {
        let fake = Fake { status: "404 Not Found", ..Fake::new(DOCKER, r#"{"message": "page not found"}"#) };
        let error = fake.engine().ask::<SystemVersion>("/first").await.unwrap_err();
        assert_eq!(status(&error), Some(404));
        assert_eq!(fake.asked(), ["GET /first HTTP/1.1", "GET /v1.41/first HTTP/1.1"]);
    }

    #[tokio::test]
    async fn an_engine_whose_headers_were_removed_is_asked_for_its_version() {
        for headers in ["", "Api-Version: 1.41\r\n", "Server: Docker/20.10.24\r\n", "Server: nginx/1.22\r\n"] {
            let fake = Fake::new(headers, VERSION);
            fake.engine().ask::<SystemVersion>("/first").await.unwrap();
            let asked = ["GET /first HTTP/1.1", "GET /version HTTP/1.1", "GET /v1.41/first HTTP/1.1"];
            assert_eq!(fake.asked(), asked, "{headers}");
        }
    }

    #[tokio::test]
    async fn requests_share_a_connection_and_survive_its_end() {
        for (requests, connections) in [(100, 1), (2, 3), (1, 6)] {
            let fake = Fake { requests, ..Fake::new(DOCKER, VERSION) };
            let engine = fake.engine();
            for _ in 0..6 {
                engine.ask::<SystemVersion>("/version").await.unwrap();
            }
            assert_eq!(fake.connections(), connections, "{requests} requests on each");
        }
    }

    #[tokio::test]
    async fn the_kind_of_engine_is_recognised() {
        let podman = r#"{"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}"#;
        let docker = r#"{"ApiVersion": "1.41", "Components": [{"Name": "Engine", "Version": "20.10.24"}]}"#;
        let cases = [
            ("", podman, EngineKind::Podman),
            ("", docker, EngineKind::Docker),
            (PODMAN, "OK", EngineKind::Podman),
            (DOCKER, "OK", EngineKind::Docker),
        ];
        for (headers, body, kind) in cases {
            for expected in [EngineKind::Docker, EngineKind::Podman] {
                let engine = Engine::new(Arc::new(Fake::new(headers, body)), expected);
                assert_eq!((engine.kind(), engine.known_kind()), (expected, None), "as it was called");
                engine.api().await.unwrap();
                assert_eq!((engine.kind(), engine.known_kind()), (kind, Some(kind)));
            }
        }
    }

    #[tokio::test]
    async fn messages_of_the_engine_are_made_printable() {
        let fake = Fake { status: "500 Oops", ..Fake::new("", "{\"message\": \"no \\u001b[31mspace\\n\"}") };
        let error = fake.engine().api().await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert_eq!(error.to_string(), "agree on a version: Docker says: no \\u{1b}[31mspace");
    }

    #[test]
    fn a_refused_connection_suggests_a_next_step() {
        let engine = Engine::new(Arc::new(UnixDialer::new("/run/docker.sock")), EngineKind::Docker);
        let told = |kind: std::io::ErrorKind| engine.error("x", EngineError::IOError { err: kind.into() });
        let refused = told(std::io::ErrorKind::PermissionDenied);
        assert_eq!(refused.code(), ErrorCode::PermissionDenied);
        assert!(refused.to_string().starts_with("Cannot connect to Docker at /run/docker.sock"), "{refused}");
        let step = refused.next_step();
        assert!(matches!(step, Some(NextStep::RunOnHost { command, .. }) if command.contains("usermod")), "{step:?}");
        let lost = told(std::io::ErrorKind::BrokenPipe);
        assert_eq!(
            (lost.code(), lost.next_step()),
            (ErrorCode::NotAvailable, Some(&NextStep::run_on_host("docker ps")))
        );
    }
}
