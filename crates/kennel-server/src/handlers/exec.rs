//! Runs a command to its end, and returns its output.

use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome, api_error};
use crate::extract::{Json as Body, Path};
use crate::request_id::RequestId;
use crate::routes::{Content, Operation, Routes, schema};
use axum::extract::State;
use axum::http::Method;
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kennel_api::{ExecRequest, ExecResult, ExecTimings, OutputCut, Scope};
use kennel_core::{Error, Output, RUN_OUTPUT_CAP, Result, Sandbox};
use kennel_types::{Command, ErrorCode, ExecSpec, ExitStatus, Field, LimitReason, NextStep};
use std::time::{Duration, Instant};

/// The time limit of a command, if the client does not choose one.
const TIMEOUT: Duration = Duration::from_mins(1);
/// How many characters of each stream are returned, if the client does not choose.
const OUTPUT: u32 = 10_000;
/// The largest number of characters that a client may choose.
const LARGEST_OUTPUT: u32 = 10 << 20;

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(
        Operation {
            request: Content::Json(schema::<ExecRequest>),
            response: (200, Content::Json(schema::<ExecResult>)),
            ..operation(
                Method::POST,
                "/v1/sandboxes/{sandbox}/exec",
                "exec",
                Scope::Exec,
                "Runs a command to its end, and returns its output.",
            )
        },
        exec,
    )
}

async fn exec(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    Body(request): Body<ExecRequest>,
) -> Outcome<Json<ExecResult>> {
    let began = Instant::now();
    let sandbox = app.sandbox(&identity, &name).await?;
    collected(&app, &sandbox, &request, &id, began).await
}

/// Runs a command of a request that began at this time.
pub(super) async fn collected(
    app: &AppState,
    sandbox: &Sandbox,
    request: &ExecRequest,
    id: &RequestId,
    began: Instant,
) -> Outcome<Json<ExecResult>> {
    let (spec, stdin) = spec(request)?;
    let limit = request.output_limit.unwrap_or(OUTPUT);
    if limit > LARGEST_OUTPUT {
        return Err(Failure::invalid(format!("invalid outputLimit {limit}: expected at most {LARGEST_OUTPUT}")));
    }
    let limit = limit as usize;
    // A character has at most four bytes.
    let cap = (4 * limit).min(RUN_OUTPUT_CAP);
    let found = began.elapsed();
    let output = match run(sandbox, &spec, stdin.as_deref(), cap).await {
        Err(error) if error.code() == ErrorCode::Stopped && request.start => {
            sandbox.start().await?;
            run(sandbox, &spec, stdin.as_deref(), cap).await
        }
        Err(error) if error.code() == ErrorCode::NotFound => {
            app.forget(sandbox);
            Err(error)
        }
        done => done,
    };
    let output = within(output?, limit);
    let total = began.elapsed();
    let exec = total.saturating_sub(found);
    app.metrics.exec_took(exec);
    if output.status.oom_killed {
        app.metrics.oom_killed();
    }
    let exit_code = output.status.shell_code();
    // Arguments and output may contain secrets.
    tracing::info!(sandbox = %sandbox.id(), exit_code, micros = micros(exec), "ran a command");
    let problem = complaint(output.status, spec.timeout);
    Ok(Json(ExecResult {
        exit_code: output.status.shell_code(),
        signal: output.status.signal,
        stdout: output.stdout_text(),
        stderr: output.stderr_text(),
        stdout_base64: exact(&output.stdout),
        stderr_base64: exact(&output.stderr),
        truncated: output.truncated(),
        cut: OutputCut { stdout_bytes: output.stdout_cut, stderr_bytes: output.stderr_cut },
        error: problem.map(|error| api_error(&error, id.as_str())),
        timings: ExecTimings { find_micros: micros(found), exec_micros: micros(exec), total_micros: micros(total) },
    }))
}

async fn run(sandbox: &Sandbox, spec: &ExecSpec, stdin: Option<&[u8]>, cap: usize) -> Result<Output> {
    sandbox.run(spec, stdin, cap).await
}

/// Converts a request to a command and its input.
pub(crate) fn spec(request: &ExecRequest) -> Outcome<(ExecSpec, Option<Vec<u8>>)> {
    let command = match (&request.argv, &request.shell) {
        (Some(argv), None) if !argv.is_empty() => Command::Argv(argv.clone()),
        (None, Some(script)) => Command::Shell(script.clone()),
        _ => return Err(Failure::invalid("expected either argv, with at least the program, or shell")),
    };
    let words = request.argv.iter().flatten().chain(&request.shell).chain(&request.cwd);
    if words.chain(request.env.keys()).chain(request.env.values()).any(|word| word.contains('\0')) {
        return Err(Failure::invalid("arguments, variables and paths must not contain the character 0"));
    }
    if let Some(name) = request.env.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(Failure::invalid(format!("invalid variable {name:?}: expected a name without =")));
    }
    let stdin = match (&request.stdin, &request.stdin_base64) {
        (None, None) => None,
        (Some(text), None) => Some(text.clone().into_bytes()),
        (None, Some(text)) => {
            Some(STANDARD.decode(text).map_err(|error| Failure::invalid(format!("stdinBase64: {error}")))?)
        }
        (Some(_), Some(_)) => return Err(Failure::invalid("expected either stdin or stdinBase64")),
    };
    let timeout = match request.timeout {
        None => Some(TIMEOUT),
        Some(kennel_api::Millis(0)) => None,
        Some(time) => Some(time.duration()),
    };
    let spec = ExecSpec {
        env: request.env.clone(),
        cwd: request.cwd.clone(),
        user: request.user.clone(),
        timeout,
        ..ExecSpec::new(command)
    };
    Ok((spec, stdin))
}

/// Cuts each stream to this many characters.
fn within(mut output: Output, limit: usize) -> Output {
    for (bytes, cut) in [(&mut output.stdout, &mut output.stdout_cut), (&mut output.stderr, &mut output.stderr_cut)] {
        let end = match std::str::from_utf8(bytes) {
            Ok(text) => text.char_indices().nth(limit).map_or(bytes.len(), |(at, _)| at),
            Err(_) => bytes.len().min(limit),
        };
        *cut += (bytes.len() - end) as u64;
        bytes.truncate(end);
    }
    output
}

/// The error for a command that reached its time limit or ran out of memory.
fn complaint(status: ExitStatus, timeout: Option<Duration>) -> Option<Error> {
    if status.timed_out {
        let within = timeout.map(|limit| format!(" within {limit:?}")).unwrap_or_default();
        let message = format!("the command did not finish{within}, and was ended");
        return Some(Error::new(ErrorCode::Timeout, message).suggest(NextStep::set(Field::Timeout)));
    }
    status.oom_killed.then(|| {
        Error::limit(LimitReason::OutOfMemory, "the command ran out of memory, and was killed")
            .suggest(NextStep::set(Field::Memory))
    })
}

fn exact(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).is_err().then(|| STANDARD.encode(bytes))
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_to_characters() {
        let output = |text: &[u8]| Output {
            status: ExitStatus::default(),
            stdout: text.to_vec(),
            stderr: Vec::new(),
            stdout_cut: 5,
            stderr_cut: 0,
        };
        let cut = within(output("äöü".as_bytes()), 2);
        assert_eq!((cut.stdout, cut.stdout_cut), ("äö".as_bytes().to_vec(), 7));
        let cut = within(output(b"\xff\xff\xff"), 2);
        assert_eq!((cut.stdout, cut.stdout_cut), (vec![0xff, 0xff], 6));
    }
}
