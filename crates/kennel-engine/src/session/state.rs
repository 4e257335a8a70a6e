//! The state machine of a session. No other module decides which transitions exist: the store asks
//! [`SessionState::may_become`] before it records one.

use serde::{Deserialize, Serialize};

/// The state of a session.
///
/// ```text
///      open                                   start again
///   ---------> creating           +--------------------------------+
///                |  |             v                                |
///                |  +--------> running ---- stop, or idle ----> stopped
///                |  started       |  |                             |
///                |                |  +----- ended with 0 ----> completed
///      not made, |                |                                |
///   not started, |                | ended otherwise,               | lost
///    interrupted |                | or lost                        | (from stopped only)
///                v                v                                v
///              failed <-----------+--------------------------------+
///
///   any of these --- remove ---> removing ---> (gone)
/// ```
///
/// A transition is recorded together with its event, and only if the session is still in the state that the decision
/// was based on. *Lost* means that the provider has no sandbox for the session, and said so itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Recorded. Its workspace and sandbox are being made.
    Creating,
    /// Its sandbox was started.
    Running,
    /// Its sandbox was stopped on request, or because it was idle. It can be started again.
    Stopped,
    /// The main process ended with exit code 0.
    Completed,
    /// It could not be opened, its main process ended otherwise, or its sandbox is lost.
    Failed,
    /// It is being removed: first the sandbox, then the record.
    Removing,
}

impl SessionState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Creating, Self::Running, Self::Stopped, Self::Completed, Self::Failed, Self::Removing];

    /// Whether a session may go from one state to another. `None` stands for a session that is not recorded.
    pub fn may_become(from: Option<Self>, to: Option<Self>) -> bool {
        use SessionState::{Completed, Creating, Failed, Removing, Running, Stopped};
        match from {
            None => to == Some(Creating),
            Some(Creating) => matches!(to, Some(Running | Failed | Removing)),
            Some(Running) => matches!(to, Some(Stopped | Completed | Failed | Removing)),
            Some(Stopped) => matches!(to, Some(Running | Failed | Removing)),
            Some(Completed | Failed) => to == Some(Removing),
            Some(Removing) => to.is_none(),
        }
    }

    /// The name in JSON, in lists and in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Removing => "removing",
        }
    }

    /// Finds a state by its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl std::fmt::Display for SessionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What was requested last. It is recorded before it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// The session is to run.
    Running,
    /// The session is to be stopped.
    Stopped,
}

impl Wanted {
    /// The name in JSON and in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
        }
    }

    /// Finds a request by its name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Running, Self::Stopped].into_iter().find(|wanted| wanted.name() == name)
    }
}

/// Why a session changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A user or a program requested it.
    Requested,
    /// The sandbox was started.
    Started,
    /// The main process ended by itself.
    Exited,
    /// The sandbox ran out of memory.
    OutOfMemory,
    /// The sandbox was idle for too long.
    Idle,
    /// The sandbox was killed from outside, for example by a reboot, or its keeper failed.
    Killed,
    /// The sandbox no longer exists, and nobody removed it on behalf of the session.
    Lost,
    /// The workspace or the sandbox could not be made, or the sandbox could not be started.
    StartFailed,
    /// The process that was opening the session ended before it was done.
    Interrupted,
    /// The caller gave up.
    Cancelled,
    /// The task of the session returned without an error.
    TaskDone,
    /// The task of the session returned an error.
    TaskFailed,
    /// The task of the session panicked.
    Panicked,
    /// The sandbox was found running, although that was not recorded.
    Found,
    /// The sandbox of a lost store was taken over.
    Adopted,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 15] = [
        Self::Requested,
        Self::Started,
        Self::Exited,
        Self::OutOfMemory,
        Self::Idle,
        Self::Killed,
        Self::Lost,
        Self::StartFailed,
        Self::Interrupted,
        Self::Cancelled,
        Self::TaskDone,
        Self::TaskFailed,
        Self::Panicked,
        Self::Found,
        Self::Adopted,
    ];

    /// The name in JSON, in lists and in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Started => "started",
            Self::Exited => "exited",
            Self::OutOfMemory => "out_of_memory",
            Self::Idle => "idle",
            Self::Killed => "killed",
            Self::Lost => "lost",
            Self::StartFailed => "start_failed",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
            Self::TaskDone => "task_done",
            Self::TaskFailed => "task_failed",
            Self::Panicked => "panicked",
            Self::Found => "found",
            Self::Adopted => "adopted",
        }
    }

    /// Finds a cause by its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }

    /// Whether a session that failed for this cause never had a sandbox that is worth keeping. What is left of it is
    /// removed.
    pub fn is_of_opening(self) -> bool {
        matches!(self, Self::StartFailed | Self::Interrupted | Self::Cancelled)
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_everywhere() {
        for state in SessionState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
            assert_eq!(SessionState::named(state.name()), Some(state));
        }
        for cause in Cause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
            assert_eq!(Cause::named(cause.name()), Some(cause));
        }
        for wanted in [Wanted::Running, Wanted::Stopped] {
            assert_eq!(serde_json::to_value(wanted).unwrap(), wanted.name());
            assert_eq!(Wanted::named(wanted.name()), Some(wanted));
        }
    }

    #[test]
    fn every_session_can_be_removed_and_disappears_only_then() {
        for state in SessionState::ALL {
            let removable = SessionState::may_become(Some(state), Some(SessionState::Removing));
            assert_eq!(removable, state != SessionState::Removing, "{state}");
            assert_eq!(SessionState::may_become(Some(state), None), state == SessionState::Removing, "{state}");
            assert!(!SessionState::may_become(Some(state), Some(SessionState::Creating)), "{state}");
            assert!(!SessionState::may_become(Some(SessionState::Removing), Some(state)), "{state}");
        }
    }
}
