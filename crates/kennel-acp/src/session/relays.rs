//! Starts agents of sessions, and continues with those that run.
//!
//! An agent is a detached command with a tag, which holds its output. So it goes on when the relay is killed, and waits when it
//! is ahead. The next relay finds it by its tag, in the store and in the keeper.

use super::client::{Client, Join};
use super::core::{Core, End, Order, Shared};
use super::hub::{Ended, Hub, Item};
use super::redact::Redactor;
use super::{Definition, Knowledge, handshake};
use crate::failure;
use crate::relay::Agent;
use kennel_core::{Error, Exec, Position, Result, Sandbox};
use kennel_engine::{
    AgentEnd, Continued, Messages, Session, SessionFilter, SessionId, SessionState, SessionSummary, Sessions,
};
use kennel_types::{ErrorCode, ExecSpec, NextStep};
use serde::Serialize;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, watch};

/// The messages of clients that wait for the relay.
const WAITING: usize = 64;
/// How often a lost connection is tried again, and the wait after the first attempt, which doubles.
const TRIES: u32 = 6;
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// How long a keeper may take to say whether the agent runs.
const PROBE: Duration = Duration::from_secs(5);

/// The relays of this process, one for each session with an agent. Cheap to clone.
#[derive(Clone)]
pub struct Relays {
    sessions: Sessions,
    messages: Messages,
    running: Arc<Mutex<HashMap<SessionId, SessionRelay>>>,
}

/// An agent to start in a session.
pub struct NewAgent {
    /// Its name, for people.
    pub name: String,
    /// The command, and what the agent is told.
    pub agent: Agent,
    /// The relay begins the conversation, and opens a session in this directory. `None` if clients do that.
    pub opens: Option<String>,
    /// The values that must not be stored.
    pub secrets: Vec<String>,
}

/// A relay that runs. Clones share it. It ends when the last clone is dropped; the agent goes on.
#[derive(Clone)]
pub struct SessionRelay {
    inner: Arc<Inner>,
}

struct Inner {
    session: SessionId,
    messages: Messages,
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    task: tokio::task::AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relays {
    /// The relays of these sessions.
    pub fn new(sessions: Sessions) -> Self {
        Self { messages: sessions.messages(), sessions, running: Arc::default() }
    }

    /// The sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The messages of all sessions.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// Starts the agent of a session that runs and has none. If that fails, the session ends.
    pub async fn start(&self, session: &SessionId, new: NewAgent) -> Result<SessionRelay> {
        match self.try_start(session, new).await {
            Ok(relay) => Ok(relay),
            Err(error) => {
                let end = AgentEnd { error: Some(error.to_string()), ..AgentEnd::default() };
                self.end(session, end).await;
                Err(error)
            }
        }
    }

    async fn try_start(&self, session: &SessionId, new: NewAgent) -> Result<SessionRelay> {
        let NewAgent { name, agent, opens, secrets } = new;
        let secrets = Redactor::new(secrets.iter().map(String::as_str))?;
        let definition = Definition { name, startup: agent.startup, served: agent.served, opens, secrets };
        let stored = serde_json::to_value(&definition)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("store the agent: {error}")))?;
        // Recorded first: if this process is killed after the start, the next one finds the agent by its tag.
        let tag = format!("kennel-agent-{session}");
        self.messages.begin(session, &tag, stored).await?;
        let sandbox = self.sessions.sandbox(session.as_str()).await?;
        let spec = ExecSpec { stdin: true, detached: true, hold: true, last: false, tag: Some(tag), ..agent.spec };
        let exec = sandbox.exec(&spec).await.map_err(failure::not_started)?;
        self.messages.started(session, exec.process()).await?;
        let continued = self.messages.take_over(session).await?;
        let mut running = self.running.lock().await;
        let relay = self.begin(session, sandbox, continued, exec.with_explicit_acknowledgement()).await?;
        running.insert(session.clone(), relay.clone());
        Ok(relay)
    }

    /// Returns the relay of a session. If this process has none, it continues with the agent, and a relay of another process
    /// ends.
    pub async fn open(&self, id_or_name: &str) -> Result<SessionRelay> {
        let session = self.sessions.show(id_or_name).await?.summary;
        let mut running = self.running.lock().await;
        if let Some(relay) = running.get(&session.id) {
            if relay.ended().is_none() {
                return Ok(relay.clone());
            }
            running.remove(&session.id);
        }
        let (sandbox, continued, exec) = self.connect(&session).await?;
        let relay = self.begin(&session.id, sandbox, continued, exec).await?;
        running.retain(|_, relay| relay.ended().is_none());
        running.insert(session.id, relay.clone());
        Ok(relay)
    }

    /// Continues with the agents of all sessions that run, so that their messages are stored and their ends are noticed.
    pub async fn resume_all(&self) -> Result<()> {
        let filter = SessionFilter { states: vec![SessionState::Running], ..SessionFilter::default() };
        for session in self.sessions.list(&filter).await? {
            if self.messages.agent(&session.id).await?.is_some()
                && let Err(error) = self.open(session.id.as_str()).await
            {
                tracing::warn!(session = %session.id, %error, "could not continue with an agent");
            }
        }
        Ok(())
    }

    /// Takes over the agent of a session, and attaches to it.
    async fn connect(&self, session: &SessionSummary) -> Result<(Sandbox, Continued, Exec)> {
        let no_agent = || {
            let step = NextStep::ShowSession { name: session.label().to_owned() };
            Error::new(ErrorCode::NotFound, format!("session {} has no agent", session.label())).suggest(step)
        };
        self.messages.agent(&session.id).await?.ok_or_else(no_agent)?;
        let sandbox = self.sessions.sandbox(session.id.as_str()).await?;
        let continued = self.messages.take_over(&session.id).await?;
        let agent = &continued.agent;
        let mut process = agent.process;
        if process.is_none() {
            let all = sandbox.processes().await?;
            let found = all.into_iter().find(|info| info.tag.as_deref() == Some(&*agent.tag));
            process = found.map(|info| info.process);
        }
        let from = Position { stdout: agent.output.stdout, stderr: agent.output.stderr };
        let attached = match process {
            Some(process) => sandbox.attach(process, from, None).await,
            None => Err(Error::new(ErrorCode::NotFound, "the agent was not started")),
        };
        let exec = match attached {
            Ok(exec) => exec.with_explicit_acknowledgement(),
            // The keeper forgets no agent that has output left. So its sandbox was restarted, or it was never started.
            Err(error) if error.code() == ErrorCode::NotFound => {
                let error = error.context(format_args!("continue session {}", session.label()));
                let end = AgentEnd { error: Some(error.to_string()), log: agent.log.clone(), exit_code: None };
                self.end(&session.id, end).await;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        if agent.process.is_none() {
            self.messages.started(&session.id, exec.process()).await?;
        }
        Ok((sandbox, continued, exec))
    }

    /// Starts the task of a relay.
    async fn begin(
        &self,
        session: &SessionId,
        sandbox: Sandbox,
        continued: Continued,
        exec: Exec,
    ) -> Result<SessionRelay> {
        let of_clients = |message: &&kennel_engine::Message| message.position.is_some();
        let open = continued.open.iter().filter(of_clients).cloned().map(Item::from);
        let shared = Arc::new(Shared {
            hub: Hub::new(continued.agent.position, open),
            ahead: Arc::new(watch::Sender::new(0)),
            ready: watch::Sender::new(false),
            closed: watch::Sender::new(false),
        });
        let core = self.core(sandbox.clone(), continued, &shared, &exec).await?;
        let (orders, waiting) = mpsc::channel(WAITING);
        let task = Task { relays: self.clone(), session: session.clone(), sandbox, shared: shared.clone() };
        let task = tokio::spawn(task.run(core, exec, waiting)).abort_handle();
        let inner = Inner { session: session.clone(), messages: self.messages.clone(), shared, orders, task };
        Ok(SessionRelay { inner: Arc::new(inner) })
    }

    async fn core(&self, sandbox: Sandbox, continued: Continued, shared: &Shared, exec: &Exec) -> Result<Core> {
        let definition: Definition = serde_json::from_value(continued.agent.definition.clone())
            .map_err(|error| Error::new(ErrorCode::Internal, format!("the agent's record cannot be read: {error}")))?;
        Core::resume(self.messages.clone(), sandbox, definition, shared, continued, exec).await
    }

    /// Ends a session with its agent. If this fails, reconciliation completes it.
    async fn end(&self, session: &SessionId, end: AgentEnd) {
        if let Err(error) = self.sessions.end_with_agent(session, end).await {
            tracing::warn!(%session, %error, "could not end a session whose agent has ended");
        }
    }
}

impl SessionRelay {
    /// Adds a client.
    pub fn join(&self, join: Join) -> Client {
        let Inner { session, messages, shared, orders, .. } = &*self.inner;
        // Before it joins: so it misses no change.
        let changes = shared.hub.changes();
        let (number, position) = shared.hub.join(join.after, join.watch);
        Client {
            hub: shared.hub.clone(),
            number,
            position,
            orders: orders.clone(),
            ahead: shared.ahead.subscribe(),
            changes,
            messages: messages.clone(),
            session: session.clone(),
            fetched: VecDeque::new(),
        }
    }

    /// Waits until the relay has begun the conversation, if it has to. Fails if the agent fails before.
    pub async fn ready(&self) -> Result<()> {
        let Shared { hub, ready, .. } = &*self.inner.shared;
        let (mut changes, mut ready) = (hub.changes(), ready.subscribe());
        loop {
            if *ready.borrow_and_update() {
                return Ok(());
            }
            match hub.ended() {
                Some(Ended::Failed(error)) => {
                    self.closed().await;
                    return Err(copy(&error));
                }
                Some(_) => return Err(Error::new(ErrorCode::ExecFailed, "the agent ended before it had answered")),
                None => {}
            }
            tokio::select! {
                _ = ready.changed() => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Waits until the relay has ended. If the agent has ended, its session has ended, too.
    pub async fn closed(&self) {
        // The sender is in the handle, so the wait cannot fail.
        let _ = self.inner.shared.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// How the relay ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.inner.shared.hub.ended()
    }
}

/// Returns the same error again, for another caller.
fn copy(error: &Error) -> Error {
    let copy = Error::new(error.code(), error.to_string()).exit_code(error.exit_status());
    match error.next_step() {
        Some(step) => copy.suggest(step.clone()),
        None => copy,
    }
}

/// The task of a relay.
struct Task {
    relays: Relays,
    session: SessionId,
    sandbox: Sandbox,
    shared: Arc<Shared>,
}

impl Task {
    async fn run(self, core: Core, exec: Exec, orders: mpsc::Receiver<Order>) {
        self.relay(core, exec, orders).await;
        self.shared.closed.send_replace(true);
        let mut running = self.relays.running.lock().await;
        // Another one may have taken its place already. Otherwise this may drop the last handle, and so end this task.
        if running.get(&self.session).is_some_and(|relay| Arc::ptr_eq(&relay.inner.shared, &self.shared)) {
            running.remove(&self.session);
        }
    }

    async fn relay(&self, mut core: Core, mut exec: Exec, mut orders: mpsc::Receiver<Order>) {
        let mut tried = 0;
        loop {
            let ended = core.run(&mut exec, &mut orders).await;
            let (error, exit_code) = match ended {
                End::Replaced(error) => {
                    tracing::warn!(session = %self.session, %error, "a relay ended");
                    return self.shared.hub.end(Ended::Relay);
                }
                End::Failed(error) => (Some(error), None),
                End::Exited(status) => {
                    let (spoke, waits, tail) = core.last_words();
                    let is_fine = spoke && !waits && status.success();
                    let error = (!is_fine).then(|| failure::ended(status, spoke, waits, tail));
                    (error, Some(status.shell_code()))
                }
                End::Lost(error) => match self.again(&error, &mut tried).await {
                    Again::Continue(next) => {
                        (core, exec) = *next;
                        continue;
                    }
                    Again::Replaced => return self.shared.hub.end(Ended::Relay),
                    Again::Gone => (Some(failure::lost(&error, core.last_words().2)), None),
                },
            };
            let (text, log) = core.redacted(error.as_ref());
            core.tell_end(error.map_or(Ended::Agent, |error| Ended::Failed(Arc::new(error))));
            drop(exec);
            return self.relays.end(&self.session, AgentEnd { error: text, exit_code, log }).await;
        }
    }

    /// Attaches to the agent again after its connection was lost, unless its sandbox has ended.
    async fn again(&self, error: &Error, tried: &mut u32) -> Again {
        if error.code() == ErrorCode::Aborted {
            // Another reader has attached to the agent.
            return Again::Replaced;
        }
        loop {
            self.sandbox.hang_up().await;
            match self.sandbox.inspect().await {
                Ok(info) if !info.status.is_up() => return Again::Gone,
                Err(error) if error.code() == ErrorCode::NotFound => return Again::Gone,
                _ if *tried == TRIES => return Again::Gone,
                _ => {}
            }
            match self.reconnect().await {
                Ok(next) => return Again::Continue(Box::new(next)),
                Err(error) => tracing::debug!(session = %self.session, %error, "could not attach to an agent again"),
            }
            *tried += 1;
            #[expect(clippy::disallowed_methods, reason = "a backoff: no event reports that a keeper can be reached")]
            tokio::time::sleep(FIRST_WAIT * 2u32.pow(*tried - 1)).await;
        }
    }

    async fn reconnect(&self) -> Result<(Core, Exec)> {
        let session = self.relays.sessions.show(self.session.as_str()).await?.summary;
        let (sandbox, continued, exec) = self.relays.connect(&session).await?;
        let core = self.relays.core(sandbox, continued, &self.shared, &exec).await?;
        Ok((core, exec))
    }
}

/// What to do after a lost connection.
enum Again {
    Continue(Box<(Core, Exec)>),
    Replaced,
    Gone,
}

/// Whether the agent of a session runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// It was not started.
    NotStarted,
    /// It runs.
    Running,
    /// It has ended.
    Ended,
    /// The keeper does not respond.
    Unknown,
}

/// The agent of a session, as it is now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionAgent {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub liveness: Liveness,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: Option<u64>,
    /// The number of messages that are stored.
    pub messages: u64,
    /// The position of the last message of the agent that clients see.
    pub position: u64,
    /// The id of the session that the relay has opened with the agent.
    pub acp_session: Option<String>,
    /// Why the agent opened no session, as it said: perhaps it needs a login.
    pub problem: Option<Value>,
    /// The last lines of its standard error.
    pub log: Vec<String>,
}

impl SessionAgent {
    /// Looks at the agent of a session. `None` if the session has none.
    pub async fn look(sessions: &Sessions, session: &Session) -> Result<Option<Self>> {
        let Some(agent) = sessions.messages().agent(&session.summary.id).await? else { return Ok(None) };
        let liveness = match agent.process {
            None => Liveness::NotStarted,
            Some(_) if session.summary.state != SessionState::Running => Liveness::Ended,
            Some(process) => {
                let probe = async {
                    let sandbox = sessions.sandbox(session.summary.id.as_str()).await?;
                    let all = sandbox.processes().await?;
                    Ok::<_, Error>(all.iter().any(|info| info.process == process && info.running))
                };
                match tokio::time::timeout(PROBE, probe).await {
                    Ok(Ok(true)) => Liveness::Running,
                    Ok(Ok(false)) => Liveness::Ended,
                    Ok(Err(_)) | Err(_) => Liveness::Unknown,
                }
            }
        };
        let knowledge: Knowledge = serde_json::from_value(agent.knowledge).unwrap_or_default();
        let part = |answer: &Option<String>, key: &str| {
            let answer: Value = serde_json::from_str(&format!("{{{}}}", answer.as_ref()?)).ok()?;
            answer.get(key).cloned()
        };
        let acp_session = part(&knowledge.opened, "result")
            .and_then(|result| result.get("sessionId")?.as_str().map(ToOwned::to_owned));
        let failed = [&knowledge.initialized, &knowledge.opened]
            .into_iter()
            .find(|answer| answer.as_ref().is_some_and(|answer| !handshake::is_result(answer)));
        Ok(Some(Self {
            name: agent.definition.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            liveness,
            started_ms: agent.started_ms,
            messages: agent.sequence,
            position: agent.position,
            acp_session,
            problem: failed.and_then(|answer| part(answer, "error")),
            log: agent.log,
        }))
    }
}
