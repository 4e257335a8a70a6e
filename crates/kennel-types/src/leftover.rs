//! What killed processes leave behind.

use crate::SandboxId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Something that a killed process left behind and that belongs to no sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Leftover {
    /// A sandbox that was never completed, or whose creator was killed before it ran.
    Sandbox {
        /// Its id.
        id: SandboxId,
    },
    /// The run directory of a container that is gone.
    RunDirectory {
        /// The id of its sandbox.
        id: SandboxId,
    },
    /// A cgroup without a sandbox.
    Cgroup {
        /// Its path.
        path: PathBuf,
    },
    /// A volume whose removal was interrupted.
    Volume {
        /// Its path.
        path: PathBuf,
    },
    /// A helper program of another version of Kennel.
    Program {
        /// Its path.
        path: PathBuf,
    },
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sandbox { id } => write!(f, "sandbox {id}"),
            Self::RunDirectory { id } => write!(f, "run directory of sandbox {id}"),
            Self::Cgroup { path } => write!(f, "cgroup {}", path.display()),
            Self::Volume { path } => write!(f, "half-removed volume {}", path.display()),
            Self::Program { path } => write!(f, "program {}", path.display()),
        }
    }
}
