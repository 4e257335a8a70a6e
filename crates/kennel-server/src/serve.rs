//! Accepts connections, and serves them until the server ends.

use crate::app::{App, AppState};
use crate::auth::Peer;
use crate::routes::Routes;
use crate::tls::Certificate;
use crate::{host, limits, previews, request_id};
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use kennel_core::{Error, Result};
use kennel_engine::{Engine, Events, PoolCounts, Store};
use kennel_types::{ErrorCode, NextStep};
use rustix::fs::{Mode, OFlags};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;

/// How long the header of a request may take to arrive.
const HEADER_WITHIN: Duration = Duration::from_secs(30);

/// How long a TLS handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// How long a connection may be silent before the other end is asked whether it is there.
const ALIVE_AFTER: Duration = Duration::from_secs(30);

/// How long open requests may take to end after the server was asked to end.
const DRAIN: Duration = Duration::from_secs(10);

/// The largest header of a request.
const MAX_HEADER: usize = 64 << 10;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At an address of this machine. Port 0 is any free port.
    Tcp(SocketAddr),
    /// At a unix socket.
    Unix(PathBuf),
}

/// A socket that listens already, and was passed to this process.
#[derive(Debug)]
pub enum Passed {
    /// A TCP socket.
    Tcp(std::net::TcpListener),
    /// A unix socket.
    Unix(std::os::unix::net::UnixListener),
}

/// How a server works.
#[derive(Debug, Default)]
pub struct ServerOptions {
    /// The certificate with which TCP connections use TLS. Without one, only loopback addresses are possible.
    pub certificate: Option<Certificate>,
    /// Names and IP addresses by which clients call the server, besides the address at which it listens.
    pub names: Vec<String>,
    /// How many claims found a member of a pool, for the metrics.
    pub pools: Option<PoolCounts>,
    /// Sockets that listen already.
    pub passed: Vec<Passed>,
    /// The domain below which ports of sandboxes have names, instead of `localhost`.
    pub preview_domain: Option<String>,
    /// The profile of sessions that name none.
    pub profile: Option<String>,
}

/// A server that listens, and does not respond yet.
pub struct Server {
    app: AppState,
    listeners: Vec<Listener>,
    tls: Option<TlsAcceptor>,
    ending: watch::Sender<bool>,
}

enum Listener {
    Tcp(TcpListener),
    /// A unix socket, and its path if this process has created it.
    Unix(UnixListener, Option<PathBuf>),
}

impl Server {
    /// Starts to listen. The events are those of the resident process of the same state directory.
    pub async fn listen(
        engine: Engine,
        events: Events,
        store: Store,
        listen: &[Listen],
        mut options: ServerOptions,
    ) -> Result<Self> {
        let tls = options.certificate.as_ref().map(Certificate::acceptor).transpose()?;
        let mut listeners = Vec::new();
        for at in listen {
            listeners.push(match at {
                Listen::Tcp(address) => Listener::Tcp(listen_tcp(*address, tls.is_some()).await?),
                Listen::Unix(path) => Listener::Unix(listen_unix(path)?, Some(path.clone())),
            });
        }
        for socket in std::mem::take(&mut options.passed) {
            listeners.push(adopt(socket, tls.is_some())?);
        }
        let (ending, watch) = watch::channel(false);
        let app = App::new(engine, events, store, options, watch);
        let ports = listeners.iter().filter_map(|listener| match listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        });
        ports.for_each(|address| app.previews.listen_at(address.port()));
        Ok(Self { app, listeners, tls, ending })
    }

    /// The addresses at which the server listens, as text for people: `http://127.0.0.1:7070`, `unix:/run/kennel.sock`.
    pub fn addresses(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let text = |listener: &Listener| match listener {
            Listener::Tcp(listener) => {
                listener.local_addr().map(|address| format!("{scheme}://{address}")).unwrap_or_default()
            }
            Listener::Unix(_, Some(path)) => format!("unix:{}", path.display()),
            Listener::Unix(listener, None) => {
                let path = listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
                path.map_or_else(|| "a unix socket".into(), |path| format!("unix:{}", path.display()))
            }
        };
        self.listeners.iter().map(text).collect()
    }

    /// Responds to requests until `end` is ready. Then no connection is accepted any more, streams are told, and requests
    /// that are open get some time to end. Sandboxes go on running.
    pub async fn run(self, end: impl Future<Output = ()>) -> Result<()> {
        let Self { app, listeners, tls, ending } = self;
        let router = router(&app);
        // Each connection has a sender. When all of them are gone, the receiver knows.
        let (open, mut closed) = mpsc::channel::<()>(1);
        let mut accepting = Vec::new();
        let mut sockets = Vec::new();
        for listener in listeners {
            if let Listener::Unix(_, Some(path)) = &listener {
                sockets.push(path.clone());
            }
            let accepting_one = accept(listener, tls.clone(), router.clone(), open.clone(), ending.subscribe());
            accepting.push(tokio::spawn(accepting_one));
        }
        let beside = tokio::spawn({
            let app = app.clone();
            async move {
                tokio::join!(app.expiry.run(&app), app.revocations.run(&app), app.paused.run(&app), app.resume_agents())
            }
        });
        end.await;
        ending.send_replace(true);
        beside.abort();
        for task in accepting {
            let _ = task.await;
        }
        for path in sockets {
            let _ = std::fs::remove_file(path);
        }
        drop(open);
        let drained = async { tokio::join!(closed.recv(), app.streams.closed()) };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            tracing::warn!("some requests did not end in time");
        }
        Ok(())
    }
}

/// All routes, with the layers that concern every request. The last layer is the outermost.
fn router(app: &AppState) -> Router {
    Routes::all(app)
        .router()
        .layer(axum::middleware::from_fn_with_state(app.clone(), limits::check))
        .layer(axum::middleware::from_fn_with_state(app.clone(), host::check))
        .layer(axum::middleware::from_fn_with_state(app.clone(), previews::serve))
        .layer(axum::middleware::from_fn(request_id::identify))
        .with_state(app.clone())
}

async fn accept(
    listener: Listener,
    tls: Option<TlsAcceptor>,
    router: Router,
    open: mpsc::Sender<()>,
    mut ending: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            () = ended(&mut ending) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => {
                let (tls, router, open, mut ending) = (tls.clone(), router.clone(), open.clone(), ending.clone());
                tokio::spawn(async move {
                    let _open = open;
                    let opened = tokio::select! {
                        () = ended(&mut ending) => return,
                        opened = accepted.open(tls) => opened,
                    };
                    match opened {
                        Ok((stream, peer)) => serve(stream, peer, router, ending).await,
                        Err(error) => tracing::debug!(%error, "a connection failed"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                #[expect(clippy::disallowed_methods, reason = "a backoff: perhaps too many files are open")]
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Waits until the server ends.
pub(crate) async fn ended(ending: &mut watch::Receiver<bool>) {
    // If the sender is gone, the server has ended.
    let _ = ending.wait_for(|ending| *ending).await;
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Listener {
    async fn accept(&self) -> std::io::Result<Accepted> {
        Ok(match self {
            Self::Tcp(listener) => Accepted::Tcp(listener.accept().await?.0),
            Self::Unix(listener, _) => Accepted::Unix(listener.accept().await?.0),
        })
    }
}

/// A connection that was accepted, before the handshake.
enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Accepted {
    /// Finds out who is at the other end. With TLS, makes the handshake.
    async fn open(self, tls: Option<TlsAcceptor>) -> std::io::Result<(Box<dyn Stream>, Peer)> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                notice_lost_peers(&stream)?;
                let local = stream.local_addr()?;
                let peer = Peer::Tcp { local, tls: tls.is_some() };
                let Some(tls) = tls else { return Ok((Box::new(stream), peer)) };
                let handshake = tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(stream));
                Ok((Box::new(handshake.await.map_err(|_| std::io::ErrorKind::TimedOut)??), peer))
            }
            Self::Unix(stream) => {
                let uid = stream.peer_cred()?.uid();
                Ok((Box::new(stream), Peer::Unix { uid }))
            }
        }
    }
}

/// Ends a connection whose other end is gone without a word, for example because its machine was switched off.
fn notice_lost_peers(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ALIVE_AFTER / 3)?;
    // No limit for data that is not acknowledged: it would also end connections of clients that only read slowly.
    Ok(sockopt::set_tcp_keepcnt(stream, 3)?)
}

/// Serves a connection. When the server ends, it ends after the request that is open.
async fn serve(stream: Box<dyn Stream>, peer: Peer, router: Router, mut ending: watch::Receiver<bool>) {
    let service = TowerToHyperService::new(router);
    let service = hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer);
        hyper::service::Service::call(&service, request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_WITHIN).max_buf_size(MAX_HEADER);
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = pin!(connection);
    let done = tokio::select! {
        done = &mut connection => done,
        () = ended(&mut ending) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn listen_tcp(address: SocketAddr, has_tls: bool) -> Result<TcpListener> {
    check_address(address, has_tls)?;
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            Error::new(ErrorCode::Conflict, format!("listen at {address}: another program listens there"))
        }
        _ => Error::io(format!("listen at {address}"), error),
    })
}

/// Serves a socket that was passed to this process.
fn adopt(socket: Passed, has_tls: bool) -> Result<Listener> {
    let failed = |error| Error::io("listen at a socket that was passed", error);
    Ok(match socket {
        Passed::Tcp(listener) => {
            check_address(listener.local_addr().map_err(failed)?, has_tls)?;
            listener.set_nonblocking(true).map_err(failed)?;
            Listener::Tcp(TcpListener::from_std(listener).map_err(failed)?)
        }
        Passed::Unix(listener) => {
            listener.set_nonblocking(true).map_err(failed)?;
            Listener::Unix(UnixListener::from_std(listener).map_err(failed)?, None)
        }
    })
}

/// Refuses to serve at an address that other machines reach, unless the connections are encrypted.
fn check_address(address: SocketAddr, has_tls: bool) -> Result<()> {
    if has_tls || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let message = format!("listen at {address}: a server without TLS listens only at loopback addresses");
    let advice = "give the server a certificate, or listen at 127.0.0.1 and forward the port, for example with ssh -L";
    Err(Error::new(ErrorCode::Unsupported, message).suggest(NextStep::advice(advice)))
}

/// Listens at a unix socket. The path may be longer than the kernel allows for an address, so the directory is opened first.
fn listen_unix(path: &Path) -> Result<UnixListener> {
    let failed = |error: std::io::Error| Error::io(format!("listen at {}", path.display()), error);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(std::io::ErrorKind::InvalidInput.into()));
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(error.into()))?;
    let address = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    // The caller holds the lock of the state directory, so nobody listens at a socket that is left there.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(address).map_err(failed)?;
    // Others may connect, but need a token.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
    Ok(listener)
}
