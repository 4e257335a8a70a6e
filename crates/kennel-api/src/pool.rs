//! Pools, and volumes that nobody uses.

use crate::{ApiError, CreateSandbox, VolumeView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pool, and what the server has for it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// The name.
    pub name: String,
    /// The provider of its sandboxes.
    pub provider: String,
    /// The profile that it is for.
    pub profile: Option<String>,
    /// Whether its members are only for sessions.
    pub sessions: bool,
    /// How many members always wait.
    pub min: u32,
    /// How many members wait at most.
    pub max: u32,
    /// How many members wait now, if it is known.
    pub ready: Option<u32>,
    /// Why a member could not be made, if the last attempt failed.
    pub problem: Option<String>,
}

/// A pool to set. It replaces the pool with the same name.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SetPool {
    /// How many members always wait; defaults to 1.
    #[schemars(range(max = 1000))]
    pub min: Option<u32>,
    /// How many members wait at most: as many as were claimed in the last minute. Defaults to `min`.
    #[schemars(range(min = 1, max = 1000))]
    pub max: Option<u32>,
    /// The profile whose sandboxes use the pool.
    pub profile: Option<String>,
    /// Make containers for sessions; only sessions use them.
    pub sessions: bool,
    /// Make a new directory as the workspace of each session.
    pub own_workspace: bool,
    /// The sandboxes that the pool is for. On native, only `network` is possible, because a member fits every sandbox with the
    /// same kind of network.
    pub sandbox: Option<CreateSandbox>,
}

/// Which volumes are removed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PruneVolumes {
    /// Also remove caches that no sandbox uses.
    pub caches: bool,
    /// Return what would be removed, and remove nothing.
    pub dry_run: bool,
}

/// The volumes that were removed, or would be.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrunedVolumes<E = ApiError> {
    /// The volumes.
    pub volumes: Vec<VolumeView>,
    /// Their size, as far as it is known.
    pub freed_bytes: u64,
    /// Volumes that could not be removed.
    pub failed: Vec<FailedVolume<E>>,
}

/// A volume that could not be removed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedVolume<E = ApiError> {
    /// Its name.
    pub name: String,
    /// Its provider.
    pub provider: String,
    /// Why it could not be removed.
    pub error: E,
}
