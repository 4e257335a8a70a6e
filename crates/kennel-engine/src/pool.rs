//! Warm pools: members that were made before anybody needs them, so that a sandbox starts faster.
//!
//! A pool is a file in the data directory: for which sandboxes it is, and how many members wait (`definition`). The
//! resident process makes the members and keeps them (`resident/pools`). A member is a part of a sandbox, or a whole one
//! (`member`). Whoever creates a sandbox claims a member through a socket of the resident process (`wire`, `claim`). Without
//! a resident process there are no members, and sandboxes are created as usual.

mod claim;
mod definition;
mod fit;
mod member;
pub(crate) mod wire;
mod workspaces;

pub(crate) use claim::NO_POOL;
pub use claim::{Claimed, PoolClaims};
pub(crate) use definition::read_all;
pub use definition::{MAX_MEMBERS, Pool, PoolStatus, Pools, SessionMembers};
pub(crate) use fit::unfit;
pub(crate) use member::{ClaimLock, is_member, member_name, without_members};
pub(crate) use workspaces::MemberWorkspaces;

use serde::Serialize;

/// Whether a new sandbox uses a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolUse {
    /// It uses a pool if one has a member that fits, and is created as usual otherwise.
    #[default]
    Prefer,
    /// It uses a pool, or is not created.
    Require,
    /// It uses no pool.
    Never,
}

impl std::str::FromStr for PoolUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "never" => Ok(Self::Never),
            _ => Err(format!("invalid use of pools {text:?}: expected prefer, require or never")),
        }
    }
}

/// Whether a sandbox came from a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum PoolResult {
    /// It came from a pool.
    Hit {
        /// The name of the pool.
        pool: String,
    },
    /// It was created as usual.
    Miss {
        /// Why no pool had a member for it.
        reason: String,
    },
}

impl PoolResult {
    /// Whether it was created as usual because there is no pool at all.
    pub fn is_without_pools(&self) -> bool {
        matches!(self, Self::Miss { reason } if reason == NO_POOL)
    }

    pub(crate) fn miss(reason: impl Into<String>) -> Self {
        Self::Miss { reason: reason.into() }
    }
}

impl std::fmt::Display for PoolResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hit { pool } => write!(f, "pool hit: {pool}"),
            Self::Miss { reason } => write!(f, "pool miss: {reason}"),
        }
    }
}
