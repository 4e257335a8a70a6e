//! Reconciliation: compares the sandboxes of the providers with the sessions of the store.
//!
//! It has two steps. [`Sessions::plan`] computes what is to be done, as data, and changes nothing. [`Sessions::apply`]
//! carries a plan out, and looks again before each action: what has changed meanwhile is left alone.
//!
//! Three rules protect what is not ours. A provider that could not be listed changes nothing: "could not read" is not
//! "is empty". Only sandboxes with the label of this store are removed, because only this store knows what was meant
//! with them; those of another or a lost store are reported. And a session that a living process is changing is left
//! to that process.

mod adopt;
mod apply;

pub use apply::{Applied, Effect};

use crate::pool::without_members;
use crate::session::{SessionFilter, SessionId, SessionState, SessionSummary, Wanted};
use crate::sessions::Sessions;
use kennel_core::Result;
use kennel_provider::labels;
use kennel_types::{ErrorCode, SandboxId, SandboxInfo};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What reconciliation will do, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// What will be done.
    pub actions: Vec<Action>,
    /// Sandboxes of other stores. They are only reported.
    pub foreign: Vec<Foreign>,
    /// Providers that could not be listed. Nothing is done with their sandboxes and sessions.
    pub unlisted: Vec<Unlisted>,
}

/// One thing that reconciliation does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Action {
    /// Remove a sandbox that no session needs. Its volumes stay.
    RemoveSandbox {
        /// The provider.
        provider: String,
        /// The sandbox.
        sandbox: SandboxId,
        /// The session that it was made for.
        session: SessionId,
        /// Why it is not needed.
        why: Unneeded,
    },
    /// Complete the removal of a session: remove its sandbox, if there is one, and its record.
    FinishRemoval {
        /// The session.
        session: SessionId,
    },
    /// Complete the opening of a session: its sandbox was made.
    FinishOpen {
        /// The session.
        session: SessionId,
    },
    /// Record that the opening of a session was interrupted before its sandbox was made.
    FailOpen {
        /// The session.
        session: SessionId,
    },
    /// Complete the stop of a session.
    FinishStop {
        /// The session.
        session: SessionId,
    },
    /// Take back the request to start a session, which was interrupted before the sandbox was started.
    DropStart {
        /// The session.
        session: SessionId,
    },
    /// Record that a stopped session runs.
    MarkRunning {
        /// The session.
        session: SessionId,
    },
    /// Record how the sandbox of a session ended.
    RecordEnd {
        /// The session.
        session: SessionId,
    },
    /// Record that the sandbox of a session no longer exists.
    MarkLost {
        /// The session.
        session: SessionId,
    },
}

/// Why a sandbox is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unneeded {
    /// Its session was removed.
    SessionGone,
    /// Its session has another sandbox. This one was made to prepare the workspace.
    NotTheSessions,
    /// Its session could not be opened.
    NotOpened,
    /// Its session has ended, and was to remove it.
    AutoRemove,
}

/// A sandbox of another store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Foreign {
    /// The provider.
    pub provider: String,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The name of the sandbox.
    pub name: String,
    /// The id of the other store.
    pub store: String,
    /// The session that it belongs to there.
    pub session: Option<String>,
}

/// A provider that could not be listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unlisted {
    /// The provider.
    pub provider: String,
    /// The code of the error.
    pub code: ErrorCode,
    /// What went wrong.
    pub message: String,
}

impl Plan {
    /// Whether there is nothing to do and nothing to report.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Sessions {
    /// Compares the providers with the store, and returns what is to be done about the differences. Changes nothing.
    /// Sessions that a living process is changing are left out.
    pub async fn plan(&self) -> Result<Plan> {
        let mut plan = self.differences().await?;
        let mut free = Vec::new();
        for action in plan.actions {
            if !self.claims.is_taken(action.session())? {
                free.push(action);
            }
        }
        plan.actions = free;
        Ok(plan)
    }

    /// What is to be done if no session is being changed right now.
    async fn differences(&self) -> Result<Plan> {
        // What a damaged store does not show might be taken for removed.
        self.store.check().await?;
        // First the sessions, then the sandboxes: a session that is recorded as running had its sandbox before. The
        // other way round, a session that was opened in between would seem to have lost its sandbox.
        let before = self.list(&SessionFilter::default()).await?;
        let mut plan = Plan::default();
        let mut listed: BTreeMap<&str, Vec<SandboxInfo>> = BTreeMap::new();
        for provider in self.providers.iter() {
            match provider.list().await {
                // A member of a pool has the id of a session from its beginning. It is a session's sandbox only when the
                // session has renamed it.
                Ok(sandboxes) => drop(listed.insert(provider.name(), without_members(sandboxes))),
                Err(error) => plan.unlisted.push(unlisted(provider.name(), error.code(), &error)),
            }
        }
        plan.unlisted.extend(self.unknown_providers(&before));
        for session in &before {
            let Some(sandboxes) = listed.get(session.provider.as_str()) else { continue };
            plan.actions.extend(needed(session, sandboxes.iter().find(|info| info.id == session.sandbox)));
        }
        let all = listed.iter().flat_map(|(name, all)| all.iter().map(move |info| (*name, info)));
        let strays = without_session(all, &before);
        if strays.is_empty() {
            return Ok(plan);
        }
        // Then the sessions again: a sandbox whose session is still missing was made for a session that was removed.
        // Before the listing, its session may just not have been recorded yet.
        let after = self.list(&SessionFilter::default()).await?;
        for (provider, info) in without_session(strays.into_iter(), &after) {
            let store = info.labels.get(labels::STORE).map(String::as_str).unwrap_or_default();
            if store != self.store.id() {
                plan.foreign.push(foreign(provider, info, store));
                continue;
            }
            let label = info.labels.get(labels::SESSION);
            let Some(session) = label.and_then(|label| SessionId::new(label).ok()) else { continue };
            let known = after.iter().any(|other| other.id == session);
            let why = if known { Unneeded::NotTheSessions } else { Unneeded::SessionGone };
            let (provider, sandbox) = (provider.to_owned(), info.id.clone());
            plan.actions.push(Action::RemoveSandbox { provider, sandbox, session, why });
        }
        Ok(plan)
    }

    /// The providers of sessions that this engine does not have.
    fn unknown_providers(&self, sessions: &[SessionSummary]) -> Vec<Unlisted> {
        let unknown = |name: &&str| self.provider(name).is_err();
        let names: BTreeSet<&str> = sessions.iter().map(|session| session.provider.as_str()).filter(unknown).collect();
        let missing =
            |name: &str| unlisted(name, ErrorCode::NotAvailable, &format!("provider {name} is not available"));
        names.into_iter().map(missing).collect()
    }
}

/// The sandboxes that were made for a session of a store, but for none of these sessions.
fn without_session<'a>(
    sandboxes: impl Iterator<Item = (&'a str, &'a SandboxInfo)>,
    sessions: &[SessionSummary],
) -> Vec<(&'a str, &'a SandboxInfo)> {
    let theirs: BTreeSet<(&str, &SandboxId)> =
        sessions.iter().map(|session| (session.provider.as_str(), &session.sandbox)).collect();
    // A session without a store is a name that a user chose. It says nothing about what was meant.
    let stray = |(provider, info): &(&str, &SandboxInfo)| {
        info.labels.contains_key(labels::STORE) && !theirs.contains(&(*provider, &info.id))
    };
    sandboxes.filter(stray).collect()
}

/// What is to be done about a session whose provider was listed, with or without its sandbox.
#[expect(clippy::match_same_arms, reason = "one arm for each case reads like the table that it is")]
fn needed(seen: &SessionSummary, sandbox: Option<&SandboxInfo>) -> Option<Action> {
    use SessionState::{Completed, Creating, Failed, Removing, Running, Stopped};
    let session = seen.id.clone();
    let remove = |why| Action::RemoveSandbox {
        provider: seen.provider.clone(),
        sandbox: seen.sandbox.clone(),
        session: seen.id.clone(),
        why,
    };
    let up = sandbox.map(|info| info.status.is_up());
    match (seen.state, up) {
        (Creating, Some(_)) => Some(Action::FinishOpen { session }),
        (Creating, None) => Some(Action::FailOpen { session }),
        (Running, Some(true)) if seen.wanted == Wanted::Stopped => Some(Action::FinishStop { session }),
        (Running, Some(true)) => None,
        (Running, Some(false)) => Some(Action::RecordEnd { session }),
        (Running, None) => Some(Action::MarkLost { session }),
        (Stopped, Some(true)) => Some(Action::MarkRunning { session }),
        (Stopped, Some(false)) if seen.auto_remove => Some(remove(Unneeded::AutoRemove)),
        (Stopped, Some(false)) if seen.wanted == Wanted::Running => Some(Action::DropStart { session }),
        (Stopped, None) if !seen.auto_remove => Some(Action::MarkLost { session }),
        (Completed | Failed, Some(_)) if seen.auto_remove => Some(remove(Unneeded::AutoRemove)),
        (Failed, Some(_)) if seen.cause.is_of_opening() => Some(remove(Unneeded::NotOpened)),
        (Removing, _) => Some(Action::FinishRemoval { session }),
        (Stopped | Completed | Failed, _) => None,
    }
}

fn foreign(provider: &str, info: &SandboxInfo, store: &str) -> Foreign {
    Foreign {
        provider: provider.to_owned(),
        sandbox: info.id.clone(),
        name: info.name.clone(),
        store: store.to_owned(),
        session: info.labels.get(labels::SESSION).cloned(),
    }
}

fn unlisted(provider: &str, code: ErrorCode, error: &dyn std::fmt::Display) -> Unlisted {
    Unlisted { provider: provider.to_owned(), code, message: error.to_string() }
}
