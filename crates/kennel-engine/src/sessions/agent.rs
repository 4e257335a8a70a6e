//! The end of a session with its agent.

use super::end::TaskEnd;
use super::{Session, Sessions};
use crate::Messages;
use crate::session::{Cause, SessionId, SessionState};
use kennel_core::Result;

/// How the agent of a session ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentEnd {
    /// Why it failed. `None` if it ended by itself, and nobody waited for it.
    pub error: Option<String>,
    /// Its exit code, if it is known.
    pub exit_code: Option<i32>,
    /// The last lines that it wrote to standard error.
    pub log: Vec<String>,
}

impl Sessions {
    /// The messages of all sessions.
    pub fn messages(&self) -> Messages {
        Messages::new(self.store.clone())
    }

    /// Ends a session because its agent has ended: stops its sandbox, so that nothing is left that the agent has started, and
    /// records how the agent ended.
    pub async fn end_with_agent(&self, id: &SessionId, end: AgentEnd) -> Result<Session> {
        let AgentEnd { error, exit_code, log } = end;
        let (to, cause) = match &error {
            None => (SessionState::Completed, Cause::TaskDone),
            Some(_) => (SessionState::Failed, Cause::TaskFailed),
        };
        self.close(id, &TaskEnd { to, cause, error, exit_code, log: Some(log) }).await?;
        self.get(id).await
    }
}
