//! Formats a diagnosis for the terminal.

use super::fix::Fix;
use super::machine::CheckResult;
use super::{Chosen, Diagnosis, Finding};
use kennel_core::printable;
use kennel_types::{Mode, Support};
use owo_colors::OwoColorize;

/// Returns the whole diagnosis as text.
pub(super) fn diagnosis_text(diagnosis: &Diagnosis) -> String {
    let mut text = format!("{}\n", "Providers".bold());
    for found in &diagnosis.providers {
        provider(&mut text, found);
    }
    if let Some(Chosen { provider, passed_over }) = &diagnosis.choice {
        let reasons: Vec<String> =
            passed_over.iter().map(|over| format!("{}: {}", over.provider.name(), printable(&over.reason))).collect();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        text.extend([format!("  New sandboxes use {provider}{reasons}.\n")]);
    }
    if !diagnosis.machine.is_empty() {
        text.extend([format!("\n{}\n", "This machine".bold())]);
    }
    for check in &diagnosis.machine {
        text.extend([format!("  {} {:<16} {}\n", sign(check.state), check.name, printable(&check.detail))]);
        fix(&mut text, 21, check.fix.as_ref());
    }
    text
}

fn provider(text: &mut String, found: &Finding) {
    let state = if found.available { CheckResult::Ok } else { CheckResult::Missing };
    let tried = found.tried_ms.map(|ms| format!("; a sandbox took {ms} ms")).unwrap_or_default();
    text.extend([format!("  {} {:<8} {}{tried}\n", sign(state), found.provider, printable(&found.detail))]);
    text.extend([format!("{:13}{}\n", "", walls(found.mode))]);
    fix(text, 13, found.fix.as_ref());
}

fn fix(text: &mut String, indent: usize, fix: Option<&Fix>) {
    if let Some(fix) = fix {
        text.extend([format!("{:indent$}{} {}\n", "", "try:".cyan(), printable(&fix.command))]);
    }
}

fn sign(state: CheckResult) -> String {
    match state {
        CheckResult::Ok => "+".green().bold().to_string(),
        CheckResult::Missing => "-".red().bold().to_string(),
        CheckResult::NotNeeded => ".".dimmed().to_string(),
    }
}

/// Returns what a mode enforces, in one line.
fn walls(mode: &Mode) -> String {
    if mode.layers.is_empty() {
        return "isolates nothing".to_owned();
    }
    let networks: Vec<String> = mode.networks.iter().map(ToString::to_string).collect();
    let limits = if mode.limits == Support::Given { "limits" } else { "no limits" };
    format!(
        "{} isolation layers; {limits}; network {}; files in the workspace belong to {}; kennel explain {}",
        mode.layers.len(),
        networks.join(", "),
        mode.workspace_files,
        mode.provider()
    )
}
