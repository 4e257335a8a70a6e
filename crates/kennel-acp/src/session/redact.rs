//! Replaces secrets in what is stored, without knowing them: of each secret, only its length and salted hashes are kept. So a
//! relay that takes over after a kill redacts the same secrets, and none of them is in a file.
//!
//! A secret is replaced by as many asterisks as it has bytes. So offsets in a stream do not change, and a message stays JSON.

use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::ops::Range;

/// A shorter value would match ordinary text.
const SHORTEST: usize = 8;

/// Finds secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Redactor {
    marks: Vec<Mark>,
}

/// What is known about a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    length: usize,
    /// The rolling hash, which can be computed for every position of a text, and its base.
    base: u64,
    rolling: u64,
    /// The hash that decides.
    salt: u64,
    digest: String,
}

impl Redactor {
    /// Prepares to find these secrets, also as they are written in JSON.
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut marks = Vec::new();
        for secret in secrets {
            let json = serde_json::Value::from(secret).to_string();
            let escaped = &json[1..json.len() - 1];
            for form in [Some(secret), Some(escaped).filter(|escaped| *escaped != secret)].into_iter().flatten() {
                if form.len() >= SHORTEST {
                    marks.push(Mark::new(form.as_bytes())?);
                }
            }
        }
        Ok(Self { marks })
    }

    /// The length of the longest secret.
    pub(crate) fn longest(&self) -> usize {
        self.marks.iter().map(|mark| mark.length).max().unwrap_or(0)
    }

    /// Returns where secrets are.
    pub(crate) fn find(&self, text: &[u8]) -> Vec<Range<usize>> {
        self.marks.iter().flat_map(|mark| mark.find(text)).collect()
    }

    /// Returns the text with asterisks in place of secrets.
    pub(crate) fn redact(&self, text: &[u8]) -> Vec<u8> {
        let mut redacted = text.to_vec();
        for found in self.find(text) {
            redacted[found].fill(b'*');
        }
        redacted
    }

    /// Returns the line with asterisks in place of secrets.
    pub(crate) fn redact_text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.redact(text.as_bytes())).into_owned()
    }
}

impl Mark {
    fn new(secret: &[u8]) -> Result<Self> {
        let [base, salt] = [random()? | 1, random()?];
        let rolling = secret.iter().fold(0, |sum, byte| next(sum, base, *byte));
        Ok(Self { length: secret.len(), base, rolling, salt, digest: digest(salt, secret) })
    }

    fn find(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        if self.length == 0 || text.len() < self.length {
            return found;
        }
        let first = self.base.wrapping_pow(self.length as u32 - 1);
        let mut sum = text[..self.length - 1].iter().fold(0, |sum, byte| next(sum, self.base, *byte));
        for start in 0..=text.len() - self.length {
            let end = start + self.length;
            sum = next(sum, self.base, text[end - 1]);
            if sum == self.rolling && digest(self.salt, &text[start..end]) == self.digest {
                found.push(start..end);
            }
            sum = sum.wrapping_sub(first.wrapping_mul(u64::from(text[start]) + 1));
        }
        found
    }
}

fn next(sum: u64, base: u64, byte: u8) -> u64 {
    sum.wrapping_mul(base).wrapping_add(u64::from(byte) + 1)
}

fn digest(salt: u64, text: &[u8]) -> String {
    format!("{:x}", Sha256::new().chain_update(salt.to_le_bytes()).chain_update(text).finalize())
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorCode::Internal, format!("read random bytes: {error}")))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_and_nothing_else_is() {
        let redactor = Redactor::new(["sk-0123456789", "with \"quotes\"", "short"]).unwrap();
        let stored = serde_json::to_string(&redactor).unwrap();
        assert!(!stored.contains("sk-01") && !stored.contains("quotes"), "{stored}");
        let again: Redactor = serde_json::from_str(&stored).unwrap();
        let text = r#"{"a":"sk-0123456789","b":"sk-0123456788","c":"with \"quotes\"","d":"short","e":"sk-0123456789"}"#;
        let expected = text.replace("sk-0123456789", "*************").replace("with \\\"quotes\\\"", "***************");
        assert_eq!(String::from_utf8(again.redact(text.as_bytes())).unwrap(), expected);
        assert_eq!(again.redact(b"sk-0123456789"), b"*************");
        assert_eq!(again.redact(b"sk-012345678"), b"sk-012345678");
        assert_eq!(again.redact(b""), b"");
        assert_eq!(again.longest(), 15);
    }
}
