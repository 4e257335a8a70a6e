//! The first message of a client: it starts a command, or attaches to one.

use super::session::invalid;
use crate::app::AppState;
use crate::error::Failure;
use kennel_api::stream::{self, ClientMessage, ServerMessage, StreamAttach, StreamStart};
use kennel_api::{ExecRequest, Millis};
use kennel_core::{Error, FanOut, FanOutOptions, FanOutStdin, Lag, Position, Result, Sandbox, Subscriber};
use kennel_types::{Command, ErrorCode, ExecSpec, SandboxId, TermSize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How long a client that takes over waits for the client before it.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(5);
/// How long any other client waits. A client whose own connection was just closed comes back in this time.
pub(crate) const FREE_WITHIN: Duration = Duration::from_millis(500);

/// A command with a new client.
pub(super) struct Begun {
    pub(super) fan_out: FanOut,
    pub(super) subscriber: Subscriber,
    /// The right to write standard input, and how much of it was taken.
    pub(super) stdin: Option<(FanOutStdin, u64)>,
    /// The first message for the client.
    pub(super) message: ServerMessage,
}

/// The clients that write standard input, by command. So one can be told that another takes over.
#[derive(Default)]
pub(crate) struct Writers(Mutex<HashMap<(SandboxId, u64), Weak<Notify>>>);

impl Writers {
    /// Takes the right to write the standard input of a command. `stop` is notified when another client takes over.
    async fn take(&self, id: &SandboxId, fan_out: &FanOut, take_over: bool, stop: &Arc<Notify>) -> Result<FanOutStdin> {
        let key = (id.clone(), fan_out.process());
        let within = if take_over {
            let before = self.lock().get(&key).and_then(Weak::upgrade);
            if let Some(before) = before {
                before.notify_one();
            }
            TAKE_OVER_WITHIN
        } else {
            FREE_WITHIN
        };
        let stdin = tokio::time::timeout(within, fan_out.stdin_when_free()).await.map_err(|_| {
            Error::new(ErrorCode::Conflict, "another client writes to this command's standard input")
                .advise("attach without `write`, or with `takeOver`")
        })?;
        let mut writers = self.lock();
        writers.retain(|_, stop| stop.strong_count() > 0);
        writers.insert(key, Arc::downgrade(stop));
        Ok(stdin)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(SandboxId, u64), Weak<Notify>>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the keeper sends ahead is 512 KiB of each channel, and pieces are removed as a whole.
pub(crate) const OPTIONS: FanOutOptions = FanOutOptions { history: 1280 * 1024, hold: false, acknowledge: true };

/// Does what the first message asks for.
pub(super) async fn begin(
    app: &AppState,
    sandbox: &Sandbox,
    first: ClientMessage,
    stop: &Arc<Notify>,
) -> Result<Begun> {
    match first {
        ClientMessage::Start(start) => self::start(app, sandbox, start, stop).await,
        ClientMessage::Attach(attach) => self::attach(app, sandbox, attach, stop).await,
        _ => Err(invalid("the first message must be `start` or `attach`")),
    }
}

async fn start(app: &AppState, sandbox: &Sandbox, start: StreamStart, stop: &Arc<Notify>) -> Result<Begun> {
    let spec = spec(start)?;
    let has_input = spec.stdin || spec.tty.is_some();
    let fan_out = sandbox.exec_shared(&spec, OPTIONS).await?;
    tracing::info!(sandbox = %sandbox.id(), process = fan_out.process(), "started a command");
    let subscriber = fan_out.subscribe(None, Lag::Wait)?;
    let stdin =
        if has_input { Some((app.streams.writers.take(sandbox.id(), &fan_out, false, stop).await?, 0)) } else { None };
    let message = ServerMessage::Started { process: fan_out.process(), tty: fan_out.is_tty() };
    Ok(Begun { fan_out, subscriber, stdin, message })
}

async fn attach(app: &AppState, sandbox: &Sandbox, attach: StreamAttach, stop: &Arc<Notify>) -> Result<Begun> {
    let StreamAttach { process, stdout, stderr, tty, write, take_over, lag } = attach;
    if take_over && !write {
        return Err(invalid("`takeOver` needs `write`"));
    }
    let fan_out = sandbox.fan_out(process, OPTIONS).await?;
    let stdin = if write {
        let stdin = app.streams.writers.take(sandbox.id(), &fan_out, take_over, stop).await?;
        let position = stdin.position().await;
        Some((stdin, position))
    } else {
        None
    };
    let misses = lag.map_or(!write, |lag| matches!(lag, stream::Lag::Miss));
    let lag = if misses { Lag::Miss } else { Lag::Wait };
    // This one stays until the client has its place, so that nothing counts as consumed in between.
    let oldest = fan_out.subscribe(None, Lag::Wait)?;
    let Position { stdout: oldest_stdout, stderr: oldest_stderr } = oldest.position();
    let from = Position { stdout: stdout.unwrap_or(oldest_stdout), stderr: stderr.unwrap_or(oldest_stderr) };
    let subscriber = fan_out.subscribe(Some(from), lag)?;
    drop(oldest);
    if let Some(size) = tty {
        fan_out.resize(TermSize { rows: size.rows, cols: size.cols });
    }
    let message = ServerMessage::Attached {
        process,
        tty: fan_out.is_tty(),
        stdout: from.stdout,
        stderr: from.stderr,
        stdin_taken: stdin.as_ref().map(|(_, position)| *position),
        stdin_closed: stdin.as_ref().map(|(stdin, _)| stdin.is_closed()),
    };
    Ok(Begun { fan_out, subscriber, stdin, message })
}

fn spec(start: StreamStart) -> Result<ExecSpec> {
    let is_shell = start.argv.is_none() && start.shell.is_none();
    if is_shell && start.tty.is_none() {
        return Err(invalid("`argv` or `shell` is missing; only a terminal has a default, its shell"));
    }
    let request = ExecRequest {
        argv: start.argv,
        // Replaced below.
        shell: if is_shell { Some(String::new()) } else { start.shell },
        env: start.env,
        cwd: start.cwd,
        user: start.user,
        timeout: Some(start.timeout.unwrap_or(Millis(0))),
        ..ExecRequest::default()
    };
    let (spec, _) = crate::handlers::exec::spec(&request).map_err(Failure::into_error)?;
    Ok(ExecSpec {
        command: if is_shell { Command::LoginShell } else { spec.command },
        stdin: start.stdin,
        tty: start.tty.map(|size| TermSize { rows: size.rows, cols: size.cols }),
        detached: !start.end_on_close,
        tag: start.tag,
        hold: start.hold,
        ..spec
    })
}
