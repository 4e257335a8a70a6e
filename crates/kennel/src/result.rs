//! The result of `run` and `exec`: an exit status and, with `--json`, one object.

use crate::interact::{Ending, Sink};
use crate::next_step::hint;
use crate::output::{BROKEN_PIPE, print_json};
use crate::report;
use crate::signals::interrupted;
use crate::triggers::Triggers;
use base64::Engine;
use kennel_core::{Collector, Error, Output, RUN_OUTPUT_CAP, Result};
use kennel_types::{ErrorCode, ExitStatus, Field, LimitReason, NextStep, SandboxId};
use serde::Serialize;
use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Collects the result of a command while it runs.
pub(crate) struct CommandReport {
    json: bool,
    pub(crate) sink: Sink,
    pub(crate) provider: Option<Cow<'static, str>>,
    pub(crate) sandbox: Option<SandboxId>,
    pub(crate) timeout: Option<Duration>,
    triggers: Option<Triggers>,
    timings: Timings,
    began: Instant,
    lap: Instant,
}

/// Milliseconds per phase.
#[derive(Debug, Default, Serialize)]
struct Timings {
    #[serde(skip_serializing_if = "Option::is_none")]
    create: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remove: Option<f64>,
    total: f64,
}

/// A phase of `run` or `exec`, whose duration is reported.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Create,
    Start,
    Connect,
    Exec,
    Remove,
}

impl CommandReport {
    /// Starts to measure time. `json` collects the output; otherwise the output is passed on.
    pub(crate) fn begin(json: bool) -> Self {
        let now = Instant::now();
        Self {
            json,
            sink: if json { Sink::Collect(Collector::new(RUN_OUTPUT_CAP)) } else { Sink::Pass },
            provider: None,
            sandbox: None,
            timeout: None,
            triggers: None,
            timings: Timings::default(),
            began: now,
            lap: now,
        }
    }

    /// Records the end of a phase, at which the next one begins.
    pub(crate) fn ended(&mut self, phase: Phase) {
        let now = Instant::now();
        let slot = match phase {
            Phase::Create => &mut self.timings.create,
            Phase::Start => &mut self.timings.start,
            Phase::Connect => &mut self.timings.connect,
            Phase::Exec => &mut self.timings.exec,
            Phase::Remove => &mut self.timings.remove,
        };
        *slot = Some(milliseconds(now - self.lap));
        self.lap = now;
    }

    /// Records the current state of the workspace's trigger files, if changes to them will be reported. For `hooks`,
    /// see [`Triggers::look`].
    pub(crate) fn look_at(&mut self, workspace: Option<&Path>, hooks: bool) {
        let told = self.json || report::is_watched();
        self.triggers = workspace.filter(|_| told).and_then(|workspace| Triggers::look(workspace, hooks));
    }

    /// Prints the result, and returns the exit status: that of the command if it has one. `cleanup` is the result of
    /// removing the sandbox.
    pub(crate) fn conclude(mut self, outcome: Result<Ending>, cleanup: Result<()>) -> u8 {
        self.timings.total = milliseconds(self.began.elapsed());
        let mut status = ExitStatus::default();
        let mut problem = None;
        let exit = match outcome {
            Ok(Ending::Exited(ended)) => {
                status = ended;
                problem = complaint(ended, self.timeout);
                ended.shell_code() as u8
            }
            Ok(Ending::Aborted(ended, signal)) => {
                status = ended;
                // A user who pressed Ctrl-C needs no message. A program that reads the object does.
                problem = complaint(ended, self.timeout).or_else(|| self.json.then(|| interrupted(signal)));
                ended.shell_code() as u8
            }
            Ok(Ending::Detached) => 0,
            Ok(Ending::ReaderGone) => BROKEN_PIPE,
            Err(error) => {
                let exit = report::exit_status(&error);
                problem = Some(error);
                exit
            }
        };
        let cleanup = cleanup.err();
        let changed = self.triggers.take().map(|triggers| triggers.changed()).unwrap_or_default();
        if !self.json {
            problem.iter().chain(&cleanup).for_each(report::error);
            if !changed.is_empty() {
                report::note(&format!("changed files that programs on this machine run: {}", changed.join(", ")));
            }
            return exit;
        }
        // Only one error fits into the object.
        if problem.is_some() {
            cleanup.iter().for_each(report::error);
        }
        let error =
            problem.as_ref().map(JsonError::from_error).or_else(|| cleanup.as_ref().map(JsonError::from_cleanup));
        self.print(exit, status, error, changed)
    }

    fn print(self, exit: u8, status: ExitStatus, error: Option<JsonError>, changed_triggers: Vec<String>) -> u8 {
        let output = match self.sink {
            Sink::Collect(collector) => collector.finish(status),
            Sink::Pass => Collector::new(0).finish(status),
        };
        let object = Object {
            exit_code: exit,
            signal: status.signal,
            stdout: output.stdout_text(),
            stderr: output.stderr_text(),
            stdout_base64: exact(&output.stdout),
            stderr_base64: exact(&output.stderr),
            truncated: output.truncated(),
            cut: Cut::from_output(&output),
            timed_out: status.timed_out,
            oom_killed: status.oom_killed,
            sandbox_id: self.sandbox.as_ref(),
            provider: self.provider.as_deref(),
            changed_triggers,
            error,
            timings: &self.timings,
        };
        match print_json(&object) {
            0 => exit,
            failed => failed,
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    exit_code: u8,
    signal: Option<i32>,
    stdout: String,
    stderr: String,
    /// The exact bytes, if they are not valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<Cut>,
    timed_out: bool,
    oom_killed: bool,
    sandbox_id: Option<&'a SandboxId>,
    provider: Option<&'a str>,
    /// The trigger files that have changed: files of the workspace that programs on the host run.
    changed_triggers: Vec<String>,
    error: Option<JsonError>,
    timings: &'a Timings,
}

/// The number of bytes of each stream that were cut off.
#[derive(Serialize)]
struct Cut {
    stdout: u64,
    stderr: u64,
}

impl Cut {
    fn from_output(output: &Output) -> Option<Self> {
        output.truncated().then_some(Self { stdout: output.stdout_cut, stderr: output.stderr_cut })
    }
}

/// An error in JSON output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonError {
    code: ErrorCode,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<LimitReason>,
    message: String,
    /// What to do next, as text with commands and flags.
    hint: Option<String>,
    /// What to do next, as data.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_step: Option<NextStep>,
    retryable: bool,
    recoverable: bool,
}

impl JsonError {
    pub(crate) fn from_error(error: &Error) -> Self {
        Self {
            code: error.code(),
            reason: error.reason(),
            message: error.to_string(),
            hint: hint(error),
            next_step: error.next_step().cloned(),
            retryable: error.retryable(),
            recoverable: error.recoverable(),
        }
    }

    /// Converts an error that occurred after the command had ended. The result of the command is still valid.
    fn from_cleanup(error: &Error) -> Self {
        Self { recoverable: true, ..Self::from_error(error) }
    }
}

/// Returns the error for a command that reached its time limit or ran out of memory.
fn complaint(status: ExitStatus, timeout: Option<Duration>) -> Option<Error> {
    if status.timed_out {
        let within = timeout.map(|limit| format!(" within {limit:?}")).unwrap_or_default();
        let message = format!("the command did not finish{within}, and was ended");
        return Some(Error::new(ErrorCode::Timeout, message).suggest(NextStep::set(Field::Timeout)));
    }
    status.oom_killed.then(|| {
        Error::limit(LimitReason::OutOfMemory, "the command ran out of memory, and was killed")
            .suggest(NextStep::set(Field::Memory))
            .exit_code(status.shell_code())
    })
}

fn exact(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).is_err().then(|| base64::engine::general_purpose::STANDARD.encode(bytes))
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_cleanup_is_recoverable() {
        let error = Error::new(ErrorCode::NotAvailable, "remove sandbox x: the engine is gone");
        let told = JsonError::from_cleanup(&error);
        assert_eq!((told.code, told.retryable, told.recoverable), (ErrorCode::NotAvailable, true, true));
    }
}
