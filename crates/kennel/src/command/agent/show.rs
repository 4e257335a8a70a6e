//! `kennel agent ls` and `kennel agent show`.

use super::{preset, presets};
use crate::completion;
use crate::output::{print, print_json, table};
use kennel_acp::Preset;
use kennel_core::{Result, printable, printable_path};
use kennel_engine::Engine;
use std::fmt::Write;

const LS_EXAMPLES: &str = "\
Examples:
  kennel agent ls
  kennel agent ls --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  kennel agent show claude-code
  kennel agent show --json gemini";

/// List the known agents
#[derive(Debug, clap::Args)]
#[command(after_help = LS_EXAMPLES)]
pub(super) struct Ls {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Ls {
    pub(super) fn run(self, engine: &Engine) -> Result<u8> {
        let all = Preset::all(presets(engine).as_deref())?;
        if self.json {
            return Ok(print_json(&all));
        }
        let row = |preset: &Preset| {
            let tried = preset.tried.as_deref().map_or("never run".to_owned(), printable);
            [preset.name.clone(), printable(&preset.command.join(" ")), tried]
        };
        Ok(print(&table(["NAME", "COMMAND", "TRIED"], all.iter().map(row))))
    }
}

/// Show what is known about an agent
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub(super) struct Show {
    /// Name of the agent
    #[arg(add = completion::agents())]
    name: String,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) fn run(self, engine: &Engine) -> Result<u8> {
        let preset = preset(engine, &self.name)?;
        Ok(if self.json { print_json(&preset) } else { print(&page(&preset)) })
    }
}

/// Returns a description for people.
fn page(preset: &Preset) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{:<10} {}", format!("{key}:"), printable(value)); // a String takes everything
        }
    };
    line("agent", preset.title.as_deref().unwrap_or(&preset.name));
    line("command", &preset.command.join(" "));
    line("install", &preset.installing().unwrap_or_default());
    line("secrets", &preset.secrets.join(", "));
    line("variables", &preset.passed.join(", "));
    line("hosts", &preset.hosts.join(", "));
    line("start-up", &format!("{} s", preset.startup_seconds));
    let below_home: Vec<String> = preset.writes.iter().map(|path| format!("~/{path}")).collect();
    line("writes", &below_home.join(", "));
    line("tried", preset.tried.as_deref().unwrap_or("never run"));
    line("note", preset.note.as_deref().unwrap_or_default());
    if let Some(file) = &preset.file {
        line("file", &printable_path(file));
    }
    text
}
