//! Opens a session, as a task of its own that cleans up after itself.
//!
//! The task runs to its end even if the caller gives up: a request to an engine that is cut off halfway may still have
//! its effect later, when nobody would notice. Instead the task looks between two steps whether the caller is still
//! there, and undoes what it has done if not. An error or a panic undoes it, too.

use super::end::{TaskEnd, last_lines};
use super::workspace::{self, SessionWorkspace};
use super::{SECRET_VARIABLE, SESSION_VARIABLE, Sessions, changed};
use crate::create::{panic_message, remove_sandbox};
use crate::pool::wire::ForSession;
use crate::session::{Cause, Session, SessionId, SessionState, SessionSummary};
use crate::store::{Change, NewSession, Outcome, random_hex};
use crate::{Cancel, Claimed, PoolResult, PoolUse};
use futures_util::FutureExt;
use kennel_core::{Error, Provider, PullProgress, Result, check_name};
use kennel_types::{ErrorCode, ProviderKind, Pull, SandboxSpec};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// A session to open.
#[derive(Clone, Default)]
pub struct OpenSession {
    /// The id, if the caller has recorded one before. Then the sandbox is no container from a pool, because such a container
    /// has the id of its session already.
    pub id: Option<SessionId>,
    /// The name of the session, and of its sandbox if the spec has none. No other session may have it.
    pub name: Option<String>,
    /// The name of the provider.
    pub provider: String,
    /// The sandbox. `auto_remove` is carried out by the engine, after it has recorded the result. A session cannot be
    /// `tied`.
    pub spec: SandboxSpec,
    /// Where the workspace comes from.
    pub workspace: SessionWorkspace,
    /// When the image is pulled.
    pub pull: Pull,
    /// Whether its sandbox uses a pool.
    pub pool: PoolUse,
    /// Is called with the progress of slow steps.
    pub progress: Option<Arc<dyn Fn(OpenProgress) + Send + Sync>>,
    /// Lets the caller give up, and wait until what was done is undone.
    pub cancel: Cancel,
}

/// The progress of a slow step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenProgress {
    /// The image is being pulled.
    Pull(PullProgress),
    /// The repository is being cloned: a line that git printed. It comes from inside, so it must be escaped before it
    /// is shown.
    Clone(String),
    /// The sandbox was created: whether it came from a pool.
    Pool(PoolResult),
}

/// An opening session.
struct Opening {
    sessions: Sessions,
    request: OpenSession,
    provider: Arc<dyn Provider>,
    id: SessionId,
}

impl Sessions {
    /// Opens a session: records it, makes its workspace and sandbox, and starts the sandbox. If anything fails, or the
    /// caller gives up by `cancel` or by dropping the future, the sandbox is removed and the session is recorded as
    /// failed.
    pub async fn open(&self, request: OpenSession) -> Result<Session> {
        let provider = self.provider(&request.provider)?;
        if let Some(name) = &request.name {
            check_name(name)?;
        }
        if request.spec.tied {
            return Err(Error::new(ErrorCode::InvalidConfig, "a session's sandbox cannot be tied to its creator"));
        }
        request.workspace.check()?;
        let cancel = request.cancel.clone();
        let id = request.id.clone().map_or_else(SessionId::random, Ok)?;
        let opening = Opening { sessions: self.clone(), request, provider, id };
        let sessions = self.clone();
        cancel
            .attend(Box::pin(opening.run()), |session| async move { sessions.take_back(&session.summary).await })
            .await
    }

    /// Closes a session whose caller gave up at the very moment when it was open.
    async fn take_back(&self, session: &SessionSummary) -> Result<()> {
        let end = TaskEnd::new(SessionState::Failed, Cause::Cancelled, None);
        self.close(&session.id, &end).await?;
        remove_sandbox(&*self.provider(&session.provider)?, &session.sandbox, false).await
    }
}

impl Opening {
    async fn run(mut self) -> Result<Session> {
        let claimed = self.claim_member().await?;
        // A member of a pool may have been made for a session with this id.
        let secret = match claimed.member_session() {
            Some(session) => {
                self.id = session.id;
                session.secret
            }
            None => random_hex::<32>()?,
        };
        // The claim comes before the record: so nobody sees the session as stuck.
        let _claim = self.sessions.claims.take(&self.id).await?;
        let new = self.record(&secret, &claimed);
        self.request.cancel.check()?;
        self.sessions.store.insert(new).await?;
        let seen = self.sessions.get(&self.id).await?.summary;
        if seen.state != SessionState::Creating {
            // Another process has found it by its name, and removes it already.
            return Err(changed(&self.id));
        }
        let error = match AssertUnwindSafe(self.make(&seen, secret, claimed)).catch_unwind().await {
            Ok(Ok(())) => return self.sessions.get(&self.id).await,
            Ok(Err(error)) => error,
            Err(panic) => Error::new(ErrorCode::Internal, format!("panic: {}", panic_message(&*panic))),
        };
        let cause = if self.request.cancel.is_cancelled() { Cause::Cancelled } else { Cause::StartFailed };
        self.undo(&seen, cause, &error).await;
        Err(error.context(format_args!("open session {}", seen.label())))
    }

    /// Claims a member of a pool for the sandbox, if there is one.
    async fn claim_member(&self) -> Result<Claimed> {
        let OpenSession { id, spec, workspace, pull, pool, .. } = &self.request;
        let Some(pools) = &self.sessions.pools else {
            return match pool {
                PoolUse::Require => Claimed::impossible("these sessions use no pools", *pool),
                PoolUse::Prefer | PoolUse::Never => Claimed::none(),
            };
        };
        let is_native = self.provider.mode().key.provider == ProviderKind::Native;
        if *pull == Pull::Always && spec.image.is_some() && !is_native {
            return Claimed::impossible("its image is pulled first", *pool);
        }
        if id.is_some() && !is_native {
            return Claimed::impossible("its id was chosen before", *pool);
        }
        let session = ForSession { store: self.sessions.store.id().to_owned(), workspace: workspace.wanted() };
        let mut spec = spec.clone();
        if !matches!(workspace, SessionWorkspace::AsSpecified) {
            spec.workspace = None;
        }
        pools.claim_for_session(&*self.provider, &spec, session, *pool).await
    }

    /// What is recorded before anything is made.
    fn record(&self, secret: &str, claimed: &Claimed) -> NewSession {
        let OpenSession { name, provider, spec, workspace, .. } = &self.request;
        let mut spec = spec.clone();
        spec.name = spec.name.or_else(|| name.clone());
        if let Some(dir) = workspace.directory(&self.id) {
            spec.workspace = Some(dir);
        }
        NewSession {
            id: self.id.clone(),
            name: name.clone(),
            provider: provider.clone(),
            sandbox: claimed.id.clone(),
            spec,
            source: workspace.source().map(ToOwned::to_owned),
            secret: Some(secret.to_owned()),
            cause: Cause::Requested,
        }
    }

    async fn make(&self, seen: &SessionSummary, secret: String, mut claimed: Claimed) -> Result<()> {
        let cancel = &self.request.cancel;
        let mut spec = self.sessions.get(&self.id).await?.spec;
        spec.session = Some(self.id.to_string());
        spec.store = Some(self.sessions.store.id().to_owned());
        if let Some(image) = &spec.image {
            let tell = |progress| self.tell(OpenProgress::Pull(progress));
            cancel.interrupts(self.provider.pull(image, self.request.pull, &tell)).await?;
        }
        let tell = |line| self.tell(OpenProgress::Clone(line));
        if !claimed.member_session().is_some_and(|session| session.has_workspace) {
            workspace::prepare(&self.request.workspace, &self.provider, &spec, cancel, &tell).await?;
        }
        cancel.check()?;
        // The provider would remove the sandbox before its result is recorded.
        spec.auto_remove = false;
        spec.env.insert(SESSION_VARIABLE.into(), self.id.to_string());
        spec.env.insert(SECRET_VARIABLE.into(), secret);
        let created = claimed.create(self.provider.clone(), &spec).await?;
        if let Some(result) = claimed.result {
            self.tell(OpenProgress::Pool(result));
        }
        cancel.check()?;
        // A container from a pool runs.
        if !created.info().status.is_up() {
            self.provider.start(&seen.sandbox).await?;
            cancel.check()?;
        }
        match self.sessions.store.change(seen, Change::new(SessionState::Running, Cause::Started)).await? {
            Outcome::Recorded => Ok(()),
            Outcome::Stale => Err(changed(&self.id)),
        }
    }

    fn tell(&self, progress: OpenProgress) {
        if let Some(tell) = &self.request.progress {
            tell(progress);
        }
    }

    /// Removes the sandbox, if it was made, and records the failure. What cannot be done here is left to
    /// reconciliation: the record says enough.
    async fn undo(&self, seen: &SessionSummary, cause: Cause, error: &Error) {
        let log = last_lines(&*self.provider, &seen.sandbox).await;
        let removed = remove_sandbox(&*self.provider, &seen.sandbox, false).await;
        if let Err(error) = removed {
            tracing::warn!(session = %self.id, %error, "the sandbox of a session that was not opened is left");
        } else if let Some(dir) = self.request.workspace.directory(&self.id) {
            // Only if it is empty: what a main process has written is kept.
            let _ = std::fs::remove_dir(dir);
        }
        let change = Change { error: Some(error.to_string()), log, ..Change::new(SessionState::Failed, cause) };
        if let Err(error) = self.sessions.store.change(seen, change).await {
            tracing::warn!(session = %self.id, %error, "the failure of a session could not be recorded");
        }
    }
}
