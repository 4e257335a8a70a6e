//! Runs commands through the engine's own `exec`, where no keeper can run because the engine's machine has another
//! architecture.
//!
//! It replaces the keeper at the other end of an in-memory pipe and speaks the keeper protocol, so that the layers
//! above see a keeper with fewer features. What an engine cannot do is refused: re-attachable terminals, timeouts,
//! signals, detached commands, and file watching. A command continues when its caller disconnects, and cannot be ended.

mod files;

use crate::Docker;
use crate::engine::{Engine, status};
use crate::info::Container;
use crate::keeper::back_off;
use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures_util::{Stream, StreamExt};
use kennel_core::ByteStream;
use kennel_proto::{
    Body, Channel, Decoder, ExitReport, Failure, FailureKind, Features, Frame, GENERATION, Outcome, Reply, Request,
    Spawn, SpawnCommand, Welcome, caps,
};
use kennel_provider::keeper_server::{self, Link, read_hello};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

/// The command that keeps a sandbox without a main process running. The image must contain it.
pub(crate) const WAIT: [&str; 2] = ["sleep", "2147483647"];
/// The features whose messages it understands, so that it can refuse them by name.
const UNDERSTOOD: Features =
    Features::IDLE.union(Features::COMMANDS).union(Features::WRITE_AT).union(Features::LIST_DEPTH).union(Features::TIE);
/// Bytes in transit in each direction.
const PIPE: usize = 256 * 1024;
/// How often the engine is asked for the exit code of an ended command.
const AGAIN: Duration = Duration::from_millis(20);

type Answer<T = ()> = Result<T, Failure>;
type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

impl Docker {
    /// Creates the replacement for the keeper of a container.
    pub(crate) fn stand_in(&self, container: &Container) -> Box<dyn ByteStream> {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let stand_in = StandIn {
            engine: self.engine.clone(),
            engine_id: container.engine_id.clone(),
            workdir: container.info.workdir.clone(),
        };
        tokio::spawn(Arc::new(stand_in).serve(theirs));
        Box::new(ours)
    }
}

struct StandIn {
    engine: Arc<Engine>,
    engine_id: String,
    workdir: String,
}

impl StandIn {
    /// Serves one connection until it ends.
    async fn serve(self: Arc<Self>, stream: DuplexStream) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut decoder = Decoder::new();
        let Some(hello) = read_hello(&mut reader, &mut decoder).await else { return };
        let (out, frames) = mpsc::channel(64);
        let generation = GENERATION.min(hello.generation.max(1));
        let version = "none: the engine's own exec".into();
        let welcome = Body::Welcome(Welcome { generation, version, features: UNDERSTOOD, ..Welcome::default() });
        let _ = out.send(Frame { stream: 0, body: welcome }).await;
        tokio::select! {
            () = keeper_server::serve(&mut reader, &mut decoder, &out, |request, link| self.clone().answer(request, link)) => {}
            () = keeper_server::write(&mut writer, frames) => {}
        }
    }

    async fn answer(self: Arc<Self>, request: Request, mut link: Link) {
        let done = match request {
            Request::Spawn(spawn) => self.run(spawn, &mut link).await,
            request if request.user().is_some() => Err(refused("files as another user")),
            Request::Read { path, offset, limit, .. } => self.read(&path, offset, limit, &mut link).await,
            Request::Write { offset: Some(_), .. } => Err(refused("writing at an offset")),
            Request::Write { path, mode, parents, .. } => self.write(&path, mode, parents, &mut link).await,
            Request::Stat { path, follow, .. } => {
                let stat = self.stat(&path, follow).await;
                stat_reply(stat, &link).await
            }
            Request::Mkdir { path, parents, mode, .. } => {
                let made = self.mkdir(&path, parents, mode).await;
                done_reply(made, &link).await
            }
            other => Err(refused(word(&other))),
        };
        if let Err(failure) = done {
            link.send(Body::Fail(failure)).await;
        }
    }

    /// Runs a command, and passes on its input and output.
    async fn run(&self, spawn: Spawn, link: &mut Link) -> Answer {
        let asked = [
            (spawn.tty.is_some(), "terminals"),
            (spawn.timeout_ms.is_some(), "timeouts"),
            (spawn.detached, "commands that outlive their connection"),
            (spawn.last, "sandboxes that end with a command"),
            (spawn.tag.is_some(), "tags of commands"),
            (spawn.hold, "commands that hold their output"),
            (spawn.linger_ms.is_some(), "commands that linger after their connection was lost"),
        ];
        if let Some((_, what)) = asked.into_iter().find(|(asked, _)| *asked) {
            return Err(refused(what));
        }
        let stdin = spawn.stdin;
        let config = self.config(spawn)?;
        let failed = |error| self.failure("run a command", error);
        let api = self.engine.api().await.map_err(|error| fail(FailureKind::Other, error.to_string()))?;
        let made = api.create_exec(&self.engine_id, config).await.map_err(failed)?;
        let options = StartExecOptions { detach: false, tty: false, output_capacity: Some(PIPE) };
        let StartExecResults::Attached { output, input } =
            api.start_exec(&made.id, Some(options)).await.map_err(failed)?
        else {
            return Err(fail(FailureKind::Other, "the engine did not attach"));
        };
        let stdin_window = if stdin { caps::STDIN_WINDOW } else { 0 };
        let (stdin, tty, stdin_passed_on) = (0, false, Some(0));
        let running = Reply::Running { process: 1, stdout: 0, stderr: 0, stdin_window, stdin, tty, stdin_passed_on };
        link.send(Body::Reply(running)).await;
        if !self.pass_on(output, input, link).await? {
            return Ok(());
        }
        let code = loop {
            let seen = api.inspect_exec(&made.id).await.map_err(failed)?;
            if seen.running != Some(true) {
                break seen.exit_code.and_then(|code| code.try_into().ok());
            }
            // Its output has ended: the command ends too, or has closed its output.
            back_off(AGAIN).await;
        };
        for channel in [Channel::Stdout, Channel::Stderr] {
            link.send(Body::Eof(channel)).await;
        }
        link.send(Body::Exit(ExitReport { code, ..ExitReport::default() })).await;
        Ok(())
    }

    /// Copies bytes until the end. Returns whether the host still listens.
    async fn pass_on(&self, mut output: Output, input: Input, link: &mut Link) -> Answer<bool> {
        let (feed, fed) = mpsc::unbounded_channel();
        let mut feeding = Box::pin(feed_stdin(input, fed, link.out.clone(), link.stream));
        let (mut sent, mut consumed) = ([0_u64; 2], [0_u64; 2]);
        let mut held: Option<(usize, Vec<u8>)> = None;
        loop {
            if let Some((at, bytes)) = &mut held {
                let room = caps::WINDOW - (sent[*at] - consumed[*at]);
                if room > 0 {
                    let length = bytes.len().min(room.try_into().unwrap_or(usize::MAX)).min(caps::DATA);
                    let rest = bytes.split_off(length);
                    let (channel, offset) = (CHANNELS[*at], sent[*at]);
                    sent[*at] += length as u64;
                    link.send(Body::Data { channel, offset, bytes: std::mem::replace(bytes, rest) }).await;
                    if bytes.is_empty() {
                        held = None;
                    }
                    continue;
                }
            }
            tokio::select! {
                body = link.inbox.recv() => match body {
                    Some(Body::Consumed { channel, offset }) => {
                        let at = usize::from(channel == Channel::Stderr);
                        consumed[at] = consumed[at].max(offset.min(sent[at]));
                    }
                    Some(Body::Data { channel: Channel::Stdin, bytes, .. }) => drop(feed.send(Some(bytes))),
                    Some(Body::Eof(Channel::Stdin)) => drop(feed.send(None)),
                    Some(Body::Signal(_)) => return Err(refused("signals; the command goes on")),
                    Some(Body::Resize(_)) => {}
                    Some(Body::Close) | None => return Ok(false),
                    Some(_) => return Err(fail(FailureKind::Invalid, "a frame that only a keeper sends")),
                },
                part = output.next(), if held.is_none() => match part {
                    Some(Ok(LogOutput::StdErr { message })) => held = Some((1, message.into())),
                    Some(Ok(part)) => held = Some((0, part.into_bytes().into())),
                    Some(Err(error)) => return Err(self.failure("read the output of a command", error)),
                    None => return Ok(true),
                },
                () = &mut feeding => {}
            }
        }
    }

    fn config(&self, spawn: Spawn) -> Answer<ExecConfig> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
        let plain = |_| fail(FailureKind::Invalid, "the engine accepts only UTF-8 arguments");
        let cmd: Result<Vec<String>, _> = match &spawn.command {
            SpawnCommand::Argv(words) => words.iter().map(|word| text(word)).collect(),
            SpawnCommand::Shell(script) => text(script).map(|script| vec!["/bin/sh".into(), "-c".into(), script]),
            SpawnCommand::LoginShell => return Err(refused("terminals")),
        };
        let env = spawn.env.iter().map(|(key, value)| Ok(format!("{}={}", text(key)?, text(value)?)));
        let env: Result<Vec<String>, _> = env.collect();
        let cwd = spawn.cwd.as_deref().map(|cwd| text(cwd)).transpose().map_err(plain)?;
        Ok(ExecConfig {
            attach_stdin: Some(spawn.stdin),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(false),
            cmd: Some(cmd.map_err(plain)?),
            env: Some(env.map_err(plain)?),
            working_dir: Some(cwd.unwrap_or_else(|| self.workdir.clone())),
            user: spawn.user,
            ..ExecConfig::default()
        })
    }

    fn failure(&self, what: &str, error: bollard::errors::Error) -> Failure {
        let kind = match status(&error) {
            Some(404) => FailureKind::NotFound,
            Some(400) => FailureKind::Invalid,
            Some(403) => FailureKind::Denied,
            _ => FailureKind::Other,
        };
        fail(kind, self.engine.error(what, error).to_string())
    }
}

/// The output channels of a command.
const CHANNELS: [Channel; 2] = [Channel::Stdout, Channel::Stderr];

/// Writes standard input to a command, and reports how much was consumed. It never ends.
async fn feed_stdin(
    mut input: Input,
    mut fed: mpsc::UnboundedReceiver<Option<Vec<u8>>>,
    out: mpsc::Sender<Frame>,
    stream: u32,
) {
    let mut taken = 0;
    while let Some(Some(bytes)) = fed.recv().await {
        // It is no error if a command no longer reads.
        if input.write_all(&bytes).await.is_ok() {
            let _ = input.flush().await;
        }
        taken += bytes.len() as u64;
        let body = Body::Consumed { channel: Channel::Stdin, offset: taken };
        let _ = out.send(Frame { stream, body }).await;
    }
    let _ = input.shutdown().await;
    std::future::pending::<()>().await;
}

fn fail(kind: FailureKind, message: impl Into<String>) -> Failure {
    Failure::new(kind, message)
}

/// Creates the failure for a feature that only a keeper has.
fn refused(what: &str) -> Failure {
    let message = format!("{what}: there is no keeper in this sandbox, only the engine's own exec");
    fail(FailureKind::Unsupported, message)
}

fn word(request: &Request) -> &'static str {
    match request {
        Request::Attach(_) => "attaching to a command",
        Request::Processes => "a list of commands",
        Request::Kill { .. } => "ending a command",
        Request::Watch { .. } => "watching files",
        Request::Stats => "resource usage",
        Request::Idle { .. } | Request::EndIfIdle => "the idle time",
        Request::Tie { .. } => "tying the sandbox to a connection",
        Request::Shutdown { .. } => "stopping all processes",
        Request::Connect { .. } => "connecting to sockets",
        Request::Listen { .. } | Request::Accept { .. } => "listening on sockets",
        _ => "listing, moving and removing files",
    }
}

async fn done_reply(made: Answer, link: &Link) -> Answer {
    made?;
    link.send(Body::Reply(Reply::Done(Outcome::Nothing))).await;
    Ok(())
}

async fn stat_reply(stat: Answer<kennel_proto::Stat>, link: &Link) -> Answer {
    let stat = stat?;
    link.send(Body::Reply(Reply::Done(Outcome::Stat(stat)))).await;
    Ok(())
}
