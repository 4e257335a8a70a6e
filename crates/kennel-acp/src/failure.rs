//! Errors of agents. Each states what happened, the exit code, the last lines of standard error, and what to do next.

use crate::tail::Tail;
use kennel_core::{Error, printable};
use kennel_types::{ErrorCode, ExitStatus};
use serde_json::{Value, json};
use std::time::Duration;

/// The longest beginning of a line that an error repeats.
const SHOWN: usize = 200;

/// An agent that could not be started.
pub(crate) fn not_started(error: Error) -> Error {
    if error.exit_status() == 127 {
        return error.advise(
            "install the agent where the sandbox finds it: in its image, or in a directory on the search path",
        );
    }
    error
}

/// An agent that ended although its client still needed it. `spoke` says whether it had sent a message,
/// and `waits` whether its client waits for an answer.
pub(crate) fn ended(status: ExitStatus, spoke: bool, waits: bool, tail: &Tail) -> Error {
    let how = match (status.code, status.signal) {
        _ if status.oom_killed => "ran out of memory, and was killed".to_owned(),
        (Some(code), _) => format!("exited with code {code}"),
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        _ => "ended".to_owned(),
    };
    let (code, when) = match (spoke, waits) {
        (false, _) => (ErrorCode::StartFailed, " before it sent a message"),
        (true, true) => (ErrorCode::ExecFailed, " before it had answered"),
        (true, false) => (ErrorCode::ExecFailed, ""),
    };
    let exit = match status.shell_code() {
        0 => i32::from(code.exit_status()),
        code => code,
    };
    let error = with_log(code, format!("the agent {how}{when}"), tail).exit_code(exit);
    error.advise("read what it wrote to standard error; many agents need a login, or a key in a variable")
}

/// An agent whose sandbox, or connection, was lost.
pub(crate) fn lost(error: &Error, tail: &Tail) -> Error {
    with_log(error.code(), format!("the agent's sandbox ended: {error}"), tail)
        .advise("check whether the sandbox ran out of memory, or was removed")
}

/// An agent that did not reply to the first message in time.
pub(crate) fn silent(within: Duration, tail: &Tail) -> Error {
    with_log(ErrorCode::Timeout, format!("the agent did not reply within {within:?}"), tail)
        .advise("give it more time to start, or check that it starts in its ACP mode")
}

/// An agent whose first output is not a message.
pub(crate) fn not_json(line: &[u8], why: &str, tail: &Tail) -> Error {
    let text = String::from_utf8_lossy(line);
    let shown: String = text.trim().chars().take(SHOWN).collect();
    let message = format!("the agent printed something that is not a message ({why}): {}", printable(&shown));
    with_log(ErrorCode::StartFailed, message, tail)
        .advise("check that the command starts the agent in its ACP mode, in which it prints only JSON")
}

fn with_log(code: ErrorCode, message: String, tail: &Tail) -> Error {
    let lines = tail.lines();
    if lines.is_empty() {
        return Error::new(code, message);
    }
    Error::of_lines(code, [message].into_iter().chain(lines))
}

/// Returns what a response says about an error, for the client.
pub(crate) fn data(error: &Error) -> Value {
    json!({ "code": error.code(), "exitCode": error.exit_status(), "nextStep": error.next_step() })
}
