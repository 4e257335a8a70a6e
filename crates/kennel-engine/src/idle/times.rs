//! The idle times of a sandbox.

use kennel_types::SandboxSpec;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// After which time without use a sandbox is paused, and stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdleTimes {
    /// The time until it is paused.
    pause_ms: u64,
    /// The time until it is stopped, if it is.
    stop_ms: Option<u64>,
}

impl IdleTimes {
    /// Reads the times from a specification. Returns `None` if the sandbox is never paused. A tied sandbox is never
    /// paused, because it ends with its creator.
    pub(crate) fn from_spec(spec: &SandboxSpec) -> Option<Self> {
        if spec.tied {
            return None;
        }
        let stop_ms = spec.idle_seconds.map(|seconds| seconds.saturating_mul(1000));
        Some(Self { pause_ms: spec.idle_pause_ms?, stop_ms })
    }

    /// The time until the sandbox is paused.
    pub fn pause(self) -> Duration {
        Duration::from_millis(self.pause_ms)
    }

    /// The time from the pause until the sandbox is stopped, if it is.
    pub fn stop_after_pause(self) -> Option<Duration> {
        self.stop_ms.map(|stop| Duration::from_millis(stop.saturating_sub(self.pause_ms)))
    }
}
