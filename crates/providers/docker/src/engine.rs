//! The connection to the engine: a dialer makes byte streams, HTTP goes over them, and what goes wrong gets a code.
//!
//! Nothing here knows what a sandbox is. Whoever has another way to an engine (TCP, a VM's socket) brings another
//! [`Dialer`]; everything else stays as it is.

use bollard::errors::Error as EngineError;
use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, BollardRequest, ClientVersion};
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue};
use kennel_core::{ByteStream, Error, Result, printable};
use kennel_types::ErrorCode;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the engine may take until it begins to answer.
const ANSWER_WITHIN: Duration = Duration::from_mins(2);

/// A way to an engine.
#[async_trait::async_trait]
pub trait Dialer: Send + Sync {
    /// A fresh byte stream to the engine's API.
    async fn dial(&self) -> std::io::Result<Box<dyn ByteStream>>;

    /// Where it leads, as people know it.
    fn address(&self) -> String;

    /// The engine's socket in this machine's file system, if it has one: it must not get into a sandbox.
    fn socket(&self) -> Option<&Path> {
        None
    }
}

/// The way to an engine on this machine.
pub struct UnixDialer {
    socket: PathBuf,
}

impl UnixDialer {
    /// Through that socket.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }
}

#[async_trait::async_trait]
impl Dialer for UnixDialer {
    async fn dial(&self) -> std::io::Result<Box<dyn ByteStream>> {
        Ok(Box::new(tokio::net::UnixStream::connect(&self.socket).await?))
    }

    fn address(&self) -> String {
        self.socket.display().to_string()
    }

    fn socket(&self) -> Option<&Path> {
        Some(&self.socket)
    }
}

/// An engine that may or may not be there.
pub(crate) struct Engine {
    dialer: Arc<dyn Dialer>,
    /// Kept once the version is agreed on. It holds no connection: each request makes its own.
    api: tokio::sync::OnceCell<bollard::Docker>,
}

impl Engine {
    pub(crate) fn new(dialer: Arc<dyn Dialer>) -> Self {
        Self { dialer, api: tokio::sync::OnceCell::new() }
    }

    pub(crate) fn dialer(&self) -> &dyn Dialer {
        &*self.dialer
    }

    /// The engine's API, in the newest version that both sides know.
    pub(crate) async fn api(&self) -> Result<&bollard::Docker> {
        let connect = async {
            let line = Arc::new(Line { dialer: self.dialer.clone(), version: OnceLock::new() });
            let transport = {
                let line = line.clone();
                move |request| send(line.clone(), request)
            };
            let api = bollard::Docker::connect_with_custom_transport(
                transport,
                Some("http://engine"),
                ANSWER_WITHIN.as_secs(),
                API_DEFAULT_VERSION,
            )?
            .negotiate_version()
            .await?;
            line.version.get_or_init(|| api.client_version());
            Ok(api)
        };
        self.api.get_or_try_init(|| connect).await.map_err(|error| self.error("agree on a version", error))
    }

    /// What the engine says of itself.
    pub(crate) async fn version(&self) -> Result<SystemVersion> {
        self.api().await?.version().await.map_err(|error| self.error("ask for the version", error))
    }

    /// The library's error for what went wrong while doing `what`.
    pub(crate) fn error(&self, what: impl std::fmt::Display, error: EngineError) -> Error {
        let address = self.dialer.address();
        match error {
            EngineError::IOError { err } => self.unreachable(&what, err),
            EngineError::HyperResponseError { err } => {
                let message = format!("{what}: the connection to Docker at {address} was lost: {err}");
                Error::new(ErrorCode::NotAvailable, message).hint(self.try_by_hand()).caused_by(err)
            }
            EngineError::RequestTimeoutError => {
                let message = format!("{what}: Docker at {address} did not answer within {ANSWER_WITHIN:?}");
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
                Error::new(code, format!("{what}: Docker says: {}", printable(message.trim())))
            }
            error => Error::new(ErrorCode::Internal, format!("{what}: {error}")).caused_by(error),
        }
    }

    fn unreachable(&self, what: &dyn std::fmt::Display, error: std::io::Error) -> Error {
        let address = self.dialer.address();
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                let message = format!("Cannot connect to Docker at {address}: {error}");
                Error::new(ErrorCode::PermissionDenied, message)
                    .hint("sudo usermod -aG docker \"$USER\", then log in again")
            }
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                let message = format!("Cannot connect to Docker at {address}. Is it running?");
                Error::new(ErrorCode::NotAvailable, message).hint(self.try_by_hand())
            }
            _ => {
                let message = format!("{what}: the connection to Docker at {address} was lost: {error}");
                Error::new(ErrorCode::NotAvailable, message).hint(self.try_by_hand())
            }
        }
        .caused_by(error)
    }

    fn try_by_hand(&self) -> String {
        match self.dialer.address().as_str() {
            "/var/run/docker.sock" | "/run/docker.sock" => "docker ps".into(),
            socket if socket.starts_with('/') => format!("docker -H unix://{socket} ps"),
            other => format!("docker -H {other} ps"),
        }
    }
}

/// The HTTP status the engine refused with.
pub(crate) fn status(error: &EngineError) -> Option<u16> {
    match error {
        EngineError::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// What every request needs.
struct Line {
    dialer: Arc<dyn Dialer>,
    version: OnceLock<ClientVersion>,
}

/// One request over one fresh connection. The connection's task ends with the response's body.
async fn send(line: Arc<Line>, request: BollardRequest) -> Result<hyper::Response<Incoming>, EngineError> {
    let stream = line.dialer.dial().await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    let (mut parts, body) = request.into_parts();
    parts.headers.insert(HOST, HeaderValue::from_static("engine"));
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    // bollard agrees on a version but leaves it out of the path, and the engine would then take its own newest.
    parts.uri = match line.version.get() {
        Some(version) => format!("/v{version}{path}").parse()?,
        None => path.parse()?,
    };
    Ok(sender.send_request(BollardRequest::from_parts(parts, body)).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
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
        (Engine::new(Arc::new(Fake { status, body, asked: asked.clone() })), asked)
    }

    #[tokio::test]
    async fn any_byte_stream_will_do_and_the_agreed_version_is_spoken() {
        let (engine, asked) = fake("200 OK", r#"{"ApiVersion": "1.41", "Version": "20.10.24"}"#);
        assert_eq!(engine.version().await.unwrap().version.as_deref(), Some("20.10.24"));
        engine.version().await.unwrap();
        let agreed = "GET /v1.41/version HTTP/1.1";
        assert_eq!(*asked.lock().unwrap(), ["GET /version HTTP/1.1", agreed, agreed]);
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
        let engine = Engine::new(Arc::new(UnixDialer::new("/run/docker.sock".into())));
        let told = |kind: std::io::ErrorKind| engine.error("x", EngineError::IOError { err: kind.into() });
        let refused = told(std::io::ErrorKind::PermissionDenied);
        assert_eq!(refused.code(), ErrorCode::PermissionDenied);
        assert!(refused.to_string().starts_with("Cannot connect to Docker at /run/docker.sock"), "{refused}");
        assert!(refused.next_step().is_some_and(|hint| hint.contains("usermod")));
        let lost = told(std::io::ErrorKind::BrokenPipe);
        assert_eq!((lost.code(), lost.next_step()), (ErrorCode::NotAvailable, Some("docker ps")));
    }
}
