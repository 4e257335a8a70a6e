//! Commands that go on in a sandbox: start, list, signal.

use super::{exec, operation};
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::{Json as Body, Path};
use crate::routes::{Content, Operation, Routes, schema};
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::{Extension, Json};
use kennel_api::{ExecRequest, List, ProcessView, Scope, SignalRequest, StartProcess, StartedProcess};
use kennel_proto::ProcessInfo;
use kennel_types::{ExecSpec, ExitStatus, TermSize};

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
    let view = |info: ProcessInfo| view(info, main);
    Ok(Json(List { items: sandbox.processes().await?.into_iter().map(view).collect() }))
}

fn view(info: ProcessInfo, main: Option<u64>) -> ProcessView {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let argv = if info.argv.is_empty() {
        vec![text(&info.program)]
    } else {
        info.argv.iter().map(|word| text(word)).collect()
    };
    let exit = info.exit.map(|exit| {
        let status =
            ExitStatus { code: exit.code, signal: exit.signal, timed_out: exit.timed_out, oom_killed: exit.oom_killed };
        status.shell_code()
    });
    ProcessView {
        process: info.process,
        argv,
        main: main == Some(info.process),
        running: info.running,
        terminal: info.tty,
        attached: info.attached,
        detached: info.detached,
        tag: info.tag,
        started_ms: info.started_ms,
        exit_code: exit,
    }
}

async fn start(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Body(request): Body<StartProcess>,
) -> Outcome<(StatusCode, Json<StartedProcess>)> {
    let spec = detached(request)?;
    let sandbox = app.sandbox(&identity, &name).await?;
    let process = sandbox.exec(&spec).await?.process();
    Ok((StatusCode::CREATED, Json(StartedProcess { process })))
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
