//! `kennel doctor`: checks what works on this machine, and shows or (with `--fix`) runs the commands that fix the rest.

mod engine;
mod fix;
mod host;
mod machine;
mod network;
mod repair;
mod text;

use crate::next_step::words;
use crate::output::{print, print_json};
use crate::report;
use fix::{Fix, Problem, Step};
use host::Host;
use kennel_core::{Provider, RemoveOptions, Result, Sandbox};
use kennel_engine::{Choice, Engine, PassedOver};
use kennel_types::{Availability, Backing, ExecSpec, Mode, ProviderKind, SandboxSpec};
use machine::{Check, CheckResult};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  kennel doctor
  kennel doctor --fix               fix what is missing, after asking
  kennel doctor --provider docker
  kennel doctor --json | jq '.providers[] | select(.available | not)'";

/// Check what works on this machine
///
/// Checks every provider and, where possible, creates a sandbox and runs a command in it. With --provider, checks
/// only that provider and what it needs from this machine. Exits with 0 if at least one provider with isolation works,
/// or the one that --provider names.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Fix what is missing: show the commands, ask, run them and check again
    #[arg(long, conflicts_with = "json")]
    fix: bool,
    /// Do not ask before running commands
    #[arg(long, short, requires = "fix")]
    yes: bool,
}

impl Doctor {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let names = engine.named_or_all();
        if self.fix {
            let named = if let [one] = *names { format!(" --provider {}", one.name()) } else { String::new() };
            return get_what_is_missing(engine, &names, self.yes, &format!("kennel doctor{named} --fix --yes")).await;
        }
        let host = Host::here();
        let diagnosis = diagnose(engine, &names, &host).await;
        let printed = if self.json { print_json(&diagnosis) } else { print(&text::diagnosis_text(&diagnosis)) };
        if fix::steps(&diagnosis.problems(), &host).iter().any(|step| matches!(step, Step::Run(_))) {
            report::note("kennel doctor --fix fixes what is missing, after asking");
        }
        if printed == 0 { diagnosis.status() } else { printed }
    }
}

/// Shows the diagnosis, fixes what is missing after asking the user, and shows the new diagnosis. `unasked` is the
/// command to suggest if the user cannot be asked.
pub(super) async fn get_what_is_missing(engine: &Engine, names: &[ProviderKind], yes: bool, unasked: &str) -> u8 {
    let host = Host::here();
    let before = diagnose(engine, names, &host).await;
    let printed = print(&text::diagnosis_text(&before));
    if printed != 0 {
        return printed;
    }
    match repair::all(&fix::steps(&before.problems(), &host), yes, unasked) {
        Ok(false) => before.status(),
        Ok(true) => {
            let after = diagnose(engine, names, &host).await;
            let printed = print(&format!("\n{}", text::diagnosis_text(&after)));
            if printed == 0 { after.status() } else { printed }
        }
        Err(error) => report::failed(&error),
    }
}

#[derive(Serialize)]
struct Diagnosis {
    healthy: bool,
    providers: Vec<Finding>,
    /// The provider that new sandboxes use; `None` if another provider was named, or none is available.
    choice: Option<Chosen>,
    /// The checks of what native sandboxes need; empty if another provider was named.
    machine: Vec<Check>,
}

/// The provider that new sandboxes use, and why those before it are not used.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Chosen {
    provider: &'static str,
    passed_over: Vec<PassedOver>,
}

/// The result of examining a provider.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    provider: &'static str,
    available: bool,
    /// The version of the backend, or what is missing.
    detail: String,
    /// The command that makes the provider available.
    fix: Option<Fix>,
    /// How long it took to create, use and remove a sandbox, in milliseconds; `None` if this was not tried.
    tried_ms: Option<f64>,
    /// The mode that sandboxes of this provider have, or would have.
    mode: &'static Mode,
    #[serde(skip)]
    problems: Vec<Problem>,
}

impl Diagnosis {
    fn status(&self) -> u8 {
        u8::from(!self.healthy)
    }

    /// Returns what is missing. If one provider works, nothing is suggested for the others.
    fn problems(&self) -> Vec<Problem> {
        // One engine is enough. Podman is suggested only if the user names it.
        let wanted = |found: &&Finding| !self.healthy && (self.providers.len() == 1 || found.provider != "podman");
        let of_providers = self.providers.iter().filter(wanted).flat_map(|found| &found.problems);
        let of_machine =
            self.machine.iter().filter(|check| check.state == CheckResult::Missing).flat_map(|check| &check.problems);
        of_providers.chain(of_machine).cloned().collect()
    }
}

async fn diagnose(engine: &Engine, names: &[ProviderKind], host: &Host) -> Diagnosis {
    let mut findings = Vec::new();
    for name in names {
        findings.push(examine(engine, *name, host).await);
    }
    let named = findings.len() == 1;
    let healthy = findings.iter().any(|found| found.available && (named || !found.mode.layers.is_empty()));
    let machine = if names.contains(&ProviderKind::Native) { machine::checks(engine, host) } else { Vec::new() };
    let choice = if engine.named().is_none() && !named { choice(engine).await } else { None };
    Diagnosis { healthy, providers: findings, choice, machine }
}

/// Returns the provider that new sandboxes use.
async fn choice(engine: &Engine) -> Option<Chosen> {
    // Whatever is wrong with the settings is not the machine's fault.
    let mut settings = engine.settings().unwrap_or_default();
    let Choice { kind, passed_over, .. } = engine.choose(&mut settings, None).await.ok()?;
    Some(Chosen { provider: kind.name(), passed_over })
}

/// Probes a provider, and creates a sandbox if it is available.
async fn examine(engine: &Engine, name: ProviderKind, host: &Host) -> Finding {
    let (mode, seen, tried_ms) = match engine.provider(name) {
        Ok(provider) => {
            let (seen, tried_ms) = examine_made(&provider).await;
            (provider.mode(), seen, tried_ms)
        }
        Err(error) => {
            let next_step = error.next_step().cloned();
            (Mode::first_of(name), Availability { available: false, detail: error.to_string(), next_step }, None)
        }
    };
    let Availability { available, detail, next_step } = seen;
    let is_engine = matches!(name, ProviderKind::Podman | ProviderKind::Docker);
    let mut problems = if is_engine && !available { engine::problems(engine, name) } else { Vec::new() };
    if problems.is_empty() {
        problems.extend(next_step.as_ref().map(words).map(Problem::Other));
    }
    Finding {
        provider: name.name(),
        available,
        detail,
        fix: Fix::for_problems(&problems, host),
        tried_ms,
        mode,
        problems,
    }
}

async fn examine_made(provider: &Arc<dyn Provider>) -> (Availability, Option<f64>) {
    let seen = provider.probe().await;
    // A provider that needs an image is not tried.
    if !seen.available || provider.mode().backing == Backing::Image {
        return (seen, None);
    }
    let began = Instant::now();
    match attempt(provider.clone()).await {
        Ok(()) => (seen, Some((began.elapsed().as_secs_f64() * 1e4).round() / 10.0)),
        Err(error) => {
            let detail = format!("{}; but creating a sandbox failed: {error}", seen.detail);
            let next_step = error.next_step().cloned().or(seen.next_step);
            (Availability { available: false, detail, next_step }, None)
        }
    }
}

/// Creates a sandbox, runs a command in it, and removes it.
async fn attempt(provider: Arc<dyn Provider>) -> Result<()> {
    let spec = SandboxSpec { tied: true, ..SandboxSpec::default() };
    let sandbox = Sandbox::create(provider, &spec).await?;
    let ran = async {
        let _line = sandbox.launch().await?;
        sandbox.run(&ExecSpec { last: true, ..ExecSpec::argv(["true"]) }, None, 0).await
    };
    let ran = ran.await;
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await?;
    ran.map(drop)
}
