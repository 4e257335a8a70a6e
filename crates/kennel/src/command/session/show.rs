//! `kennel session ls`, `show` and `events`.

use super::messages::print_messages;
use super::sessions;
use crate::clock::date_and_time;
use crate::command::ls::ago;
use crate::output::{print, print_json, print_json_line, table};
use kennel_acp::SessionAgent;
use kennel_core::{Error, Result, printable};
use kennel_engine::{
    Engine, EventFilter, Session, SessionEvent, SessionFilter, SessionId, SessionState, SessionSummary,
};
use kennel_types::{ErrorCode, NextStep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LS_EXAMPLES: &str = "\
Examples:
  kennel session ls
  kennel session ls --state failed
  kennel session ls --json | jq '.[].id'";

const SHOW_EXAMPLES: &str = "\
Examples:
  kennel session show fix
  kennel session show fix | jq -r '.log[]'
  kennel session show --messages fix
  kennel session show --secret fix";

const EVENTS_EXAMPLES: &str = "\
Examples:
  kennel session events fix
  kennel session events --json           one object per line, of all sessions
  kennel session events --after 120      only events with a higher number";

/// List sessions
///
/// Lists the recorded sessions, newest first. Updates the state of running sessions first.
#[derive(Debug, clap::Args)]
#[command(after_help = LS_EXAMPLES)]
pub(super) struct Ls {
    /// Only sessions in this state: creating, running, stopped, completed, failed or removing
    #[arg(long = "state", value_name = "STATE", value_parser = state)]
    states: Vec<SessionState>,
    /// At most this many
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Print a JSON array
    #[arg(long)]
    pub(super) json: bool,
}

fn state(text: &str) -> std::result::Result<SessionState, String> {
    SessionState::named(text).ok_or_else(|| {
        let names: Vec<&str> = SessionState::ALL.iter().map(|state| state.name()).collect();
        format!("unknown state {text:?}: expected one of {}", names.join(", "))
    })
}

impl Ls {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let sessions = sessions(engine).await?;
        let running = SessionFilter { states: vec![SessionState::Running], ..SessionFilter::default() };
        for session in sessions.list(&running).await? {
            // A provider that does not respond was reported. What is recorded is shown.
            let _ = sessions.settle(session.id.as_str()).await;
        }
        let filter = SessionFilter { states: self.states, limit: self.limit, ..SessionFilter::default() };
        let found = sessions.list(&filter).await?;
        Ok(if self.json { print_json(&found) } else { print(&sessions_table(&found)) })
    }
}

fn sessions_table(found: &[SessionSummary]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let row = |session: &SessionSummary| {
        let state = match (session.state, session.exit_code) {
            (SessionState::Failed, Some(code)) => format!("failed ({code})"),
            (state, _) => state.to_string(),
        };
        [
            session.id.to_string(),
            session.name.as_deref().map_or("-".to_owned(), printable),
            state,
            printable(&session.provider),
            ago(now.saturating_sub(Duration::from_millis(session.created_ms))),
            session.project.as_deref().map_or("-".to_owned(), printable),
        ]
    };
    table(["ID", "NAME", "STATE", "PROVIDER", "CREATED", "PROJECT"], found.iter().map(row))
}

/// Show a session as JSON
///
/// Updates the state first. Shows what was requested, and the state and its cause. If the session has ended, also shows
/// the exit code and the last 50 lines of the log. If it has an agent, also shows whether the agent runs.
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub(super) struct Show {
    /// Id or name of the session
    id: String,
    /// Print only the session's secret
    #[arg(long)]
    secret: bool,
    /// Print the messages between its agent and clients, one JSON object per line
    #[arg(long, conflicts_with = "secret")]
    messages: bool,
    /// Print JSON (the default)
    #[arg(long, conflicts_with = "secret")]
    json: bool,
}

/// A session and its agent.
#[derive(serde::Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    session: &'a Session,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<SessionAgent>,
}

impl Show {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let sessions = sessions(engine).await?;
        if self.secret {
            let secret = sessions.secret(&self.id).await?;
            let missing = || Error::new(ErrorCode::NotFound, format!("session {} has no secret", self.id));
            return Ok(print(&secret.ok_or_else(missing)?));
        }
        let session = sessions.settle(&self.id).await?;
        if self.messages {
            return print_messages(&sessions, &session, "").await;
        }
        let agent = SessionAgent::look(&sessions, &session).await?;
        Ok(print_json(&Shown { session: &session, agent }))
    }
}

/// Show what happened to sessions
///
/// Prints the recorded events, oldest first. Each event has a number of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = EVENTS_EXAMPLES)]
pub(super) struct Events {
    /// Id or name of the session [default: all sessions]
    id: Option<String>,
    /// Only events with a higher number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,
    /// At most this many
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Print one JSON object per line
    #[arg(long)]
    pub(super) json: bool,
}

impl Events {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let sessions = sessions(engine).await?;
        let session = match &self.id {
            Some(id) => Some(match sessions.settle(id).await {
                Ok(session) => session.summary.id,
                // The events of a removed session are kept, and can be found by its id.
                Err(error) if error.code() == ErrorCode::NotFound => SessionId::new(id)?,
                Err(error) => return Err(error),
            }),
            None => None,
        };
        let events = sessions.events(&EventFilter { session, after: self.after, limit: self.limit }).await?;
        if let (true, Some(id)) = (events.is_empty() && self.after == 0, &self.id) {
            let message = format!("there is no session {}, and no event of one", printable(id));
            return Err(Error::new(ErrorCode::NotFound, message).suggest(NextStep::ListSessions));
        }
        if !self.json {
            return Ok(print(&events_table(&events)));
        }
        for event in &events {
            let printed = print_json_line(event);
            if printed != 0 {
                return Ok(printed);
            }
        }
        Ok(0)
    }
}

fn events_table(events: &[SessionEvent]) -> String {
    let row = |event: &SessionEvent| {
        let name = |state: Option<SessionState>| state.map_or("-", SessionState::name);
        let detail = event.detail.as_deref().map(|text| format!(": {}", printable(text))).unwrap_or_default();
        [
            event.number.to_string(),
            date_and_time(event.time_ms / 1000),
            event.session.to_string(),
            format!("{} -> {}", name(event.from), name(event.to)),
            format!("{}{detail}", event.cause),
        ]
    };
    table(["NUMBER", "TIME (UTC)", "SESSION", "STATE", "CAUSE"], events.iter().map(row))
}
