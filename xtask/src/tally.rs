//! Counts passed and failed tests in the output of the test runners, and keeps what they print about failures.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// How many lines about failed tests are kept. The output of a test is long only if something else is wrong.
const KEPT: usize = 300;

/// The numbers of tests that passed and failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// What nextest prints after its summary: the failed tests with their output.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// Runs a test runner, passes on its output, and counts the results. Returns whether it succeeded.
    pub(crate) fn run(&mut self, command: &mut Command, speaks_on: Speaks) -> Result<bool> {
        match speaks_on {
            Speaks::Stdout => command.stdout(Stdio::piped()),
            Speaks::Stderr => command.stderr(Stdio::piped()),
        };
        let mut child = command.spawn()?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let speech: Box<dyn std::io::Read> = match (out, err) {
            (Some(out), _) => Box::new(out),
            (None, Some(err)) => Box::new(err),
            (None, None) => Box::new(std::io::empty()),
        };
        let mut is_summarised = false;
        for line in BufReader::new(speech).split(b'\n') {
            let line = line.context("read what the tests say")?;
            let line = String::from_utf8_lossy(&line);
            eprintln!("{line}");
            if is_summarised && self.failures.len() < KEPT {
                self.failures.push(line.clone().into_owned());
            }
            is_summarised |= self.hear(&line);
        }
        Ok(child.wait()?.success())
    }

    /// Counts the results in a line: nextest's summary, or a result line of libtest. Returns whether it was the summary of
    /// nextest, after which the failures are listed.
    fn hear(&mut self, line: &str) -> bool {
        let summary = ["tests run: ", "test run: ", "test result: "].iter().find_map(|mark| line.split_once(mark));
        let Some((before, counts)) = summary else { return false };
        for part in counts.split([',', ';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(count)), Some(kind)) = (words.next().map(str::parse::<u64>), words.next()) else { continue };
            match kind {
                "passed" => self.passed += count,
                "failed" | "timed" | "exec" => self.failed += count,
                _ => {}
            }
        }
        before.trim_start().starts_with("Summary")
    }
}

/// The stream on which a test runner prints its results.
#[derive(Clone, Copy)]
pub(crate) enum Speaks {
    Stdout,
    Stderr,
}

#[cfg(test)]
mod tests {
    use super::Tally;

    fn heard(lines: &[&str]) -> (u64, u64) {
        let mut tally = Tally::default();
        for line in lines {
            tally.hear(line);
        }
        (tally.passed, tally.failed)
    }

    #[test]
    fn summaries_of_both_test_runners_are_read() {
        let nextest =
            "     Summary [  12.015s] 459 tests run: 450 passed (2 slow, 1 flaky), 7 failed, 2 timed out, 3 skipped";
        assert_eq!(heard(&[nextest]), (450, 9));
        assert_eq!(heard(&["     Summary [   0.015s] 1 test run: 1 passed, 0 skipped"]), (1, 0));
        let libtest =
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 5 filtered out; finished in 0.00s";
        assert_eq!(heard(&[libtest, "test x ... ok", libtest]), (6, 2));
    }
}
