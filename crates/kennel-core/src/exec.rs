//! A running command, as the client sees it.

use crate::keeper::{Arrival, KeeperStream};
use crate::{Collector, Error, Keeper, Output, Result};
use kennel_proto::{Attach, Body, Channel, ExitReport, Features, Reply, Request, Size, Spawn, SpawnCommand, caps};
use kennel_types::{Command, ErrorCode, ExecSpec, ExitStatus, LimitReason, TermSize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A running command. Dropping the handle ends a tied command, and detaches from any other.
pub struct Exec {
    stream: KeeperStream,
    process: u64,
    tty: bool,
    lost: u64,
    stdin: Arc<StdinState>,
}

/// An event of a running command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEvent {
    /// The command printed these bytes.
    Output(Channel, Vec<u8>),
    /// The command ended, and all its output has been returned.
    Exited(ExitStatus),
}

/// How much of a command's output has been read. Reading can continue from there after a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// The number of bytes read from standard output.
    pub stdout: u64,
    /// The number of bytes read from standard error.
    pub stderr: u64,
}

impl From<[u64; 2]> for Position {
    fn from([stdout, stderr]: [u64; 2]) -> Self {
        Self { stdout, stderr }
    }
}

struct StdinState {
    window: u64,
    sent: tokio::sync::Mutex<u64>,
    /// Whether the end of the input was sent. A keeper closes the connection when it receives more.
    closed: AtomicBool,
}

/// The standard input of a command, for writing.
pub struct Stdin {
    stream: KeeperStream,
    state: Arc<StdinState>,
}

impl Exec {
    pub(crate) async fn spawn(keeper: &Keeper, spec: &ExecSpec) -> Result<Self> {
        let what = program(&spec.command);
        check(spec)?;
        for (asked, feature, what) in [
            (spec.tag.is_some(), Features::TAG, "tag a command"),
            (spec.hold, Features::HOLD, "hold the output of a command"),
            (spec.linger.is_some(), Features::LINGER, "keep a command running after its connection was lost"),
        ] {
            // Without these fields, the command is sent before the keeper's welcome has arrived.
            if asked {
                keeper.require(feature, what).await?;
            }
        }
        let stream = keeper.open(Request::Spawn(spawn_message(spec)))?;
        Self::started(stream, Position::default()).await.map_err(|error| start_error(&what, error))
    }

    pub(crate) async fn attach(keeper: &Keeper, process: u64, from: Position, size: Option<TermSize>) -> Result<Self> {
        let size = size.map(wire_size);
        let request = Attach { process, stdout: from.stdout, stderr: from.stderr, size };
        Self::started(keeper.open(Request::Attach(request))?, from).await.map_err(|error| match error.code() {
            ErrorCode::NotFound => {
                Error::new(ErrorCode::NotFound, format!("attach to command {process}: it does not exist, or has ended"))
            }
            _ => Error::new(ErrorCode::AttachFailed, format!("attach to command {process}: {error}")),
        })
    }

    async fn started(stream: KeeperStream, from: Position) -> Result<Self> {
        let reply = match stream.reply().await {
            Ok(reply) => reply,
            Err(error) => {
                stream.close();
                return Err(error);
            }
        };
        let Reply::Running { process, stdout, stderr, stdin_window, stdin, tty, .. } = reply else {
            stream.close();
            return Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: no running command"));
        };
        let lost = stdout.saturating_sub(from.stdout) + stderr.saturating_sub(from.stderr);
        let window = stdin_window.min(caps::WINDOW);
        // A window of 0 means that an earlier writer has sent the end of the input.
        let closed = AtomicBool::new(window == 0);
        let stdin = Arc::new(StdinState { window, sent: tokio::sync::Mutex::new(stdin), closed });
        Ok(Self { stream, process, tty, lost, stdin })
    }

    /// The id of the command, for a later attach.
    pub fn process(&self) -> u64 {
        self.process
    }

    /// Whether the command runs on a terminal.
    pub fn is_tty(&self) -> bool {
        self.tty
    }

    /// The number of output bytes that were lost between the requested position and the first available byte.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// How much output [`Self::next`] has returned.
    pub fn position(&self) -> Position {
        self.stream.returned().into()
    }

    /// From now on, output counts as consumed only when [`Self::acknowledge`] is called. So a relay can store output
    /// before the keeper forgets it. After a lost connection, attaching at the acknowledged position returns every byte
    /// that was not acknowledged, if the command holds its output ([`ExecSpec::hold`]).
    ///
    /// The keeper sends at most 512 KiB of each stream that are not acknowledged. The exit status of a command that holds
    /// its output arrives when everything is acknowledged.
    #[must_use]
    pub fn with_explicit_acknowledgement(mut self) -> Self {
        self.stream.acknowledge_explicitly();
        self
    }

    /// Acknowledges all output before this position. Fails if [`Self::next`] has not returned it yet.
    pub fn acknowledge(&mut self, until: Position) -> Result<()> {
        self.stream.acknowledge_until([until.stdout, until.stderr])
    }

    /// The position before which all output is acknowledged.
    pub fn acknowledged(&self) -> Position {
        self.stream.consumed().into()
    }

    /// Returns the next event. There is none after [`ExecEvent::Exited`].
    pub async fn next(&mut self) -> Result<ExecEvent> {
        Ok(match self.stream.next().await? {
            Arrival::Bytes(channel, bytes) => ExecEvent::Output(channel, bytes),
            Arrival::Exit(report) => ExecEvent::Exited(status(report)),
            Arrival::Done(_) => {
                return Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: a command has no outcome"));
            }
        })
    }

    /// Reads all output and keeps the first `cap` bytes of each stream.
    pub async fn collect(mut self, cap: usize) -> Result<Output> {
        let mut collector = Collector::new(cap);
        loop {
            match self.next().await? {
                ExecEvent::Output(channel, bytes) => collector.push(channel, &bytes),
                ExecEvent::Exited(status) => return Ok(collector.finish(status)),
            }
        }
    }

    /// The command's standard input. Bytes reach the command only if the spec requested standard input or a terminal.
    pub fn stdin(&self) -> Stdin {
        Stdin { stream: self.stream.sender(), state: self.stdin.clone() }
    }

    /// A second handle on the command's stream, which only sends.
    pub(crate) fn sender(&self) -> KeeperStream {
        self.stream.sender()
    }

    /// Sends a signal to the command's process group.
    pub fn signal(&self, signal: i32) {
        self.stream.send(Body::Signal(signal));
    }

    /// Tells the command the new size of the terminal.
    pub fn resize(&self, size: TermSize) {
        self.stream.send(Body::Resize(wire_size(size)));
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.stream.close();
    }
}

impl Stdin {
    /// Writes all bytes, as fast as the command reads them. Fails with `conflict` after standard input was closed.
    pub async fn write(&self, mut bytes: &[u8]) -> Result<()> {
        let mut sent = self.state.sent.lock().await;
        while !bytes.is_empty() {
            if self.is_closed() {
                return Err(Error::new(ErrorCode::Conflict, "the command's standard input is closed already"));
            }
            let room = self.stream.room(*sent, self.state.window).await?;
            let take = bytes.len().min(room as usize).min(caps::DATA);
            self.stream.send_data(Channel::Stdin, *sent, &bytes[..take]);
            *sent += take as u64;
            bytes = &bytes[take..];
        }
        Ok(())
    }

    /// The offset of the next byte to write. After attaching, this is how much the keeper has received.
    pub async fn position(&self) -> u64 {
        *self.state.sent.lock().await
    }

    /// Waits until the command has taken more than `before` bytes, and returns how many. These bytes cannot be lost with
    /// the connection any more.
    pub async fn taken(&self, before: u64) -> Result<u64> {
        self.stream.taken(before).await
    }

    /// Whether standard input is closed, also by an earlier writer.
    pub fn is_closed(&self) -> bool {
        self.state.closed.load(Ordering::Relaxed)
    }

    /// Closes standard input: the command reads end of file.
    pub fn close(&self) {
        if !self.state.closed.swap(true, Ordering::Relaxed) {
            self.stream.send(Body::Eof(Channel::Stdin));
        }
    }
}

fn spawn_message(spec: &ExecSpec) -> Spawn {
    let bytes = |text: &String| text.as_bytes().to_vec().into();
    Spawn {
        command: match &spec.command {
            Command::Argv(argv) => SpawnCommand::Argv(argv.iter().map(bytes).collect()),
            Command::Shell(script) => SpawnCommand::Shell(bytes(script)),
            Command::LoginShell => SpawnCommand::LoginShell,
        },
        env: spec.env.iter().map(|(key, value)| (bytes(key), bytes(value))).collect(),
        cwd: spec.cwd.as_ref().map(bytes),
        user: spec.user.clone(),
        stdin: spec.stdin,
        tty: spec.tty.map(wire_size),
        timeout_ms: spec.timeout.map(|timeout| timeout.as_millis().try_into().unwrap_or(u64::MAX)),
        grace_ms: None,
        detached: spec.detached,
        last: spec.last,
        stop_signal: None,
        tag: spec.tag.clone(),
        hold: spec.hold,
        linger_ms: spec.linger.map(|linger| linger.as_millis().try_into().unwrap_or(u64::MAX)),
    }
}

/// Checks the fields that have a cap of their own.
fn check(spec: &ExecSpec) -> Result<()> {
    if spec.tag.as_ref().is_some_and(|tag| tag.len() > caps::TAG) {
        return Err(Error::limit(LimitReason::TooLarge, format!("the tag is longer than {} bytes", caps::TAG)));
    }
    if spec.linger.is_some_and(|linger| linger > Duration::from_millis(caps::LINGER_MS)) {
        return Err(Error::limit(LimitReason::TooLarge, "the linger time is longer than seven days"));
    }
    if spec.detached && spec.linger.is_some() {
        let message = "a detached command keeps running without its connection, so it has no linger time";
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    }
    Ok(())
}

pub(crate) fn wire_size(size: TermSize) -> Size {
    Size { rows: size.rows, cols: size.cols }
}

fn status(report: ExitReport) -> ExitStatus {
    ExitStatus { code: report.code, signal: report.signal, timed_out: report.timed_out, oom_killed: report.oom_killed }
}

fn program(command: &Command) -> String {
    match command {
        Command::Argv(argv) => argv.first().cloned().unwrap_or_default(),
        Command::Shell(_) | Command::LoginShell => "the shell".into(),
    }
}

/// Creates the error for a command that could not be started. The exit code is 127 if the program does not exist, and
/// 126 if it cannot be executed.
fn start_error(what: &str, error: Error) -> Error {
    let exit = match error.code() {
        ErrorCode::NotFound => 127,
        ErrorCode::PermissionDenied | ErrorCode::ExecFailed => 126,
        _ => return error,
    };
    Error::new(ErrorCode::ExecFailed, format!("run {}: {error}", crate::printable(what))).exit_code(exit)
}
