//! The labels that identify a container as a sandbox and store what the engine has no field for.

use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, SandboxId};
use std::collections::{BTreeMap, HashMap};

/// Set on everything that Kennel creates.
pub(crate) const KENNEL: &str = "kennel";
/// The sandbox's id.
pub(crate) const ID: &str = "kennel.id";
/// The sandbox's name.
pub(crate) const NAME: &str = "kennel.name";
/// The prefix of its container's name.
pub(crate) const PREFIX: &str = "kennel.name-prefix";
/// The session that it belongs to.
pub(crate) const SESSION: &str = "kennel.session";
/// The installation that created it. Sandboxes of other installations on the same engine are neither listed nor
/// changed.
pub(crate) const INSTALLATION: &str = "kennel.installation";
/// The owner of workspace files, as `uid:gid`.
pub(crate) const OWNER: &str = "kennel.owner";
/// The time of creation, in milliseconds since 1970.
pub(crate) const CREATED: &str = "kennel.created-ms";
/// The mode that it was created with.
pub(crate) const MODE: &str = "kennel.mode";
/// The image, as it was requested.
pub(crate) const IMAGE: &str = "kennel.image";
/// The name of its own volume; empty if it has none.
pub(crate) const DATA: &str = "kennel.data";
/// The name of a volume that sandboxes share.
pub(crate) const CACHE: &str = "kennel.cache";
/// The working directory of commands.
pub(crate) const WORKDIR: &str = "kennel.workdir";
/// The image's own command, as a JSON list.
pub(crate) const IMAGE_COMMAND: &str = "kennel.image-command";
/// Whether it has a main process.
pub(crate) const MAIN: &str = "kennel.main";

/// The time limit of a start, in milliseconds.
pub(crate) const STARTUP: &str = "kennel.startup-ms";

/// Refuses labels that could be mistaken for Kennel's.
pub(crate) fn check(labels: &BTreeMap<String, String>) -> Result<()> {
    match labels.keys().find(|key| key.is_empty() || *key == KENNEL || key.starts_with("kennel.")) {
        None => Ok(()),
        Some(key) => {
            let message = format!("label {key:?}: names that begin with \"kennel.\" are Kennel's own");
            Err(Error::new(ErrorCode::InvalidConfig, message).hint("choose another name for the label"))
        }
    }
}

/// Returns the id of the sandbox with these labels, if it belongs to that installation.
pub(crate) fn sandbox_of(labels: &HashMap<String, String>, installation: &str) -> Option<SandboxId> {
    if labels.get(INSTALLATION).map(String::as_str) != Some(installation) {
        return None;
    }
    // Anybody who uses the engine can write labels, and the id becomes part of a path.
    SandboxId::new(labels.get(ID)?.as_str()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_writes_our_labels() {
        for bad in ["", "kennel", "kennel.id", "kennel.anything"] {
            assert!(check(&BTreeMap::from([(bad.into(), String::new())])).is_err(), "{bad:?}");
        }
        for good in ["kennels", "my.kennel.id", "a"] {
            assert!(check(&BTreeMap::from([(good.into(), String::new())])).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn an_id_that_is_a_path_or_of_others_is_none() {
        let labels = |id: &str, installation: &str| {
            HashMap::from([(ID.to_owned(), id.to_owned()), (INSTALLATION.to_owned(), installation.to_owned())])
        };
        assert_eq!(sandbox_of(&labels("abc", "here"), "here").unwrap().as_str(), "abc");
        assert_eq!(sandbox_of(&labels("../abc", "here"), "here"), None);
        assert_eq!(sandbox_of(&labels("abc", "there"), "here"), None);
        assert_eq!(sandbox_of(&HashMap::new(), ""), None);
    }
}
