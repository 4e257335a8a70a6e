//! Tokens.

use kennel_types::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The caller's own token, without its secret.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenView {
    /// The id of the token. Absent if the caller is known by its user id on a unix socket.
    pub id: Option<String>,
    /// The name.
    pub name: String,
    /// What it allows.
    pub scope: Scope,
    /// The only project whose sandboxes it can see.
    pub project: Option<String>,
    /// The directories of the host below which workspaces and mounts must be. With the scope `admin` they may be anywhere.
    pub directories: Vec<String>,
}
