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
use hyper::header::{HOST, HeaderValue};
use kennel_core::{Error, Result, printable};
use kennel_types::{ErrorCode, ProviderKind};
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long the engine may take until it starts to reply.
const ANSWER_WITHIN: Duration = Duration::from_mins(2);
/// Bytes in the largest reply that is read as a whole.
const ANSWER_CAP: usize = 64 * 1024 * 1024;

/// The kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

impl Kind {
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

    /// Returns the kind from the engine's version information.
    fn of(version: &SystemVersion) -> Self {
        let named = |name: &str| version.components.iter().flatten().any(|part| part.name.starts_with(name));
        if named("Podman") { Self::Podman } else { Self::Docker }
    }
}

/// An engine that may not be available.
pub(crate) struct Engine {
    line: Arc<Line>,
    /// The assumed kind, until the engine has replied.
    expected: Kind,
    known: tokio::sync::OnceCell<Known>,
}

/// What is known about an engine that has replied. It holds no connection: each request opens its own.
struct Known {
    api: bollard::Docker,
    kind: Kind,
    version: SystemVersion,
}

impl Engine {
    pub(crate) fn new(dialer: Arc<dyn Dialer>, expected: Kind) -> Self {
        let line = Arc::new(Line { dialer, version: OnceLock::new(), idle: Mutex::default() });
        Self { line, expected, known: tokio::sync::OnceCell::new() }
    }

    pub(crate) fn dialer(&self) -> &dyn Dialer {
        &*self.line.dialer
    }

    /// The kind of engine; the assumed kind until the engine has replied.
    pub(crate) fn kind(&self) -> Kind {
        self.known.get().map_or(self.expected, |known| known.kind)
    }

    /// The engine's API, in the newest version that both sides support.
    pub(crate) async fn api(&self) -> Result<&bollard::Docker> {
        Ok(&self.known().await?.api)
    }

    /// The engine's version information.
    pub(crate) async fn version(&self) -> Result<&SystemVersion> {
        Ok(&self.known().await?.version)
    }

    async fn known(&self) -> Result<&Known> {
        let connect = async {
            let version: SystemVersion = self.line.ask("/version").await?;
            let spoken = version.api_version.as_deref().and_then(parse_version);
            let spoken = spoken.ok_or(EngineError::APIVersionParseError {})?;
            let agreed = if spoken < *API_DEFAULT_VERSION { spoken } else { *API_DEFAULT_VERSION };
            self.line.version.get_or_init(|| agreed);
            let line = self.line.clone();
            let transport = move |request| {
                let line = line.clone();
                async move { line.send(request).await }
            };
            let api = bollard::Docker::connect_with_custom_transport(
                transport,
                Some("http://engine"),
                ANSWER_WITHIN.as_secs(),
                &agreed,
            )?;
            Ok(Known { api, kind: Kind::of(&version), version })
        };
        self.known.get_or_try_init(|| connect).await.map_err(|error| self.error("agree on a version", error))
    }

    /// Sends a GET request to the engine's API, and parses the reply with a type of our own. This is for replies that
    /// the client library does not fully support.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        let version = self.line.version.get().map(ToString::to_string).unwrap_or_default();
        self.line.ask(&format!("/v{version}{path}")).await
    }

    /// Sends a request with a body. The reply is read by the caller as it arrives.
    pub(crate) async fn post(&self, request: BollardRequest) -> Result<hyper::Response<Incoming>, EngineError> {
        let response = self.line.send(request).await?;
        if response.status().is_success() { Ok(response) } else { Err(refusal(response).await?) }
    }

    /// Sends a GET request to Podman's own API.
    pub(crate) async fn ask_podman<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        /// Every later version of Podman supports it.
        const VERSION: &str = "4.0.0";
        self.line.ask(&format!("/v{VERSION}/libpod{path}")).await
    }

    /// Converts an error that occurred while doing `what`.
    pub(crate) fn error(&self, what: impl std::fmt::Display, error: EngineError) -> Error {
        let (engine, address) = (self.kind().title(), self.dialer().address());
        match error {
            EngineError::IOError { err } => self.unreachable(&what, err),
            EngineError::HyperResponseError { err } => {
                let message = format!("{what}: the connection to {engine} at {address} was lost: {err}");
                Error::new(ErrorCode::NotAvailable, message).hint(self.try_by_hand()).caused_by(err)
            }
            EngineError::RequestTimeoutError => {
                let message = format!("{what}: {engine} at {address} did not answer within {ANSWER_WITHIN:?}");
                Error::new(ErrorCode::Timeout, message).hint(self.try_by_hand())
            }
            EngineError::DockerResponseServerError { status_code, message } => {
                let code = match status_code {
                    400 => ErrorCode::InvalidConfig,
                    401 | 403 => ErrorCode::PermissionDenied,
                    404 => ErrorCode::NotFound,
                    409 => ErrorCode::AlreadyExists,
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
                let hint = match self.kind() {
                    Kind::Docker => "sudo usermod -aG docker \"$USER\", then log in again",
                    Kind::Podman => "systemctl --user enable --now podman.socket, which is the user's own",
                };
                Error::new(ErrorCode::PermissionDenied, message).hint(hint)
            }
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                let message = format!("Cannot connect to {engine} at {address}. Is it running?");
                Error::new(ErrorCode::NotAvailable, message).hint(self.try_by_hand())
            }
            // The kind of error for a certificate that was refused.
            std::io::ErrorKind::InvalidData => {
                let message = format!("Cannot connect to {engine} at {address}: {}", printable(&error.to_string()));
                Error::new(ErrorCode::PermissionDenied, message)
                    .hint("look at the certificates that DOCKER_CERT_PATH or the context names")
            }
            _ => {
                let message = format!("{what}: the connection to {engine} at {address} was lost: {error}");
                Error::new(ErrorCode::NotAvailable, message).hint(self.try_by_hand())
            }
        }
        .caused_by(error)
    }

    fn try_by_hand(&self) -> String {
        match (self.kind(), self.dialer().address().as_str()) {
            (Kind::Docker, "/var/run/docker.sock" | "/run/docker.sock") => "docker ps".into(),
            (Kind::Docker, socket) if socket.starts_with('/') => format!("docker -H unix://{socket} ps"),
            (Kind::Docker, other) => format!("docker -H {other} ps"),
            (Kind::Podman, socket) if socket.starts_with('/') => format!("podman --url unix://{socket} ps"),
            (Kind::Podman, other) => format!("podman --url {other} ps"),
        }
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
pub(crate) fn ended_in_setup(error: &EngineError) -> bool {
    const REPORTS: [&str; 3] = ["error running hook", "init-p: connection reset by peer", "init-p: broken pipe"];
    let message = error.to_string();
    status(error).is_some() && REPORTS.iter().any(|report| message.contains(report))
}

/// Whether a container does not exist. Podman fails with another status if it is removed meanwhile.
pub(crate) fn is_gone(error: &EngineError) -> bool {
    let stumbled = || status(error) == Some(500) && error.to_string().contains("no such container");
    status(error) == Some(404) || stumbled()
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

/// What every request needs.
struct Line {
    dialer: Arc<dyn Dialer>,
    version: OnceLock<ClientVersion>,
    /// A connection whose last response was read to its end, for the next request.
    idle: Mutex<Option<GetConnection>>,
}

/// A connection for GET requests whose responses are read as a whole.
type GetConnection = SendRequest<Empty<Bytes>>;

impl Line {
    /// Sends a request of the client library.
    async fn send(&self, mut request: BollardRequest) -> Result<hyper::Response<Incoming>, EngineError> {
        // The library negotiates a version but leaves it out of the path. The engine would then use its own newest
        // version.
        if let Some(version) = self.version.get() {
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            *request.uri_mut() = format!("/v{version}{path}").parse()?;
        }
        self.carry(request).await
    }

    /// Sends one request over a new connection. The connection's task ends with the body of the response.
    async fn carry(&self, mut request: BollardRequest) -> Result<hyper::Response<Incoming>, EngineError> {
        let stream = self.dialer.dial().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
        tokio::spawn(connection.with_upgrades());
        request.headers_mut().insert(HOST, HeaderValue::from_static("engine"));
        Ok(sender.send_request(request).await?)
    }

    /// Sends a GET request and parses the whole reply.
    async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        let answer = async {
            let (response, connection) = self.get(path).await?;
            if !response.status().is_success() {
                let refusal = refusal(response).await?;
                *self.idle() = Some(connection);
                return Err(refusal);
            }
            let bytes = whole(response).await?;
            *self.idle() = Some(connection);
            Ok(serde_json::from_slice(&bytes)?)
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

    /// An engine in memory: answers everything with one body, and remembers what it was asked.
    struct Fake {
        status: &'static str,
        body: &'static str,
        asked: Arc<Mutex<Vec<String>>>,
    }

    #[async_trait::async_trait]
    impl Dialer for Fake {
        async fn dial(&self) -> std::io::Result<Box<dyn ByteStream>> {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            let (status, body, asked) = (self.status, self.body, self.asked.clone());
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(theirs.read_u8().await?);
                }
                let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
                asked.lock().unwrap().push(line);
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
                theirs.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await
            });
            Ok(Box::new(ours))
        }

        fn address(&self) -> String {
            "vm".into()
        }
    }

    fn fake(status: &'static str, body: &'static str) -> (Engine, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        (Engine::new(Arc::new(Fake { status, body, asked: asked.clone() }), Kind::Docker), asked)
    }

    #[tokio::test]
    async fn any_byte_stream_will_do_and_the_agreed_version_is_spoken() {
        let (engine, asked) = fake("200 OK", r#"{"ApiVersion": "1.41", "Version": "20.10.24"}"#);
        assert_eq!(engine.version().await.unwrap().version.as_deref(), Some("20.10.24"));
        engine.api().await.unwrap().version().await.unwrap();
        engine.ask::<SystemVersion>("/version").await.unwrap();
        let agreed = "GET /v1.41/version HTTP/1.1";
        assert_eq!(*asked.lock().unwrap(), ["GET /version HTTP/1.1", agreed, agreed]);
    }

    /// An engine in memory that serves so many requests on each connection, and then closes it.
    struct KeepAlive {
        requests: usize,
        dialed: Arc<Mutex<usize>>,
    }

    #[async_trait::async_trait]
    impl Dialer for KeepAlive {
        async fn dial(&self) -> std::io::Result<Box<dyn ByteStream>> {
            const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{\"ApiVersion\": \"1.41\"}";
            *self.dialed.lock().unwrap() += 1;
            let (ours, mut theirs) = tokio::io::duplex(4096);
            let requests = self.requests;
            tokio::spawn(async move {
                for _ in 0..requests {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        request.push(theirs.read_u8().await?);
                    }
                    theirs.write_all(ANSWER).await?;
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
    async fn requests_share_a_connection_and_survive_its_end() {
        for (requests, connections) in [(100, 1), (2, 3), (1, 6)] {
            let dialed = Arc::<Mutex<usize>>::default();
            let dialer = Arc::new(KeepAlive { requests, dialed: dialed.clone() });
            let engine = Engine::new(dialer, Kind::Docker);
            engine.version().await.unwrap();
            for _ in 0..5 {
                engine.ask::<SystemVersion>("/version").await.unwrap();
            }
            assert_eq!(*dialed.lock().unwrap(), connections, "{requests} requests on each");
        }
    }

    #[tokio::test]
    async fn who_answers_is_who_it_is() {
        let podman = r#"{"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}"#;
        let docker = r#"{"ApiVersion": "1.41", "Components": [{"Name": "Engine", "Version": "20.10.24"}]}"#;
        for (body, kind) in [(podman, Kind::Podman), (docker, Kind::Docker)] {
            let (engine, _) = fake("200 OK", body);
            assert_eq!(engine.kind(), Kind::Docker, "as it was called");
            engine.version().await.unwrap();
            assert_eq!(engine.kind(), kind);
        }
    }

    #[tokio::test]
    async fn what_the_engine_says_is_made_safe_to_show() {
        let (engine, _) = fake("500 Oops", "{\"message\": \"no \\u001b[31mspace\\n\"}");
        let error = engine.version().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert_eq!(error.to_string(), "agree on a version: Docker says: no \\u{1b}[31mspace");
    }

    #[test]
    fn who_may_not_connect_learns_what_to_do() {
        let engine = Engine::new(Arc::new(UnixDialer::new("/run/docker.sock")), Kind::Docker);
        let told = |kind: std::io::ErrorKind| engine.error("x", EngineError::IOError { err: kind.into() });
        let refused = told(std::io::ErrorKind::PermissionDenied);
        assert_eq!(refused.code(), ErrorCode::PermissionDenied);
        assert!(refused.to_string().starts_with("Cannot connect to Docker at /run/docker.sock"), "{refused}");
        assert!(refused.next_step().is_some_and(|hint| hint.contains("usermod")));
        let lost = told(std::io::ErrorKind::BrokenPipe);
        assert_eq!((lost.code(), lost.next_step()), (ErrorCode::NotAvailable, Some("docker ps")));
    }
}
