//! Container names: a prefix that the user chooses, and the sandbox's name.
//!
//! The engine guarantees that container names are unique. Kennel must guarantee that sandbox names are unique, whatever
//! the prefixes are: whoever assigns a name holds a lock of the installation.

use crate::info::Container;
use crate::{Docker, Seen, create, labels};
use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use std::collections::HashMap;

/// The prefix of container names: letters, digits, dots, dashes and underscores, starting with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePrefix(String);

impl Default for NamePrefix {
    fn default() -> Self {
        Self("kennel-".to_owned())
    }
}

impl NamePrefix {
    /// Creates a prefix. Fails if no container name can begin with it.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let plain = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
        if text.len() <= 100 && text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.chars().all(plain)
        {
            return Ok(Self(text));
        }
        let message = format!("invalid prefix of container names {text:?}");
        Err(Error::new(ErrorCode::InvalidConfig, message)
            .advise("use letters, digits, dots, dashes and underscores, a letter or digit first"))
    }

    /// Returns the prefix that a container was created with.
    pub(crate) fn from_labels(labels: &HashMap<String, String>) -> Self {
        // Anybody who uses the engine can write labels.
        labels.get(labels::PREFIX).and_then(|text| Self::new(text.as_str()).ok()).unwrap_or_default()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the container name for a sandbox name.
    pub(crate) fn container(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }
}

/// Returns the sandbox's name. It is derived from the container's name, which can change. If someone else has changed
/// that, the original name is returned.
pub(crate) fn sandbox(container: Option<&str>, labels: &HashMap<String, String>) -> Option<String> {
    let container = container.unwrap_or_default().trim_start_matches('/');
    let name = container.strip_prefix(NamePrefix::from_labels(labels).as_str()).filter(|name| !name.is_empty());
    name.map(ToOwned::to_owned).or_else(|| labels.get(labels::NAME).cloned())
}

impl Docker {
    /// Returns the sandbox with this name, whatever prefix its container has.
    pub(crate) async fn by_name(&self, name: &str) -> Result<Option<Container>> {
        if let Some(container) = self.by_default_prefix(name).await? {
            return Ok(Some(container));
        }
        let Some((engine_id, _)) = self.holder(name).await? else { return Ok(None) };
        let found = self.inspect(&engine_id).await?;
        if let Some(container) = &found {
            let seen = Seen { engine_id, made_here: false, shown: true, held: None };
            self.seen().entry(container.id().clone()).or_insert(seen);
        }
        Ok(found)
    }

    /// Returns the sandbox with this name, if its container has the prefix of new containers.
    pub(crate) async fn by_default_prefix(&self, name: &str) -> Result<Option<Container>> {
        let found = self.inspect(&self.prefix.container(name)).await?.filter(|found| found.info.name == name);
        if let Some(container) = &found {
            let engine_id = container.engine_id.clone();
            let seen = Seen { engine_id, made_here: false, shown: true, held: None };
            self.seen().entry(container.id().clone()).or_insert(seen);
        }
        Ok(found)
    }

    /// Checks that no sandbox has this name, and that none gets it while the result is held.
    pub(crate) async fn free_name(&self, name: &str) -> Result<std::fs::File> {
        let lock = self.run_dirs.lock().await?;
        let Some((engine_id, container)) = self.holder(name).await? else { return Ok(lock) };
        // One that was never completed is no sandbox, and keeps no name.
        match self.inspect(&engine_id).await? {
            Some(found) if self.is_orphan(&found) && self.remove_orphan(&found).await? => Ok(lock),
            _ => Err(create::taken(name, &container)),
        }
    }

    /// Returns the engine's id and name of the container of the sandbox with this name.
    async fn holder(&self, name: &str) -> Result<Option<(String, String)>> {
        let containers = self.summaries(None).await?;
        Ok(containers.into_iter().find_map(|summary| {
            let container = summary.names.unwrap_or_default().into_iter().next().unwrap_or_default();
            let named = sandbox(Some(&container), &summary.labels.unwrap_or_default())?;
            (named == name).then_some((summary.id, container.trim_start_matches('/').to_owned()))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_name_prefixes_are_refused() {
        for good in ["kennel-", "a", "0", "Coding_Agent.", &"x".repeat(100)] {
            assert!(NamePrefix::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "-a", "_a", ".a", "a/b", "../", "a b", "é", "a\0", &"x".repeat(101)] {
            assert_eq!(NamePrefix::new(bad).unwrap_err().code(), ErrorCode::InvalidConfig, "{bad:?}");
        }
    }

    #[test]
    fn the_sandbox_name_is_the_container_name_without_its_prefix() {
        let labels = |prefix: Option<&str>| {
            let mut labels = HashMap::from([(labels::NAME.to_owned(), "made".to_owned())]);
            labels.extend(prefix.map(|prefix| (labels::PREFIX.to_owned(), prefix.to_owned())));
            labels
        };
        let name = |container: &str, prefix: Option<&str>| sandbox(Some(container), &labels(prefix)).unwrap();
        assert_eq!(name("/dog-box", Some("dog-")), "box");
        assert_eq!(name("/kennel-box", None), "box");
        assert_eq!(name("/kennel-box", Some("ken")), "nel-box");
        // Another program has changed the name or the label.
        assert_eq!(name("/kennel-box", Some("dog-")), "made");
        assert_eq!(name("/dog-", Some("dog-")), "made");
        assert_eq!(name("/kennel-box", Some("../")), "box");
        assert_eq!(sandbox(None, &labels(None)).unwrap(), "made");
        assert_eq!(sandbox(None, &HashMap::new()), None);
    }
}
