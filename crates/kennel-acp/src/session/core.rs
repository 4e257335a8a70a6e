//! The relay of a session: one task that decides what happens to each message.
//!
//! It collects changes in a batch, commits the batch, and only then acts on it: acknowledges the agent's output, publishes
//! messages to clients, and writes to the agent. So whatever a relay has done is in the store, and the next one continues.
//! The keeper counts the input that it has received. After a kill, everything behind this count is written again.

use super::handshake::{self, INITIALIZE, OPEN, Own};
use super::hub::{Ended, Hub, Item, Kind};
use super::{Definition, Knowledge};
use crate::envelope::Envelope;
use crate::failure;
use crate::inside::{Inside, Refusal, is_ours, response};
use crate::lines::{LINE, Line, Lines};
use crate::relay::{SERVED, failed, is_response, stated, string, too_long};
use crate::tail::Tail;
use kennel_core::{Error, Exec, ExecEvent, Position, Result, Sandbox, Stdin};
use kennel_engine::{Batch, Continued, Direction, Message, Messages, OutputRecord, SessionId};
use kennel_proto::Channel;
use kennel_types::{ExitStatus, LimitReason};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The beginning of a line is stored when it is longer than this. The keeper sends at most 512 KiB that are not acknowledged.
const PARTIAL: usize = 128 << 10;
/// The bytes that are stored of a session's messages. An agent cannot fill the disk.
const STORED: u64 = 4 << 30;
/// The messages of clients that are committed together.
const TOGETHER: usize = 64;
/// How long to wait for the rest of a line, before asking whether the agent has ended without completing it. The time doubles
/// up to a second.
const REST: Duration = Duration::from_millis(100);
const REST_AT_MOST: Duration = Duration::from_secs(1);

/// A message of a client. `done` is used when it is stored, or was refused.
pub(super) struct Order {
    pub(super) client: u64,
    pub(super) line: Vec<u8>,
    pub(super) done: oneshot::Sender<()>,
}

/// Why a relay ended.
pub(super) enum End {
    /// The agent exited.
    Exited(ExitStatus),
    /// The agent does not do what an agent must do.
    Failed(Error),
    /// The connection to the agent was lost.
    Lost(Error),
    /// Nothing can be stored, or another relay has taken over. The agent goes on.
    Replaced(Error),
}

pub(super) struct Core {
    messages: Messages,
    sandbox: Sandbox,
    definition: Definition,
    hub: Arc<Hub>,
    session: SessionId,
    epoch: u64,
    process: u64,
    /// The numbers of the last message, and the end of standard input.
    sequence: u64,
    position: u64,
    stdin: u64,
    bytes: u64,
    knowledge: Knowledge,
    lines: Lines,
    /// The bytes of the line that is not complete that are stored.
    stored: usize,
    /// The requests to the agent that have no response, by id.
    asked: HashMap<String, Asked>,
    /// The requests of the agent that have no response, by id.
    requested: HashMap<String, Requested>,
    /// Requests that wait for the answers to the relay's own.
    waiting: Vec<Order>,
    tail: Tail,
    inside: Arc<Inside>,
    tasks: JoinSet<(String, Vec<u8>)>,
    batch: Batch,
    after: After,
    feed: mpsc::UnboundedSender<Vec<u8>>,
    ahead: Arc<watch::Sender<usize>>,
    ready: watch::Sender<bool>,
    /// When the agent must have sent its first message.
    deadline: Option<Instant>,
}

/// A request to the agent.
struct Asked {
    sequence: u64,
    method: String,
    /// `None` for the relay itself, and for a client of an earlier relay.
    client: Option<u64>,
    by_relay: bool,
    /// The working directory of the session that it opens.
    directory: Option<String>,
}

/// A request of the agent.
struct Requested {
    sequence: u64,
    /// `None` if the relay serves it.
    position: Option<u64>,
}

/// What is done once the batch is committed.
#[derive(Default)]
struct After {
    publish: Vec<Item>,
    answered: Vec<u64>,
    write: Vec<Vec<u8>>,
    serve: Vec<(String, String, Vec<u8>)>,
    tell: Vec<(u64, Vec<u8>)>,
    done: Vec<oneshot::Sender<()>>,
}

/// What a relay shares with its clients.
pub(super) struct Shared {
    pub(super) hub: Arc<Hub>,
    /// The bytes that were stored for the agent, and that it has not taken.
    pub(super) ahead: Arc<watch::Sender<usize>>,
    /// Whether the conversation has begun.
    pub(super) ready: watch::Sender<bool>,
    /// Whether the relay has ended, and with its agent the session.
    pub(super) closed: watch::Sender<bool>,
}

impl Core {
    /// Continues with an agent. `exec` is attached to it at the stored position.
    pub(super) async fn resume(
        messages: Messages,
        sandbox: Sandbox,
        definition: Definition,
        shared: &Shared,
        continued: Continued,
        exec: &Exec,
    ) -> Result<Self> {
        let Continued { agent, partial, open } = continued;
        let knowledge: Knowledge = serde_json::from_value(agent.knowledge).unwrap_or_default();
        let inside = Inside::new(sandbox.clone());
        for (session, directory) in &knowledge.directories {
            inside.remember(session.clone(), directory.clone());
        }
        let stdin = exec.stdin();
        let taken = stdin.position().await;
        let (feed, queue) = mpsc::unbounded_channel();
        shared.ahead.send_replace(0);
        tokio::spawn(write_all(stdin, queue, shared.ahead.clone()));
        let OutputRecord { stdout, skipping, .. } = agent.output;
        let stored = partial.len();
        let mut core = Self {
            lines: Lines::resume(LINE, stdout - stored as u64, partial, skipping),
            stored,
            messages,
            sandbox,
            definition,
            hub: shared.hub.clone(),
            batch: Batch { session: agent.session.to_string(), epoch: agent.epoch, ..Batch::default() },
            session: agent.session,
            epoch: agent.epoch,
            process: exec.process(),
            sequence: agent.sequence,
            position: agent.position,
            stdin: agent.stdin,
            bytes: agent.bytes,
            knowledge,
            asked: HashMap::new(),
            requested: HashMap::new(),
            waiting: Vec::new(),
            tail: Tail::of(&agent.log),
            inside: Arc::new(inside),
            tasks: JoinSet::new(),
            after: After::default(),
            feed,
            ahead: shared.ahead.clone(),
            ready: shared.ready.clone(),
            deadline: None,
        };
        for message in core.messages.to_agent(&core.session, taken).await? {
            let skip = taken.saturating_sub(message.start) as usize;
            core.write(message.content[skip..].to_vec());
        }
        for message in open {
            core.reopen(message);
        }
        if core.sequence > 0 && !core.knowledge.spoke {
            core.deadline = Some(core.startup());
        }
        Ok(core)
    }

    /// Takes over a request of an earlier relay.
    fn reopen(&mut self, message: Message) {
        let Message { sequence, position, direction, id: Some(id), method: Some(method), content, .. } = message else {
            return;
        };
        if !direction.is_of_agent() {
            let by_relay = direction == Direction::RelayToAgent;
            let text = String::from_utf8_lossy(&content);
            let directory = string(&text, &["params", "cwd"]);
            self.asked.insert(id, Asked { sequence, method, client: None, by_relay, directory });
            return;
        }
        self.requested.insert(id.clone(), Requested { sequence, position });
        if position.is_none() {
            if method.starts_with("fs/") {
                // Reading and writing a file again has the same effect.
                self.after.serve.push((id, method, content));
            } else {
                // The terminals have ended with the earlier relay. A command that may have run is not run again.
                let refusal = Refusal::new(Refusal::INTERNAL, "the relay was restarted, and its terminals have ended");
                self.answer_agent(&id, response(&id, Err(refusal)));
            }
        }
    }

    /// Passes messages until something ends.
    pub(super) async fn run(&mut self, exec: &mut Exec, orders: &mut mpsc::Receiver<Order>) -> End {
        let mut rest = REST;
        loop {
            self.shake_hands();
            if let Err(error) = self.flush(exec).await {
                return End::Replaced(error);
            }
            if handshake::is_done(&self.definition, &self.knowledge) {
                self.ready.send_if_modified(|ready| !std::mem::replace(ready, true));
            }
            let deadline = self.deadline.filter(|_| !self.knowledge.spoke);
            let unfinished = self.lines.rest().len() > self.stored;
            tokio::select! {
                event = exec.next() => {
                    rest = REST;
                    match event {
                        Ok(ExecEvent::Output(Channel::Stderr, bytes)) => {
                            self.tail.push(&bytes);
                            let log = self.tail.lines();
                            let secrets = &self.definition.secrets;
                            self.batch.log = Some(log.iter().map(|line| secrets.redact_text(line)).collect());
                        }
                        Ok(ExecEvent::Output(_, bytes)) => {
                            self.lines.push(&bytes);
                            if let Err(error) = self.cut_lines() {
                                return self.give_up(exec, error).await;
                            }
                        }
                        Ok(ExecEvent::Exited(status)) => {
                            self.finish_line();
                            return match self.flush(exec).await {
                                Ok(()) => End::Exited(status),
                                Err(error) => End::Replaced(error),
                            };
                        }
                        Err(error) => return End::Lost(error),
                    }
                }
                Some(order) = orders.recv() => {
                    self.of_client(order);
                    for _ in 1..TOGETHER {
                        let Ok(order) = orders.try_recv() else { break };
                        self.of_client(order);
                    }
                }
                Some(served) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Ok((id, answer)) = served {
                        self.answer_agent(&id, answer);
                    }
                }
                () = until(deadline) => {
                    let error = failure::silent(self.definition.startup, &self.tail);
                    return self.give_up(exec, error).await;
                }
                () = until(Some(Instant::now() + rest)), if unfinished => {
                    // The exit of the agent is reported when all output is acknowledged.
                    rest = (rest * 2).min(REST_AT_MOST);
                    if self.has_exited().await {
                        self.finish_line();
                    }
                }
            }
        }
    }

    /// Stores what there is, and ends because of an error of the agent.
    async fn give_up(&mut self, exec: &mut Exec, error: Error) -> End {
        match self.flush(exec).await {
            Ok(()) => End::Failed(error),
            Err(error) => End::Replaced(error),
        }
    }

    async fn has_exited(&self) -> bool {
        let Ok(processes) = self.sandbox.processes().await else { return false };
        processes.iter().find(|info| info.process == self.process).is_none_or(|info| !info.running)
    }

    /// Ends a last line without a newline.
    fn finish_line(&mut self) {
        let offset = self.lines.passed();
        if let Some(line) = self.lines.finish() {
            // It is the last one, so an error about it changes nothing.
            let _ = self.of_agent(line, offset);
        }
        self.lines.drop_rest();
        (self.batch.line_is_complete, self.stored) = (true, 0);
    }

    fn cut_lines(&mut self) -> Result<()> {
        while let Some(line) = self.lines.next() {
            let offset = match &line {
                Line::Message(line) => self.lines.passed() - line.len() as u64,
                Line::TooLong(_) => self.lines.passed(),
            };
            (self.batch.line_is_complete, self.stored) = (true, 0);
            self.of_agent(line, offset)?;
        }
        if self.bytes > STORED {
            let message = format!("the messages of this session are longer than {STORED} bytes");
            return Err(Error::limit(LimitReason::TooLarge, message));
        }
        self.store_rest();
        Ok(())
    }

    /// Stores the beginning of a long line, except what may be the beginning of a secret.
    fn store_rest(&mut self) {
        let rest = self.lines.rest();
        if rest.len() < self.stored + PARTIAL {
            return;
        }
        let secrets = &self.definition.secrets;
        let mut end = rest.len() - secrets.longest().saturating_sub(1);
        let window = self.stored.saturating_sub(secrets.longest());
        let found = secrets.find(&rest[window..]);
        for secret in found.iter().map(|found| found.start + window..found.end + window) {
            if secret.contains(&end) {
                end = secret.start;
            }
        }
        if end <= self.stored {
            return;
        }
        let mut piece = rest[window..end].to_vec();
        for secret in found {
            let cut = secret.end.min(piece.len());
            piece[secret.start.min(cut)..cut].fill(b'*');
        }
        let start = self.lines.passed() + self.stored as u64;
        let piece = piece.split_off(self.stored - window);
        self.stored = end;
        self.batch.partial = Some((start, piece));
    }

    /// Handles a line of the agent, which begins at this offset.
    fn of_agent(&mut self, line: Line, offset: u64) -> Result<()> {
        let line = match line {
            Line::Message(line) => line,
            Line::TooLong(envelope) => {
                tracing::warn!(session = %self.session, "a message of the agent is too long, and was dropped");
                self.too_long(&envelope);
                return Ok(());
            }
        };
        let envelope = match Envelope::read(&line) {
            Ok(envelope) => envelope,
            Err(why) if self.knowledge.spoke => {
                tracing::warn!(session = %self.session, why, "the agent printed something that is not a message");
                self.tail.push(&line);
                return Ok(());
            }
            Err(why) => return Err(failure::not_json(&line, &why, &self.tail)),
        };
        if !std::mem::replace(&mut self.knowledge.spoke, true) {
            self.know();
        }
        match (envelope.id.clone(), envelope.method.clone()) {
            (id, Some(method)) if is_ours(&method) => {
                let open = id.is_some();
                let sequence = self.store(Direction::AgentToRelay, offset, &line, &envelope, open);
                // A notification has no answer, and there is none to serve.
                if let Some(id) = id {
                    self.requested.insert(id.clone(), Requested { sequence, position: None });
                    self.after.serve.push((id, method, line));
                }
            }
            (Some(id), None) => self.of_agent_response(&id, &envelope, line, offset),
            (id, _) => {
                let sequence = self.store(Direction::AgentToClient, offset, &line, &envelope, id.is_some());
                let kind = if id.is_some() { Kind::Request } else { Kind::Notification };
                if let Some(id) = id {
                    self.requested.insert(id, Requested { sequence, position: Some(self.position) });
                }
                self.publish(kind, line);
            }
        }
        Ok(())
    }

    fn of_agent_response(&mut self, id: &str, envelope: &Envelope, line: Vec<u8>, offset: u64) {
        let text = std::str::from_utf8(&line).unwrap_or_default();
        let Some(asked) = self.asked.remove(id) else {
            self.store(Direction::AgentToClient, offset, &line, envelope, false);
            return self.publish(Kind::Response(None), line);
        };
        self.batch.answered.push(asked.sequence);
        if let Some(directory) = asked.directory
            && let Some(session) = string(text, &["result", "sessionId"])
        {
            self.remember(session, directory);
        }
        if !asked.by_relay {
            self.store(Direction::AgentToClient, offset, &line, envelope, false);
            return self.publish(Kind::Response(asked.client), line);
        }
        let answer = handshake::answer(&self.definition.secrets.redact_text(text));
        match id {
            INITIALIZE => self.knowledge.initialized = Some(answer),
            OPEN => self.knowledge.opened = Some(answer),
            _ => {}
        }
        self.know();
        self.store(Direction::AgentToRelay, offset, &line, envelope, false);
        for order in std::mem::take(&mut self.waiting) {
            self.of_client(order);
        }
    }

    /// Tells the sender of a message that is too long, or whoever waits for it.
    fn too_long(&mut self, envelope: &Envelope) {
        let reply = too_long(envelope);
        if !is_response(envelope) {
            return self.send_to_agent(Direction::RelayToAgent, reply, &Envelope::default(), false);
        }
        let Some(asked) = envelope.id.as_ref().and_then(|id| self.asked.remove(id)) else { return };
        self.batch.answered.push(asked.sequence);
        let owner = self.hub.owner();
        if let Some(client) = asked.client.or(owner) {
            self.after.tell.push((client, reply));
        }
    }

    /// Handles a message of a client.
    fn of_client(&mut self, order: Order) {
        let Order { client, line, done } = order;
        let refuse = |id: Option<&str>, code, message: String| {
            (client, response(id.unwrap_or("null"), Err(Refusal::new(code, message))))
        };
        if line.len() > LINE {
            let envelope = Envelope::begins(&line[..line.len().min(1 << 20)]);
            if is_response(&envelope) {
                if let Some(id) = &envelope.id
                    && self.requested.get(id).is_some_and(|requested| requested.position.is_some())
                {
                    self.answer_agent(&id.clone(), too_long(&envelope));
                }
            } else {
                self.after.tell.push((client, too_long(&envelope)));
            }
            return self.after.done.push(done);
        }
        let envelope = match Envelope::read(&line) {
            Ok(envelope) => envelope,
            Err(why) => {
                // Batches are not part of ACP.
                let is_batch = line.trim_ascii_start().starts_with(b"[");
                let code = if is_batch { Refusal::INVALID_REQUEST } else { Refusal::PARSE };
                let reply = refuse(None, code, format!("this is not a message: {why}"));
                self.after.tell.push(reply);
                return self.after.done.push(done);
            }
        };
        if let (Some(id), Some(method)) = (&envelope.id, &envelope.method) {
            match handshake::of_client(&self.definition, &self.knowledge, id, method) {
                Own::Answer(answer) => {
                    self.after.tell.push((client, answer));
                    return self.after.done.push(done);
                }
                Own::Wait => return self.waiting.push(Order { client, line, done }),
                Own::Pass => {}
            }
        }
        self.after.done.push(done);
        let asked = &self.asked;
        let has_open = |owner| asked.values().any(|asked| asked.client == Some(owner));
        if !self.hub.may_send(client, has_open) {
            if envelope.method.is_some() && envelope.id.is_some() {
                let message = "another client owns the turn, or this one only watches".to_owned();
                self.after.tell.push(refuse(envelope.id.as_deref(), Refusal::INVALID_REQUEST, message));
            }
            return;
        }
        match (&envelope.id, &envelope.method) {
            (Some(id), Some(method)) => self.ask(client, id, method, &envelope, line),
            // A response counts once, and only if the agent has asked a client.
            (Some(id), None) => {
                if self.requested.get(id).is_some_and(|requested| requested.position.is_some()) {
                    self.answered(id);
                    self.send_to_agent(Direction::ClientToAgent, line, &envelope, false);
                }
            }
            (None, _) => self.send_to_agent(Direction::ClientToAgent, line, &envelope, false),
        }
    }

    /// Passes a request of a client to the agent.
    fn ask(&mut self, client: u64, id: &str, method: &str, envelope: &Envelope, line: Vec<u8>) {
        if let Some(asked) = self.asked.get_mut(id) {
            if asked.method == method && asked.client.is_none() && !asked.by_relay {
                // A client that has lost its connection sends it again. The agent has it already.
                asked.client = Some(client);
            } else if asked.client != Some(client) || asked.method != method {
                let refusal = Refusal::new(Refusal::INVALID_REQUEST, "another request with this id is open");
                self.after.tell.push((client, response(id, Err(refusal))));
            }
            return;
        }
        let text = std::str::from_utf8(&line).unwrap_or_default();
        let mut directory = None;
        if let "session/new" | "session/load" | "session/resume" | "session/fork" = method {
            directory = string(text, &["params", "cwd"]);
            if let (Some(session), Some(directory)) = (string(text, &["params", "sessionId"]), &directory) {
                self.remember(session, directory.clone());
            }
        }
        let changed = if method == "initialize" { stated(text, self.definition.served, None) } else { None };
        let line = changed.map_or(line, String::into_bytes);
        let sequence = self.sequence + 1;
        let asked = Asked { sequence, method: method.to_owned(), client: Some(client), by_relay: false, directory };
        self.asked.insert(id.to_owned(), asked);
        self.send_to_agent(Direction::ClientToAgent, line, envelope, true);
    }

    /// Sends the relay's own requests, if the conversation has not begun.
    fn shake_hands(&mut self) {
        let next = handshake::next_request(&self.definition, &self.knowledge, |id| self.asked.contains_key(id));
        if let Some((id, method, line)) = next {
            let envelope = Envelope { id: Some(id.to_owned()), method: Some(method.to_owned()) };
            let directory = if id == OPEN { self.definition.opens.clone() } else { None };
            let (sequence, method) = (self.sequence + 1, method.to_owned());
            self.asked.insert(id.to_owned(), Asked { sequence, method, client: None, by_relay: true, directory });
            self.send_to_agent(Direction::RelayToAgent, line, &envelope, true);
        }
    }

    fn remember(&mut self, session: String, directory: String) {
        self.inside.remember(session.clone(), directory.clone());
        self.knowledge.directories.insert(session, directory);
        self.know();
    }

    fn know(&mut self) {
        self.batch.knowledge = Some(serde_json::to_value(&self.knowledge).unwrap_or(Value::Null));
    }

    /// Notes that a request of the agent has its response.
    fn answered(&mut self, id: &str) {
        if let Some(requested) = self.requested.remove(id) {
            self.batch.answered.push(requested.sequence);
            self.after.answered.extend(requested.position);
        }
    }

    /// Sends the relay's own response to a request of the agent.
    fn answer_agent(&mut self, id: &str, answer: Vec<u8>) {
        self.answered(id);
        let envelope = Envelope { id: Some(id.to_owned()), method: None };
        self.send_to_agent(Direction::RelayToAgent, answer, &envelope, false);
    }

    fn send_to_agent(&mut self, direction: Direction, line: Vec<u8>, envelope: &Envelope, open: bool) {
        let start = self.stdin;
        self.stdin += line.len() as u64;
        self.store(direction, start, &line, envelope, open);
        if !self.knowledge.spoke && self.deadline.is_none() {
            self.deadline = Some(self.startup());
        }
        self.after.write.push(line);
    }

    fn startup(&self) -> Instant {
        // Longer than any session, but no overflow.
        let longest = Duration::from_hours(24 * 365);
        Instant::now() + self.definition.startup.min(longest)
    }

    /// Adds a message to the batch. Returns its number.
    fn store(&mut self, direction: Direction, start: u64, line: &[u8], envelope: &Envelope, open: bool) -> u64 {
        self.sequence += 1;
        self.bytes += line.len() as u64;
        let position = (direction == Direction::AgentToClient).then(|| {
            self.position += 1;
            self.position
        });
        let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let secrets = &self.definition.secrets;
        self.batch.messages.push(Message {
            sequence: self.sequence,
            position,
            direction,
            time_ms,
            start,
            id: envelope.id.as_deref().map(|id| secrets.redact_text(id)),
            method: envelope.method.as_deref().map(|method| secrets.redact_text(method)),
            open,
            content: secrets.redact(line),
        });
        self.sequence
    }

    fn publish(&mut self, kind: Kind, line: Vec<u8>) {
        self.after.publish.push(Item { position: self.position, kind, bytes: line.into() });
    }

    /// Commits the batch, and does what follows from it.
    async fn flush(&mut self, exec: &mut Exec) -> Result<()> {
        let Position { stdout, stderr } = exec.position();
        // A last line without a newline ends after the output.
        let stdout = stdout.min(self.lines.passed() + self.stored as u64);
        let output = OutputRecord { stdout, stderr, skipping: self.lines.is_skipping() };
        let acknowledged = exec.acknowledged();
        let moved = acknowledged != Position { stdout, stderr };
        if moved {
            self.batch.output = Some(output);
        }
        if !self.batch.is_empty() {
            let empty = Batch { session: self.session.to_string(), epoch: self.epoch, ..Batch::default() };
            let batch = std::mem::replace(&mut self.batch, empty);
            self.messages.commit(batch).await?;
        }
        if moved {
            exec.acknowledge(Position { stdout, stderr })?;
        }
        let After { publish, answered, write, serve, tell, done } = std::mem::take(&mut self.after);
        self.hub.answered(answered);
        if !publish.is_empty() {
            self.hub.publish(publish);
        }
        for (client, line) in tell {
            self.hub.tell(client, line);
        }
        for line in write {
            self.write(line);
        }
        for (id, method, line) in serve {
            self.serve(id, method, line);
        }
        for done in done {
            // A client that has left does not wait.
            let _ = done.send(());
        }
        Ok(())
    }

    /// Writes to the agent, when it takes more.
    fn write(&self, line: Vec<u8>) {
        self.ahead.send_modify(|ahead| *ahead += line.len());
        // The task ends only with the agent.
        let _ = self.feed.send(line);
    }

    /// Serves a request of the agent, as a task of its own.
    fn serve(&mut self, id: String, method: String, line: Vec<u8>) {
        if self.tasks.len() >= SERVED {
            let refusal = Refusal::new(Refusal::INTERNAL, format!("{SERVED} requests are being served already"));
            let answer = response(&id, Err(refusal));
            self.tasks.spawn(async move { (id, answer) });
            return;
        }
        let inside = self.inside.clone();
        self.tasks.spawn(async move {
            let answer = response(&id, inside.serve(&method, &line).await);
            (id, answer)
        });
    }

    /// Tells the clients how it ended: each open request gets an error as its response.
    pub(super) fn tell_end(&mut self, ended: Ended) {
        if let Ended::Failed(error) = &ended {
            let owner = self.hub.owner();
            let mut open: Vec<(u64, Vec<u8>)> = Vec::new();
            for (id, asked) in self.asked.drain().filter(|(_, asked)| !asked.by_relay) {
                open.extend(asked.client.or(owner).map(|client| (client, failed(&id, error))));
            }
            for order in self.waiting.drain(..) {
                if let Ok(Envelope { id: Some(id), .. }) = Envelope::read(&order.line) {
                    open.push((order.client, failed(&id, error)));
                }
            }
            open.sort();
            for (client, line) in open {
                self.hub.tell(client, line);
            }
        }
        self.hub.end(ended);
    }

    /// Returns the first line of an error and the last lines of standard error, without secrets.
    pub(super) fn redacted(&self, error: Option<&Error>) -> (Option<String>, Vec<String>) {
        let secrets = &self.definition.secrets;
        let text = error.map(|error| secrets.redact_text(error.to_string().lines().next().unwrap_or_default()));
        (text, self.tail.lines().iter().map(|line| secrets.redact_text(line)).collect())
    }

    /// Whether the agent has sent a message, whether a client waits for it, and what it wrote to standard error.
    pub(super) fn last_words(&self) -> (bool, bool, &Tail) {
        (self.knowledge.spoke, !self.asked.is_empty(), &self.tail)
    }
}

/// Waits until a moment, or forever.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Writes to the agent as fast as it takes its input.
async fn write_all(stdin: Stdin, mut queue: mpsc::UnboundedReceiver<Vec<u8>>, ahead: Arc<watch::Sender<usize>>) {
    while let Some(line) = queue.recv().await {
        // If this fails, the agent has ended, or the connection is lost; the reader notices.
        let _ = stdin.write(&line).await;
        ahead.send_modify(|ahead| *ahead = ahead.saturating_sub(line.len()));
    }
}
