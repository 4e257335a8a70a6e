//! Names and ids of sandboxes. Both are used in paths, labels and container names, so few characters are allowed.

use serde::{Deserialize, Serialize};

/// The id of a sandbox: lower-case letters, digits and `-`, at most 63 characters, starting with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct SandboxId(String);

/// A string that cannot be a sandbox id or name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid sandbox name {0:?}: expected 1 to 63 lower-case letters, digits or '-', starting with a letter or digit"
)]
pub struct InvalidId(pub String);

impl SandboxId {
    /// Checks the characters and the length.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
        let text = text.into();
        let ok = (1..=63).contains(&text.len())
            && !text.starts_with('-')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if ok { Ok(Self(text)) } else { Err(InvalidId(text)) }
    }

    /// Creates an id of twelve characters from random bytes.
    pub fn from_random(bytes: [u8; 12]) -> Self {
        // The characters of Crockford's base 32: without `i`, `l` and `o`, which look like digits, and without `u`.
        const ALPHABET: &[u8; 32] = b"0123456789bcdfghjkmnpqrstvwxyzae";
        Self(bytes.iter().map(|b| ALPHABET[usize::from(b % 32)] as char).collect())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for SandboxId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for SandboxId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Self::new(text)
    }
}

impl<'de> Deserialize<'de> for SandboxId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::SandboxId;

    #[test]
    fn ids_cannot_leave_their_directory() {
        for bad in ["", ".", "..", "a/b", "../x", "A", "-a", "a\0", "é", &"x".repeat(64)] {
            assert!(SandboxId::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "0", "my-box", &"x".repeat(63)] {
            assert!(SandboxId::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn random_ids_are_valid() {
        for seed in 0..=255u8 {
            let id = SandboxId::from_random([seed; 12]);
            assert_eq!(SandboxId::new(id.as_str()).as_ref(), Ok(&id));
        }
    }
}
