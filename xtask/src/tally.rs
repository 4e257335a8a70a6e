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
    pub(crate) fn run(&mut self, command: &mut Command, runner: TestRunner) -> Result<bool> {
        match runner {
            TestRunner::Libtest => command.stdout(Stdio::piped()),
            TestRunner::Nextest => command.stderr(Stdio::piped()),
        };
        let mut child = command.spawn()?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let speech: Box<dyn std::io::Read> = match (out, err) {
            (Some(out), _) => Box::new(out),
            (None, Some(err)) => Box::new(err),
            (None, None) => Box::new(std::io::empty()),
        };
        let lines = BufReader::new(speech).split(b'\n').map(|line| {
            let line = String::from_utf8_lossy(&line.context("read what the tests say")?).into_owned();
            eprintln!("{line}");
            Ok(line)
        });
        self.read(lines, runner)?;
        Ok(child.wait()?.success())
    }

    /// Reads the output of a test runner.
    fn read(&mut self, lines: impl IntoIterator<Item = Result<String>>, runner: TestRunner) -> Result<()> {
        let mut is_summarised = false;
        for line in lines {
            let line = line?;
            if is_summarised {
                // The rest is the output of failed tests. What they print is not a result, whatever it looks like.
                if self.failures.len() < KEPT {
                    self.failures.push(line);
                }
                continue;
            }
            is_summarised = self.hear(&line, runner);
        }
        Ok(())
    }

    /// Counts the results in a line of a test runner: the summary of nextest, or a result line of libtest. Returns whether
    /// it was the summary of nextest, after which the failures are listed.
    ///
    /// nextest also prints the output of each failed test, and so the result line of the test program. That test is in the
    /// summary already.
    fn hear(&mut self, line: &str, runner: TestRunner) -> bool {
        let counts = match runner {
            TestRunner::Nextest => line
                .trim_start()
                .strip_prefix("Summary [")
                .and_then(|rest| ["tests run: ", "test run: "].iter().find_map(|mark| rest.split_once(mark))),
            TestRunner::Libtest => line.split_once("test result: "),
        };
        let Some((_, counts)) = counts else { return false };
        for part in counts.split([',', ';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(count)), Some(kind)) = (words.next().map(str::parse::<u64>), words.next()) else { continue };
            match kind {
                "passed" => self.passed += count,
                "failed" | "timed" | "exec" => self.failed += count,
                _ => {}
            }
        }
        runner == TestRunner::Nextest
    }
}

/// A program that runs tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestRunner {
    /// `cargo test`. It prints results on standard output, with a result line for each test program.
    Libtest,
    /// `cargo nextest`. It prints results on standard error, with one summary at the end.
    Nextest,
}

#[cfg(test)]
mod tests {
    use super::{Tally, TestRunner};

    fn read(runner: TestRunner, text: &str) -> Tally {
        let mut tally = Tally::default();
        tally.read(text.lines().map(|line| Ok(line.to_owned())), runner).unwrap();
        tally
    }

    fn counted(runner: TestRunner, text: &str) -> (u64, u64) {
        let tally = read(runner, text);
        (tally.passed, tally.failed)
    }

    #[test]
    fn summaries_of_both_test_runners_are_read() {
        let nextest =
            "     Summary [  12.015s] 459 tests run: 450 passed (2 slow, 1 flaky), 7 failed, 2 timed out, 3 skipped";
        assert_eq!(counted(TestRunner::Nextest, nextest), (450, 9));
        let one = "     Summary [   0.015s] 1 test run: 1 passed, 0 skipped";
        assert_eq!(counted(TestRunner::Nextest, one), (1, 0));
        let libtest =
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 5 filtered out; finished in 0.00s";
        assert_eq!(counted(TestRunner::Libtest, &[libtest, "test x ... ok", libtest].join("\n")), (6, 2));
    }

    /// nextest prints the output of a failed test twice: at once, and after its summary.
    #[test]
    fn failed_test_is_counted_once() {
        let printed = "  stdout ---\n\n    running 1 test\n    test x ... FAILED\n\n    \
                       test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 8 filtered out\n";
        let failed = format!("        FAIL [   0.012s] kennel x\n{printed}");
        let text = format!(
            "        PASS [   0.010s] kennel y\n{failed}     \
             Summary [   0.022s] 2 tests run: 1 passed, 1 failed, 0 skipped\n{failed}"
        );
        let tally = read(TestRunner::Nextest, &text);
        assert_eq!((tally.passed, tally.failed), (1, 1));
        let kept = tally.failures.iter().filter(|line| line.contains("test result: FAILED")).count();
        assert_eq!(kept, 1, "the failures after the summary are kept for the report: {:?}", tally.failures);
    }
}
