//! The location of a value, for messages and for `config show`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Kennel's own default.
    BuiltIn,
    /// A file.
    File(PathBuf),
    /// An environment variable, by name.
    Variable(String),
    /// A flag of the command line, as the user writes it (`--memory`).
    Flag(String),
}

/// A location in a source. Lines and columns count from 1, columns in characters. Both are 0 if the source has no
/// lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The source.
    pub source: Arc<Source>,
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl Location {
    /// A location in a source without lines.
    pub fn whole(source: Source) -> Self {
        Self { source: Arc::new(source), line: 0, column: 0 }
    }

    /// The file, if the source is one.
    pub fn file(&self) -> Option<&Path> {
        match &*self.source {
            Source::File(path) => Some(path),
            _ => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.source {
            Source::BuiltIn => f.write_str("built-in"),
            Source::File(path) => f.write_str(&crate::error::printable(&path.to_string_lossy())),
            Source::Variable(name) | Source::Flag(name) => f.write_str(&crate::error::printable(name)),
        }?;
        if self.line > 0 { write!(f, ":{}:{}", self.line, self.column) } else { Ok(()) }
    }
}

/// Converts byte offsets of a text to lines and columns, in constant time per value: a file may be one long line.
pub(crate) struct Lines {
    source: Arc<Source>,
    starts: Vec<usize>,
    /// The number of characters before each byte; `None` if every character is one byte.
    chars: Option<Vec<u32>>,
}

impl Lines {
    pub(crate) fn new(text: &str, source: Arc<Source>) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let chars = (!text.is_ascii()).then(|| {
            let mut count = 0;
            let mut before: Vec<u32> = Vec::with_capacity(text.len() + 1);
            for byte in text.bytes() {
                before.push(count);
                // A byte 10xxxxxx continues a character.
                count += u32::from(byte & 0xC0 != 0x80);
            }
            before.push(count);
            before
        });
        Self { source, starts, chars }
    }

    pub(crate) fn at(&self, offset: usize) -> Location {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let start = self.starts[line - 1];
        let column = match &self.chars {
            None => offset.saturating_sub(start),
            Some(before) => {
                let count = |at: usize| before[at.min(before.len() - 1)];
                count(offset).saturating_sub(count(start)) as usize
            }
        };
        Location { source: self.source.clone(), line: line as u32, column: column as u32 + 1 }
    }

    pub(crate) fn line_column(&self, line: usize, column: usize) -> Location {
        Location { source: self.source.clone(), line: line as u32, column: column as u32 }
    }
}
