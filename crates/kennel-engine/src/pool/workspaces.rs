//! Directories that members have made for the sessions that will claim them.
//!
//! The directory of a session is named by its id, so nothing in it says that no session has claimed it yet. A note does: a
//! symlink to the directory, which is made before the directory and removed when a session has it. So a directory is found
//! also if the process that made it was killed at once.

use crate::session::SessionId;
use kennel_core::{Error, Result};
use kennel_types::ProviderKind;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The directories that belong to members of pools.
#[derive(Clone, Debug)]
pub(crate) struct MemberWorkspaces {
    notes: PathBuf,
}

impl MemberWorkspaces {
    /// Uses the notes in this directory.
    pub(crate) fn new(notes: PathBuf) -> Self {
        Self { notes }
    }

    /// Notes the directory of a future session, which the caller makes next. Returns its path.
    pub(crate) fn note(&self, provider: ProviderKind, session: &SessionId, base: &Path) -> Result<PathBuf> {
        let dir = base.join(session.as_str());
        let noted = crate::lock_file::create_dir(&self.notes.join(provider.name()))
            .and_then(|()| std::os::unix::fs::symlink(&dir, self.path(provider, session)));
        noted.map_err(|error| Error::io(format!("note the workspace {}", dir.display()), error))?;
        Ok(dir)
    }

    /// Forgets a directory that a session has now.
    pub(crate) fn hand_over(&self, provider: ProviderKind, session: &SessionId) {
        let _ = std::fs::remove_file(self.path(provider, session));
    }

    /// Removes a directory that nobody has claimed. If something is in it, it stays.
    pub(crate) fn remove(&self, provider: ProviderKind, session: &SessionId) {
        if let Ok(dir) = std::fs::read_link(self.path(provider, session)) {
            let _ = std::fs::remove_dir(dir);
        }
        self.hand_over(provider, session);
    }

    /// Returns the sessions whose directories are noted.
    pub(crate) fn list(&self, provider: ProviderKind) -> Result<Vec<SessionId>> {
        let dir = self.notes.join(provider.name());
        let failed = |error| Error::io(format!("list {}", dir.display()), error);
        let entries = match std::fs::read_dir(&dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            found.extend(name.to_str().and_then(|name| SessionId::new(name).ok()));
        }
        Ok(found)
    }

    fn path(&self, provider: ProviderKind, session: &SessionId) -> PathBuf {
        self.notes.join(provider.name()).join(session.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unclaimed_directory_is_removed_unless_something_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (workspaces, base) = (MemberWorkspaces::new(dir.path().join("notes")), dir.path().join("base"));
        let make = || {
            let session = SessionId::random().unwrap();
            let made = workspaces.note(ProviderKind::Docker, &session, &base).unwrap();
            assert_eq!(made, base.join(session.as_str()));
            std::fs::create_dir_all(&made).unwrap();
            (session, made)
        };
        let ((empty, gone), (used, kept), (claimed, given)) = (make(), make(), make());
        std::fs::write(kept.join("file"), "").unwrap();
        assert_eq!(workspaces.list(ProviderKind::Docker).unwrap().len(), 3);
        assert_eq!(workspaces.list(ProviderKind::Podman).unwrap(), []);
        workspaces.remove(ProviderKind::Docker, &empty);
        workspaces.remove(ProviderKind::Docker, &used);
        workspaces.hand_over(ProviderKind::Docker, &claimed);
        assert_eq!((gone.exists(), kept.exists(), given.exists()), (false, true, true));
        assert_eq!(workspaces.list(ProviderKind::Docker).unwrap(), []);
    }
}
