//! Images to pull and to build.

use crate::{Bytes, Cpus, ProviderName, PullPolicy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An image to pull.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullImage {
    /// The name: `debian` means `docker.io/library/debian:latest`.
    pub image: String,
    /// Who pulls it; defaults to `native`, which means Kennel's own store. `local` has no images.
    #[serde(default)]
    pub provider: Option<ProviderName>,
    /// When the registry is asked; defaults to `always`.
    #[serde(default)]
    pub pull: Option<PullPolicy>,
}

/// What was removed from Kennel's own store.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemovedImages {
    /// The full names of the images.
    pub images: Vec<String>,
    /// How much space was freed.
    pub freed_bytes: u64,
    /// How many layers stay, because sandboxes use them.
    pub layers_in_use: u64,
}

/// An image to build from a directory of the server's host.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BuildImage {
    /// The absolute path of the directory.
    pub context: String,
    /// The build file, relative to the directory; defaults to `Dockerfile` or `Containerfile`.
    #[serde(default)]
    pub file: Option<String>,
    /// The name of the new image.
    pub tag: String,
    /// Values of build arguments.
    #[serde(default)]
    pub args: BTreeMap<String, String>,
    /// The memory limit of each step.
    #[serde(default)]
    pub memory: Option<Bytes>,
    /// The CPU limit of each step.
    #[serde(default)]
    pub cpus: Option<Cpus>,
    /// Run all steps again, without the cache.
    #[serde(default)]
    pub no_cache: bool,
    /// Pull the base image even if it is there.
    #[serde(default)]
    pub pull: bool,
}
