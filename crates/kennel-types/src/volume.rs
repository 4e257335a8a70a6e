//! Volumes: directories that outlive sandboxes.

use crate::SandboxId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A volume, as its provider describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VolumeInfo {
    /// The name. It is unique on a provider.
    pub name: String,
    /// The provider.
    pub provider: String,
    /// What the volume is for.
    pub kind: VolumeKind,
    /// The workspace of the sandbox that created it. Volumes of earlier versions of Kennel have none.
    pub workspace: Option<PathBuf>,
    /// The project of the sandbox that created it.
    pub project: Option<String>,
    /// Its size in bytes, if it was requested and can be measured.
    pub size: Option<u64>,
    /// Time of creation, in milliseconds since 1970, if it is known.
    pub created_ms: Option<u64>,
    /// The sandboxes that use it, whether they run or not.
    pub used_by: Vec<VolumeUser>,
}

/// What a volume is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// The data of one sandbox, which the next sandbox of the same name gets again.
    Data,
    /// A cache that the sandboxes of a workspace share.
    Cache,
}

/// A sandbox that uses a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VolumeUser {
    /// The id of the sandbox.
    pub id: SandboxId,
    /// The name of the sandbox.
    pub name: String,
}

impl VolumeKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Data, Self::Cache];

    /// The name of the kind in JSON and in tables. Names of volumes begin with it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Cache => "cache",
        }
    }

    /// Returns the name of the volume of this kind for a sandbox or cache with this name.
    pub fn volume(self, of: &str) -> String {
        format!("{}-{of}", self.name())
    }

    /// Splits the name of a volume into its kind and the name of the sandbox or cache. Returns `None` if no volume can
    /// have this name, so a name that it accepts contains no path.
    pub fn split(volume: &str) -> Option<(Self, &str)> {
        let split = |kind: Self| Some((kind, volume.strip_prefix(kind.name())?.strip_prefix('-')?));
        Self::ALL.into_iter().find_map(split).filter(|(_, of)| SandboxId::new(*of).is_ok())
    }
}

impl std::fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_names_cannot_be_paths() {
        for kind in VolumeKind::ALL {
            assert_eq!(VolumeKind::split(&kind.volume("box-1")), Some((kind, "box-1")));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        for bad in ["", "data", "data-", "data-../x", "data-.", "cache-a/b", "other-box", "data-A", "../data-box"] {
            assert_eq!(VolumeKind::split(bad), None, "{bad}");
        }
    }
}
