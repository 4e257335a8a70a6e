//! Passes messages between a client and an agent, until one of them ends.
//!
//! Two loops run side by side, one for each direction, so that a side that does not read blocks only what is meant for it.
//! Requests that are served inside run as tasks of their own.

use crate::envelope::Envelope;
use crate::failure;
use crate::inside::{Inside, Refusal, is_ours, response};
use crate::lines::{LINE, Line, Lines};
use crate::paths::PathMap;
use crate::splice;
use crate::tail::Tail;
use crate::to_client::ToClient;
use kennel_core::{Error, Exec, ExecEvent, Result, Sandbox, Stdin};
use kennel_proto::Channel;
use kennel_types::{ExecSpec, ExitStatus};
use serde_json::json;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// How long an agent may take to end after its client has left.
const GRACE: Duration = Duration::from_secs(5);
/// The requests of an agent that are served at once.
pub(crate) const SERVED: usize = 256;
/// How long the first request of a client may take, if it is refused anyway.
const FIRST_REQUEST: Duration = Duration::from_secs(2);
/// How much is read from the client at once.
const PIECE: usize = 64 * 1024;
/// Ends a command with TERM, a grace period, and KILL.
const TERMINATE: i32 = 0;
const KILL: i32 = 9;

/// An agent to start.
#[derive(Clone, Debug)]
pub struct Agent {
    /// The command. Its variables may be secrets: they are sent to the keeper only. The relay adds standard input.
    pub spec: ExecSpec,
    /// How long the agent may take to reply to the first message.
    pub startup: Duration,
    /// What the agent is told that its client serves.
    pub served: Served,
    /// The path of the workspace, if it is another inside than outside.
    pub paths: Option<PathMap>,
    /// The requests for files and terminals that are passed to the client. By default, all are served inside.
    pub to_client: Option<ToClient>,
}

/// What an agent is told that its client serves. The relay serves all of it in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Served {
    /// Reading and writing text files.
    pub files: bool,
    /// Running commands.
    pub terminals: bool,
}

impl Default for Served {
    fn default() -> Self {
        Self { files: true, terminals: true }
    }
}

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The agent ended, and nobody waited for it.
    Agent(ExitStatus),
    /// The client left.
    Client,
    /// The caller ended it.
    Caller,
}

/// Learns what happens beside the messages.
pub trait Watch: Send + Sync {
    /// The agent wrote this to standard error. It is not escaped.
    fn stderr(&self, bytes: &[u8]);
    /// The relay did not pass something on. The text is not escaped.
    fn notice(&self, text: &str);
}

/// Starts an agent in a sandbox, and passes messages between it and a client until one of them ends, or `end` does. Then
/// the agent is ended with all its processes. If the agent fails, the requests of the client that it has not answered get
/// an error as their response.
pub async fn relay(
    sandbox: &Sandbox,
    agent: &Agent,
    mut client: impl AsyncRead + Send + Unpin,
    to_client: impl AsyncWrite + Send + Unpin,
    watch: &dyn Watch,
    end: impl Future<Output = ()> + Send,
) -> Result<Ended> {
    let spec = ExecSpec { stdin: true, ..agent.spec.clone() };
    let exec = match sandbox.exec(&spec).await.map_err(failure::not_started) {
        Ok(exec) => exec,
        Err(error) => {
            refuse(client, to_client, &error).await;
            return Err(error);
        }
    };
    let process = exec.process();
    let relay = Relay {
        agent,
        stdin: Arc::new(exec.stdin()),
        client: tokio::sync::Mutex::new(to_client),
        inside: Arc::new(Inside::new(sandbox.clone())),
        tasks: Mutex::default(),
        waiting: Mutex::default(),
        tail: Mutex::default(),
        asked: Notify::new(),
        heard: Notify::new(),
        spoke: AtomicBool::new(false),
        watch,
    };
    let mut lines = Lines::new(LINE);
    let mut from_agent = pin!(relay.read_agent(exec));
    let mut runs = false;
    let ended = tokio::select! {
        finished = &mut from_agent => relay.conclude(finished),
        () = relay.read_client(&mut client, &mut lines) => {
            // The agent may have something left to say, or to save.
            runs = tokio::time::timeout(GRACE, &mut from_agent).await.is_err();
            Ok(Ended::Client)
        }
        () = end => {
            runs = true;
            Ok(Ended::Caller)
        }
        () = relay.silence() => {
            runs = true;
            Err(failure::silent(agent.startup, &lock(&relay.tail)))
        }
    };
    let give_up = async {
        if let Err(error) = &ended {
            let _ = tokio::time::timeout(GRACE, relay.give_up(error, &mut client, &mut lines)).await;
        }
    };
    // Both at once: the loop may be in the middle of a message to the client.
    let end_agent = async {
        if runs {
            // If this fails, the agent has ended, or its sandbox.
            let _ = sandbox.kill(process, TERMINATE).await;
            if tokio::time::timeout(GRACE, from_agent).await.is_err() {
                let _ = sandbox.kill(process, KILL).await;
            }
        }
    };
    tokio::join!(give_up, end_agent);
    ended
}

/// Responds with an error to the first request of a client whose agent could not be started. Waits a moment for the request.
pub async fn refuse(mut client: impl AsyncRead + Unpin, mut to_client: impl AsyncWrite + Unpin, error: &Error) {
    if let Some(id) = first_request(&mut client, &mut Lines::new(LINE)).await {
        // If this fails, the client has left.
        let _ = to_client.write_all(&failed(&id, error)).await;
        let _ = to_client.flush().await;
    }
}

/// Waits a moment for the next request of a client, and returns its id.
async fn first_request(client: &mut (impl AsyncRead + Unpin), lines: &mut Lines) -> Option<String> {
    let request = async {
        let mut buffer = vec![0; PIECE];
        loop {
            while let Some(line) = lines.next() {
                let Line::Message(line) = line else { continue };
                if let Ok(Envelope { id: Some(id), method: Some(_) }) = Envelope::read(&line) {
                    return Some(id);
                }
            }
            let count = client.read(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                return None;
            }
            lines.push(&buffer[..count]);
        }
    };
    tokio::time::timeout(FIRST_REQUEST, request).await.ok().flatten()
}

/// Returns the response to a request that an error has left without an answer.
pub(crate) fn failed(id: &str, error: &Error) -> Vec<u8> {
    let problem = json!({ "code": Refusal::INTERNAL, "message": error.to_string(), "data": failure::data(error) });
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{problem}}}\n").into_bytes()
}

/// What the two loops share.
struct Relay<'a, W> {
    agent: &'a Agent,
    stdin: Arc<Stdin>,
    client: tokio::sync::Mutex<W>,
    inside: Arc<Inside>,
    /// The agent's requests that are being served. They end with the relay.
    tasks: Mutex<JoinSet<()>>,
    /// The client's requests that the agent has not answered, by their id.
    waiting: Mutex<HashMap<String, Waiting>>,
    tail: Mutex<Tail>,
    /// The client has sent a message.
    asked: Notify,
    /// The agent has sent its first message.
    heard: Notify,
    spoke: AtomicBool,
    watch: &'a dyn Watch,
}

/// A request of the client that the agent has not answered.
struct Waiting {
    method: String,
    /// The working directory of a new session.
    directory: Option<String>,
}

/// How the loop of the agent's output ended.
enum Finished {
    Exited(ExitStatus),
    /// The client does not read any more.
    Unread,
}

impl<W: AsyncWrite + Send + Unpin> Relay<'_, W> {
    /// Passes messages of the client to the agent, until the client ends.
    async fn read_client(&self, client: &mut (impl AsyncRead + Unpin), lines: &mut Lines) {
        let mut buffer = vec![0; PIECE];
        loop {
            // An error counts as the end: there is nothing left to read.
            let count = client.read(&mut buffer).await.unwrap_or(0);
            lines.push(&buffer[..count]);
            while let Some(line) = lines.next() {
                self.of_client(line).await;
            }
            if count == 0 {
                if let Some(line) = lines.finish() {
                    self.of_client(line).await;
                }
                self.stdin.close();
                return;
            }
        }
    }

    async fn of_client(&self, line: Line) {
        let line = match line {
            Line::Message(line) => line,
            Line::TooLong(envelope) => {
                let reply = too_long(&envelope);
                // A response that is too long leaves the agent waiting, and anything else its sender.
                if is_response(&envelope) {
                    self.tell_agent(&reply).await;
                } else {
                    self.tell(&reply).await;
                }
                return;
            }
        };
        let envelope = match Envelope::read(&line) {
            Ok(envelope) => envelope,
            Err(why) => {
                let refusal = Refusal::new(Refusal::PARSE, format!("this is not a message: {why}"));
                return self.tell(&response("null", Err(refusal))).await;
            }
        };
        let line = self.rewritten(line, |map, line| map.of_client(envelope.method.as_deref()?, line));
        let changed = self.note(&envelope, &line);
        self.asked.notify_one();
        self.tell_agent(changed.as_deref().unwrap_or(&line)).await;
    }

    /// Returns a message with the paths of the other side, if the workspace has two.
    fn rewritten(&self, line: Vec<u8>, rewrite: impl Fn(&PathMap, &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
        self.agent.paths.as_ref().and_then(|map| rewrite(map, &line)).unwrap_or(line)
    }

    /// Notes a request of the client. Returns the message that is sent instead, if it must be changed.
    fn note(&self, envelope: &Envelope, line: &[u8]) -> Option<Vec<u8>> {
        let (Some(id), Some(method)) = (&envelope.id, &envelope.method) else { return None };
        let text = std::str::from_utf8(line).unwrap_or_default();
        let mut directory = None;
        if let "session/new" | "session/load" | "session/resume" | "session/fork" = method.as_str() {
            directory = string(text, &["params", "cwd"]);
            if let (Some(session), Some(directory)) = (string(text, &["params", "sessionId"]), &directory) {
                self.inside.remember(session, directory.clone());
            }
        }
        lock(&self.waiting).insert(id.clone(), Waiting { method: method.clone(), directory });
        if method != "initialize" {
            return None;
        }
        stated(text, self.agent.served, self.agent.to_client.as_ref()).map(String::into_bytes)
    }

    /// Passes messages of the agent to the client, until the agent ends.
    async fn read_agent(&self, mut exec: Exec) -> Result<Finished> {
        let mut lines = Lines::new(LINE);
        loop {
            let event = exec.next().await.map_err(|error| failure::lost(&error, &lock(&self.tail)))?;
            match event {
                ExecEvent::Output(Channel::Stderr, bytes) => {
                    lock(&self.tail).push(&bytes);
                    self.watch.stderr(&bytes);
                }
                ExecEvent::Output(_, bytes) => {
                    lines.push(&bytes);
                    while let Some(line) = lines.next() {
                        if !self.of_agent(line).await? {
                            return Ok(Finished::Unread);
                        }
                    }
                }
                ExecEvent::Exited(status) => {
                    if let Some(line) = lines.finish() {
                        self.of_agent(line).await?;
                    }
                    return Ok(Finished::Exited(status));
                }
            }
        }
    }

    /// Handles a line of the agent. Returns whether the client still reads.
    async fn of_agent(&self, line: Line) -> Result<bool> {
        let line = match line {
            Line::Message(line) => line,
            Line::TooLong(envelope) => {
                self.watch.notice(&format!("a message of the agent is longer than {LINE} bytes, and was dropped"));
                let reply = too_long(&envelope);
                if !is_response(&envelope) {
                    self.tell_agent(&reply).await;
                    return Ok(true);
                }
                lock(&self.waiting).remove(envelope.id.as_deref().unwrap_or_default());
                return Ok(self.pass(&reply).await);
            }
        };
        let envelope = match Envelope::read(&line) {
            Ok(envelope) => envelope,
            Err(why) if self.spoke.load(Ordering::Relaxed) => {
                self.watch.notice(&format!("the agent printed something that is not a message: {why}"));
                return Ok(true);
            }
            Err(why) => return Err(failure::not_json(&line, &why, &lock(&self.tail))),
        };
        if !self.spoke.swap(true, Ordering::Relaxed) {
            self.heard.notify_one();
        }
        match (&envelope.id, &envelope.method) {
            (id, Some(method)) if is_ours(method) => {
                // A notification has no answer, and there is none to serve.
                match (id, self.agent.to_client.as_ref().filter(|to| to.takes(method))) {
                    (Some(id), Some(to)) => return Ok(self.ask_client(to, id, method, &line).await),
                    (Some(id), None) => self.serve(id.clone(), method.clone(), line).await,
                    (None, _) => {}
                }
                return Ok(true);
            }
            (Some(id), None) => {
                let waited = lock(&self.waiting).remove(id);
                let Some(Waiting { method, directory }) = waited else { return Ok(self.pass(&line).await) };
                if let Some(directory) = directory
                    && let Some(session) =
                        string(std::str::from_utf8(&line).unwrap_or_default(), &["result", "sessionId"])
                {
                    self.inside.remember(session, directory);
                }
                let line = self.rewritten(line, |map, line| map.of_response(&method, line));
                return Ok(self.pass(&line).await);
            }
            _ => {}
        }
        let line = self.rewritten(line, |map, line| map.of_agent(envelope.method.as_deref()?, line));
        Ok(self.pass(&line).await)
    }

    /// Passes a request for a file or a terminal to the client, or refuses it. Returns whether the client still reads.
    async fn ask_client(&self, to: &ToClient, id: &str, method: &str, line: &[u8]) -> bool {
        let directory = |session: &str| self.inside.directory(Some(session));
        match to.request(id, method, line, self.agent.paths.as_ref(), directory) {
            Ok(line) => self.pass(&line).await,
            Err(refusal) => {
                self.tell_agent(&response(id, Err(refusal))).await;
                true
            }
        }
    }

    /// Serves a request of the agent, as a task of its own.
    async fn serve(&self, id: String, method: String, line: Vec<u8>) {
        let is_busy = {
            let mut tasks = lock(&self.tasks);
            while tasks.try_join_next().is_some() {}
            tasks.len() >= SERVED
        };
        if is_busy {
            let refusal = Refusal::new(Refusal::INTERNAL, format!("{SERVED} requests are being served already"));
            return self.tell_agent(&response(&id, Err(refusal))).await;
        }
        let (inside, stdin) = (self.inside.clone(), self.stdin.clone());
        lock(&self.tasks).spawn(async move {
            let answer = response(&id, inside.serve(&method, &line).await);
            // If this fails, the agent has ended.
            let _ = stdin.write(&answer).await;
        });
    }

    /// Sends a line to the agent. If this fails, the agent has ended, which the other loop notices.
    async fn tell_agent(&self, line: &[u8]) {
        let _ = self.stdin.write(line).await;
    }

    /// Sends a line of the relay's own to the client. If this fails, the other loop notices.
    async fn tell(&self, line: &[u8]) {
        self.pass(line).await;
    }

    /// Sends a line to the client. Returns whether it still reads.
    async fn pass(&self, line: &[u8]) -> bool {
        let mut client = self.client.lock().await;
        client.write_all(line).await.is_ok() && client.flush().await.is_ok()
    }

    /// Waits until the agent has not replied to the first message for too long.
    async fn silence(&self) {
        self.asked.notified().await;
        if tokio::time::timeout(self.agent.startup, self.heard.notified()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns how the relay ended, if the agent's loop has ended first.
    fn conclude(&self, finished: Result<Finished>) -> Result<Ended> {
        let status = match finished? {
            Finished::Unread => return Ok(Ended::Client),
            Finished::Exited(status) => status,
        };
        let (spoke, waits) = (self.spoke.load(Ordering::Relaxed), !lock(&self.waiting).is_empty());
        if spoke && !waits && status.success() {
            return Ok(Ended::Agent(status));
        }
        Err(failure::ended(status, spoke, waits, &lock(&self.tail)))
    }

    /// Responds with an error to every request of the client that the agent has not answered.
    async fn give_up(&self, error: &Error, client: &mut (impl AsyncRead + Unpin), lines: &mut Lines) {
        let mut waiting: Vec<String> = lock(&self.waiting).drain().map(|(id, _)| id).collect();
        if waiting.is_empty() && !self.spoke.load(Ordering::Relaxed) {
            // The agent has ended before the first request arrived.
            waiting.extend(first_request(client, lines).await);
        }
        waiting.sort_unstable();
        for id in waiting {
            if !self.pass(&failed(&id, error)).await {
                return;
            }
        }
    }
}

pub(crate) fn is_response(envelope: &Envelope) -> bool {
    envelope.method.is_none() && envelope.id.is_some()
}

/// Returns the response to a message that is too long, or in its place.
pub(crate) fn too_long(envelope: &Envelope) -> Vec<u8> {
    let refusal = Refusal::new(Refusal::INVALID_REQUEST, format!("the message is longer than {LINE} bytes"));
    response(envelope.id.as_deref().unwrap_or("null"), Err(refusal))
}

/// Returns the string at a path of keys.
pub(crate) fn string(text: &str, path: &[&str]) -> Option<String> {
    serde_json::from_str(splice::get(text, path)?).ok()
}

/// Returns `initialize` with what the relay serves. From protocol version 2 on, there is nothing to state.
pub(crate) fn stated(text: &str, served: Served, to_client: Option<&ToClient>) -> Option<String> {
    const CAPABILITIES: &str = "clientCapabilities";
    let version = splice::get(text, &["params", "protocolVersion"]).and_then(|version| version.parse::<u64>().ok());
    if version.is_some_and(|version| version > 1) && splice::get(text, &["params", CAPABILITIES]).is_none() {
        return None;
    }
    let Served { files, terminals } = served;
    let fs = format!("{{\"readTextFile\":{files},\"writeTextFile\":{files}}}");
    // What is passed to the client is for the client to state.
    let mut text = text.to_owned();
    if to_client.is_none_or(|to| !to.files) {
        text = splice::set(&text, &["params", CAPABILITIES, "fs"], &fs)?;
    }
    if to_client.is_none_or(|to| !to.terminals) {
        text = splice::set(&text, &["params", CAPABILITIES, "terminal"], &terminals.to_string())?;
    }
    Some(text)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initialize_states_what_is_served() {
        let stated = |text| stated(text, Served { files: true, terminals: false }, None);
        let before = "{\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1,\"clientCapabilities\":{\"fs\":{\"readTextFile\":false},\"_meta\":{\"x\":1.0}}}}\n";
        let after = "{\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1,\"clientCapabilities\":{\"terminal\":false,\"fs\":{\"readTextFile\":true,\"writeTextFile\":true},\"_meta\":{\"x\":1.0}}}}\n";
        assert_eq!(stated(before).as_deref(), Some(after));
        assert_eq!(stated("{\"params\":{\"protocolVersion\":2,\"capabilities\":{}}}"), None);
        assert!(stated("{\"params\":{\"protocolVersion\":2,\"clientCapabilities\":{}}}").is_some());
        assert_eq!(stated("{\"params\":[]}"), None);
    }
}
