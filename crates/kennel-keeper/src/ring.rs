//! The buffered output of a command: numbered bytes, of which the oldest are removed first.

use std::collections::VecDeque;

/// The bytes starting at offset `base`.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    bytes: VecDeque<u8>,
    base: u64,
}

impl Ring {
    /// The offset of the oldest byte.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The offset after the newest byte.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Removes the bytes before an offset, and returns their number.
    pub(crate) fn forget_before(&mut self, offset: u64) -> usize {
        let count = offset.clamp(self.base, self.end()) - self.base;
        self.bytes.drain(..count as usize);
        self.base += count;
        if self.bytes.is_empty() && self.bytes.capacity() > 64 * 1024 {
            self.bytes = VecDeque::new(); // The memory counts against the sandbox, so free it.
        }
        count as usize
    }

    /// Returns up to `most` contiguous bytes, starting at an offset.
    pub(crate) fn piece(&self, offset: u64, most: usize) -> &[u8] {
        let skip = offset.clamp(self.base, self.end()) - self.base;
        let (first, second) = self.bytes.as_slices();
        let skip = skip as usize;
        let piece = if skip < first.len() { &first[skip..] } else { &second[skip - first.len()..] };
        &piece[..piece.len().min(most)]
    }
}

#[cfg(test)]
mod tests {
    use super::Ring;

    #[test]
    fn bytes_keep_their_offsets() {
        let mut ring = Ring::default();
        let mut whole = Vec::new();
        for round in 0..100u8 {
            let bytes = vec![round; usize::from(round) * 7 % 50];
            ring.push(&bytes);
            whole.extend(bytes);
            ring.forget_before(ring.end().saturating_sub(60));
            assert_eq!(ring.end(), whole.len() as u64);
            let mut at = ring.base();
            while at < ring.end() {
                let piece = ring.piece(at, 13);
                assert!(!piece.is_empty());
                assert_eq!(piece, &whole[at as usize..at as usize + piece.len()]);
                at += piece.len() as u64;
            }
            assert!(ring.piece(at, 13).is_empty());
        }
        assert_eq!(ring.forget_before(u64::MAX), 60);
        assert_eq!(ring.len(), 0);
    }
}
