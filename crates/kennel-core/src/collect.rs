//! Collects output up to a cap, and counts what it cuts off.

use kennel_proto::Channel;
use kennel_types::ExitStatus;
use std::fmt::Write;

/// How many bytes of each stream `run` keeps.
pub const RUN_OUTPUT_CAP: usize = 10 * 1024 * 1024;

/// The result of a finished command, with its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit status.
    pub status: ExitStatus,
    /// Standard output, up to the cap.
    pub stdout: Vec<u8>,
    /// Standard error, up to the cap.
    pub stderr: Vec<u8>,
    /// Bytes of standard output that were cut off.
    pub stdout_cut: u64,
    /// Bytes of standard error that were cut off.
    pub stderr_cut: u64,
}

impl Output {
    /// Whether anything was cut off.
    pub fn truncated(&self) -> bool {
        self.stdout_cut + self.stderr_cut > 0
    }

    /// Standard output as text. It ends with a marker if it was cut off.
    pub fn stdout_text(&self) -> String {
        text(&self.stdout, self.stdout_cut)
    }

    /// Standard error as text. It ends with a marker if it was cut off.
    pub fn stderr_text(&self) -> String {
        text(&self.stderr, self.stderr_cut)
    }
}

fn text(bytes: &[u8], cut: u64) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    if cut > 0 {
        let _ = writeln!(text, "\n[... {cut} more bytes cut off ...]");
    }
    text
}

/// Collects output and keeps the first `cap` bytes of each stream.
#[derive(Debug)]
pub struct Collector {
    cap: usize,
    streams: [Kept; 2],
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    cut: u64,
}

impl Collector {
    /// Creates a collector that keeps `cap` bytes of each stream.
    pub fn new(cap: usize) -> Self {
        Self { cap, streams: [Kept::default(), Kept::default()] }
    }

    /// Adds bytes of a stream.
    pub fn push(&mut self, channel: Channel, bytes: &[u8]) {
        let kept = &mut self.streams[usize::from(channel == Channel::Stderr)];
        let room = if kept.cut > 0 { 0 } else { self.cap - kept.bytes.len() };
        let take = bytes.len().min(room);
        kept.bytes.extend_from_slice(&bytes[..take]);
        kept.cut += (bytes.len() - take) as u64;
    }

    /// Returns the collected output.
    pub fn finish(self, status: ExitStatus) -> Output {
        let [stdout, stderr] = self.streams.map(Kept::finish);
        Output { status, stdout: stdout.bytes, stderr: stderr.bytes, stdout_cut: stdout.cut, stderr_cut: stderr.cut }
    }
}

impl Kept {
    /// If the output is text up to the cut, moves the cut to the last character boundary.
    fn finish(mut self) -> Self {
        if self.cut > 0 {
            let tail_start = self.bytes.len().saturating_sub(3);
            let lead = (tail_start..self.bytes.len()).rev().find(|&at| self.bytes[at] & 0xc0 != 0x80);
            if let Some(at) = lead {
                let needs = match self.bytes[at] {
                    0xc2..=0xdf => 2,
                    0xe0..=0xef => 3,
                    0xf0..=0xf4 => 4,
                    _ => 1,
                };
                let has = self.bytes.len() - at;
                if has < needs {
                    self.bytes.truncate(at);
                    self.cut += has as u64;
                }
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn truncated_output_reports_how_much_was_cut() {
        let mut collector = Collector::new(4);
        collector.push(Channel::Stdout, b"abc");
        collector.push(Channel::Stdout, b"def");
        collector.push(Channel::Stderr, b"ok");
        let output = collector.finish(ExitStatus::default());
        assert_eq!(output.stdout, b"abcd");
        assert_eq!((output.stdout_cut, output.stderr_cut), (2, 0));
        assert!(output.truncated());
        assert!(output.stdout_text().contains("2 more bytes"));
        assert_eq!(output.stderr_text(), "ok");
    }

    proptest! {
        #[test]
        fn text_is_cut_at_a_character_boundary_and_counted_exactly(
            text in "\\PC{0,40}", cap in 0usize..60, step in 1usize..7
        ) {
            let mut collector = Collector::new(cap);
            for piece in text.as_bytes().chunks(step) {
                collector.push(Channel::Stdout, piece);
            }
            let output = collector.finish(ExitStatus::default());
            prop_assert!(text.starts_with(std::str::from_utf8(&output.stdout).expect("cut on a character")));
            prop_assert_eq!(output.stdout.len() as u64 + output.stdout_cut, text.len() as u64);
            prop_assert!(output.stdout.len() <= cap);
            prop_assert!(output.stdout_cut == 0 || output.stdout.len() + 4 > cap);
        }
    }
}
