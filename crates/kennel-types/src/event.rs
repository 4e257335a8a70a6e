//! Events in the life of a sandbox.

use crate::SandboxId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An event in the life of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// What happened.
    pub kind: EventKind,
}

/// The kinds of [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The sandbox was created.
    Created,
    /// The sandbox was started.
    Started,
    /// The sandbox ended or was stopped.
    Stopped,
    /// The sandbox was removed.
    Removed,
    /// Events before this one were lost. List the sandboxes again to learn their state.
    Missed,
}
