//! How much an image may be. What goes past is refused while it streams, before it fills a disk.

use crate::error::{Error, Result};
use kennel_types::format_bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// Caps on one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all layers, unpacked.
    pub bytes: u64,
    /// Files, directories and links of all layers.
    pub entries: u64,
    /// Layers.
    pub layers: usize,
    /// Bytes of one path.
    pub path: usize,
    /// Directories above one file.
    pub depth: usize,
    /// How many times larger a layer may be unpacked than packed, once it is larger than [`Limits::ratio_from`].
    pub ratio: u64,
    /// Bytes that any layer may unpack to, however small it is packed.
    pub ratio_from: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const GIB: u64 = 1 << 30;
        Self {
            bytes: 64 * GIB,
            entries: 4_000_000,
            // The kernel stacks no more than 500.
            layers: 256,
            path: 4096,
            // Fewer than the files that a process may have open: who removes a tree opens all directories above.
            depth: 256,
            ratio: 200,
            ratio_from: GIB,
        }
    }
}

/// What the layers of one image have taken so far, together.
#[derive(Debug)]
pub(crate) struct Tally {
    limits: Limits,
    bytes: AtomicU64,
    entries: AtomicU64,
}

impl Tally {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, bytes: AtomicU64::new(0), entries: AtomicU64::new(0) }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// So many more bytes.
    pub(crate) fn bytes(&self, count: u64) -> Result<()> {
        let before = self.bytes.fetch_add(count, Ordering::Relaxed);
        if before.saturating_add(count) <= self.limits.bytes {
            return Ok(());
        }
        let most = format_bytes(self.limits.bytes);
        Err(Error::too_much(format!("the image unpacks to more than {most}"))
            .hint("allow more, if you trust it: kennel config set --user images.maxSize 200g"))
    }

    /// One more entry.
    pub(crate) fn entry(&self) -> Result<()> {
        let before = self.entries.fetch_add(1, Ordering::Relaxed);
        if before < self.limits.entries {
            return Ok(());
        }
        Err(Error::too_much(format!("the image has more than {} files", self.limits.entries)))
    }

    /// Whether a layer has grown too much for its packed size.
    pub(crate) fn growth(&self, packed: u64, unpacked: u64) -> Result<()> {
        let Limits { ratio, ratio_from, .. } = self.limits;
        if unpacked <= ratio_from || unpacked / ratio <= packed {
            return Ok(());
        }
        Err(Error::too_much(format!("a layer unpacks to more than {ratio} times its size, which no sound one does")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_hold_over_all_layers() {
        let tally = Tally::new(Limits { bytes: 10, entries: 2, ratio: 2, ratio_from: 8, ..Limits::default() });
        assert!(tally.bytes(6).is_ok() && tally.bytes(4).is_ok() && tally.bytes(1).is_err());
        assert!(tally.entry().is_ok() && tally.entry().is_ok() && tally.entry().is_err());
        assert!(tally.growth(1, 8).is_ok() && tally.growth(5, 10).is_ok() && tally.growth(1, 9).is_err());
    }
}
