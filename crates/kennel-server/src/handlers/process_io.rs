//! The output and input of commands, without a WebSocket. Both have offsets, so a client can repeat a request that was cut off,
//! and loses nothing.

use super::operation;
use super::processes::find;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::{self, Path, Query};
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use crate::streams::begin::{FREE_WITHIN, OPTIONS};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt as _;
use kennel_api::{OutputPart, ProcessExit, ProcessOutput, Scope, StdinTaken};
use kennel_core::{Error, FanOutEvent, FanOutStdin, Lag, Position, Result, Sandbox, Subscriber};
use kennel_proto::Channel;
use kennel_types::{ErrorCode, ExitStatus};
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;

/// How much of each channel a response has at most.
const MOST: usize = 256 << 10;
/// The most standard input of one request.
const MOST_INPUT: usize = 1 << 20;
/// The longest wait, in milliseconds.
const LONGEST_WAIT: u64 = 600_000;
/// How long output that the keeper has already may take to arrive.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);
/// How long a request waits until the command takes its input, if the client does not say.
const TAKEN_WITHIN: u64 = 30_000;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                query: QuerySchema::Of(fields::<OutputQuery>),
                response: (200, Content::Json(schema::<ProcessOutput>)),
                ..operation(
                    Method::GET,
                    "/v1/sandboxes/{sandbox}/processes/{process}/output",
                    "readOutput",
                    Scope::Exec,
                    "What a command has printed since an offset, up to 256 KiB of each channel. The bytes before the \
                     offset are not stored any longer.",
                )
            },
            output,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<InputQuery>),
                request: Content::Bytes,
                response: (200, Content::Json(schema::<StdinTaken>)),
                ..operation(
                    Method::POST,
                    "/v1/sandboxes/{sandbox}/processes/{process}/stdin",
                    "writeInput",
                    Scope::Exec,
                    "Writes the body, of at most 1 MiB, to the standard input of a command.",
                )
            },
            input,
        )
}

/// Which part of the output is returned.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct OutputQuery {
    /// The client has all bytes of standard output before this offset; defaults to the oldest byte that is stored.
    stdout: Option<u64>,
    /// The client has all bytes of standard error before this offset; defaults to the oldest byte that is stored.
    stderr: Option<u64>,
    /// How long to wait for output or the end of the command, in milliseconds, if there is none yet; defaults to 0.
    #[schemars(range(max = 600_000))]
    wait_ms: Option<u64>,
}

async fn output(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path((name, process)): Path<(String, u64)>,
    Query(query): Query<OutputQuery>,
) -> Outcome<Json<ProcessOutput>> {
    let wait = query.wait_ms.unwrap_or(0);
    if wait > LONGEST_WAIT {
        return Err(Failure::invalid(format!("invalid waitMs {wait}: expected at most {LONGEST_WAIT}")));
    }
    let sandbox = app.sandbox(&identity, &name).await?;
    let info = find(&sandbox, process).await?;
    let printed = [info.stdout, info.stderr].map(|output| output.map_or(0, |output| output.produced));
    let (fan_out, mut subscriber) = subscribe(&sandbox, process, &query).await?;
    let mut ending = app.ending.clone();
    let mut collected = Collected::new(subscriber.position());
    let began = Instant::now();
    let until = began + Duration::from_millis(wait);
    while !collected.is_full() && collected.exit.is_none() {
        let until = if !collected.has_reached(printed) {
            began + ARRIVES_WITHIN
        } else if !collected.is_empty() {
            // Perhaps the end is there, too.
            if let Some(next) = subscriber.next().now_or_never() {
                collected.push(next?);
            }
            break;
        } else if info.running {
            until
        } else {
            until.max(began + ARRIVES_WITHIN)
        };
        let next = tokio::select! {
            next = subscriber.next() => next?,
            () = tokio::time::sleep_until(until) => break,
            () = crate::serve::ended(&mut ending) => break,
        };
        collected.push(next);
    }
    // In this order: the last subscriber of a fan-out that is still there would count as one that has read everything.
    drop(fan_out);
    drop(subscriber);
    Ok(Json(collected.finish()))
}

/// Reads a command from the offsets of the client. What the client has is acknowledged.
async fn subscribe(sandbox: &Sandbox, process: u64, query: &OutputQuery) -> Result<(kennel_core::FanOut, Subscriber)> {
    let fan_out = sandbox.fan_out(process, OPTIONS).await?;
    // This one stays until the client has its place, so that nothing counts as consumed in between.
    let oldest = fan_out.subscribe(None, Lag::Wait)?;
    let stored = oldest.position();
    let from =
        Position { stdout: query.stdout.unwrap_or(stored.stdout), stderr: query.stderr.unwrap_or(stored.stderr) };
    let subscriber = match fan_out.subscribe(Some(from), Lag::Wait) {
        Ok(subscriber) => subscriber,
        Err(error) => {
            drop(fan_out);
            return Err(error);
        }
    };
    subscriber.acknowledge(from)?;
    drop(oldest);
    Ok((fan_out, subscriber))
}

/// What was read so far.
struct Collected {
    channels: [Part; 2],
    exit: Option<ExitStatus>,
}

#[derive(Default)]
struct Part {
    from: u64,
    lost: u64,
    bytes: Vec<u8>,
}

impl Collected {
    fn new(from: Position) -> Self {
        let part = |from| Part { from, ..Part::default() };
        Self { channels: [part(from.stdout), part(from.stderr)], exit: None }
    }

    fn push(&mut self, event: FanOutEvent) {
        match event {
            FanOutEvent::Output { channel, bytes, .. } => self.part(channel).bytes.extend_from_slice(&bytes),
            FanOutEvent::Missed { channel, bytes } => self.part(channel).lost += bytes,
            FanOutEvent::Exited(status) => self.exit = Some(status),
        }
    }

    fn part(&mut self, channel: Channel) -> &mut Part {
        &mut self.channels[usize::from(channel == Channel::Stderr)]
    }

    fn is_empty(&self) -> bool {
        self.channels.iter().all(|part| part.bytes.is_empty() && part.lost == 0)
    }

    fn is_full(&self) -> bool {
        self.channels.iter().any(|part| part.bytes.len() >= MOST)
    }

    /// Whether it has everything before these offsets.
    fn has_reached(&self, printed: [u64; 2]) -> bool {
        self.channels.iter().zip(printed).all(|(part, printed)| part.end() >= printed)
    }

    /// The response. A character that is still incomplete is left for the next request.
    fn finish(self) -> ProcessOutput {
        let ended = self.exit.is_some();
        let [stdout, stderr] = self.channels.map(|part| part.finish(ended));
        let exit = self.exit.map(|status| ProcessExit {
            exit_code: status.shell_code(),
            signal: status.signal,
            timed_out: status.timed_out,
            oom_killed: status.oom_killed,
        });
        ProcessOutput { stdout, stderr, exit }
    }
}

impl Part {
    fn end(&self) -> u64 {
        self.from + self.lost + self.bytes.len() as u64
    }

    fn finish(mut self, ended: bool) -> OutputPart {
        let complete = match std::str::from_utf8(&self.bytes) {
            Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 && !ended => error.valid_up_to(),
            _ => self.bytes.len(),
        };
        self.bytes.truncate(complete);
        let (offset, next_offset) = (self.from + self.lost, self.end());
        let (text, base64) = match String::from_utf8(self.bytes) {
            Ok(text) => (Some(text), None),
            Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
        };
        OutputPart { offset, next_offset, lost_bytes: self.lost, text, base64 }
    }
}

/// How standard input is written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct InputQuery {
    /// The offset of the first byte of the body. Bytes that the command has received already are left out, so that a request
    /// can be repeated. Without it, the bytes follow what was written before.
    offset: Option<u64>,
    /// Close standard input after these bytes.
    eof: bool,
    /// How long to wait until the command takes the bytes, in milliseconds; defaults to 30,000.
    #[schemars(range(max = 600_000))]
    wait_ms: Option<u64>,
}

async fn input(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path((name, process)): Path<(String, u64)>,
    Query(query): Query<InputQuery>,
    request: Request,
) -> Outcome<Json<StdinTaken>> {
    let wait = query.wait_ms.unwrap_or(TAKEN_WITHIN);
    if wait > LONGEST_WAIT {
        return Err(Failure::invalid(format!("invalid waitMs {wait}: expected at most {LONGEST_WAIT}")));
    }
    let sandbox = app.sandbox(&identity, &name).await?;
    find(&sandbox, process).await?;
    let bytes = extract::body_bytes(request, MOST_INPUT).await?;
    let fan_out = sandbox.fan_out(process, OPTIONS).await?;
    let stdin = tokio::time::timeout(FREE_WITHIN, fan_out.stdin_when_free()).await.map_err(|_| {
        Error::new(ErrorCode::Conflict, "another client writes to this command's standard input")
            .advise("try again when it has closed its connection")
    })?;
    let received = stdin.position().await;
    let offset = query.offset.unwrap_or(received);
    let Some(known) = received.checked_sub(offset) else {
        let message = format!("the command has received {received} bytes, and the next offset is {offset}");
        return Err(Error::new(ErrorCode::Conflict, message).advise("send the bytes that are missing").into());
    };
    let rest = &bytes[bytes.len().min(usize::try_from(known).unwrap_or(usize::MAX))..];
    if stdin.is_closed() && !rest.is_empty() {
        return Err(Error::new(ErrorCode::Conflict, "the command's standard input is closed").into());
    }
    let end = received + rest.len() as u64;
    let taken = match tokio::time::timeout(Duration::from_millis(wait), write(&stdin, rest, received, end)).await {
        Ok(taken) => taken?,
        // What was sent stays sent, but the client may send it again.
        Err(_) => find(&sandbox, process).await?.stdin.unwrap_or(received),
    };
    if query.eof && taken >= end {
        stdin.close();
    }
    Ok(Json(StdinTaken { offset: taken, closed: stdin.is_closed() }))
}

/// Writes bytes, and waits until the command has taken them.
async fn write(stdin: &FanOutStdin, bytes: &[u8], received: u64, end: u64) -> Result<u64> {
    stdin.write(bytes).await?;
    let mut taken = received;
    while taken < end {
        taken = stdin.taken(taken).await?;
    }
    Ok(taken)
}
