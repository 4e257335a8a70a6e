//! Commands that go on in a sandbox: start, list, signal, wait. `process_io.rs` has their input and output.

use super::{exec, operation};
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::{self, Json as Body, Path, Query};
use crate::idempotent;
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::{Extension, Json};
use kennel_api::{ExecRequest, List, OutputView, ProcessView, Scope, SignalRequest, StartProcess, StartedProcess};
use kennel_core::{Error, Result, Sandbox};
use kennel_proto::{OutputOffsets, ProcessInfo};
use kennel_types::{ErrorCode, ExecSpec, ExitStatus, TermSize};
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;

/// How long a request waits for the end of a command if the client does not say, in milliseconds.
const WAIT: u64 = 30_000;
/// The longest wait, in milliseconds.
const LONGEST_WAIT: u64 = 600_000;
/// The time between two looks at a command, at first and at last.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The longest tag of a client. With the id of its request, it must not be longer than the keeper allows.
const LONGEST_TAG: usize = 240;

pub(super) fn add(routes: Routes) -> Routes {
    const PATH: &str = "/v1/sandboxes/{sandbox}/processes";
    routes
        .add(
            Operation {
                response: (200, Content::Json(schema::<List<ProcessView>>)),
                ..operation(Method::GET, PATH, "listProcesses", Scope::Read, "The commands of a sandbox.")
            },
            list,
        )
        .add(
            Operation {
                request: Content::Json(schema::<StartProcess>),
                response: (201, Content::Json(schema::<StartedProcess>)),
                creates: true,
                ..operation(
                    Method::POST,
                    PATH,
                    "startProcess",
                    Scope::Exec,
                    "Starts a command, which keeps running when the request has ended.",
                )
            },
            start,
        )
        .add(
            Operation {
                response: (200, Content::Json(schema::<ProcessView>)),
                ..operation(
                    Method::GET,
                    "/v1/sandboxes/{sandbox}/processes/{process}",
                    "getProcess",
                    Scope::Read,
                    "A command of a sandbox. The last 64 that have ended are there, too.",
                )
            },
            get,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<WaitQuery>),
                response: (200, Content::Json(schema::<ProcessView>)),
                ..operation(
                    Method::GET,
                    "/v1/sandboxes/{sandbox}/processes/{process}/wait",
                    "waitForProcess",
                    Scope::Read,
                    "Waits until a command has ended, or the time is over, and returns it.",
                )
            },
            wait,
        )
        .add(
            Operation {
                request: Content::Json(schema::<SignalRequest>),
                ..operation(
                    Method::POST,
                    "/v1/sandboxes/{sandbox}/processes/{process}/signal",
                    "signalProcess",
                    Scope::Exec,
                    "Sends a signal to a command's whole process tree.",
                )
            },
            signal,
        )
}

async fn list(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<List<ProcessView>>> {
    let sandbox = app.sandbox(&identity, &name).await?;
    let main = sandbox.main_process().await?;
    let view = |info: &ProcessInfo| view(info, main);
    Ok(Json(List { items: sandbox.processes().await?.iter().map(view).collect() }))
}

fn view(info: &ProcessInfo, main: Option<u64>) -> ProcessView {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let argv = if info.argv.is_empty() {
        vec![text(&info.program)]
    } else {
        info.argv.iter().map(|word| text(word)).collect()
    };
    let exit = info.exit.map(|exit| ExitStatus {
        code: exit.code,
        signal: exit.signal,
        timed_out: exit.timed_out,
        oom_killed: exit.oom_killed,
    });
    let output = |output: OutputOffsets| OutputView { printed_bytes: output.produced, stored_from: output.kept };
    ProcessView {
        process: info.process,
        argv,
        main: main == Some(info.process),
        running: info.running,
        terminal: info.tty,
        attached: info.attached,
        detached: info.detached,
        tag: info.tag.as_deref().and_then(own_tag),
        started_ms: info.started_ms,
        exit_code: exit.map(|exit| exit.shell_code()),
        signal: exit.and_then(|exit| exit.signal),
        timed_out: exit.is_some_and(|exit| exit.timed_out),
        oom_killed: exit.is_some_and(|exit| exit.oom_killed),
        stdin_bytes: info.stdin,
        stdout: info.stdout.map(output),
        stderr: info.stderr.map(output),
    }
}

/// Returns a command of a sandbox.
pub(super) async fn find(sandbox: &Sandbox, process: u64) -> Result<ProcessInfo> {
    let found = sandbox.processes().await?.into_iter().find(|info| info.process == process);
    found.ok_or_else(|| Error::new(ErrorCode::NotFound, format!("there is no command {process}")))
}

async fn get(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path((name, process)): Path<(String, u64)>,
) -> Outcome<Json<ProcessView>> {
    let sandbox = app.sandbox(&identity, &name).await?;
    let main = sandbox.main_process().await?;
    Ok(Json(view(&find(&sandbox, process).await?, main)))
}

/// How long to wait.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct WaitQuery {
    /// How long to wait, in milliseconds; defaults to 30,000.
    #[schemars(range(max = 600_000))]
    timeout_ms: Option<u64>,
}

async fn wait(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path((name, process)): Path<(String, u64)>,
    Query(query): Query<WaitQuery>,
) -> Outcome<Json<ProcessView>> {
    let timeout = query.timeout_ms.unwrap_or(WAIT);
    if timeout > LONGEST_WAIT {
        return Err(Failure::invalid(format!("invalid timeoutMs {timeout}: expected at most {LONGEST_WAIT}")));
    }
    let sandbox = app.sandbox(&identity, &name).await?;
    let main = sandbox.main_process().await?;
    let mut ending = app.ending.clone();
    let until = Instant::now() + Duration::from_millis(timeout);
    let mut pause = SHORTEST_PAUSE;
    loop {
        let info = find(&sandbox, process).await?;
        let now = Instant::now();
        if !info.running || now >= until || *ending.borrow() {
            return Ok(Json(view(&info, main)));
        }
        // Whoever reads the output of a command is told its end, but takes part in what is kept of the output. So this
        // asks again, at growing intervals.
        tokio::select! {
            () = tokio::time::sleep_until(until.min(now + pause)) => {}
            () = crate::serve::ended(&mut ending) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn start(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    request: Request,
) -> Outcome<Response> {
    let headers = request.headers().clone();
    let bytes = extract::json_bytes(request).await?;
    let spec = detached(extract::parse(&bytes)?)?;
    let sandbox = app.sandbox(&identity, &name).await?;
    let asked: [&[u8]; 3] = [b"startProcess", sandbox.id().as_str().as_bytes(), &bytes];
    let started = sandbox.clone();
    idempotent::once(&app, &identity, &headers, &asked, move |creation| async move {
        let mut spec = spec;
        if creation.recorded {
            let tag = recorded_tag(spec.tag.as_deref(), creation.id.as_str());
            if creation.resumed
                && let Some(known) = started.processes().await?.into_iter().find(|it| it.tag.as_ref() == Some(&tag))
            {
                return Ok(StartedProcess { process: known.process });
            }
            spec.tag = Some(tag);
        }
        let process = started.exec(&spec).await?.process();
        if creation.cancel.is_cancelled() {
            // Nobody knows its id.
            started.kill(process, 0).await?;
        }
        Ok(StartedProcess { process })
    })
    .await
}

/// Separates the tag of the client from the id of its request, which is there if the request has an idempotency key. So a
/// command is found again after the server was killed.
const SEPARATOR: char = '\u{1f}';

fn recorded_tag(own: Option<&str>, id: &str) -> String {
    format!("{}{SEPARATOR}{id}", own.unwrap_or_default())
}

/// The tag that the client gave.
fn own_tag(tag: &str) -> Option<String> {
    match tag.split_once(SEPARATOR) {
        Some(("", _)) => None,
        Some((own, _)) => Some(own.to_owned()),
        None => Some(tag.to_owned()),
    }
}

/// Converts a request to a command that keeps running without a client.
pub(super) fn detached(request: StartProcess) -> Outcome<ExecSpec> {
    let common = ExecRequest {
        argv: request.argv,
        shell: request.shell,
        env: request.env,
        cwd: request.cwd,
        user: request.user,
        ..ExecRequest::default()
    };
    let (spec, _) = exec::spec(&common)?;
    if request.tag.as_ref().is_some_and(|tag| tag.len() > LONGEST_TAG || tag.contains(SEPARATOR)) {
        return Err(Failure::invalid(format!("invalid tag: expected at most {LONGEST_TAG} bytes of text")));
    }
    if request.terminal.is_some_and(|size| size.rows == 0 || size.cols == 0) {
        return Err(Failure::invalid("invalid terminal size: expected at least one row and one column"));
    }
    Ok(ExecSpec {
        stdin: request.stdin,
        tty: request.terminal.map(|size| TermSize { rows: size.rows, cols: size.cols }),
        timeout: request.timeout.filter(|time| time.0 > 0).map(kennel_api::Millis::duration),
        hold: request.hold,
        tag: request.tag,
        detached: true,
        ..spec
    })
}

async fn signal(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path((name, process)): Path<(String, u64)>,
    Body(request): Body<SignalRequest>,
) -> Outcome<StatusCode> {
    if !(0..=64).contains(&request.signal) {
        return Err(Failure::invalid(format!("invalid signal {}: expected 0 to 64", request.signal)));
    }
    let sandbox = app.sandbox(&identity, &name).await?;
    sandbox.kill(process, request.signal).await?;
    Ok(StatusCode::NO_CONTENT)
}
