//! `kennel profile create`, `edit` and `delete`.

use super::profiles;
use crate::completion;
use crate::lifecycle::say_idle_pause;
use crate::next_step::Hint;
use crate::options::{SandboxOptions, TimeLimit};
use crate::output::print;
use crate::{environment, report, terminal};
use kennel_config::{SandboxOverrides, Time};
use kennel_core::{Error, Result};
use kennel_engine::{Engine, Profiles};
use kennel_types::ErrorCode;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CREATE_EXAMPLES: &str = "\
Examples:
  kennel profile create dev                                  on the host's own files
  kennel profile create dev --image debian:12 -p 3000
  kennel profile create db --image postgres --image-command --data --no-workspace
  kennel profile create worker --idle-timeout 30m -- ./worker";

const EDIT_EXAMPLES: &str = "\
Examples:
  kennel profile edit dev --memory 4g       change one setting
  kennel profile edit dev                   in your editor ($VISUAL or $EDITOR)
  kennel profile edit dev --file dev.json   replace all settings; - is standard input

`kennel profile restart dev` applies the change to a sandbox that exists.";

const DELETE_EXAMPLES: &str = "\
Examples:
  kennel profile delete dev
  kennel profile delete --force --volumes dev";

/// The settings that only profiles have.
#[derive(Debug, clap::Args)]
struct ProfileOptions {
    /// Whether the sandbox keeps running between commands [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    keep_alive: Option<bool>,
    /// Stop the sandbox after this time without a command, for example 30m
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<TimeLimit>,
    /// Pause the sandbox after this time without a command, for example 1m; needs `kennel serve`
    #[arg(long, value_name = "TIME")]
    idle_pause: Option<TimeLimit>,
    /// Time limit of one command, for example 10m
    #[arg(long, value_name = "TIME")]
    command_timeout: Option<TimeLimit>,
    /// Use the image's own command as the main process
    #[arg(long, conflicts_with = "command")]
    image_command: bool,
    /// Main process and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

impl ProfileOptions {
    fn overrides(&self, engine: &Engine, profiles: &Profiles<'_>) -> Result<SandboxOverrides> {
        let overrides = self.sandbox.overrides(engine, profiles.settings())?;
        if overrides.name.is_some() {
            return Err(Error::new(ErrorCode::InvalidConfig, "--name: a profile's sandbox is named after the profile")
                .hint("leave out --name"));
        }
        let time = |limit: Option<TimeLimit>, flag: &str| match limit {
            None => Ok(None),
            Some(TimeLimit(Some(time))) => Ok(Some(Time(time))),
            Some(TimeLimit(None)) => Err(Error::new(ErrorCode::InvalidConfig, format!("{flag}: expected a time"))
                .hint(format!("leave out {flag}"))),
        };
        let provider = engine.named().map(|named| match named {
            kennel_types::ProviderKind::Native => kennel_config::Provider::Native,
            kennel_types::ProviderKind::Docker => kennel_config::Provider::Docker,
            kennel_types::ProviderKind::Podman => kennel_config::Provider::Podman,
            kennel_types::ProviderKind::Local => kennel_config::Provider::Local,
            kennel_types::ProviderKind::Mock => kennel_config::Provider::Mock,
        });
        Ok(SandboxOverrides {
            provider,
            keep_alive: self.keep_alive,
            idle_timeout: time(self.idle_timeout, "--idle-timeout")?,
            idle_pause: time(self.idle_pause, "--idle-pause")?,
            command_timeout: time(self.command_timeout, "--command-timeout")?,
            image_command: self.image_command.then_some(true),
            command: (!self.command.is_empty()).then(|| self.command.clone()),
            ..overrides
        })
    }
}

/// Create a profile
///
/// Accepts the options of `kennel run`. Relative paths are resolved now. The profile keeps its workspace, and can be
/// used only from the workspace or a directory below it. The sandbox is created at the first use.
#[derive(Debug, clap::Args)]
#[command(after_help = CREATE_EXAMPLES)]
pub(super) struct Create {
    /// Name of the profile
    #[arg(id = "profile", value_name = "NAME")]
    name: String,
    #[command(flatten)]
    options: ProfileOptions,
}

impl Create {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let profiles = profiles(engine)?;
        let overrides = self.options.overrides(engine, &profiles)?;
        let pauses = overrides.idle_pause.is_some();
        let profile = profiles.create(&self.name, overrides).await?;
        say_idle_pause(engine, pauses);
        Ok(print(&profile.name))
    }
}

/// Change a profile
///
/// With options, changes these settings. Without options, opens the profile in your editor. A profile in a
/// settings file is not edited there: the changes are saved in a separate file.
#[derive(Debug, clap::Args)]
#[command(after_help = EDIT_EXAMPLES)]
pub(super) struct Edit {
    /// Name of the profile
    #[arg(id = "profile", value_name = "NAME", add = completion::profiles())]
    name: String,
    /// Replace all settings of the profile with this JSON file; - is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    options: ProfileOptions,
}

impl Edit {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let profiles = profiles(engine)?;
        let changes = self.options.overrides(engine, &profiles)?;
        let changes = SandboxOverrides { provider: None, ..changes };
        let changes_nothing = changes == SandboxOverrides::default();
        let profile = match &self.file {
            Some(_) if !changes_nothing => {
                let message = "--file replaces all settings, so it excludes options that change some";
                return Err(Error::new(ErrorCode::InvalidConfig, message));
            }
            Some(file) => profiles.replace(&self.name, &read(file)?).await?,
            None if changes_nothing => {
                let before = profiles.text(&self.name)?;
                let Some(text) = in_editor(&before)? else { return Ok(0) };
                profiles.replace(&self.name, &text).await?
            }
            None => profiles.edit(&self.name, changes).await?,
        };
        if profiles.status(&profile.name).await?.sandbox.is_some() {
            report::note(&format!("to apply it to the sandbox: kennel profile restart {}", profile.name));
        }
        Ok(print(&profile.name))
    }
}

fn read(file: &Path) -> Result<String> {
    let failed = |error| Error::io(format!("read {}", file.display()), error);
    if file.as_os_str() == "-" {
        let mut text = String::new();
        return std::io::stdin().read_to_string(&mut text).map(|_| text).map_err(failed);
    }
    std::fs::read_to_string(file).map_err(failed)
}

/// Lets the user change a text in an editor. Returns `None` if nothing was changed.
fn in_editor(before: &str) -> Result<Option<String>> {
    if !terminal::is_here() {
        return Err(Error::new(ErrorCode::InvalidConfig, "there is no terminal for an editor, and no change is given")
            .hint("name a change, for example --memory 4g, or pass the settings with --file"));
    }
    let failed = |error| Error::io("edit the profile", error);
    let dir = tempfile::tempdir().map_err(failed)?;
    let path = dir.path().join("profile.json");
    std::fs::write(&path, before).map_err(failed)?;
    let editor = environment::editor();
    // The variable may contain arguments, as in `code --wait`.
    let status =
        std::process::Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(&path).status();
    if !status.map_err(failed)?.success() {
        return Err(Error::new(ErrorCode::Aborted, format!("the editor {editor} failed: nothing was changed")));
    }
    let after = std::fs::read_to_string(&path).map_err(failed)?;
    Ok((after != before).then_some(after))
}

/// Delete a profile and its sandbox
///
/// Asks first, unless --force is given. Volumes are kept, unless --volumes is given. A profile in a settings
/// file cannot be deleted by this command: remove it from the file.
#[derive(Debug, clap::Args)]
#[command(after_help = DELETE_EXAMPLES)]
pub(super) struct Delete {
    /// Name of the profile
    #[arg(add = completion::profiles())]
    name: String,
    /// Do not ask
    #[arg(short, long)]
    force: bool,
    /// Also remove the sandbox's volumes
    #[arg(long)]
    volumes: bool,
}

impl Delete {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let profiles = profiles(engine)?;
        let status = profiles.status(&self.name).await?;
        if !self.force {
            let question = match &status.sandbox {
                Some(_) => format!("delete profile {} and its sandbox ({})? [y/N] ", self.name, status.status),
                None => format!("delete profile {}? [y/N] ", self.name),
            };
            if !terminal::is_here() {
                return Err(Error::new(ErrorCode::InvalidConfig, "there is no terminal to ask for confirmation")
                    .hint(format!("kennel profile delete --force {}", self.name)));
            }
            if !matches!(report::ask(&question)?.trim(), "y" | "Y" | "yes") {
                report::note("nothing was deleted");
                return Ok(1);
            }
        }
        profiles.delete(&self.name, self.volumes).await?;
        Ok(print(&self.name))
    }
}

/// The time limit of one command in a profile.
pub(super) fn command_limit(overrides: &SandboxOverrides) -> Option<Duration> {
    overrides.command_timeout.map(|time| time.0)
}
