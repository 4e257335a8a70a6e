//! `kennel config`: shows, changes and checks settings.

use crate::next_step::Hint;
use crate::options::existing;
use crate::output::{print, print_json};
use crate::report;
use comfy_table::{Table, presets};
use kennel_config::{Loaded, SearchPath, SettingsLayer, Tree};
use kennel_core::{Error, Result, printable, printable_path};
use kennel_engine::Engine;
use kennel_engine::settings::trust::{Trust, describe};
use kennel_engine::settings::{RealPaths, SettingsSources, grants, invalid};
use kennel_types::ErrorCode;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  kennel config show                        all settings, and the layer that set each
  kennel config show sandbox                the settings of one section
  kennel config get sandbox.memory
  kennel config set sandbox.memory 2g       in the project's file
  kennel config set --user sandbox.memory 2g
  kennel config path                        where Kennel looks for settings
  kennel config validate
  kennel config trust                       allow what the project's files request
  kennel config schema > kennel.schema.json

Layers, lowest precedence first: built-in, the user's file, the project's file, environment, flags.";

/// Show, change and check settings
///
/// Settings under `sandbox` apply to `run` and `create`, unless a flag overrides them. Until
/// you trust a project's files, they cannot give a sandbox more access than it has by default.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the settings in effect, and the layer that set each
    Show {
        /// Show only settings at or below this key
        key: Option<String>,
        /// Print JSON, with the origin of each setting
        #[arg(long)]
        json: bool,
    },
    /// Print one setting
    Get {
        /// Key of the setting, for example sandbox.memory
        key: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change a setting in a file, and keep its comments
    Set {
        /// Key of the setting, for example sandbox.memory
        key: String,
        /// New value
        value: String,
        /// Change the user's file instead of the project's
        #[arg(long, conflicts_with = "file")]
        user: bool,
        /// Change this file
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Show where Kennel looks for settings
    Path {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON schema of a settings file
    Schema,
    /// Trust the project's files as they are now
    Trust {
        /// Revoke the trust
        #[arg(long)]
        revoke: bool,
    },
    /// Check settings files
    Validate {
        /// Files to check [default: all that are found]
        files: Vec<PathBuf>,
    },
}

impl Config {
    pub(crate) fn run(&self, engine: &Engine) -> u8 {
        self.act(engine).unwrap_or_else(|error| report::failed(&error))
    }

    fn act(&self, engine: &Engine) -> Result<u8> {
        match &self.action {
            Action::Show { key, json } => show(engine, key.as_deref(), *json),
            Action::Get { key, json } => get(engine, key, *json),
            Action::Set { key, value, user, file } => set(engine, key, value, *user, file.as_ref()),
            Action::Path { json } => Ok(paths(engine, *json)),
            Action::Schema => Ok(print_json(&kennel_config::schema())),
            Action::Trust { revoke } => trust(engine, *revoke),
            Action::Validate { files } => validate(engine, files),
        }
    }
}

/// Reads all settings, for display, and prints warnings. An error in a section that sandboxes do not use is a warning.
fn load_all(engine: &Engine) -> Result<Loaded> {
    let (loaded, problems) = SettingsSources::new(engine.caller()).read_all()?;
    for problem in problems.into_iter().chain(loaded.warnings.iter().map(ToString::to_string)) {
        report::warning(&problem);
    }
    Ok(loaded)
}

fn show(engine: &Engine, key: Option<&str>, json: bool) -> Result<u8> {
    let loaded = load_all(engine)?;
    // An unknown key is an error.
    let wanted = key.map(|key| loaded.layered.explain(key)).transpose().map_err(|error| invalid(&error))?;
    let keys: Option<Vec<String>> = wanted.map(|found| found.iter().map(|(key, _)| key.to_string()).collect());
    let counts = |name: &String| keys.as_ref().is_none_or(|keys| keys.contains(name));
    if json && key.is_none() {
        return Ok(print_json(&loaded.layered.show()));
    }
    let settings: Vec<_> = loaded
        .layered
        .settings()
        .map(|(key, setting)| (key.to_string(), setting))
        .filter(|(key, _)| counts(key))
        .collect();
    if json {
        let object: serde_json::Map<_, _> = settings
            .into_iter()
            .map(|(key, it)| (key, serde_json::json!({ "value": it.written, "origin": it.origin.to_string() })))
            .collect();
        return Ok(print_json(&object));
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["KEY", "VALUE", "SET BY"]);
    for (key, setting) in settings {
        table.add_row([printable(&key), printable(&shown(&setting.written)), printable(&setting.origin.to_string())]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    Ok(print(&table.trim_fmt()))
}

/// Returns a value for display: a string without quotes.
fn shown(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

fn get(engine: &Engine, key: &str, json: bool) -> Result<u8> {
    let loaded = load_all(engine)?;
    match loaded.layered.get(key).map_err(|error| invalid(&error))? {
        Some(Tree::Leaf(setting)) if json => Ok(print_json(&setting.written)),
        Some(Tree::Leaf(setting)) => Ok(print(&printable(&shown(&setting.written)))),
        Some(tree) => {
            let object: serde_json::Map<_, _> =
                tree.settings().into_iter().map(|(key, it)| (key.to_string(), it.written.clone())).collect();
            Ok(print_json(&object))
        }
        None => Err(Error::new(ErrorCode::NotFound, format!("{} is not set", printable(key)))
            .hint(format!("kennel config set {} VALUE", printable(key)))),
    }
}

fn set(engine: &Engine, key: &str, value: &str, user: bool, file: Option<&PathBuf>) -> Result<u8> {
    let sources = SettingsSources::new(engine.caller());
    let search_path = match (file, user) {
        (Some(file), _) => SearchPath::named(&named(file)?),
        (None, true) => {
            let dir = sources.user.clone().ok_or_else(|| {
                Error::new(
                    ErrorCode::InvalidConfig,
                    "cannot find the directory of the user's settings: HOME is not set",
                )
            })?;
            chosen(&sources, SettingsLayer::User).unwrap_or_else(|| SearchPath::of_user(&dir.join("config.toml")))
        }
        (None, false) => chosen(&sources, SettingsLayer::Project)
            .unwrap_or_else(|| SearchPath::named(&sources.current_dir.join("kennel.toml"))),
    };
    kennel_config::set(&search_path, key, value).map_err(|error| invalid(&error))?;
    Ok(print(&printable_path(&search_path.path)))
}

/// Returns the path of a file that the user named. A relative path must not lead out of the current directory: see
/// [`existing`].
fn named(file: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(file).map_err(|error| Error::io("find the file", error))?;
    let there = |dir: &&Path| !dir.as_os_str().is_empty() && dir.symlink_metadata().is_ok();
    let dir = file.ancestors().skip(1).find(there).filter(|_| file.is_relative());
    let Some((dir, below)) = dir.and_then(|dir| Some((dir, file.strip_prefix(dir).ok()?))) else { return Ok(absolute) };
    Ok(existing(dir, "--file")?.join(below))
}

/// Returns the existing settings file of a layer, if there is one.
fn chosen(sources: &SettingsSources, layer: SettingsLayer) -> Option<SearchPath> {
    let ours = |search_path: &SearchPath| {
        search_path.layer == layer && search_path.exists && search_path.owner == kennel_config::Owner::Kennel
    };
    sources.search_paths().into_iter().find(ours)
}

fn paths(engine: &Engine, json: bool) -> u8 {
    let search_paths = SettingsSources::new(engine.caller()).search_paths();
    if json {
        let rows: Vec<_> = search_paths
            .iter()
            .map(|it| serde_json::json!({ "path": it.path, "layer": it.layer.to_string(), "exists": it.exists }))
            .collect();
        return print_json(&rows);
    }
    let lines: Vec<String> = search_paths
        .iter()
        .map(|it| {
            format!("{} {:<8} {}", if it.exists { "+" } else { "-" }, it.layer.to_string(), printable_path(&it.path))
        })
        .collect();
    print(&lines.join("\n"))
}

fn trust(engine: &Engine, revoke: bool) -> Result<u8> {
    let sources = SettingsSources::new(engine.caller());
    let trust = Trust::new(engine.directories()?.trusted());
    if revoke {
        // Trust is revoked even if a file has changed or does not exist any more.
        for search_path in
            sources.search_paths().into_iter().filter(|search_path| search_path.layer == SettingsLayer::Project)
        {
            trust.revoke(&search_path.path)?;
        }
        return Ok(0);
    }
    let loaded = load_all(engine)?;
    let grants = grants(&loaded, &RealPaths::default());
    if grants.is_empty() {
        report::note("the project's files request no additional access: there is nothing to trust");
        return Ok(0);
    }
    trust.allow(&loaded, &grants)?;
    let lines: Vec<String> = grants.iter().map(describe).collect();
    Ok(print(&lines.join("\n")))
}

fn validate(engine: &Engine, files: &[PathBuf]) -> Result<u8> {
    let sources = SettingsSources::new(engine.caller());
    let absolute = |file: &PathBuf| std::path::absolute(file).map_err(|error| Error::io("find the file", error));
    let search_paths: Vec<SearchPath> = if files.is_empty() {
        sources.search_paths().into_iter().filter(|search_path| search_path.exists).collect()
    } else {
        let known = sources.search_paths();
        let found = |path: PathBuf| {
            known
                .iter()
                .find(|search_path| search_path.path == path)
                .cloned()
                .unwrap_or_else(|| SearchPath::named(&path))
        };
        files.iter().map(|file| absolute(file).map(found)).collect::<Result<_>>()?
    };
    if search_paths.is_empty() {
        report::note("there are no settings files to check");
        return Ok(0);
    }
    let warnings = kennel_config::validate(&search_paths, &sources.environment).map_err(|error| invalid(&error))?;
    for problem in &warnings {
        report::warning(&problem.to_string());
    }
    let lines: Vec<String> =
        search_paths.iter().map(|search_path| format!("{}: ok", printable_path(&search_path.path))).collect();
    Ok(print(&lines.join("\n")))
}
