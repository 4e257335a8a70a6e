//! What `run` and `exec` have to tell in the end: an exit status, and with `--json` one object.

use crate::drive::{Ending, Sink};
use crate::output::{BROKEN_PIPE, print_json};
use crate::report;
use crate::signals::interrupted;
use crate::triggers::Triggers;
use base64::Engine;
use kennel_core::{Collector, Error, Output, RUN_OUTPUT_CAP, Result};
use kennel_types::{ErrorCode, ExitStatus, SandboxId};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is known of a command so far.
pub(crate) struct Record {
    json: bool,
    pub(crate) sink: Sink,
    pub(crate) provider: Option<&'static str>,
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

/// A part of the work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Create,
    Start,
    Connect,
    Exec,
    Remove,
}

impl Record {
    /// Begins to count. With `json` output is collected, else passed on.
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

    /// A phase is over, and the next begins.
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

    /// Remembers the trigger files of the workspace as they are now, if anyone is to be told what became of them. `hooks`: see
    /// [`Triggers::look`].
    pub(crate) fn look_at(&mut self, workspace: Option<&Path>, hooks: bool) {
        let told = self.json || report::is_watched();
        self.triggers = workspace.filter(|_| told).and_then(|workspace| Triggers::look(workspace, hooks));
    }

    /// Tells all, and answers the exit status: the command's own where there is one. `cleanup` is what went wrong after it.
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
                // Whoever pressed Ctrl-C knows it. A program that reads the object has to be told.
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
        let error = problem.as_ref().map(JsonError::of).or_else(|| cleanup.as_ref().map(JsonError::of_cleanup));
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
            cut: Cut::of(&output),
            timed_out: status.timed_out,
            oom_killed: status.oom_killed,
            sandbox_id: self.sandbox.as_ref(),
            provider: self.provider,
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
    /// The bytes themselves, where text would lose some.
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
    provider: Option<&'static str>,
    /// Files of the workspace that programs on the host run, and that changed meanwhile.
    changed_triggers: Vec<String>,
    error: Option<JsonError>,
    timings: &'a Timings,
}

/// Bytes that were cut off.
#[derive(Serialize)]
struct Cut {
    stdout: u64,
    stderr: u64,
}

impl Cut {
    fn of(output: &Output) -> Option<Self> {
        output.truncated().then_some(Self { stdout: output.stdout_cut, stderr: output.stderr_cut })
    }
}

/// An error, as a program reads it.
#[derive(Debug, Serialize)]
pub(crate) struct JsonError {
    code: ErrorCode,
    message: String,
    hint: Option<String>,
    retryable: bool,
    recoverable: bool,
}

impl JsonError {
    pub(crate) fn of(error: &Error) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
            hint: error.next_step().map(ToOwned::to_owned),
            retryable: error.code().retryable(),
            recoverable: error.code().recoverable(),
        }
    }

    /// What went wrong after the command had ended. Its result is there all the same, and whoever wants more can go on.
    fn of_cleanup(error: &Error) -> Self {
        Self { recoverable: true, ..Self::of(error) }
    }
}

/// What there is to say about how a command ended, beside its exit code.
fn complaint(status: ExitStatus, timeout: Option<Duration>) -> Option<Error> {
    if status.timed_out {
        let within = timeout.map(|limit| format!(" within {limit:?}")).unwrap_or_default();
        let message = format!("the command did not finish{within}, and was ended");
        return Some(
            Error::new(ErrorCode::Timeout, message).hint("give it more time with --timeout, or --timeout none"),
        );
    }
    status.oom_killed.then(|| {
        Error::new(ErrorCode::LimitExceeded, "the command ran out of memory, and was killed")
            .hint("allow it more with --memory")
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
    fn after_a_failed_cleanup_the_session_can_go_on() {
        let error = Error::new(ErrorCode::NotAvailable, "remove sandbox x: the engine is gone");
        let told = JsonError::of_cleanup(&error);
        assert_eq!((told.code, told.retryable, told.recoverable), (ErrorCode::NotAvailable, true, true));
    }
}
