//! Carries out a plan. Each action takes the claim of its session and looks again at session and sandbox first.

use super::{Action, Plan, Unneeded, needed};
use crate::create::remove_sandbox;
use crate::pool::is_member;
use crate::session::{Cause, SessionId, SessionState, SessionSummary, Wanted};
use crate::sessions::{STOP_GRACE, Sessions};
use crate::store::{Change, Outcome};
use kennel_core::{Error, Provider, Result};
use kennel_provider::labels;
use kennel_types::{ErrorCode, SandboxId, SandboxInfo};

/// What became of an action.
#[derive(Debug)]
pub struct Applied {
    /// The action.
    pub action: Action,
    /// Its effect, or why it failed.
    pub result: Result<Effect>,
}

/// The effect of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It was carried out.
    Done,
    /// It is no longer needed: the session or its sandbox has changed since the plan was made.
    NotNeeded,
    /// A living process is changing the session, and it was left to that process.
    Busy,
}

impl Sessions {
    /// Carries out a plan, and returns what became of each action. An action that fails does not prevent the others.
    pub async fn apply(&self, plan: &Plan) -> Result<Vec<Applied>> {
        let mut applied = Vec::new();
        for action in &plan.actions {
            applied.push(Applied { action: action.clone(), result: self.carry_out(action).await });
        }
        self.claims.sweep()?;
        self.store.trim_events().await?;
        Ok(applied)
    }

    async fn carry_out(&self, action: &Action) -> Result<Effect> {
        let id = action.session();
        let Some(_claim) = self.claims.try_take(id)? else { return Ok(Effect::Busy) };
        let seen = self.store.get(id).await?.map(|session| session.summary);
        if let Action::RemoveSandbox { provider, sandbox, why, .. } = action
            && matches!(why, Unneeded::SessionGone | Unneeded::NotTheSessions)
        {
            return self.remove_stray(provider, sandbox, id, seen.as_ref()).await;
        }
        let Some(seen) = seen else { return Ok(Effect::NotNeeded) };
        let provider = self.provider(&seen.provider)?;
        // With the claim in hand, the same rule decides again.
        let sandbox = look(&*provider, &seen.sandbox).await?;
        if needed(&seen, sandbox.as_ref()).as_ref() != Some(action) {
            return Ok(Effect::NotNeeded);
        }
        let running = Change::new(SessionState::Running, Cause::Found);
        let change = match action {
            Action::RemoveSandbox { .. } => {
                remove_sandbox(&*provider, &seen.sandbox, false).await?;
                return Ok(Effect::Done);
            }
            Action::FinishRemoval { .. } => return self.remove_claimed(id, false).await.map(|()| Effect::Done),
            Action::FinishOpen { .. } => return self.finish_open(&seen, &*provider).await,
            Action::FinishStop { .. } => return self.stop_claimed(id, STOP_GRACE).await.map(|_| Effect::Done),
            Action::RecordEnd { .. } => return self.settle(id.as_str()).await.map(|_| Effect::Done),
            Action::DropStart { .. } => {
                let wanted = self.store.want(&seen, Wanted::Stopped, Cause::Interrupted, None).await?;
                return Ok(effect(wanted));
            }
            Action::FailOpen { .. } => {
                // The directory that was made for the session alone has its id as name. A partial clone is kept.
                if let Some(dir) = seen.workspace.as_ref().filter(|dir| dir.ends_with(id.as_str())) {
                    let _ = std::fs::remove_dir(dir);
                }
                Change::new(SessionState::Failed, Cause::Interrupted)
            }
            Action::MarkRunning { .. } => running,
            Action::MarkLost { .. } => Change::new(SessionState::Failed, Cause::Lost),
        };
        Ok(effect(self.store.change(&seen, change).await?))
    }

    /// Starts the sandbox of a session that was being opened, if necessary, and records the session as running. If it
    /// cannot be started, the session has failed, and its sandbox is removed.
    async fn finish_open(&self, seen: &SessionSummary, provider: &dyn Provider) -> Result<Effect> {
        let change = match provider.start(&seen.sandbox).await {
            Ok(()) => Change::new(SessionState::Running, Cause::Found),
            // Only the reply was lost.
            Err(_) if look(provider, &seen.sandbox).await?.is_some_and(|info| info.status.is_up()) => {
                Change::new(SessionState::Running, Cause::Found)
            }
            Err(error) => {
                remove_sandbox(provider, &seen.sandbox, false).await?;
                let failed = Change::new(SessionState::Failed, Cause::StartFailed);
                Change { error: Some(error.to_string()), ..failed }
            }
        };
        Ok(effect(self.store.change(seen, change).await?))
    }

    /// Removes a sandbox of this store that is not the sandbox of its session, or whose session is gone.
    async fn remove_stray(
        &self,
        provider: &str,
        sandbox: &SandboxId,
        id: &SessionId,
        seen: Option<&SessionSummary>,
    ) -> Result<Effect> {
        let provider = self.provider(provider)?;
        let Some(info) = look(&*provider, sandbox).await? else { return Ok(Effect::NotNeeded) };
        let label = |name: &str| info.labels.get(name).map(String::as_str);
        let ours = label(labels::STORE) == Some(self.store.id()) && label(labels::SESSION) == Some(id.as_str());
        if !ours || seen.is_some_and(|seen| seen.sandbox == *sandbox) {
            return Ok(Effect::NotNeeded);
        }
        remove_sandbox(&*provider, sandbox, false).await?;
        Ok(Effect::Done)
    }
}

impl Action {
    /// The session that the action is about.
    pub fn session(&self) -> &SessionId {
        match self {
            Self::RemoveSandbox { session, .. }
            | Self::FinishRemoval { session }
            | Self::FinishOpen { session }
            | Self::FailOpen { session }
            | Self::FinishStop { session }
            | Self::DropStart { session }
            | Self::MarkRunning { session }
            | Self::RecordEnd { session }
            | Self::MarkLost { session } => session,
        }
    }
}

fn effect(outcome: Outcome) -> Effect {
    match outcome {
        Outcome::Recorded => Effect::Done,
        Outcome::Stale => Effect::NotNeeded,
    }
}

/// Returns a sandbox, or `None` if the provider says that there is none. Anything else is an error.
async fn look(provider: &dyn Provider, sandbox: &SandboxId) -> Result<Option<SandboxInfo>, Error> {
    match provider.get(sandbox.as_str()).await {
        // A member of a pool that was not renamed is still the pool's.
        Ok(info) => Ok(Some(info).filter(|info| !is_member(info))),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
