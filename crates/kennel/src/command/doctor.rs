//! `kennel doctor`: what works here, what does not, and what to type about it.

mod machine;

use crate::output::{print, print_json};
use crate::providers::{ProviderName, Providers};
use kennel_core::{Provider, RemoveOptions, Result, Sandbox, printable};
use kennel_types::{Availability, Backing, ExecSpec, Mode, SandboxSpec};
use machine::Feature;
use owo_colors::OwoColorize;
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  kennel doctor
  kennel doctor --provider docker
  kennel doctor --json | jq '.providers[] | select(.available | not)'";

/// Say what works here, and what is missing
///
/// Every provider is asked, and where it can be done a sandbox is really made and a command run in it.
/// Exits with 0 if at least one provider that isolates works (or the one that is named).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Diagnosis {
    healthy: bool,
    providers: Vec<Finding>,
    machine: Vec<Feature>,
}

/// What there is to say of a provider.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    provider: &'static str,
    available: bool,
    detail: String,
    /// What to type.
    fix: Option<String>,
    /// Milliseconds that a sandbox took from nothing to removed, where one was tried.
    tried_ms: Option<f64>,
    mode: &'static Mode,
}

impl Doctor {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        let mut findings = Vec::new();
        for name in providers.named_or_all() {
            findings.push(examine(name).await);
        }
        let named = findings.len() == 1;
        let healthy = findings.iter().any(|found| found.available && (named || !found.mode.layers.is_empty()));
        let diagnosis = Diagnosis { healthy, providers: findings, machine: machine::features() };
        let printed = if self.json { print_json(&diagnosis) } else { print(&text(&diagnosis)) };
        if printed == 0 { u8::from(!healthy) } else { printed }
    }
}

/// Asks a provider, and tries it if it says that it works.
async fn examine(name: ProviderName) -> Finding {
    let provider = match name.make() {
        Ok(provider) => provider,
        Err(error) => {
            let fix = error.next_step().map(ToOwned::to_owned);
            let mode = name.mode();
            let (provider, detail) = (name.as_str(), error.to_string());
            return Finding { provider, available: false, detail, fix, tried_ms: None, mode };
        }
    };
    let Availability { mut available, mut detail, mut fix } = provider.probe().await;
    let mode = provider.mode();
    let mut tried_ms = None;
    // What needs an image cannot be tried without one.
    if available && mode.backing != Backing::Image {
        let began = Instant::now();
        match attempt(provider).await {
            Ok(()) => tried_ms = Some((began.elapsed().as_secs_f64() * 1e4).round() / 10.0),
            Err(error) => {
                available = false;
                detail = format!("{detail}; but a sandbox could not be made: {error}");
                fix = error.next_step().map(ToOwned::to_owned).or(fix);
            }
        }
    }
    Finding { provider: name.as_str(), available, detail, fix, tried_ms, mode }
}

/// A sandbox made, used and removed.
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

fn text(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    let mut line = |line: &str| text.extend([line, "\n"]);
    line(&"Providers".bold().to_string());
    for found in &diagnosis.providers {
        let tried = found.tried_ms.map(|ms| format!("; a sandbox took {ms} ms")).unwrap_or_default();
        line(&format!("  {} {:<8} {}{tried}", sign(found.available), found.provider, printable(&found.detail)));
        if found.available {
            line(&format!("             {}", walls(found.mode)));
        }
        if let Some(fix) = &found.fix {
            line(&format!("             {} {}", "try:".cyan(), printable(fix)));
        }
    }
    line("");
    line(&"This machine".bold().to_string());
    for feature in &diagnosis.machine {
        line(&format!("  {} {:<16} {}", sign(feature.here), feature.name, printable(&feature.detail)));
        if let Some(fix) = &feature.fix {
            line(&format!("                     {} {}", "try:".cyan(), printable(fix)));
        }
    }
    text
}

fn sign(good: bool) -> String {
    if good { "+".green().bold().to_string() } else { "-".red().bold().to_string() }
}

/// What a mode enforces, in a line.
fn walls(mode: &Mode) -> String {
    if mode.layers.is_empty() {
        return "isolates nothing".to_owned();
    }
    let networks: Vec<String> = mode.networks.iter().map(ToString::to_string).collect();
    format!(
        "{} walls; network {}; files in the workspace belong to {}; kennel explain {}",
        mode.layers.len(),
        networks.join(", "),
        mode.workspace_files,
        mode.provider
    )
}
