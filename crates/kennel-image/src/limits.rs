//! Limits on the size of an image. Excess input is refused while it streams, before it fills a disk.

use crate::error::{Error, Result};
use kennel_types::{LimitReason, NextStep, format_bytes};
use std::sync::atomic::{AtomicU64, Ordering};

/// Caps on one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of unpacked bytes of all layers.
    pub bytes: u64,
    /// The number of files, directories and symlinks of all layers.
    pub entries: u64,
    /// The number of layers.
    pub layers: usize,
    /// The number of bytes in a path.
    pub path: usize,
    /// The number of directories above a file.
    pub depth: usize,
    /// How many times larger a layer may be unpacked than compressed, once it is larger than [`Limits::ratio_from`].
    pub ratio: u64,
    /// The number of bytes that every layer may have unpacked, however small it is compressed.
    pub ratio_from: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const GIB: u64 = 1 << 30;
        Self {
            bytes: 64 * GIB,
            entries: 4_000_000,
            // The kernel stacks at most 500 layers.
            layers: 256,
            path: 4096,
            // Less than the number of files that a process may open: removing a tree opens all directories above a
            // file.
            depth: 256,
            ratio: 200,
            ratio_from: GIB,
        }
    }
}

/// What the layers of one image have used so far, together.
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

    /// Adds bytes.
    pub(crate) fn bytes(&self, count: u64) -> Result<()> {
        let before = self.bytes.fetch_add(count, Ordering::Relaxed);
        if before.saturating_add(count) <= self.limits.bytes {
            return Ok(());
        }
        let most = format_bytes(self.limits.bytes);
        Err(Error::limit(LimitReason::TooLarge, format!("the image unpacks to more than {most}"))
            .suggest(NextStep::AllowLargerImages))
    }

    /// Adds an entry.
    pub(crate) fn entry(&self) -> Result<()> {
        let before = self.entries.fetch_add(1, Ordering::Relaxed);
        if before < self.limits.entries {
            return Ok(());
        }
        Err(Error::limit(LimitReason::TooLarge, format!("the image has more than {} files", self.limits.entries)))
    }

    /// Checks whether a layer has grown too much for its compressed size.
    pub(crate) fn growth(&self, packed: u64, unpacked: u64) -> Result<()> {
        let Limits { ratio, ratio_from, .. } = self.limits;
        if unpacked <= ratio_from || unpacked / ratio <= packed {
            return Ok(());
        }
        Err(Error::limit(
            LimitReason::TooLarge,
            format!("a layer unpacks to more than {ratio} times its compressed size"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_apply_to_all_layers_together() {
        let tally = Tally::new(Limits { bytes: 10, entries: 2, ratio: 2, ratio_from: 8, ..Limits::default() });
        assert!(tally.bytes(6).is_ok() && tally.bytes(4).is_ok() && tally.bytes(1).is_err());
        assert!(tally.entry().is_ok() && tally.entry().is_ok() && tally.entry().is_err());
        assert!(tally.growth(1, 8).is_ok() && tally.growth(5, 10).is_ok() && tally.growth(1, 9).is_err());
    }
}
