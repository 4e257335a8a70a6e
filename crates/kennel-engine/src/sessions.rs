//! Sessions: sandboxes that belong to a piece of work, with a record of what was requested and what happened.
//!
//! The order of effects survives a crash at any point. Before a sandbox is created, the session is recorded as `creating`
//! with the sandbox's id; the sandbox carries the ids of session and store in its labels; only then is the session
//! recorded as `running`. A stop or removal is recorded as a request before it is carried out. What a crash leaves is
//! completed by [`Sessions::plan`] and [`Sessions::apply`].

mod agent;
mod end;
mod open;
mod task;
mod workspace;

pub use agent::AgentEnd;
pub use open::{OpenProgress, OpenSession};
pub(crate) use workspace::make_directory;
pub use workspace::{GitCredentials, SessionWorkspace};

use crate::claim::Claims;
use crate::create::remove_sandbox;
use crate::session::{
    Cause, EventFilter, Session, SessionEvent, SessionFilter, SessionId, SessionState, SessionSummary, Wanted,
    no_session,
};
use crate::store::{Change, Outcome, Store};
use crate::{Failpoints, PoolClaims, Steps};
use kennel_core::{Error, Provider, RemoveOptions, Result, Sandbox};
use kennel_types::{ErrorCode, NextStep, Status};
use std::sync::Arc;
use std::time::Duration;

/// How long the processes of a session have to end after a stop request, before they are killed.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// The sessions of one store, on some providers. Cheap to clone.
#[derive(Clone)]
pub struct Sessions {
    pub(crate) store: Store,
    pub(crate) providers: Arc<[Arc<dyn Provider>]>,
    pub(crate) claims: Claims,
    /// Where members of pools are claimed. `None` if no session uses a pool.
    pub(crate) pools: Option<PoolClaims>,
}

impl Sessions {
    /// Creates the engine's view of a store and of the providers that its sessions may use.
    pub fn new(store: Store, providers: Vec<Arc<dyn Provider>>) -> Self {
        Self::with_failpoints(store, providers, &Failpoints::default())
    }

    /// Creates the engine's view of a store and of providers. A test can end the process at each named step.
    pub fn with_failpoints(store: Store, providers: Vec<Arc<dyn Provider>>, failpoints: &Failpoints) -> Self {
        let steps = |provider| Steps::new(provider, failpoints.clone());
        Self::with_steps(store, providers.into_iter().map(steps), failpoints)
    }

    /// Creates the engine's view of a store and of providers that are wrapped already.
    pub(crate) fn with_steps(
        store: Store,
        providers: impl IntoIterator<Item = Arc<Steps>>,
        failpoints: &Failpoints,
    ) -> Self {
        Self {
            claims: Claims::for_store(store.path()),
            store: store.with_failpoints(failpoints.clone()),
            providers: providers.into_iter().map(|provider| provider as Arc<dyn Provider>).collect(),
            pools: None,
        }
    }

    /// Lets new sessions use pools.
    #[must_use]
    pub fn with_pools(self, pools: PoolClaims) -> Self {
        Self { pools: Some(pools), ..self }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the selected sessions as they are recorded, newest first.
    pub async fn list(&self, filter: &SessionFilter) -> Result<Vec<SessionSummary>> {
        self.store.list(filter).await
    }

    /// Returns a session as it is recorded, by its id or name. [`Self::settle`] compares the record with the provider.
    pub async fn show(&self, id_or_name: &str) -> Result<Session> {
        self.store.find(id_or_name).await
    }

    /// Returns the selected events, oldest first.
    pub async fn events(&self, filter: &EventFilter) -> Result<Vec<SessionEvent>> {
        self.store.events(filter).await
    }

    /// Returns the secret of a session, which its main process has in its environment ([`SECRET_VARIABLE`]). A session
    /// that was adopted has none.
    pub async fn secret(&self, id_or_name: &str) -> Result<Option<String>> {
        let session = self.store.find(id_or_name).await?;
        self.store.secret(&session.summary.id).await
    }

    /// Returns the sandbox of a running session, to run commands in it.
    pub async fn sandbox(&self, id_or_name: &str) -> Result<Sandbox> {
        let session = self.settle(id_or_name).await?.summary;
        match session.state {
            SessionState::Running => Sandbox::find(self.provider(&session.provider)?, session.sandbox.as_str()).await,
            SessionState::Creating | SessionState::Removing => Err(in_state(&session)),
            SessionState::Stopped | SessionState::Completed | SessionState::Failed => Err(not_running(&session)),
        }
    }

    /// Starts a stopped session again. It is no error if it is running.
    pub async fn start(&self, id_or_name: &str) -> Result<Session> {
        let id = self.settle(id_or_name).await?.summary.id;
        let _claim = self.claims.take(&id).await?;
        let seen = self.get(&id).await?.summary;
        match seen.state {
            SessionState::Running => return self.get(&id).await,
            SessionState::Stopped => {}
            _ => return Err(in_state(&seen)),
        }
        let provider = self.provider(&seen.provider)?;
        if self.store.want(&seen, Wanted::Running, Cause::Requested, None).await? == Outcome::Stale {
            return Err(changed(&id));
        }
        let seen = self.get(&id).await?.summary;
        if let Err(error) = provider.start(&seen.sandbox).await {
            return self.not_started(&seen, &*provider, error).await;
        }
        self.record(&seen, Change::new(SessionState::Running, Cause::Started)).await?;
        self.get(&id).await
    }

    /// Finds out what a failed start has left, and records that.
    async fn not_started(&self, seen: &SessionSummary, provider: &dyn Provider, error: Error) -> Result<Session> {
        match provider.get(seen.sandbox.as_str()).await {
            // Only the reply was lost.
            Ok(info) if info.status.is_up() => {
                self.record(seen, Change::new(SessionState::Running, Cause::Started)).await?;
                return self.get(&seen.id).await;
            }
            Err(gone) if gone.code() == ErrorCode::NotFound => {
                let change =
                    Change { error: Some(error.to_string()), ..Change::new(SessionState::Failed, Cause::Lost) };
                self.record(seen, change).await?;
            }
            _ => {
                // The request is over. If this cannot be recorded either, reconciliation takes it back.
                let _ = self.store.want(seen, Wanted::Stopped, Cause::StartFailed, Some(error.to_string())).await;
            }
        }
        Err(error.context(format_args!("start session {}", seen.label())))
    }

    /// Stops a session: its processes get `grace` to end ([`STOP_GRACE`] is the usual time), then they are killed. Its
    /// result is recorded, and its sandbox is removed if that was requested when it was opened. It is no error if it
    /// has ended already.
    pub async fn stop(&self, id_or_name: &str, grace: Duration) -> Result<Session> {
        let id = self.settle(id_or_name).await?.summary.id;
        let _claim = self.claims.take(&id).await?;
        self.stop_claimed(&id, grace).await
    }

    /// Stops a session whose claim the caller has.
    pub(crate) async fn stop_claimed(&self, id: &SessionId, grace: Duration) -> Result<Session> {
        let mut seen = self.get(id).await?.summary;
        match seen.state {
            SessionState::Running => {}
            SessionState::Creating | SessionState::Removing => return Err(in_state(&seen)),
            SessionState::Stopped | SessionState::Completed | SessionState::Failed => return self.settle_now(id).await,
        }
        let provider = self.provider(&seen.provider)?;
        if seen.wanted != Wanted::Stopped {
            if self.store.want(&seen, Wanted::Stopped, Cause::Requested, None).await? == Outcome::Stale {
                // It has ended meanwhile, or is being removed.
                return self.settle_now(id).await;
            }
            seen = self.get(id).await?.summary;
        }
        match provider.stop(&seen.sandbox, grace).await {
            Ok(()) => {}
            Err(error) if error.code() == ErrorCode::NotFound => {}
            Err(error) => match provider.get(seen.sandbox.as_str()).await {
                // Only the reply was lost.
                Ok(info) if !info.status.is_up() => {}
                _ => return Err(error.context(format_args!("stop session {}", seen.label()))),
            },
        }
        self.settle_now(id).await
    }

    /// Removes a session: first its sandbox, then its record. Its workspace directory stays, and so do its events. A
    /// running session is removed only by force.
    pub async fn remove(&self, id_or_name: &str, options: RemoveOptions) -> Result<()> {
        // By force, it does not matter whether it runs.
        let session = if options.force { self.show(id_or_name).await? } else { self.settle(id_or_name).await? };
        let mut seen = session.summary;
        let id = seen.id.clone();
        while seen.state != SessionState::Removing {
            if !options.force && matches!(seen.state, SessionState::Running | SessionState::Creating) {
                let step = NextStep::StopOrRemoveSession { name: seen.label().to_owned() };
                let message = format!("session {} is {}", seen.label(), seen.state);
                return Err(Error::new(ErrorCode::Conflict, message).suggest(step));
            }
            // This needs no claim: whoever is changing the session notices it, and gives up.
            let change = Change::new(SessionState::Removing, Cause::Requested);
            let _ = self.store.change(&seen, change).await?;
            seen = self.get(&id).await?.summary;
        }
        let _claim = self.claims.take(&id).await?;
        self.remove_claimed(&id, options.volumes).await
    }

    /// Completes the removal of a session whose claim the caller has.
    pub(crate) async fn remove_claimed(&self, id: &SessionId, volumes: bool) -> Result<()> {
        // Another process may have completed it.
        let Some(seen) = self.store.get(id).await?.map(|session| session.summary) else { return Ok(()) };
        let provider = self.provider(&seen.provider)?;
        remove_sandbox(&*provider, &seen.sandbox, volumes).await?;
        match self.store.delete(&seen).await? {
            Outcome::Recorded => Ok(()),
            Outcome::Stale => Err(changed(id)),
        }
    }

    /// The session with this id, as it is recorded.
    pub(crate) async fn get(&self, id: &SessionId) -> Result<Session> {
        self.store.get(id).await?.ok_or_else(|| no_session(id))
    }

    /// Records a change that nobody else can have made meanwhile, except a removal.
    async fn record(&self, seen: &SessionSummary, change: Change) -> Result<()> {
        match self.store.change(seen, change).await? {
            Outcome::Recorded => Ok(()),
            Outcome::Stale => Err(changed(&seen.id)),
        }
    }

    /// The provider with this name.
    pub(crate) fn provider(&self, name: &str) -> Result<Arc<dyn Provider>> {
        let found = self.providers.iter().find(|provider| provider.name() == name);
        found.cloned().ok_or_else(|| {
            Error::new(ErrorCode::NotAvailable, format!("provider {name} is not available"))
                .suggest(NextStep::check_machine())
        })
    }
}

/// The environment variable with the session's id, in every process of its sandbox.
pub const SESSION_VARIABLE: &str = "KENNEL_SESSION";
/// The environment variable with the session's secret, in every process of its sandbox.
pub const SECRET_VARIABLE: &str = "KENNEL_SESSION_SECRET";

/// The error for a session that another process has changed.
fn changed(id: &SessionId) -> Error {
    Error::new(ErrorCode::Conflict, format!("session {id} was changed or removed by another process"))
        .suggest(NextStep::ListSessions)
}

/// The error for an operation that the session's state does not allow.
fn in_state(session: &SessionSummary) -> Error {
    let name = session.label().to_owned();
    Error::new(ErrorCode::Conflict, format!("session {name} is {}", session.state))
        .suggest(NextStep::ShowSession { name })
}

/// The error for a command in a session that does not run.
fn not_running(session: &SessionSummary) -> Error {
    let name = session.label().to_owned();
    let message = format!("session {name} is not running: it is {} ({})", session.state, session.cause);
    let step = if session.state == SessionState::Stopped && !session.auto_remove {
        NextStep::StartSession { name }
    } else {
        NextStep::ShowSession { name }
    };
    Error::new(ErrorCode::Stopped, message).suggest(step)
}

/// Whether a sandbox has ended, or was never started.
fn is_down(status: Status) -> bool {
    !status.is_up()
}
