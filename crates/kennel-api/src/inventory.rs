//! What is there beside sandboxes: volumes, images, providers, profiles, sessions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeView {
    /// The name. It is unique on a provider.
    pub name: String,
    /// The provider.
    pub provider: String,
    /// `data` for the data of one sandbox, `cache` for a cache that sandboxes share.
    pub kind: String,
    /// The project of the sandbox that created it.
    pub project: Option<String>,
    /// Its size, if it was requested and can be measured.
    pub size_bytes: Option<u64>,
    /// The time of creation in milliseconds since 1970, if it is known.
    pub created_ms: Option<u64>,
    /// The ids of the sandboxes that use it, whether they run or not.
    pub used_by: Vec<String>,
}

/// An image in Kennel's own store, which native sandboxes use.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageView {
    /// The full name.
    pub name: String,
    /// The id.
    pub id: String,
    /// The size of its files.
    pub size_bytes: u64,
    /// The time of creation in milliseconds since 1970, if the image states it.
    pub created_ms: Option<i64>,
}

/// A provider of sandboxes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderView {
    /// The name.
    pub name: String,
    /// Whether it can be used on the server's host.
    pub available: bool,
    /// The version of the backend, or what is missing.
    pub detail: String,
    /// The names of its modes on this host, the usual one first. A mode says what is enforced.
    pub modes: Vec<String>,
}

/// A profile and the state of its sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileView {
    /// The name.
    pub name: String,
    /// The state: `stopped`, `running`, `paused` or `error`.
    pub status: String,
    /// The id of its sandbox, if it has one.
    pub sandbox: Option<String>,
    /// The exit code of its main process, if it ended with an error.
    pub exit_code: Option<i32>,
    /// Whether another image has the profile's image name since its sandbox was created.
    pub image_changed: bool,
}

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    /// The id.
    pub id: String,
    /// The name, if it has one.
    pub name: Option<String>,
    /// The state.
    pub state: String,
    /// The provider of its sandbox.
    pub provider: String,
    /// The id of its sandbox, which may not exist yet or any longer.
    pub sandbox: String,
    /// The project.
    pub project: Option<String>,
    /// The profile that it was made from.
    pub profile: Option<String>,
    /// The directory of the server's host that is mounted as the workspace.
    pub workspace: Option<String>,
    /// The git repository that was cloned into the workspace. Not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// When it was opened, in milliseconds since 1970.
    pub created_ms: u64,
    /// When its state changed last, in milliseconds since 1970.
    pub changed_ms: u64,
    /// Why it has its state.
    pub cause: String,
    /// The exit code of the main process, once it has ended.
    pub exit_code: Option<i32>,
    /// Why it could not be opened or started, if it failed in this way. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The last lines of the main process's log, from when the sandbox ended. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Vec<String>>,
}

/// A list that has no pages.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// The entries.
    pub items: Vec<T>,
}
