//! A command whose output is returned while it runs, as lines. The command ends when the client closes the connection.

use super::lines::{self, Pieces, unless_ending};
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome, api_error};
use crate::extract::{Json, Path};
use crate::request_id::RequestId;
use crate::revocation::StreamEnd;
use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use kennel_api::ExecRequest;
use kennel_api::stream::ExecLine;
use kennel_core::{Exec, ExecEvent};
use kennel_proto::Channel;
use kennel_types::{ExecSpec, ExitStatus};

pub(super) async fn stream(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    headers: HeaderMap,
    Json(request): Json<ExecRequest>,
) -> Outcome<Response> {
    if request.output_limit.is_some() {
        return Err(Failure::invalid("`outputLimit` is for collected output; this stream returns everything"));
    }
    let (spec, stdin) = crate::handlers::exec::spec(&request)?;
    let spec = ExecSpec { stdin: stdin.is_some(), ..spec };
    let sandbox = app.sandbox(&identity, &sandbox).await?;
    if request.start {
        sandbox.start().await?;
    }
    let exec = sandbox.exec(&spec).await?;
    let feed = stdin.map(|bytes| {
        let stdin = exec.stdin();
        let task = tokio::spawn(async move {
            // It is no error if a command ends without reading all its input.
            let _ = stdin.write(&bytes).await;
            stdin.close();
        });
        Feed(task.abort_handle())
    });
    tracing::info!(sandbox = %sandbox.id(), process = exec.process(), "started a command");
    let started = ExecLine::Started { process: exec.process() };
    let running = Running {
        exec,
        pieces: <[Pieces; 2]>::default(),
        ending: app.stream_end(&identity),
        id,
        done: false,
        _feed: feed,
    };
    let rest = stream::unfold(running, |mut running| async move {
        let lines = running.next().await?;
        Some((stream::iter(lines), running))
    });
    Ok(lines::response(&headers, stream::iter([started]).chain(rest.flatten())))
}

/// The task that writes standard input. It ends with the stream.
struct Feed(tokio::task::AbortHandle);

impl Drop for Feed {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Running {
    exec: Exec,
    pieces: [Pieces; 2],
    ending: StreamEnd,
    id: RequestId,
    done: bool,
    _feed: Option<Feed>,
}

impl Running {
    /// Returns the next lines, or `None` at the end.
    async fn next(&mut self) -> Option<Vec<ExecLine>> {
        if self.done {
            return None;
        }
        let event = unless_ending(&mut self.ending, self.exec.next()).await.and_then(|event| event);
        Some(match event {
            Ok(ExecEvent::Output(channel, bytes)) => {
                let piece = self.pieces[usize::from(channel == Channel::Stderr)].push(&bytes);
                piece.map(|piece| output(channel, piece)).into_iter().collect()
            }
            Ok(ExecEvent::Exited(status)) => {
                self.done = true;
                let rest = [Channel::Stdout, Channel::Stderr].into_iter().zip(&mut self.pieces);
                let rest = rest.filter_map(|(channel, pieces)| Some(output(channel, pieces.finish()?)));
                rest.chain([exit(status)]).collect()
            }
            Err(error) => {
                self.done = true;
                vec![ExecLine::Error { error: api_error(&error, self.id.as_str()) }]
            }
        })
    }
}

fn output(channel: Channel, (offset, piece): (u64, lines::Piece)) -> ExecLine {
    let (text, base64) = piece.fields();
    ExecLine::Output { channel: lines::channel(channel), offset, text, base64 }
}

fn exit(status: ExitStatus) -> ExecLine {
    ExecLine::Exit {
        exit_code: status.shell_code(),
        signal: status.signal,
        timed_out: status.timed_out,
        oom_killed: status.oom_killed,
    }
}
