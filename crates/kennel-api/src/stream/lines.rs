//! Streams without a WebSocket: lines of JSON, and server-sent events.

use super::StreamChannel;
use crate::ApiError;
use kennel_types::{Event, SandboxId, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A line of a command's stream. The last one is `exit` or `error`. A client in Rust may read the error as another type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ExecLine<E = ApiError> {
    /// The command runs.
    Started {
        /// Its id.
        process: u64,
    },
    /// The command printed something. Exactly one of `text` and `base64` is there.
    Output {
        /// `stdout` or `stderr`.
        channel: StreamChannel,
        /// The number of bytes of this channel before these.
        offset: u64,
        /// The bytes, if they are UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The bytes in base64, if they are not UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    /// The command ended.
    Exit {
        /// The exit code that a shell would show: the command's own, 124 for a timeout, 128+n for signal n.
        exit_code: i32,
        /// The signal that ended the command.
        signal: Option<i32>,
        /// Whether it timed out.
        timed_out: bool,
        /// Whether it was killed because memory ran out.
        oom_killed: bool,
    },
    /// The stream cannot continue.
    Error {
        /// What went wrong.
        error: E,
    },
}

/// A line of a sandbox's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LogLine<E = ApiError> {
    /// The main process printed something. Exactly one of `text` and `base64` is there.
    Output {
        /// `stdout` or `stderr`.
        channel: StreamChannel,
        /// The bytes, if they are UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The bytes in base64, if they are not UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    /// The sandbox ended, and this was its whole log.
    End,
    /// The stream cannot continue.
    Error {
        /// What went wrong.
        error: E,
    },
}

/// A line of a watched path. The stream starts with `watching`: changes after it are reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum WatchLine<E = ApiError> {
    /// The path is watched from now on.
    Watching,
    /// A path was created or moved here.
    Created {
        /// The path relative to the watched one; empty for the watched path itself. Bytes that are not UTF-8 are replaced.
        path: String,
    },
    /// The content or the attributes changed.
    Modified {
        /// The path relative to the watched one; empty for the watched path itself. Bytes that are not UTF-8 are replaced.
        path: String,
    },
    /// A path was removed or moved away.
    Removed {
        /// The path relative to the watched one; empty for the watched path itself. Bytes that are not UTF-8 are replaced.
        path: String,
    },
    /// Changes before this one were lost. Read the directory again.
    Missed,
    /// The watched path is gone.
    End,
    /// The stream cannot continue.
    Error {
        /// What went wrong.
        error: E,
    },
}

/// The data of a server-sent event. Its `id` is the event's number, for `Last-Event-ID`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EventData {
    /// Something happened to a sandbox, or events were missed (`missed`).
    Happened(Event),
    /// A sandbox that exists after events were missed.
    Listed(ListedSandbox),
}

/// A sandbox that exists after events were missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    /// `listed`.
    pub event: String,
    /// When it was listed, in milliseconds since 1970.
    pub time_ms: u64,
    /// Its provider.
    pub provider: String,
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: Status,
}
