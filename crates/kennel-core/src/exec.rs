//! A command that runs, as seen from outside.

use crate::keeper::{Arrival, KeeperStream};
use crate::{Collector, Error, Keeper, Output, Result};
use kennel_proto::{Attach, Body, Channel, ExitReport, Reply, Request, Size, Spawn, SpawnCommand, caps};
use kennel_types::{Command, ErrorCode, ExecSpec, ExitStatus, TermSize};
use std::sync::Arc;

/// A running command. Dropping it ends a tied command, and detaches from another.
pub struct Exec {
    stream: KeeperStream,
    process: u64,
    tty: bool,
    lost: u64,
    stdin: Arc<StdinState>,
}

/// Something a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEvent {
    /// It printed.
    Output(Channel, Vec<u8>),
    /// It ended, and all its output was handed out.
    Exited(ExitStatus),
}

/// How far a command's output was read; enough to go on from there after a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// Bytes of standard output.
    pub stdout: u64,
    /// Bytes of standard error.
    pub stderr: u64,
}

struct StdinState {
    window: u64,
    sent: tokio::sync::Mutex<u64>,
}

/// The writing end of a command's standard input.
pub struct Stdin {
    stream: KeeperStream,
    state: Arc<StdinState>,
}

impl Exec {
    pub(crate) async fn spawn(keeper: &Keeper, spec: &ExecSpec) -> Result<Self> {
        let what = program(&spec.command);
        let stream = keeper.open(Request::Spawn(spawn_message(spec)))?;
        Self::started(stream, Position::default()).await.map_err(|error| start_error(&what, error))
    }

    pub(crate) async fn attach(keeper: &Keeper, process: u64, from: Position, size: Option<TermSize>) -> Result<Self> {
        let size = size.map(wire_size);
        let request = Attach { process, stdout: from.stdout, stderr: from.stderr, size };
        Self::started(keeper.open(Request::Attach(request))?, from).await.map_err(|error| match error.code() {
            ErrorCode::NotFound => {
                Error::new(ErrorCode::NotFound, format!("attach to command {process}: it is not there, or has ended"))
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
        let Reply::Running { process, stdout, stderr, stdin_window, stdin, tty } = reply else {
            stream.close();
            return Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: no running command"));
        };
        let lost = stdout.saturating_sub(from.stdout) + stderr.saturating_sub(from.stderr);
        let window = stdin_window.min(caps::WINDOW);
        let stdin = Arc::new(StdinState { window, sent: tokio::sync::Mutex::new(stdin) });
        Ok(Self { stream, process, tty, lost, stdin })
    }

    /// Its id, for a later attach.
    pub fn process(&self) -> u64 {
        self.process
    }

    /// Whether it runs on a terminal.
    pub fn is_tty(&self) -> bool {
        self.tty
    }

    /// Bytes of output between the position asked for and the first byte that was still there.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// How far its output was handed out by [`Self::next`].
    pub fn position(&self) -> Position {
        let [stdout, stderr] = self.stream.consumed();
        Position { stdout, stderr }
    }

    /// The next thing it does. After [`ExecEvent::Exited`] there is nothing more.
    pub async fn next(&mut self) -> Result<ExecEvent> {
        Ok(match self.stream.next().await? {
            Arrival::Bytes(channel, bytes) => ExecEvent::Output(channel, bytes),
            Arrival::Exit(report) => ExecEvent::Exited(status(report)),
            Arrival::Done(_) => {
                return Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: a command has no outcome"));
            }
        })
    }

    /// Reads to the end and keeps the first `cap` bytes of each stream.
    pub async fn collect(mut self, cap: usize) -> Result<Output> {
        let mut collector = Collector::new(cap);
        loop {
            match self.next().await? {
                ExecEvent::Output(channel, bytes) => collector.push(channel, &bytes),
                ExecEvent::Exited(status) => return Ok(collector.finish(status)),
            }
        }
    }

    /// Its standard input. Bytes go through only if the spec asked for standard input or a terminal.
    pub fn stdin(&self) -> Stdin {
        Stdin { stream: self.stream.sender(), state: self.stdin.clone() }
    }

    /// Sends a signal to its process group.
    pub fn signal(&self, signal: i32) {
        self.stream.send(Body::Signal(signal));
    }

    /// Tells it the terminal's new size.
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
    /// Writes all bytes, as fast as the command takes them.
    pub async fn write(&self, mut bytes: &[u8]) -> Result<()> {
        let mut sent = self.state.sent.lock().await;
        while !bytes.is_empty() {
            let room = self.stream.room(*sent, self.state.window).await?;
            let take = bytes.len().min(room as usize).min(caps::DATA);
            self.stream.send_data(Channel::Stdin, *sent, &bytes[..take]);
            *sent += take as u64;
            bytes = &bytes[take..];
        }
        Ok(())
    }

    /// The number of the next byte to be written. On a handle that was just attached: how much the keeper has taken.
    pub async fn position(&self) -> u64 {
        *self.state.sent.lock().await
    }

    /// Ends it: the command reads end of file.
    pub fn close(&self) {
        self.stream.send(Body::Eof(Channel::Stdin));
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
    }
}

fn wire_size(size: TermSize) -> Size {
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

/// A command that could not be started: 127 if it is not there, 126 if it cannot be run.
fn start_error(what: &str, error: Error) -> Error {
    let exit = match error.code() {
        ErrorCode::NotFound => 127,
        ErrorCode::PermissionDenied | ErrorCode::ExecFailed => 126,
        _ => return error,
    };
    Error::new(ErrorCode::ExecFailed, format!("run {}: {error}", crate::printable(what))).exit_code(exit)
}
