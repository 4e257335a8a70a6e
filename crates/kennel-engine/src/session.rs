//! A session: what was requested, its state, and how it ended.

mod state;

pub use state::{Cause, SessionState, Wanted};

use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NextStep, SandboxId, SandboxSpec};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The id of a session. It has the form of a sandbox's id, because it is part of labels and paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(SandboxId);

impl SessionId {
    /// Creates a random id.
    pub fn random() -> Result<Self> {
        kennel_core::new_id().map(Self)
    }

    /// Checks that a text can be an id.
    pub fn new(text: &str) -> Result<Self> {
        SandboxId::new(text).map(Self).map_err(|_| no_session(text))
    }

    /// Wraps an id that was already checked.
    pub(crate) fn from_valid(id: SandboxId) -> Self {
        Self(id)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A session with everything that the store knows about it, except its secret.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The parts that lists show, too.
    #[serde(flatten)]
    pub summary: SessionSummary,
    /// The sandbox that was requested. Its labels, workspace, project and profile are part of it.
    pub spec: SandboxSpec,
    /// The git repository that was cloned into the workspace.
    pub source: Option<String>,
    /// Why the session could not be opened or started, if it failed in this way.
    pub error: Option<String>,
    /// The last lines of the main process's log, from when the sandbox ended. `None` if they could not be read.
    pub log: Option<Vec<String>>,
}

/// The most lines of a log that a session keeps.
pub const LOG_LINES: usize = 50;

/// A session as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSummary {
    /// The number of the session in the store. A later session has a higher one.
    pub number: u64,
    /// The id.
    pub id: SessionId,
    /// The name, if it has one. No other session has it.
    pub name: Option<String>,
    /// The state. The provider knows better whether the sandbox runs; settling the session compares both.
    pub state: SessionState,
    /// What was requested last: that it runs, or that it is stopped.
    pub wanted: Wanted,
    /// The number of changes so far. Two processes cannot both make the change after the same one.
    pub revision: u64,
    /// The provider of its sandbox.
    pub provider: String,
    /// The id of its sandbox, which may not exist yet or any longer.
    pub sandbox: SandboxId,
    /// The project that it belongs to.
    pub project: Option<String>,
    /// The profile that it was made from.
    pub profile: Option<String>,
    /// The host directory that is mounted as the workspace. It is kept when the session ends.
    pub workspace: Option<PathBuf>,
    /// Whether the sandbox is removed once it has ended and its result is recorded.
    pub auto_remove: bool,
    /// When it was opened, in milliseconds since 1970.
    pub created_ms: u64,
    /// When its state changed last, in milliseconds since 1970.
    pub changed_ms: u64,
    /// Why it has its state.
    pub cause: Cause,
    /// The exit code of the main process, once it has ended.
    pub exit_code: Option<i32>,
}

impl SessionSummary {
    /// The name, or the id if it has none.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(self.id.as_str())
    }
}

/// A change of a session, or a request for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionEvent {
    /// The number of the event in the store. Numbers increase, and are never used again.
    pub number: u64,
    /// The session. It may have been removed since.
    pub session: SessionId,
    /// The number of the event within the session, starting at 1, without gaps.
    pub sequence: u64,
    /// When it was recorded, in milliseconds since 1970.
    pub time_ms: u64,
    /// The state before. `None` when the session was opened.
    pub from: Option<SessionState>,
    /// The state after. `None` when the session was removed. The same as before for a request that is not carried out yet.
    pub to: Option<SessionState>,
    /// Why.
    pub cause: Cause,
    /// An error message, if there was an error.
    pub detail: Option<String>,
}

/// Selects sessions. The default selects all, newest first.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    /// Only sessions in these states; all if empty.
    pub states: Vec<SessionState>,
    /// Only sessions of this project.
    pub project: Option<String>,
    /// Only sessions of this profile.
    pub profile: Option<String>,
    /// At most this many.
    pub limit: Option<usize>,
    /// Only sessions with a lower number. For the next page, this is the number of the last session of this one.
    pub before: Option<u64>,
}

/// Selects events. The default selects all, oldest first.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Only events of this session.
    pub session: Option<SessionId>,
    /// Only events with a higher number.
    pub after: u64,
    /// At most this many.
    pub limit: Option<usize>,
}

/// There is no session with this id or name.
pub(crate) fn no_session(name: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no session {name}")).suggest(NextStep::ListSessions)
}
