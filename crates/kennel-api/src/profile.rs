//! Profiles to create and to change.

use crate::CreateSandbox;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A profile to create. Its sandbox is created when the profile is started.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateProfile {
    /// The name: letters, digits, dots, dashes and underscores, beginning with a letter or digit.
    pub name: String,
    /// The sandbox of the profile. `name`, `project`, `ttl`, `autoRemove` and `start` are not possible here. Without
    /// `workspace`, it has none.
    #[serde(default)]
    pub sandbox: Option<CreateSandbox>,
}

/// Changes a profile. Its sandbox changes when the profile is restarted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangeProfile {
    /// What changes about the sandbox of the profile. Everything that is left out stays. Variables and labels are added,
    /// mounts replace those with the same target, and ports those with the same port inside.
    pub sandbox: CreateSandbox,
}

/// Restarts the sandbox of a profile.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RestartProfile {
    /// Pull the image first. If it has changed, the sandbox is created again, and keeps its volumes.
    pub pull: bool,
}
