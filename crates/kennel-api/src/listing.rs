//! What several resources share: pages of lists, and health.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A page of a list.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// The value of `cursor` for the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// The providers that did not respond. Their entries are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentProvider>,
}

/// A provider that did not respond.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SilentProvider {
    /// Its name.
    pub provider: String,
    /// Why it did not respond.
    pub message: String,
}

/// Whether the server works.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// `ok`.
    pub status: String,
}
