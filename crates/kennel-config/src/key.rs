//! The path of a setting: `sandbox.memory`, `container.profiles."a.b".image`.

use crate::error::printable;
use std::fmt;
use std::str::FromStr;

/// A path of keys. A key that is empty or contains a dot is written in double quotes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyPath(Vec<String>);

/// An invalid key path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid key {0:?}: expected names separated by dots, for example sandbox.memory")]
pub struct InvalidKey(String);

impl KeyPath {
    /// The keys, outermost first.
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn push(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    pub(crate) fn pop(&mut self) {
        self.0.pop();
    }

    /// Returns this path with one more key.
    pub(crate) fn with(&self, name: &str) -> Self {
        let mut path = self.clone();
        path.push(name);
        path
    }
}

impl<S: Into<String>> FromIterator<S> for KeyPath {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

impl FromStr for KeyPath {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let err = || InvalidKey(printable(text));
        let mut names = Vec::new();
        let mut rest = text;
        loop {
            let (name, after) = if let Some(quoted) = rest.strip_prefix('"') {
                quoted.split_once('"').ok_or_else(err)?
            } else {
                let (name, after) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
                if name.is_empty() || name.contains('"') {
                    return Err(err());
                }
                (name, after)
            };
            names.push(name.to_owned());
            match after.strip_prefix('.') {
                Some(more) => rest = more,
                None if after.is_empty() => return Ok(Self(names)),
                None => return Err(err()),
            }
        }
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            let shown = printable(name);
            if name.is_empty() || name.contains('.') { write!(f, "\"{shown}\"")? } else { f.write_str(&shown)? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_key_paths_are_refused() {
        for bad in ["", ".", "a.", ".a", "a..b", "\"a", "\"a\"b", "a\"b"] {
            assert!(bad.parse::<KeyPath>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn displayed_key_paths_can_be_parsed(names in prop::collection::vec("[a-zA-Z0-9_.-]{0,6}", 1..5)) {
            let path: KeyPath = names.into_iter().collect();
            prop_assert_eq!(path.to_string().parse::<KeyPath>(), Ok(path));
        }
    }
}
