//! `kennel gc`.

use crate::output::{print, print_json};
use crate::report;
use crate::sandboxes::report_silent;
use kennel_core::{Result, Sweep, printable};
use kennel_engine::{Action, Applied, Effect, Engine, Foreign, FoundLeftover, Plan, Unneeded};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  kennel gc
  kennel gc --dry-run             only print what would be done
  kennel --provider native gc     only of one provider
  kennel image prune --all        remove images that no sandbox uses
  kennel volume prune             remove volumes whose sandbox is gone";

/// Remove what killed programs left behind
///
/// Removes and prints what is left of a sandbox whose creator was killed: directories and cgroups, and also helper
/// programs of earlier versions. Compares sessions with the sandboxes that exist, and completes what was interrupted:
/// sandboxes of removed sessions are removed (volumes stay), and lost sessions are marked. Other sandboxes are not removed,
/// whether they run or not: see `kennel rm`. A provider that does not respond changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Gc {
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Gc {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        self.collect(engine).await.unwrap_or_else(|error| report::failed(&error))
    }

    async fn collect(&self, engine: &Engine) -> Result<u8> {
        // Sessions first: the sandboxes that they no longer need may leave something behind.
        let (plan, applied) = engine.reconcile(!self.dry_run).await?.unwrap_or_default();
        if !self.dry_run {
            engine.wake_sleeping().await?;
        }
        let action = if self.dry_run { Sweep::Report } else { Sweep::Remove };
        let (found, silent) = engine.sweep(action).await?;
        report_silent(&silent);
        for foreign in &plan.foreign {
            report::warning(&format!(
                "sandbox {} on {} belongs to a session of another store, and is left alone; to take it over: \
                 kennel session adopt {}",
                printable(&foreign.name),
                printable(&foreign.provider),
                foreign.sandbox
            ));
        }
        let failed = applied.iter().filter(|applied| applied.result.is_err()).count();
        let printed = if self.json {
            print_json(&self.rows(&plan, &applied, &found))
        } else {
            let mut lines = self.lines(&plan, &applied);
            lines.extend(found.iter().map(|it| format!("{}: {}", it.provider, printable(&it.what.to_string()))));
            if lines.is_empty() {
                report::note(if self.dry_run { "there is nothing to do" } else { "there was nothing to do" });
                0
            } else {
                print(&lines.join("\n"))
            }
        };
        Ok(if printed == 0 { u8::from(failed > 0) } else { printed })
    }

    fn lines(&self, plan: &Plan, applied: &[Applied]) -> Vec<String> {
        if self.dry_run {
            return plan.actions.iter().map(words).collect();
        }
        let mut lines = Vec::new();
        for Applied { action, result } in applied {
            match result {
                Ok(Effect::Done) => lines.push(words(action)),
                // Another process did it meanwhile, or the session has changed.
                Ok(_) => {}
                Err(error) => report::warning(&format!("{}: {error}", words(action))),
            }
        }
        lines
    }

    fn rows(&self, plan: &Plan, applied: &[Applied], found: &[FoundLeftover]) -> Vec<Value> {
        let actions: Vec<Value> = if self.dry_run {
            plan.actions.iter().map(|action| json!(action)).collect()
        } else {
            let row = |applied: &Applied| {
                let mut row = json!(applied.action);
                row["error"] = json!(applied.result.as_ref().err().map(ToString::to_string));
                row
            };
            applied.iter().map(row).collect()
        };
        let foreign = |foreign: &Foreign| {
            let mut row = json!(foreign);
            row["action"] = json!("report_foreign");
            row
        };
        let leftovers = found.iter().map(|leftover| json!(leftover));
        actions.into_iter().chain(plan.foreign.iter().map(foreign)).chain(leftovers).collect()
    }
}

/// Describes what is done about a session.
fn words(action: &Action) -> String {
    let session = action.session();
    match action {
        Action::RemoveSandbox { provider, sandbox, why, .. } => {
            let why = match why {
                Unneeded::SessionGone => "its session was removed",
                Unneeded::NotTheSessions => "its session has another one",
                Unneeded::NotOpened => "its session could not be opened",
                Unneeded::AutoRemove => "its session has ended",
            };
            format!("{}: sandbox {sandbox}: {why}", printable(provider))
        }
        Action::FinishRemoval { .. } => format!("session {session}: complete its removal"),
        Action::FinishOpen { .. } => format!("session {session}: complete its start"),
        Action::FailOpen { .. } => format!("session {session}: it was never opened"),
        Action::FinishStop { .. } => format!("session {session}: complete its stop"),
        Action::DropStart { .. } => format!("session {session}: its start was interrupted"),
        Action::MarkRunning { .. } => format!("session {session}: it is running"),
        Action::RecordEnd { .. } => format!("session {session}: it has ended"),
        Action::MarkLost { .. } => format!("session {session}: its sandbox is lost"),
    }
}
