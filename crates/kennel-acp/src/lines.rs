//! Cuts a stream of bytes into lines. A line over the cap is skipped, and the next one is returned as usual.

use crate::envelope::Envelope;

/// The maximum length of a message, in bytes.
pub const LINE: usize = 64 << 20;

/// A line of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A complete line, with its newline.
    Message(Vec<u8>),
    /// A line over the cap, of which this much of the envelope was found in its first bytes.
    TooLong(Envelope),
}

/// Collects bytes until a line is complete.
pub(crate) struct Lines {
    cap: usize,
    /// The beginning of the next line.
    buffer: Vec<u8>,
    /// The bytes of the buffer that are known to have no newline.
    searched: usize,
    /// Whether the rest of a line over the cap is being skipped.
    skipping: bool,
    /// The bytes before the buffer: where it begins in the stream.
    passed: u64,
}

impl Lines {
    pub(crate) fn new(cap: usize) -> Self {
        Self::resume(cap, 0, Vec::new(), false)
    }

    /// Continues in the middle of a stream: where the buffer begins, what is in it, and whether a line is being skipped.
    pub(crate) fn resume(cap: usize, passed: u64, buffer: Vec<u8>, skipping: bool) -> Self {
        Self { cap, buffer, searched: 0, skipping, passed }
    }

    /// Where the line that is not complete begins in the stream. The last line that was returned ends there, or before, if
    /// blank lines follow it.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// The beginning of the line that is not complete.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.buffer
    }

    /// Whether the rest of a line over the cap is being skipped.
    pub(crate) fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// Forgets the line that is not complete.
    pub(crate) fn drop_rest(&mut self) {
        self.passed += self.buffer.len() as u64;
        (self.buffer, self.searched) = (Vec::new(), 0);
    }

    /// Adds bytes. Then [`Self::next`] returns the lines that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete line that is not blank.
    pub(crate) fn next(&mut self) -> Option<Line> {
        loop {
            let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            let Some(end) = end.map(|end| self.searched + end + 1) else {
                self.searched = self.buffer.len();
                return self.overlong();
            };
            self.searched = 0;
            self.passed += end as u64;
            if std::mem::take(&mut self.skipping) {
                self.buffer.drain(..end);
                continue;
            }
            let line = if end == self.buffer.len() {
                std::mem::take(&mut self.buffer)
            } else {
                let rest = self.buffer.split_off(end);
                std::mem::replace(&mut self.buffer, rest)
            };
            if line.len() > self.cap {
                return Some(Line::TooLong(Envelope::begins(&line)));
            }
            if !line.trim_ascii().is_empty() {
                return Some(Line::Message(line));
            }
        }
    }

    /// Ends a line over the cap whose end has not arrived yet, and forgets what is to be skipped.
    fn overlong(&mut self) -> Option<Line> {
        if self.skipping {
            self.passed += self.buffer.len() as u64;
            (self.buffer, self.searched) = (Vec::new(), 0);
            return None;
        }
        if self.buffer.len() <= self.cap {
            return None;
        }
        let envelope = Envelope::begins(&self.buffer);
        self.passed += self.buffer.len() as u64;
        (self.buffer, self.searched, self.skipping) = (Vec::new(), 0, true);
        Some(Line::TooLong(envelope))
    }

    /// Returns what is left at the end of the stream: a last line without a newline, which is added.
    pub(crate) fn finish(&mut self) -> Option<Line> {
        if self.skipping || self.buffer.trim_ascii().is_empty() {
            return None;
        }
        self.push(b"\n");
        self.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Line {
        Line::Message(text.as_bytes().to_vec())
    }

    #[test]
    fn pieces_become_lines() {
        let mut lines = Lines::new(100);
        lines.push(b"one\ntw");
        assert_eq!((lines.next(), lines.next()), (Some(message("one\n")), None));
        lines.push(b"o\r\n\n \nthree");
        assert_eq!((lines.next(), lines.next()), (Some(message("two\r\n")), None));
        assert_eq!((lines.finish(), lines.finish()), (Some(message("three\n")), None));
    }

    #[test]
    fn after_a_line_over_the_cap_the_next_one_passes() {
        let long = format!("{{\"id\":7,\"method\":\"x\",\"params\":\"{}\"}}\n", "y".repeat(100));
        // In one piece, and in pieces of every size.
        for size in [long.len() + 3, 1, 7, 50, 101] {
            let mut lines = Lines::new(100);
            let mut found = Vec::new();
            for piece in format!("{long}ok\n").as_bytes().chunks(size) {
                lines.push(piece);
                while let Some(line) = lines.next() {
                    found.push(line);
                }
            }
            let expected = Envelope { id: Some("7".to_owned()), method: Some("x".to_owned()) };
            assert_eq!(found, [Line::TooLong(expected), message("ok\n")], "pieces of {size}");
            assert!(lines.buffer.is_empty());
        }
    }
}
