//! What all handlers share.

use crate::acp::Connections;
use crate::auth::Identity;
use crate::build_dir::BuildDir;
use crate::expiry::Expiry;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::paused::Paused;
use crate::previews::Previews;
use crate::revocation::{Revocations, StreamEnd};
use crate::serve::ServerOptions;
use crate::streams::Streams;
use crate::tickets::Tickets;
use kennel_acp::Relays;
use kennel_core::{Error, Result, Sandbox, printable};
use kennel_engine::{Engine, Events, Store, Tokens};
use kennel_types::{ErrorCode, SandboxInfo};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What all handlers share. Handlers take it as `State<AppState>`.
pub(crate) type AppState = Arc<App>;

/// What all handlers share.
pub(crate) struct App {
    pub(crate) engine: Engine,
    /// The numbered events of the resident process beside the server.
    pub(crate) events: Events,
    pub(crate) store: Store,
    pub(crate) options: ServerOptions,
    /// Becomes true when the server ends. Streams send their last message then.
    pub(crate) ending: watch::Receiver<bool>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: Limits,
    /// Requests with an idempotency key that go on in this process: the caller, and the key.
    pub(crate) in_progress: Mutex<HashSet<(String, String)>>,
    /// Held while the sandboxes of a token are counted, and the next one is created.
    pub(crate) counting: tokio::sync::Mutex<()>,
    /// The sandboxes that are paused.
    pub(crate) paused: Paused,
    /// The sandboxes that expire.
    pub(crate) expiry: Expiry,
    /// The tokens of open streams.
    pub(crate) revocations: Revocations,
    /// The streams that are open.
    pub(crate) streams: Streams,
    /// The tickets that were not used yet.
    pub(crate) tickets: Tickets,
    /// The browsers that have access to ports.
    pub(crate) previews: Previews,
    /// The ACP connections over HTTP.
    pub(crate) acp: Connections,
    /// The relays of agents.
    relays: tokio::sync::OnceCell<Relays>,
    /// Handles of sandboxes in use, by id. All requests share the connection of a handle to its keeper.
    handles: Mutex<HashMap<String, Sandbox>>,
}

/// Returns the result of a task, or the error that it panicked or was cut off.
pub(crate) fn joined<T>(done: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|error| Err(Error::new(ErrorCode::Internal, format!("the request ended early: {error}"))))
}

/// How many handles are kept. Without a handle, the next request connects again.
const HANDLES: usize = 1000;

impl App {
    pub(crate) fn new(
        engine: Engine,
        events: Events,
        store: Store,
        options: ServerOptions,
        ending: watch::Receiver<bool>,
    ) -> AppState {
        let metrics = Arc::<Metrics>::default();
        let store = store.observed({
            let metrics = metrics.clone();
            Arc::new(move |usage, time| metrics.store_took(usage, time))
        });
        if let Ok(directories) = engine.directories() {
            BuildDir::sweep(&directories);
        }
        Arc::new(Self {
            engine,
            events,
            store,
            options,
            ending,
            metrics,
            limits: Limits::default(),
            in_progress: Mutex::default(),
            counting: tokio::sync::Mutex::default(),
            paused: Paused::default(),
            expiry: Expiry::default(),
            revocations: Revocations::default(),
            streams: Streams::default(),
            tickets: Tickets::default(),
            previews: Previews::default(),
            acp: Connections::default(),
            relays: tokio::sync::OnceCell::new(),
            handles: Mutex::default(),
        })
    }

    /// Returns what ends a stream of a caller: the end of the server, or the loss of its token.
    pub(crate) fn stream_end(&self, identity: &Identity) -> StreamEnd {
        StreamEnd::new(self.ending.clone(), self.revocations.watch(identity))
    }

    /// The relays of agents. All requests share them.
    pub(crate) async fn relays(&self) -> Result<&Relays> {
        self.relays.get_or_try_init(async || Ok(Relays::new(self.engine.sessions().await?.0))).await
    }

    /// Continues with the agents of sessions, so that their messages are stored and their ends are noticed.
    pub(crate) async fn resume_agents(&self) {
        let resumed = async { self.relays().await?.resume_all().await };
        if let Err(error) = resumed.await {
            tracing::warn!(%error, "could not continue with the agents of sessions");
        }
    }

    /// The tokens.
    pub(crate) fn tokens(&self) -> Tokens {
        Tokens::new(self.store.clone())
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<String, Sandbox>> {
        // No code panics while it holds the lock.
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the handle of a sandbox by its id or name, if the caller can see it. All requests get the same handle, so
    /// they share its connection and its fan-outs. What a caller cannot see does not exist for it.
    pub(crate) async fn sandbox(&self, identity: &Identity, text: &str) -> Result<Sandbox> {
        let known = self.handles().get(text).cloned();
        if let Some(sandbox) = known.filter(|sandbox| !self.is_silent(sandbox)) {
            // A project never changes, so the description of the handle is enough.
            return if identity.sees(sandbox.info()) { Ok(sandbox) } else { Err(Error::no_sandbox(printable(text))) };
        }
        // The engine also finds a sandbox by the beginning of its id. Programs use whole ids and names, and an error that
        // lists the ids with this beginning would name sandboxes of others.
        let sandbox = match self.engine.find(text).await {
            Err(error) if error.code() == ErrorCode::InvalidConfig => Err(Error::no_sandbox(printable(text))),
            found => found,
        }?;
        let info = sandbox.info();
        if !identity.sees(info) || (info.id.as_str() != text && info.name != text) {
            return Err(Error::no_sandbox(printable(text)));
        }
        Ok(self.shared(sandbox))
    }

    /// Returns the handle that all requests for a sandbox share. For a paused sandbox it is the given one, because the shared
    /// one may have a connection to the keeper, which does not respond.
    pub(crate) fn shared(&self, sandbox: Sandbox) -> Sandbox {
        if self.is_silent(&sandbox) { sandbox } else { self.keep(sandbox) }
    }

    /// Whether the keeper of a sandbox does not respond, because somebody has paused it. One that sleeps because it was idle
    /// is woken by its use.
    fn is_silent(&self, sandbox: &Sandbox) -> bool {
        self.paused.has(sandbox.id()) && sandbox.provider().gate(sandbox.id()).is_none()
    }

    /// Keeps a handle for later requests, unless there is one for this sandbox already. Returns the handle that is kept.
    pub(crate) fn keep(&self, sandbox: Sandbox) -> Sandbox {
        let mut handles = self.handles();
        if handles.len() >= HANDLES && !handles.contains_key(sandbox.id().as_str()) {
            let any = handles.keys().next().cloned();
            any.and_then(|id| handles.remove(&id));
        }
        handles.entry(sandbox.id().to_string()).or_insert(sandbox).clone()
    }

    /// Returns the current description of a sandbox, and forgets the handle of one that is gone.
    pub(crate) async fn inspect(&self, sandbox: &Sandbox) -> Result<SandboxInfo> {
        let seen = sandbox.inspect().await;
        if seen.as_ref().is_err_and(|error| error.code() == ErrorCode::NotFound) {
            self.forget(sandbox);
        }
        seen
    }

    /// Forgets the handle of a sandbox that was removed.
    pub(crate) fn forget(&self, sandbox: &Sandbox) {
        self.forget_id(sandbox.id().as_str());
    }

    /// Forgets the handle of the sandbox with this id.
    pub(crate) fn forget_id(&self, id: &str) {
        self.handles().remove(id);
    }
}
