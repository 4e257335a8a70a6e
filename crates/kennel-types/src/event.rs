//! Events in the life of a sandbox.

use crate::SandboxId;
use serde::{Deserialize, Serialize};

/// An event in the life of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// When it happened, or was noticed, in milliseconds since 1970.
    pub time_ms: u64,
    /// The provider of the sandbox.
    pub provider: String,
    /// The sandbox. `None` only for [`EventKind::Missed`].
    #[serde(rename = "sandboxId")]
    pub sandbox: Option<SandboxId>,
    /// What happened.
    #[serde(rename = "event")]
    pub kind: EventKind,
    /// The new name, for [`EventKind::Renamed`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why it ended, for [`EventKind::Stopped`], if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<EndCause>,
    /// The exit code of its main process, for [`EventKind::Stopped`], if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// The kinds of [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The sandbox was created.
    Created,
    /// The sandbox was started.
    Started,
    /// All processes of the sandbox were paused.
    Paused,
    /// All processes of the sandbox run again after a pause.
    Resumed,
    /// The sandbox has another name.
    Renamed,
    /// The sandbox ended or was stopped.
    Stopped,
    /// The sandbox was removed.
    Removed,
    /// Events before this one were lost. List the sandboxes again to learn their state.
    Missed,
}

impl EventKind {
    /// The name in JSON and in lists.
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Started => "started",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::Renamed => "renamed",
            Self::Stopped => "stopped",
            Self::Removed => "removed",
            Self::Missed => "missed",
        }
    }
}

/// Why a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// Someone stopped it.
    Requested,
    /// Its main process ended by itself.
    Exited,
    /// Its main process was killed because the sandbox ran out of memory.
    OutOfMemory,
    /// It was not used for longer than its idle time.
    Idle,
    /// The process that it was tied to is gone.
    OwnerGone,
    /// It was killed from outside, or its keeper failed.
    Killed,
}

impl EndCause {
    /// The cause in words, for a sentence such as "stopped: not used for too long".
    pub fn words(self) -> &'static str {
        match self {
            Self::Requested => "on request",
            Self::Exited => "its main process ended",
            Self::OutOfMemory => "out of memory",
            Self::Idle => "idle for too long",
            Self::OwnerGone => "its creator is gone",
            Self::Killed => "killed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_same_name_in_json() {
        use EventKind::{Created, Missed, Paused, Removed, Renamed, Resumed, Started, Stopped};
        for kind in [Created, Started, Paused, Resumed, Renamed, Stopped, Removed, Missed] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
