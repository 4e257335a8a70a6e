//! What happened to a sandbox, for those who watch.

use crate::SandboxId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that happened to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Which sandbox.
    pub sandbox: SandboxId,
    /// What happened.
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// It was made.
    Created,
    /// It runs.
    Started,
    /// It ended or was stopped.
    Stopped,
    /// It is gone.
    Removed,
    /// Events were lost before this one: look again.
    Missed,
}
