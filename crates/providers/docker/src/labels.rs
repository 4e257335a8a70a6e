//! The labels that identify a container as a sandbox and store what the engine has no field for.

use kennel_types::SandboxId;
use std::collections::{BTreeMap, HashMap};

pub(crate) use kennel_provider::labels::{KENNEL, POOL, PROFILE, PROJECT, SESSION, STORE, own_labels};

/// The sandbox's id.
pub(crate) const ID: &str = "kennel.id";
/// The sandbox's name.
pub(crate) const NAME: &str = "kennel.name";
/// The prefix of its container's name.
pub(crate) const PREFIX: &str = "kennel.name-prefix";
/// The installation that created it.
pub(crate) const INSTALLATION: &str = "kennel.installation";
/// When it was created, in milliseconds since 1970.
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
/// Whether it is removed when it ends. A tied sandbox is always removed, and does not need this label.
pub(crate) const AUTO_REMOVE: &str = "kennel.auto-remove";
/// The maximum duration of a start, in milliseconds.
pub(crate) const STARTUP: &str = "kennel.startup-ms";

/// Optional labels. A container gets them in any case, with an empty value, so that the image's labels of the same name
/// do not apply.
const OPTIONAL: [&str; 5] = [SESSION, STORE, PROJECT, PROFILE, POOL];

/// Returns the labels that are shown to users: without optional labels that are empty.
pub(crate) fn visible(labels: &HashMap<String, String>) -> BTreeMap<String, String> {
    let has_value = |(key, value): &(&String, &String)| !(value.is_empty() && OPTIONAL.contains(&key.as_str()));
    labels.iter().filter(has_value).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the optional labels with empty values.
pub(crate) fn empty_optional() -> impl Iterator<Item = (String, String)> {
    OPTIONAL.into_iter().map(|key| (key.to_owned(), String::new()))
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
    fn an_invalid_id_or_one_of_another_installation_is_ignored() {
        let labels = |id: &str, installation: &str| {
            HashMap::from([(ID.to_owned(), id.to_owned()), (INSTALLATION.to_owned(), installation.to_owned())])
        };
        assert_eq!(sandbox_of(&labels("abc", "here"), "here").unwrap().as_str(), "abc");
        assert_eq!(sandbox_of(&labels("../abc", "here"), "here"), None);
        assert_eq!(sandbox_of(&labels("abc", "there"), "here"), None);
        assert_eq!(sandbox_of(&HashMap::new(), ""), None);
    }
}
