//! `kennel profile list`, `show` and `status`.

use super::profiles;
use crate::completion;
use crate::output::{print, print_json, table};
use crate::report;
use kennel_core::{Error, Result, printable};
use kennel_engine::profiles::ProfileUse;
use kennel_engine::{Engine, Profiles};
use kennel_types::ProviderKind;
use serde_json::{Value, json};

const LIST_EXAMPLES: &str = "\
Examples:
  kennel profile list
  kennel profile list --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  kennel profile show dev
  kennel profile show dev | jq .image";

const STATUS_EXAMPLES: &str = "\
Examples:
  kennel profile status
  kennel profile status dev
  kennel profile status dev --json";

/// List profiles
///
/// Lists the profiles of `kennel profile create` and those in settings files. The status is that of the sandbox.
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_EXAMPLES, alias = "ls")]
pub(super) struct List {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let profiles = profiles(engine)?;
        all(&profiles, self.json).await
    }
}

/// Show the status of one or all profiles
///
/// The status is that of the sandbox: running, paused, stopped, or error if its main process failed. An error has the
/// exit code.
#[derive(Debug, clap::Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub(super) struct Status {
    /// Name of the profile [default: all]
    #[arg(add = completion::profiles())]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let profiles = profiles(engine)?;
        let Some(name) = &self.name else { return all(&profiles, self.json).await };
        let found = profiles.status(name).await?;
        if found.image_changed {
            report::note(&format!("the image has changed since: kennel profile restart --pull {name}"));
        }
        Ok(if self.json { print_json(&row(name, Ok(&found))) } else { print(&found.status.to_string()) })
    }
}

/// Show a profile as JSON
///
/// Prints the settings of the profile, where they come from, and what is known about its sandbox. Sizes have a unit;
/// with --json they are numbers of bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub(super) struct Show {
    /// Name of the profile
    #[arg(add = completion::profiles())]
    name: String,
    /// Print sizes in bytes, for programs
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) fn run(&self, engine: &Engine) -> Result<u8> {
        let profiles = profiles(engine)?;
        let profile = profiles.get(&self.name)?;
        let mut shown = json!({ "name": profile.name });
        if let (Ok(Value::Object(settings)), Value::Object(entries)) =
            (serde_json::to_value(&profile.overrides), &mut shown)
        {
            entries.extend(settings);
        }
        if !self.json {
            for (key, size) in [("memory", profile.overrides.memory), ("disk", profile.overrides.disk)] {
                if let Some(size) = size {
                    shown[key] = json!(size.to_string());
                }
            }
        }
        shown["settingsFile"] = json!(profile.settings_file);
        shown["project"] = json!(profile.project);
        shown["state"] = json!(profile.state);
        Ok(print_json(&shown))
    }
}

async fn all(profiles: &Profiles<'_>, json: bool) -> Result<u8> {
    let mut rows = Vec::new();
    for name in profiles.names()? {
        let found = profiles.status(&name).await;
        rows.push((name, found));
    }
    if json {
        let rows: Vec<Value> = rows.iter().map(|(name, found)| row(name, found.as_ref())).collect();
        return Ok(print_json(&rows));
    }
    let cells =
        |(name, found): &(String, Result<ProfileUse>)| {
            let or_dash = |text: Option<String>| text.map_or("-".to_owned(), |text| printable(&text));
            match found {
                Ok(found) => {
                    let overrides = &found.profile.overrides;
                    [
                        printable(name),
                        found.status.to_string(),
                        or_dash(found.profile.state.provider.map(|kind| kind.name().to_owned())),
                        or_dash(overrides.image.as_ref().map(|image| {
                            if found.image_changed { format!("{image} (changed)") } else { image.clone() }
                        })),
                        or_dash(overrides.workspace.as_ref().map(|dir| dir.display().to_string())),
                    ]
                }
                Err(error) => {
                    let error = error.to_string();
                    let reason = error.lines().next().unwrap_or_default();
                    report::warning(&format!("profile {}: {}", printable(name), reason.trim_end_matches(':')));
                    [printable(name), "unknown".to_owned(), "-".to_owned(), "-".to_owned(), "-".to_owned()]
                }
            }
        };
    Ok(print(&table(["NAME", "STATUS", "PROVIDER", "IMAGE", "WORKSPACE"], rows.iter().map(cells))))
}

fn row(name: &str, found: Result<&ProfileUse, &Error>) -> Value {
    match found {
        Ok(found) => {
            let mut row = json!({
                "name": name,
                "provider": found.profile.state.provider.map(ProviderKind::name),
                "sandboxId": found.sandbox.as_ref().map(|info| &info.id),
                "image": found.profile.overrides.image,
                "imageChanged": found.image_changed,
                "workspace": found.profile.overrides.workspace,
                "settingsFile": found.profile.settings_file,
                "error": null,
            });
            if let (Ok(Value::Object(status)), Value::Object(entries)) = (serde_json::to_value(&found.status), &mut row)
            {
                entries.extend(status);
            }
            row
        }
        Err(error) => {
            json!({ "name": name, "status": "unknown", "error": crate::result::JsonError::from_error(error) })
        }
    }
}
