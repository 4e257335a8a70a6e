//! Sessions to open, and what happened to them.

use crate::CreateSandbox;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A session to open. At most one of `workspace`, `ownWorkspace` and `clone` is possible. Without one of them, the workspace
/// is that of the profile, or there is none.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CreateSession {
    /// The name of the session and of its sandbox. No other session may have it.
    pub name: Option<String>,
    /// The profile whose settings the sandbox has; defaults to the one that the server was started with. `sandbox`
    /// overrides it.
    pub profile: Option<String>,
    /// Use no profile, also if the server was started with one.
    pub no_profile: bool,
    /// The absolute path of a directory on the server's host, mounted at `/workspace`.
    pub workspace: Option<String>,
    /// Make a new directory on the server's host as the workspace. It is kept when the session ends.
    pub own_workspace: bool,
    /// Clone this git repository into a new directory, which becomes the workspace: the address of a public repository with
    /// `https`, `http` or `git`. The clone runs in a sandbox.
    pub clone: Option<String>,
    /// Whether the sandbox uses a pool; defaults to `prefer`.
    pub pool: Option<PoolPolicy>,
    /// The sandbox. `name`, `workspace`, `ttl` and `start` are not possible here. With `autoRemove`, the sandbox is removed
    /// when it has ended, and the session keeps its result. With a profile, `provider` is not possible.
    pub sandbox: Option<CreateSandbox>,
}

/// Whether a sandbox uses a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolPolicy {
    /// It uses a pool if one has a member that fits, and is created as usual otherwise.
    #[default]
    Prefer,
    /// It uses a pool, or is not created.
    Require,
    /// It uses no pool.
    Never,
}

/// A change of a session, or a request for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionEventView {
    /// The number of the event. Later events of all sessions have higher numbers.
    pub number: u64,
    /// The number of the event within the session, starting at 1, without gaps.
    pub sequence: u64,
    /// When it was recorded, in milliseconds since 1970.
    pub time_ms: u64,
    /// The state before. Absent when the session was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The state after. The same as before for a request that was not carried out yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why.
    pub cause: String,
    /// An error message, if there was an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The secret of a session.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSecret {
    /// What the processes of the session have in `KENNEL_SESSION_SECRET`; absent if the session was adopted.
    pub secret: Option<String>,
}
