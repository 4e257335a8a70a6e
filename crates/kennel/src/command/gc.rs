//! `kennel gc`.

use crate::output::{print, print_json};
use crate::report;
use crate::sandboxes::report_silent;
use kennel_core::{Result, Sweep, printable};
use kennel_engine::{Action, Applied, Effect, Engine, FoundLeftover, OrphanedProfile, Plan, Unneeded};
use kennel_types::{ProviderKind, SandboxId};
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
/// Removes directories and cgroups of sandboxes whose creator was killed, and helper programs of earlier versions.
/// Completes what was interrupted: removes the sandboxes of removed sessions (volumes are kept), marks sessions whose
/// sandbox is lost, resumes sandboxes that `kennel serve` paused before it was killed, and removes the members of its pools. Prints
/// everything it does.
///
/// Other sandboxes are not changed, whether they run or not: use `kennel rm`. Sandboxes of another database, and of
/// profiles that no longer exist, are only reported. If a provider does not respond, nothing of it is changed.
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
        let resumed = engine.wake_sleeping(!self.dry_run).await?;
        let members = engine.remove_pool_members(!self.dry_run).await?;
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
        let (orphans, _) = engine.orphaned_profiles().await?;
        for orphan in &orphans {
            let of = orphan.project.as_ref().map(|dir| format!(" of {}", dir.display())).unwrap_or_default();
            report::warning(&format!(
                "sandbox {} on {} belongs to profile {}{of}, which no longer exists; to remove it: kennel rm --force {}",
                printable(&orphan.name),
                orphan.provider,
                printable(&orphan.profile),
                printable(&orphan.name)
            ));
        }
        let failed = applied.iter().filter(|applied| applied.result.is_err()).count();
        let printed = if self.json {
            let mut rows = self.rows(&plan, &applied, &orphans, &found);
            rows.extend(resumed.iter().map(|id| json!({ "action": "resume", "sandbox": id })));
            let member = |(provider, id): &(ProviderKind, SandboxId)| json!({ "action": "remove_pool_member", "provider": provider, "sandbox": id });
            rows.extend(members.iter().map(member));
            print_json(&rows)
        } else {
            let mut lines = self.lines(&plan, &applied);
            lines.extend(resumed.iter().map(|id| ActionText::for_paused(id).line(self.dry_run)));
            lines.extend(members.iter().map(|(provider, id)| ActionText::for_member(*provider, id).line(self.dry_run)));
            lines.extend(found.iter().map(|leftover| ActionText::of_leftover(leftover).line(self.dry_run)));
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
            return plan.actions.iter().map(|action| ActionText::for_action(action).line(true)).collect();
        }
        let mut lines = Vec::new();
        for Applied { action, result } in applied {
            match result {
                Ok(Effect::Done) => lines.push(ActionText::for_action(action).line(false)),
                // Another process did it meanwhile, or the session has changed.
                Ok(_) => {}
                Err(error) => {
                    let ActionText { verb: [infinitive, _], to } = ActionText::for_action(action);
                    report::warning(&format!("could not {infinitive} {to}: {error}"));
                }
            }
        }
        lines
    }

    fn rows(
        &self,
        plan: &Plan,
        applied: &[Applied],
        orphans: &[OrphanedProfile],
        found: &[FoundLeftover],
    ) -> Vec<Value> {
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
        let report = |mut row: Value, action: &str| {
            row["action"] = json!(action);
            row
        };
        let foreign = plan.foreign.iter().map(|foreign| report(json!(foreign), "report_foreign"));
        let orphans = orphans.iter().map(|orphan| report(json!(orphan), "report_orphaned_profile"));
        let leftovers = found.iter().map(|leftover| json!(leftover));
        actions.into_iter().chain(foreign).chain(orphans).chain(leftovers).collect()
    }
}

/// The description of an action, before and after it is done.
struct ActionText {
    /// The verb, in the infinitive and in the past.
    verb: [&'static str; 2],
    /// The object of the action, and the reason.
    to: String,
}

impl ActionText {
    fn new(infinitive: &'static str, past: &'static str, to: String) -> Self {
        Self { verb: [infinitive, past], to }
    }

    /// Describes the resume of a sandbox that was paused because it was idle.
    fn for_paused(sandbox: &SandboxId) -> Self {
        Self::new("resume", "resumed", format!("sandbox {sandbox}: the process that paused it is gone"))
    }

    /// Describes the removal of a member of a pool.
    fn for_member(provider: ProviderKind, sandbox: &SandboxId) -> Self {
        let what = format!("pool member {sandbox} of {}: the process that kept it is gone", provider.name());
        Self::new("remove", "removed", what)
    }

    /// Describes an action on a session.
    fn for_action(action: &Action) -> Self {
        let session = action.session();
        let mark = |as_what: &str| Self::new("mark", "marked", format!("session {session} as {as_what}"));
        let complete = |what: &str| Self::new("complete", "completed", format!("the {what} of session {session}"));
        match action {
            Action::RemoveSandbox { provider, sandbox, why, .. } => {
                let why = match why {
                    Unneeded::SessionGone => "its session was removed",
                    Unneeded::NotTheSessions => "its session has another one",
                    Unneeded::NotOpened => "its session could not be opened",
                    Unneeded::AutoRemove => "its session has ended",
                };
                Self::new("remove", "removed", format!("sandbox {sandbox} of {}: {why}", printable(provider)))
            }
            Action::FinishRemoval { .. } => complete("removal"),
            Action::FinishOpen { .. } => complete("start"),
            Action::FinishStop { .. } => complete("stop"),
            Action::DropStart { .. } => {
                Self::new("withdraw", "withdrew", format!("the start of session {session}: it was interrupted"))
            }
            Action::RecordEnd { .. } => Self::new("record", "recorded", format!("the end of session {session}")),
            Action::MarkRunning { .. } => mark("running"),
            Action::FailOpen { .. } => mark("failed: it was never opened"),
            Action::MarkLost { .. } => mark("failed: its sandbox is lost"),
        }
    }

    /// Describes the removal of what a killed program left behind.
    fn of_leftover(leftover: &FoundLeftover) -> Self {
        let what = printable(&leftover.what.to_string());
        Self::new("remove", "removed", format!("{what} of {}", leftover.provider))
    }

    fn line(&self, dry_run: bool) -> String {
        let [infinitive, past] = self.verb;
        if dry_run { format!("would {infinitive} {}", self.to) } else { format!("{past} {}", self.to) }
    }
}
