//! `kennel agent run`: one prompt, and what the agent does.

use super::printer::Printer;
use crate::agent::AgentOptions;
use crate::agent_log::AgentLog;
use crate::lifecycle::Deadline;
use crate::next_step::Hint;
use crate::output::print_json_line;
use crate::result::JsonError;
use crate::signals::{ENDING, Signals};
use crate::{report, terminal};
use kennel_acp::{Audience, Decision, Permission, Prompt, turn};
use kennel_core::{Error, Result, printable};
use kennel_engine::{Engine, discard};
use kennel_types::{Command, ErrorCode};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::sync::Notify;

const EXAMPLES: &str = "\
Examples:
  kennel agent run --agent claude-code \"fix the failing test\"
  kennel agent run --command './agent --acp' \"explain this project\"
  kennel agent run --agent gemini --permission allow --permission execute=deny \"tidy up\"
  kennel agent run --agent codex --json \"add a test\" | jq .

Exit status: 0 if the agent ended its turn, 1 if it stopped before (for example because of a limit of the
model), 130 if it was cancelled, that of the agent if it failed, 125 if Kennel failed.";

/// Send one message to an agent, and show what it does
///
/// Starts the agent in a sandbox, as `kennel acp` does. Prints its text, its plan, and its tool calls with their output and
/// changes, as they arrive. Requests for permission are decided by --permission. Ctrl-C cancels the turn, and a second one ends
/// it at once. The sandbox is removed afterwards; what the agent has changed in the workspace stays.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Run {
    /// The message
    message: String,
    /// Command of the agent, for the sandbox's shell
    #[arg(long, value_name = "CMD", conflicts_with = "agent")]
    command: Option<String>,
    /// What to do when the agent asks for permission: ask, allow or deny; for one kind of tool with KIND=, as in
    /// execute=deny [default: ask on a terminal, else deny]
    #[arg(long, value_name = "[KIND=]POLICY", value_parser = rule)]
    permission: Vec<Rule>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: AgentOptions,
}

/// What to do when an agent asks for permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Ask,
    Allow,
    Deny,
}

/// A policy for a kind of tool, or for all others.
#[derive(Clone, Debug)]
struct Rule {
    kind: Option<String>,
    policy: Policy,
}

/// The kinds of tools, as ACP names them.
const KINDS: [&str; 10] =
    ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];

fn rule(text: &str) -> std::result::Result<Rule, String> {
    let (kind, policy) = match text.split_once('=') {
        Some((kind, policy)) => (Some(kind), policy),
        None => (None, text),
    };
    if let Some(kind) = kind.filter(|kind| !KINDS.contains(kind)) {
        return Err(format!("unknown kind of tool {kind:?}: expected one of {}", KINDS.join(", ")));
    }
    let policy = match policy {
        "ask" => Policy::Ask,
        "allow" => Policy::Allow,
        "deny" => Policy::Deny,
        _ => return Err(format!("unknown policy {policy:?}: expected ask, allow or deny")),
    };
    Ok(Rule { kind: kind.map(ToOwned::to_owned), policy })
}

impl Run {
    pub(super) async fn run(self, engine: &Engine) -> u8 {
        let json = self.json;
        let (status, reason, error) = match Box::pin(self.play(engine)).await {
            Ok(reason) => (status(&reason), Some(reason), None),
            Err(error) => (report::exit_status(&error), None, Some(error)),
        };
        if json {
            let error = error.as_ref().map(JsonError::from_error);
            let object = json!({ "type": "result", "stopReason": reason, "exitCode": status, "error": error });
            return match print_json_line(&object) {
                0 => status,
                failed => failed,
            };
        }
        if let Some(error) = error {
            report::error(&error);
        } else if let Some(reason) = reason.filter(|_| status != 0) {
            report::warning(&format!("the agent ended its turn early: {reason}"));
        }
        status
    }

    async fn play(self, engine: &Engine) -> Result<String> {
        let policies = self.policies()?;
        let mut deadline = Deadline::begin(None)?;
        let command = self.command.map(Command::Shell);
        let ready = Box::pin(self.options.start(engine, command, &mut deadline)).await?;
        let directory = ready.directory.clone();
        let prompt = Prompt { directory, text: self.message };
        let audience = Terminal { printer: Printer::new(self.json), policies };
        let log = AgentLog::start();
        let (cancel, end) = (Notify::new(), Notify::new());
        let playing = turn(&ready.sandbox, &ready.agent, &prompt, &audience, &log, cancel.notified(), end.notified());
        let played = tokio::select! {
            played = playing => played,
            never = pass_on(&mut deadline.signals, &cancel, &end) => match never {},
        };
        let finished = audience.printer.finish().await;
        let cleanup = discard(&ready.sandbox).await;
        log.finish().await;
        let reason = played?;
        finished.and(cleanup).map(|()| reason)
    }

    /// Returns the policy for each kind of tool. The key `None` is for all others.
    fn policies(&self) -> Result<BTreeMap<Option<String>, Policy>> {
        let can_ask = terminal::is_here() && !self.json;
        let mut policies: BTreeMap<_, _> = [(None, if can_ask { Policy::Ask } else { Policy::Deny })].into();
        policies.extend(self.permission.iter().map(|rule| (rule.kind.clone(), rule.policy)));
        if !can_ask && policies.values().any(|policy| *policy == Policy::Ask) {
            let message = "--permission ask: there is no terminal to ask at";
            return Err(
                Error::new(ErrorCode::InvalidConfig, message).hint("use --permission allow or --permission deny")
            );
        }
        Ok(policies)
    }
}

/// Cancels the turn at the first signal, and ends it at the second.
async fn pass_on(signals: &mut Signals, cancel: &Notify, end: &Notify) -> std::convert::Infallible {
    let mut first = true;
    loop {
        if ENDING.contains(&signals.next().await) {
            if std::mem::take(&mut first) { cancel.notify_one() } else { end.notify_one() }
        }
    }
}

/// Returns the exit status for the reason for which a turn ended.
fn status(reason: &str) -> u8 {
    match reason {
        "end_turn" => 0,
        "cancelled" => 130,
        _ => 1,
    }
}

/// A person, or a program, that follows the turn.
struct Terminal {
    printer: Printer,
    policies: BTreeMap<Option<String>, Policy>,
}

impl Audience for Terminal {
    async fn update(&self, update: Value) -> Result<()> {
        self.printer.update(update).await
    }

    async fn decide(&self, permission: &Permission) -> Result<Decision> {
        let policy = self.policies.get(&Some(permission.kind.clone())).or_else(|| self.policies.get(&None));
        let decision = match policy.copied().unwrap_or(Policy::Deny) {
            Policy::Allow => Decision::Allow,
            Policy::Deny => Decision::Deny,
            Policy::Ask => {
                self.printer.end_line().await?;
                let question =
                    format!("allow {} ({})? [y/N] ", printable(&permission.title), printable(&permission.kind));
                let asked = tokio::task::spawn_blocking(move || report::ask(&question)).await;
                let reply = asked.map_err(|error| Error::new(ErrorCode::Aborted, error.to_string()))??;
                if matches!(reply.trim(), "y" | "yes") { Decision::Allow } else { Decision::Deny }
            }
        };
        self.printer.permission(permission, decision).await?;
        Ok(decision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_for_all_tools_or_one_kind() {
        let parsed = |text| rule(text).map(|rule| (rule.kind, rule.policy));
        assert_eq!(parsed("allow"), Ok((None, Policy::Allow)));
        assert_eq!(parsed("execute=deny"), Ok((Some("execute".to_owned()), Policy::Deny)));
        assert!(parsed("shell=deny").unwrap_err().contains("expected one of read"));
        assert!(parsed("maybe").unwrap_err().contains("expected ask"));
    }
}
