//! The messages between a session's agent and its clients, and what a relay needs to continue after it was killed.
//!
//! A relay commits before it consumes: it acknowledges output of the agent when that is stored, and it stores a message
//! before it writes it to the agent. So after a kill, the store and the keeper together know exactly what has happened.
//! Only one relay at a time can write: each one that takes over has a higher epoch.
//!
//! All relays of a process share one writer, which commits what has arrived meanwhile in one transaction.

use crate::session::{SessionId, no_session};
use crate::store::Store;
use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

/// How many bytes are committed in one transaction, at most. Other processes wait for it.
const TRANSACTION: usize = 16 << 20;

/// The messages of a store. Cheap to clone; clones share one writer.
#[derive(Clone)]
pub struct Messages {
    store: Store,
    queue: mpsc::UnboundedSender<Job>,
}

struct Job {
    batch: Batch,
    done: oneshot::Sender<Result<()>>,
}

/// Who sent a message to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From a client to the agent.
    ClientToAgent,
    /// From the relay itself to the agent, for example the result of a request for a file.
    RelayToAgent,
    /// From the agent to its clients.
    AgentToClient,
    /// From the agent to the relay, which does not pass it on: a request for a file or a terminal, or a response to the relay.
    AgentToRelay,
}

impl Direction {
    /// All directions.
    pub const ALL: [Self; 4] = [Self::ClientToAgent, Self::RelayToAgent, Self::AgentToClient, Self::AgentToRelay];

    /// The name in JSON and in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClientToAgent => "client_to_agent",
            Self::RelayToAgent => "relay_to_agent",
            Self::AgentToClient => "agent_to_client",
            Self::AgentToRelay => "agent_to_relay",
        }
    }

    /// Finds a direction by its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|direction| direction.name() == name)
    }

    /// Whether the agent has sent it.
    pub fn is_of_agent(self) -> bool {
        matches!(self, Self::AgentToClient | Self::AgentToRelay)
    }
}

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The number of the message in its session, starting at 1, without gaps.
    pub sequence: u64,
    /// The number among the messages of the agent that clients see, starting at 1, without gaps.
    pub position: Option<u64>,
    /// Who sent it to whom.
    pub direction: Direction,
    /// When it was stored, in milliseconds since 1970.
    pub time_ms: u64,
    /// Where it begins in the agent's standard input or output.
    pub start: u64,
    /// The id of a request or response, as JSON text.
    pub id: Option<String>,
    /// The method of a request or notification.
    pub method: Option<String>,
    /// Whether it is a request that has no response yet.
    pub open: bool,
    /// The line, with its newline. Secrets are replaced by asterisks, as many as they have bytes.
    pub content: Vec<u8>,
}

impl Message {
    /// Returns the message as a JSON object on one line. Its text is part of it as it is; `first` are more members, each with a
    /// comma after it.
    pub fn json(&self, first: &str) -> String {
        let content = String::from_utf8_lossy(self.content.trim_ascii());
        let described = serde_json::json!({
            "sequence": self.sequence,
            "position": self.position,
            "direction": self.direction,
            "timeMs": self.time_ms,
            "offset": self.start,
        });
        let described = described.to_string();
        let members = described.trim_start_matches('{').trim_end_matches('}');
        // The relay stores only JSON, but the file may be damaged.
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&content).is_ok();
        let content = if is_json { content.into_owned() } else { Value::from(&*content).to_string() };
        format!("{{{first}{members},\"message\":{content}}}")
    }
}

/// What is stored about the agent of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentRecord {
    /// The session.
    pub session: SessionId,
    /// The number of the relay that may write.
    pub epoch: u64,
    /// What the relay needs to continue.
    pub definition: Value,
    /// The tag of the agent's command.
    pub tag: String,
    /// The keeper's id of the agent's command, once it was started.
    pub process: Option<u64>,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: Option<u64>,
    /// How much is stored of the agent's output.
    pub output: OutputRecord,
    /// The length of all messages to the agent.
    pub stdin: u64,
    /// The number of messages.
    pub sequence: u64,
    /// The number of messages that clients see.
    pub position: u64,
    /// The length of all messages.
    pub bytes: u64,
    /// What the relay knows about the conversation.
    pub knowledge: Value,
    /// The last lines of the agent's standard error.
    pub log: Vec<String>,
}

/// How much is stored of an agent's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputRecord {
    /// The bytes of standard output before this offset are stored, or were dropped.
    pub stdout: u64,
    /// The bytes of standard error before this offset were read.
    pub stderr: u64,
    /// Whether the rest of the line at this offset is dropped, because it is too long.
    pub skipping: bool,
}

/// Changes that are committed together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The session.
    pub session: String,
    /// The epoch of the relay.
    pub epoch: u64,
    /// New messages, in order.
    pub messages: Vec<Message>,
    /// Requests that have a response now, by their number.
    pub answered: Vec<u64>,
    /// How much of the agent's output is stored with it.
    pub output: Option<OutputRecord>,
    /// Whether the stored beginning of a line is forgotten.
    pub line_is_complete: bool,
    /// The next piece of a line that is not complete: where it begins, and its bytes.
    pub partial: Option<(u64, Vec<u8>)>,
    /// What the relay knows about the conversation, if that has changed.
    pub knowledge: Option<Value>,
    /// The last lines of standard error, if they have changed.
    pub log: Option<Vec<String>>,
}

impl Batch {
    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.answered.is_empty()
            && self.output.is_none()
            && !self.line_is_complete
            && self.partial.is_none()
            && self.knowledge.is_none()
            && self.log.is_none()
    }

    /// The bytes of its messages.
    fn size(&self) -> usize {
        let partial = self.partial.as_ref().map_or(0, |(_, bytes)| bytes.len());
        self.messages.iter().map(|message| message.content.len()).sum::<usize>() + partial
    }
}

/// What a relay continues with.
#[derive(Clone, Debug)]
pub struct Continued {
    /// The agent, with the epoch of this relay.
    pub agent: AgentRecord,
    /// The stored beginning of a line that is not complete.
    pub partial: Vec<u8>,
    /// The requests that have no response, in order.
    pub open: Vec<Message>,
}

impl Messages {
    /// The messages of a store. Starts the writer, which ends with the last clone.
    pub fn new(store: Store) -> Self {
        let (queue, jobs) = mpsc::unbounded_channel();
        tokio::spawn(write(store.clone(), jobs));
        Self { store, queue }
    }

    /// Records the agent of a session before it is started. The relay that does this has epoch 1.
    pub async fn begin(&self, session: &SessionId, tag: &str, definition: Value) -> Result<AgentRecord> {
        self.store.insert_agent(session, tag, definition).await?;
        self.agent(session).await?.ok_or_else(|| no_session(session))
    }

    /// Records that the agent of a session was started.
    pub async fn started(&self, session: &SessionId, process: u64) -> Result<()> {
        self.store.agent_started(session, process).await
    }

    /// Returns what is stored about the agent of a session. `None` if it has none.
    pub async fn agent(&self, session: &SessionId) -> Result<Option<AgentRecord>> {
        self.store.agent(session).await
    }

    /// Takes over the agent of a session: from now on, an earlier relay can write no more.
    pub async fn take_over(&self, session: &SessionId) -> Result<Continued> {
        self.store.take_over(session).await
    }

    /// Commits changes. Fails with `conflict` if another relay has taken over; then nothing was changed.
    pub async fn commit(&self, batch: Batch) -> Result<()> {
        let (done, committed) = oneshot::channel();
        let ended = || Error::new(ErrorCode::Internal, "the writer of messages has ended");
        self.queue.send(Job { batch, done }).map_err(|_| ended())?;
        committed.await.map_err(|_| ended())?
    }

    /// Returns messages of a session with a higher number than `after`, in order: at most `limit`, and at most `bytes` if that
    /// is more than one.
    pub async fn list(&self, session: &SessionId, after: u64, limit: usize, bytes: usize) -> Result<Vec<Message>> {
        self.store.messages(session, "sequence", after, limit, bytes).await
    }

    /// Returns messages that clients see, with a higher position than `after`, in order.
    pub async fn seen(&self, session: &SessionId, after: u64, limit: usize, bytes: usize) -> Result<Vec<Message>> {
        self.store.messages(session, "position", after, limit, bytes).await
    }

    /// Returns the messages to the agent that end after this offset of its standard input, in order.
    pub async fn to_agent(&self, session: &SessionId, offset: u64) -> Result<Vec<Message>> {
        self.store.messages_to_agent(session, offset).await
    }
}

/// Commits batches, as many at once as have arrived.
async fn write(store: Store, mut jobs: mpsc::UnboundedReceiver<Job>) {
    while let Some(first) = jobs.recv().await {
        let mut size = first.batch.size();
        let (mut batches, mut waiting) = (vec![first.batch], vec![first.done]);
        while size < TRANSACTION
            && let Ok(Job { batch, done }) = jobs.try_recv()
        {
            size += batch.size();
            batches.push(batch);
            waiting.push(done);
        }
        match store.commit_batches(batches).await {
            Ok(results) => {
                for (done, is_current) in waiting.into_iter().zip(results) {
                    // Whoever does not wait any more has ended.
                    let _ = done.send(if is_current { Ok(()) } else { Err(taken_over()) });
                }
            }
            Err(error) => {
                for done in waiting {
                    let _ = done.send(Err(Error::new(error.code(), format!("store messages: {error}"))));
                }
            }
        }
    }
}

/// The error of a relay whose session another one has taken over, or whose session was removed.
fn taken_over() -> Error {
    Error::new(ErrorCode::Conflict, "another relay has taken over this session, or it was removed")
}
