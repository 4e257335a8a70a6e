//! Counts what is copied, and tells the caller.

/// What a copy has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Files and symlinks that were copied.
    pub files: u64,
    /// Bytes of their content. The holes of sparse files do not count.
    pub bytes: u64,
    /// Entries that were not copied.
    pub skipped: u64,
    /// Entries that were copied, but are incomplete.
    pub incomplete: u64,
}

/// The progress of a copy.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// More bytes were copied.
    Copied(Counts),
    /// An entry is not copied.
    Skipped {
        /// Its path inside, or its name in the archive.
        path: &'a [u8],
        /// The reason.
        why: &'a str,
    },
    /// An entry was copied, but is incomplete.
    Incomplete {
        /// Its path inside.
        path: &'a [u8],
        /// The reason.
        why: &'a str,
    },
}

pub(super) struct Tally {
    pub(super) counts: Counts,
    tell: Box<dyn FnMut(Progress<'_>) + Send>,
}

impl Tally {
    pub(super) fn new(tell: impl FnMut(Progress<'_>) + Send + 'static) -> Self {
        Self { counts: Counts::default(), tell: Box::new(tell) }
    }

    /// A file or symlink is complete.
    pub(super) fn file(&mut self) {
        self.counts.files += 1;
    }

    pub(super) fn copied(&mut self, bytes: usize) {
        self.counts.bytes += bytes as u64;
        (self.tell)(Progress::Copied(self.counts));
    }

    pub(super) fn skip(&mut self, path: &[u8], why: &str) {
        self.counts.skipped += 1;
        (self.tell)(Progress::Skipped { path, why });
    }

    pub(super) fn incomplete(&mut self, path: &[u8], why: &str) {
        self.counts.incomplete += 1;
        (self.tell)(Progress::Incomplete { path, why });
    }
}
