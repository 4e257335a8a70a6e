//! Members that are whole sandboxes, on providers that cannot make a part of one.
//!
//! A member has the label `kennel.pool` and a name that is derived from its id. Labels cannot change later, but names can:
//! the claim renames the member, and from then on it is a sandbox like any other. So the name alone decides which of both
//! it is, and the rename is the step at which it changes hands.

use kennel_core::{Error, Result};
use kennel_provider::labels::POOL;
use kennel_types::{SandboxId, SandboxInfo};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::Path;

/// The name of a member until it is claimed.
pub(crate) fn member_name(id: &SandboxId) -> String {
    format!("pool-{id}")
}

/// Whether a sandbox is a member that nobody has claimed.
pub(crate) fn is_member(info: &SandboxInfo) -> bool {
    info.labels.get(POOL).is_some_and(|pool| !pool.is_empty()) && info.name == member_name(&info.id)
}

/// Returns the sandboxes that are no members of pools.
pub(crate) fn without_members(listed: Vec<SandboxInfo>) -> Vec<SandboxInfo> {
    listed.into_iter().filter(|info| !is_member(info)).collect()
}

/// A lock that is held while a member is claimed. Whoever removes members of a killed resident process holds it alone, so
/// that no member is removed that is being renamed.
pub(crate) struct ClaimLock {
    _file: File,
}

impl ClaimLock {
    /// Takes the lock together with others that claim. Returns `None` if members are being removed.
    pub(crate) fn shared(path: &Path) -> Result<Option<Self>> {
        Self::take(path, FlockOperation::NonBlockingLockShared)
    }

    /// Takes the lock alone. Returns `None` if a member is being claimed.
    pub(crate) fn exclusive(path: &Path) -> Result<Option<Self>> {
        Self::take(path, FlockOperation::NonBlockingLockExclusive)
    }

    fn take(path: &Path, operation: FlockOperation) -> Result<Option<Self>> {
        let failed = |error: std::io::Error| Error::io(format!("lock {}", path.display()), error);
        let file = crate::lock_file::open(path).map_err(failed)?;
        match flock(&file, operation) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(failed(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_not_removed_while_one_is_claimed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let claims = [ClaimLock::shared(&path).unwrap(), ClaimLock::shared(&path).unwrap()];
        assert!(claims.iter().all(Option::is_some));
        assert!(ClaimLock::exclusive(&path).unwrap().is_none());
        drop(claims);
        let alone = ClaimLock::exclusive(&path).unwrap();
        assert!(alone.is_some() && ClaimLock::shared(&path).unwrap().is_none());
    }
}
