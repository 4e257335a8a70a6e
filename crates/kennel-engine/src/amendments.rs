//! What was changed about a sandbox after its creation, and what no provider can change: its labels, and when it expires.
//!
//! A sandbox with amendments has a file in the directory `amendments` of the state directory. The engine applies it to
//! every description of the sandbox, so all front ends see the same. Kennel's own labels cannot be amended.

use crate::lock_file;
use kennel_core::{Error, Result};
use kennel_provider::labels;
use kennel_types::{ErrorCode, SandboxId, SandboxInfo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// The file that is locked while an amendment changes. No sandbox can have this id.
const LOCK: &str = ".lock";

/// The largest number of labels of users that a sandbox can have, and the most bytes of them.
const MOST_LABELS: usize = 256;
const MOST_BYTES: usize = 64 << 10;

/// The amendments of an installation.
#[derive(Clone, Debug)]
pub struct Amendments {
    dir: PathBuf,
}

/// What was changed about one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Amendment {
    /// Labels that were set, or removed (`None`).
    pub labels: BTreeMap<String, Option<String>>,
    /// When the sandbox expires, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

impl Amendment {
    fn apply(self, info: &mut SandboxInfo) {
        for (key, value) in self.labels {
            match value {
                _ if is_own(&key) => {}
                Some(value) => drop(info.labels.insert(key, value)),
                None => drop(info.labels.remove(&key)),
            }
        }
        if let Some(expires_ms) = self.expires_ms {
            info.labels.insert(labels::EXPIRES.into(), expires_ms.to_string());
        }
    }

    fn check(&self) -> Result<()> {
        let set = self.labels.iter().map(|(key, value)| (key.clone(), value.clone().unwrap_or_default())).collect();
        labels::check_labels(&set)?;
        let bytes: usize = set.iter().map(|(key, value)| key.len() + value.len()).sum();
        if set.len() > MOST_LABELS || bytes > MOST_BYTES {
            let message = format!("too many labels: expected at most {MOST_LABELS} labels and {MOST_BYTES} bytes");
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
        Ok(())
    }
}

/// Whether a label is Kennel's own. Some of them decide who may use a sandbox.
fn is_own(key: &str) -> bool {
    key == labels::KENNEL || key.starts_with("kennel.")
}

impl Amendments {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Changes what is noted about a sandbox. Its file is replaced as a whole, so a reader sees it before or after the change.
    pub fn change(&self, id: &SandboxId, change: impl FnOnce(&mut Amendment)) -> Result<()> {
        let failed = |error: std::io::Error| Error::io(format!("note changes of sandbox {id}"), error);
        lock_file::create_dir(&self.dir).map_err(failed)?;
        let lock = lock_file::open(&self.dir.join(LOCK)).map_err(failed)?;
        lock_file::lock(&lock).map_err(failed)?;
        let mut amendment = self.get(id);
        change(&mut amendment);
        amendment.check()?;
        if amendment == Amendment::default() {
            self.remove(id);
            return Ok(());
        }
        let json = serde_json::to_vec(&amendment).map_err(|error| failed(error.into()))?;
        let partial = self.dir.join(format!(".{id}"));
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial);
        file.and_then(|mut file| file.write_all(&json))
            .and_then(|()| std::fs::rename(&partial, self.dir.join(id.as_str())))
            .map_err(failed)
    }

    /// Forgets what is noted about a sandbox.
    pub fn remove(&self, id: &SandboxId) {
        let _ = std::fs::remove_file(self.dir.join(id.as_str()));
    }

    /// Returns what is noted about a sandbox. A file that cannot be read counts as empty.
    pub fn get(&self, id: &SandboxId) -> Amendment {
        let text = std::fs::read(self.dir.join(id.as_str())).ok();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Returns the sandboxes that expire, with the time in milliseconds since 1970.
    pub fn expiring(&self) -> Result<Vec<(SandboxId, u64)>> {
        let noted = self.ids()?.into_iter();
        Ok(noted.filter_map(|id| self.get(&id).expires_ms.map(|expires_ms| (id, expires_ms))).collect())
    }

    fn ids(&self) -> Result<Vec<SandboxId>> {
        let failed = |error| Error::io(format!("list {}", self.dir.display()), error);
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            ids.extend(name.to_str().and_then(|name| SandboxId::new(name).ok()));
        }
        Ok(ids)
    }

    pub(crate) fn apply(&self, info: &mut SandboxInfo) {
        self.get(&info.id).apply(info);
    }

    pub(crate) fn apply_all(&self, infos: &mut [SandboxInfo]) {
        // Nearly always there are none.
        if self.dir.exists() {
            for info in infos {
                self.apply(info);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_kept_and_kennels_own_labels_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let amendments = Amendments::new(dir.path().join("amendments"));
        let id = SandboxId::new("box").unwrap();
        assert_eq!(amendments.get(&id), Amendment::default());
        assert_eq!(amendments.expiring().unwrap(), []);
        amendments.change(&id, |it| drop(it.labels.insert("a".into(), Some("1".into())))).unwrap();
        amendments.change(&id, |it| it.expires_ms = Some(7)).unwrap();
        assert_eq!(amendments.get(&id).labels["a"].as_deref(), Some("1"));
        assert_eq!(amendments.expiring().unwrap(), [(id.clone(), 7)]);
        for key in ["", "kennel", "kennel.project"] {
            let refused = amendments.change(&id, |it| drop(it.labels.insert(key.into(), None)));
            assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidConfig, "{key:?}");
        }
        let many = (0..300).map(|number| (number.to_string(), None)).collect();
        assert!(amendments.change(&id, |it| it.labels = many).is_err());
        amendments.change(&id, |it| *it = Amendment::default()).unwrap();
        assert_eq!(amendments.ids().unwrap(), []);
    }
}
