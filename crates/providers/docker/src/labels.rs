//! The labels that identify a container as a sandbox and store what the engine has no field for.

use kennel_types::SandboxId;
use std::collections::{BTreeMap, HashMap};

pub(crate) use kennel_provider::labels::{KENNEL, PROFILE, PROJECT, SESSION, STORE, own_labels};

/// The sandbox's id.
pub(crate) const ID: &str = "kennel.id";
/// The sandbox's name.
pub(crate) const NAME: &str = "kennel.name";
/// The prefix of its container's name.
pub(crate) const PREFIX: &str = "kennel.name-prefix";
/// The session that it belongs to.
pub(crate) const INSTALLATION: &str = "kennel.installation";
/// When it was made, milliseconds since 1970.
pub(crate) const CREATED: &str = "kennel.created-ms";
/// The mode that it was created with.
pub(crate) const MODE: &str = "kennel.mode";
/// The image, as it was requested.
pub(crate) const IMAGE: &str = "kennel.image";
/// The name of its own volume; empty if it has none.
pub(crate) const DATA: &str = "kennel.data";
/// The name of a volume that sandboxes share.
pub(crate) const CACHE: &str = "kennel.cache";
/// The workspace of the sandbox that a volume was created for.
pub(crate) const WORKSPACE: &str = "kennel.workspace";
/// The working directory of commands.
pub(crate) const WORKDIR: &str = "kennel.workdir";
/// The image's own command, as a JSON list.
pub(crate) const IMAGE_COMMAND: &str = "kennel.image-command";
/// Whether it has a main process.
pub(crate) const MAIN: &str = "kennel.main";

/// Whether it is removed when it ends, though it is not tied to its maker.
pub(crate) const AUTO_REMOVE: &str = "kennel.auto-remove";
/// How many milliseconds a start may take.
pub(crate) const STARTUP: &str = "kennel.startup-ms";

/// Those that a container has only if they say something. They are written empty, so that an image's own do not count.
const MAY_BE_EMPTY: [&str; 4] = [SESSION, STORE, PROJECT, PROFILE];

/// The labels as they are told: without those that say nothing.
pub(crate) fn told(labels: &HashMap<String, String>) -> BTreeMap<String, String> {
    let says = |(key, value): &(&String, &String)| !(value.is_empty() && MAY_BE_EMPTY.contains(&key.as_str()));
    labels.iter().filter(says).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// What of these is written, empty, where a sandbox has none.
pub(crate) fn empty() -> impl Iterator<Item = (String, String)> {
    MAY_BE_EMPTY.into_iter().map(|key| (key.to_owned(), String::new()))
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
