//! Digests, which identify content by its hash. Only SHA-256 is supported, because images use nothing else in practice.

use crate::error::{Error, Result, shown, unsound};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

const PREFIX: &str = "sha256:";

/// The SHA-256 hash of some content, written `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of these bytes.
    pub fn compute(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the 64 hexadecimal digits, without the prefix.
    pub fn hex(&self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Returns the first twelve hexadecimal digits, for display.
    pub fn short(&self) -> String {
        let mut text = self.hex();
        text.truncate(12);
        text
    }

    /// Parses 64 lower-case hexadecimal digits without a prefix.
    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        let bytes = hex.as_bytes();
        // Upper-case digits would be a second name for the same digest.
        if bytes.len() != 64 || !bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut out = [0; 32];
        for (index, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[index * 2..index * 2 + 2], 16).ok()?;
        }
        Some(Self(out))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = text.strip_prefix(PREFIX).and_then(Self::from_hex);
        found.ok_or_else(|| {
            unsound(format!("invalid digest {}: expected sha256: and 64 hexadecimal digits", shown(text.as_bytes())))
        })
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A reader that hashes everything it reads.
pub(crate) struct Hashing<R> {
    from: R,
    hash: Sha256,
}

impl<R: Read> Hashing<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, hash: Sha256::new() }
    }

    /// Reads to the end, and returns the digest of all bytes read.
    pub(crate) fn finish(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(Digest(self.hash.finalize().into()))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn displayed_digests_can_be_parsed() {
        let digest = Digest::compute(b"");
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Digest>().unwrap(), digest);
        assert_eq!(digest.short(), "e3b0c44298fc");
        assert_eq!(Hashing::new(&b""[..]).finish().unwrap(), digest);
    }

    #[test]
    fn invalid_digests_are_refused() {
        let short = &EMPTY[..70];
        let upper = EMPTY.to_uppercase().replace("SHA256", "sha256");
        for text in ["", "sha256:", "../../etc/passwd", "sha512:00", short, &upper, &format!("{EMPTY}0")] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
        let multibyte = format!("sha256:{}", "é".repeat(32));
        assert!(multibyte.parse::<Digest>().is_err());
    }
}
