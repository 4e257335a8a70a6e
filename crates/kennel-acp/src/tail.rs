//! The last lines that an agent wrote to standard error, for the error message when it fails.

use kennel_engine::LOG_LINES;
use std::collections::VecDeque;

/// The bytes of a line that are kept.
const WIDTH: usize = 1000;

/// The last lines of a stream.
#[derive(Clone, Default)]
pub(crate) struct Tail {
    lines: VecDeque<Vec<u8>>,
    /// Whether the last line is not complete.
    open: bool,
}

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            if !self.open {
                self.lines.push_back(Vec::new());
                if self.lines.len() > LOG_LINES {
                    self.lines.pop_front();
                }
            }
            self.open = text.len() == piece.len();
            if let Some(line) = self.lines.back_mut() {
                line.extend_from_slice(&text[..text.len().min(WIDTH.saturating_sub(line.len()))]);
            }
        }
    }

    /// Continues with lines of an earlier relay.
    pub(crate) fn of(lines: &[String]) -> Self {
        Self { lines: lines.iter().map(|line| line.clone().into_bytes()).collect(), open: false }
    }

    /// Returns the lines as text, oldest first.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines
            .iter()
            .map(|line| String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let mut tail = Tail::default();
        for number in 0..80 {
            tail.push(format!("line {number}\r\nand").as_bytes());
            tail.push(b" more\n");
        }
        tail.push(&[b'x'; 5000]);
        tail.push(b"y");
        let lines = tail.lines();
        assert_eq!((lines.len(), lines[48].as_str(), lines[49].len()), (50, "and more", WIDTH));
        assert_eq!(lines[47], "line 79");
    }
}
