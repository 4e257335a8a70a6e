//! Accepts connections, and serves them until the server ends.

use crate::app::{App, AppState};
use crate::auth::Peer;
use crate::routes::Routes;
use crate::{host, limits, previews, request_id};
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use kennel_core::{Error, Result};
use kennel_engine::{Engine, Events, Store};
use kennel_types::{ErrorCode, NextStep};
use rustix::fs::{Mode, OFlags};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};

/// How long the header of a request may take to arrive.
const HEADER_WITHIN: Duration = Duration::from_secs(30);

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

/// How a server works.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// The domain below which ports of sandboxes have names, instead of `localhost`.
    pub preview_domain: Option<String>,
    /// The profile of sessions that name none.
    pub profile: Option<String>,
}

/// A server that listens, and does not respond yet.
pub struct Server {
    app: AppState,
    listeners: Vec<Listener>,
    ending: watch::Sender<bool>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Server {
    /// Starts to listen. The events are those of the resident process of the same state directory.
    pub async fn listen(
        engine: Engine,
        events: Events,
        store: Store,
        listen: &[Listen],
        options: ServerOptions,
    ) -> Result<Self> {
        let mut listeners = Vec::new();
        for at in listen {
            listeners.push(match at {
                Listen::Tcp(address) => Listener::Tcp(listen_tcp(*address).await?),
                Listen::Unix(path) => Listener::Unix(listen_unix(path)?, path.clone()),
            });
        }
        let (ending, watch) = watch::channel(false);
        let app = App::new(engine, events, store, options, watch);
        let ports = listeners.iter().filter_map(|listener| match listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        });
        ports.for_each(|address| app.previews.listen_at(address.port()));
        Ok(Self { app, listeners, ending })
    }

    /// The addresses at which the server listens, as text for people: `http://127.0.0.1:7070`, `unix:/run/kennel.sock`.
    pub fn addresses(&self) -> Vec<String> {
        let text = |listener: &Listener| match listener {
            Listener::Tcp(listener) => {
                listener.local_addr().map(|address| format!("http://{address}")).unwrap_or_default()
            }
            Listener::Unix(_, path) => format!("unix:{}", path.display()),
        };
        self.listeners.iter().map(text).collect()
    }

    /// Responds to requests until `end` is ready. Then no connection is accepted any more, streams are told, and requests
    /// that are open get some time to end. Sandboxes go on running.
    pub async fn run(self, end: impl Future<Output = ()>) -> Result<()> {
        let Self { app, listeners, ending } = self;
        let router = router(&app);
        // Each connection has a sender. When all of them are gone, the receiver knows.
        let (open, mut closed) = mpsc::channel::<()>(1);
        let mut accepting = Vec::new();
        let mut sockets = Vec::new();
        for listener in listeners {
            if let Listener::Unix(_, path) = &listener {
                sockets.push(path.clone());
            }
            accepting.push(tokio::spawn(accept(listener, router.clone(), open.clone(), ending.subscribe())));
        }
        let beside = tokio::spawn({
            let app = app.clone();
            async move { tokio::join!(app.expiry.run(&app), app.revocations.run(&app)) }
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
        .layer(axum::middleware::from_fn(host::check))
        .layer(axum::middleware::from_fn_with_state(app.clone(), previews::serve))
        .layer(axum::middleware::from_fn(request_id::identify))
        .with_state(app.clone())
}

async fn accept(listener: Listener, router: Router, open: mpsc::Sender<()>, mut ending: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            () = ended(&mut ending) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => serve(stream, peer, router.clone(), open.clone(), ending.clone()),
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
    async fn accept(&self) -> std::io::Result<(Box<dyn Stream>, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let local = stream.local_addr()?;
                Ok((Box::new(stream), Peer::Tcp { local }))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred()?.uid();
                Ok((Box::new(stream), Peer::Unix { uid }))
            }
        }
    }
}

/// Serves a connection as a task. When the server ends, it ends after the request that is open.
fn serve(
    stream: Box<dyn Stream>,
    peer: Peer,
    router: Router,
    open: mpsc::Sender<()>,
    mut ending: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(router);
    let service = hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer);
        hyper::service::Service::call(&service, request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_WITHIN).max_buf_size(MAX_HEADER);
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::spawn(async move {
        let _open = open;
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
    });
}

async fn listen_tcp(address: SocketAddr) -> Result<TcpListener> {
    if !is_loopback(address.ip()) {
        let message = format!("listen at {address}: a server without TLS listens only at loopback addresses");
        return Err(Error::new(ErrorCode::Unsupported, message)
            .suggest(NextStep::advice("listen at 127.0.0.1, and forward the port, for example with ssh -L")));
    }
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            Error::new(ErrorCode::Conflict, format!("listen at {address}: another program listens there"))
        }
        _ => Error::io(format!("listen at {address}"), error),
    })
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.is_loopback()
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
