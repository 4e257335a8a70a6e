//! `kennel session show --messages` and `kennel session export`.

use super::sessions;
use crate::output::{print_json_line, print_plain};
use kennel_acp::SessionAgent;
use kennel_core::{Result, printable_json};
use kennel_engine::{Engine, EventFilter, Session, Sessions};
use serde_json::json;

/// How many messages, and bytes, are read at once.
const PAGE: usize = 1000;
const PAGE_BYTES: usize = 8 << 20;

const EXAMPLES: &str = "\
Examples:
  kennel session export fix > fix.jsonl
  kennel session export fix | jq -c 'select(.type == \"message\") | .message'";

/// Write everything about a session as JSON lines
///
/// The first line is the session, with its agent. Then follow its events and the messages between its agent and its clients,
/// in order. Each line has a `type`: session, event or message. Secrets of the agent are replaced by asterisks.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Export {
    /// Id or name of the session
    id: String,
}

impl Export {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let sessions = sessions(engine).await?;
        let session = sessions.settle(&self.id).await?;
        let agent = SessionAgent::look(&sessions, &session).await?;
        let mut status = print_json_line(&json!({ "type": "session", "session": session, "agent": agent }));
        let filter = EventFilter { session: Some(session.summary.id.clone()), ..EventFilter::default() };
        for event in sessions.events(&filter).await? {
            if status == 0 {
                status = print_json_line(&json!({ "type": "event", "event": event }));
            }
        }
        if status != 0 {
            return Ok(status);
        }
        print_messages(&sessions, &session, "\"type\":\"message\",").await
    }
}

/// Prints the messages of a session, one JSON object per line, which begins with these members.
pub(super) async fn print_messages(sessions: &Sessions, session: &Session, first: &str) -> Result<u8> {
    let messages = sessions.messages();
    let mut after = 0;
    loop {
        let page = messages.list(&session.summary.id, after, PAGE, PAGE_BYTES).await?;
        let Some(last) = page.last() else { return Ok(0) };
        after = last.sequence;
        for message in page {
            let line = printable_json(&message.json(first));
            let status = print_plain(format!("{line}\n").as_bytes());
            if status != 0 {
                return Ok(status);
            }
        }
    }
}
