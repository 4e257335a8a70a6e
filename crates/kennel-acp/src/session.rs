//! Agents of sessions. The relay stores every message before it passes it on, so it can be killed at any moment: the next one
//! continues where it was, and no message is lost or repeated.
//!
//! - `relays.rs` starts agents, and continues with those that run. One relay serves all clients of a session.
//! - `core.rs` is the relay itself: one task that decides what happens to each message.
//! - `hub.rs` knows the clients, and `client.rs` is one of them.
//! - `handshake.rs` begins the conversation in place of a client, if that was asked for.
//! - `redact.rs` keeps secrets out of the store.

mod client;
mod core;
mod handshake;
mod hub;
mod redact;
mod relays;

pub use client::{Client, Join, Sender};
pub use hub::{Ended, Outgoing};
pub use relays::{Liveness, NewAgent, Relays, SessionAgent, SessionRelay};

use crate::relay::Served;
use redact::Redactor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a relay needs to continue with an agent. It is stored, and contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Definition {
    /// The name of the agent, or its program.
    name: String,
    startup: Duration,
    served: Served,
    /// The working directory of the session that the relay opens. `None` if clients begin the conversation.
    opens: Option<String>,
    secrets: Redactor,
}

/// What a relay has learned from the conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Knowledge {
    /// The agent's answers to the relay's own requests: `"result":…` or `"error":…`, as JSON text.
    initialized: Option<String>,
    opened: Option<String>,
    /// The working directory of each session, by its id.
    directories: BTreeMap<String, String>,
    /// Whether the agent has sent a message.
    spoke: bool,
}
