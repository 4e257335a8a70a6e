//! The settings in effect: defaults for new sandboxes, from settings files and environment variables.

pub(crate) mod trust;

use crate::directories::Directories;
use crate::next_step::Hint;
use crate::{environment, report};
use kennel_config::{
    Config, Environment, ImagesSection, Layered, Loaded, Location, Problem, SandboxSection, SearchPath, SettingsLayer,
    Sources, Tree,
};
use kennel_core::{Error, Result};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trust::Trust;

/// Sections that no command uses yet.
const UNUSED: [&str; 2] = ["container", "agent"];

/// The settings in effect for a new sandbox. Flags on the command line override them.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) sandbox: SandboxSection,
    /// Settings for pulling and storing images.
    pub(crate) images: ImagesSection,
    /// All layers of settings; `None` if only the built-in defaults apply.
    layered: Option<Layered>,
    /// The paths in the settings, resolved as they were when trust was checked.
    paths: RealPaths,
}

impl Settings {
    /// Returns the settings for the current directory. Fails if the project's files grant something and are not
    /// trusted.
    pub(crate) fn in_force() -> Result<Self> {
        let around = Around::look()?;
        let paths = RealPaths::default();
        if !around.has_any() {
            let Config { sandbox, images, .. } = Config::default();
            return Ok(Self { sandbox, images, layered: None, paths });
        }
        let loaded = around.load()?;
        warn_without_effect(&loaded);
        let grants = loaded.layered.grants(&|path| paths.resolve(path).ok());
        if !grants.is_empty() {
            Trust::new(Directories::find()?.trusted()).check(&loaded, &grants)?;
        }
        let Config { mut sandbox, images, .. } = loaded.layered.config().map_err(|error| wrong(&error))?;
        if loaded.layered.layer_of("sandbox.extraToolchains") == Some(SettingsLayer::Project) {
            for path in &mut sandbox.extra_toolchains {
                *path = paths.resolve(path).unwrap_or_else(|_| path.clone());
            }
        }
        Ok(Self { sandbox, images, layered: Some(loaded.layered), paths })
    }

    /// Returns the time limit for a command in an existing sandbox, or `None` if none is set. No other setting applies
    /// to an existing sandbox, so trust is checked only for this one.
    pub(crate) fn command_timeout() -> Result<Option<Duration>> {
        const KEY: &str = "sandbox.commandTimeout";
        let around = Around::look()?;
        if !around.has_any() {
            return Ok(None);
        }
        let loaded = around.load()?;
        let mut grants = loaded.layered.grants(&|path| path.canonicalize().ok());
        grants.retain(|grant| grant.key.to_string() == KEY);
        if !grants.is_empty() {
            Trust::new(Directories::find()?.trusted()).check(&loaded, &grants)?;
        }
        let config = loaded.layered.config().map_err(|error| wrong(&error))?;
        let is_set = loaded.layered.layer_of(KEY).is_some_and(|layer| layer != SettingsLayer::BuiltIn);
        Ok(is_set.then_some(config.sandbox.command_timeout.0))
    }

    /// Removes the settings that have no meaning without a sandbox, and returns the keys that were set. Flags are not
    /// removed: the provider refuses them.
    pub(crate) fn without_sandbox(&mut self) -> Vec<String> {
        // Settings that also apply to a plain process.
        const KEPT: [&str; 12] = [
            "enabled",
            "provider",
            "onUnavailable",
            "command",
            "env",
            "labels",
            "workspace",
            "timeout",
            "commandTimeout",
            "startupTimeout",
            "autoRemove",
            "idleTimeout",
        ];
        let sandbox = std::mem::take(&mut self.sandbox);
        self.sandbox = SandboxSection {
            enabled: sandbox.enabled,
            provider: sandbox.provider,
            on_unavailable: sandbox.on_unavailable,
            command: sandbox.command,
            env: sandbox.env,
            labels: sandbox.labels,
            workspace: sandbox.workspace,
            timeout: sandbox.timeout,
            command_timeout: sandbox.command_timeout,
            startup_timeout: sandbox.startup_timeout,
            auto_remove: sandbox.auto_remove,
            idle_timeout: sandbox.idle_timeout,
            ..SandboxSection::default()
        };
        let Some(layered) = &mut self.layered else { return Vec::new() };
        let dropped = layered.forget(|key| match key.segments() {
            [section, name, ..] => section == "sandbox" && !KEPT.contains(&name.as_str()),
            _ => false,
        });
        let mut names: Vec<String> = dropped.iter().map(|key| key.segments()[1].clone()).collect();
        names.dedup();
        names
    }

    /// Resolves the symlinks in the path of a volume or of the workspace. Each path is resolved only once, so that the
    /// path that is mounted is the one for which trust was checked.
    pub(crate) fn real_path(&self, path: &Path) -> std::io::Result<PathBuf> {
        self.paths.resolve(path)
    }

    /// Returns `value` if the setting at `key` is set explicitly, and `None` if the built-in default applies.
    pub(crate) fn said<T>(&self, key: &str, value: T) -> Option<T> {
        let layer = self.layered.as_ref()?.layer_of(key)?;
        (layer != SettingsLayer::BuiltIn).then_some(value)
    }

    /// Returns the value at `key` as written in an environment variable, or `None` if another layer decides it.
    pub(crate) fn in_environment(&self, key: &str) -> Option<&str> {
        match self.layered.as_ref()?.get(key).ok()?? {
            Tree::Leaf(setting) if setting.origin.layer == SettingsLayer::Environment => setting.written.as_str(),
            _ => None,
        }
    }
}

/// A cache of paths with their symlinks resolved. Each path is resolved only once.
#[derive(Clone, Default)]
pub(crate) struct RealPaths(RefCell<HashMap<PathBuf, std::result::Result<PathBuf, i32>>>);

impl RealPaths {
    /// Returns the path with all symlinks resolved. Later calls return the same result, even if a symlink has changed.
    pub(crate) fn resolve(&self, path: &Path) -> std::io::Result<PathBuf> {
        let look = || path.canonicalize().map_err(|error| error.raw_os_error().unwrap_or_default());
        let mut known = self.0.borrow_mut();
        let found = known.entry(path.to_owned()).or_insert_with(look).clone();
        found.map_err(std::io::Error::from_raw_os_error)
    }
}

/// The sources of settings: the current directory, the user's directory and the environment.
pub(crate) struct Around {
    pub(crate) here: PathBuf,
    pub(crate) user: Option<PathBuf>,
    /// The ids of the calling user: the effective one and, with sudo, that of the user who called sudo.
    users: Vec<u32>,
    pub(crate) environment: Environment,
}

impl Around {
    pub(crate) fn look() -> Result<Self> {
        let here = std::env::current_dir().map_err(|error| Error::io("find the current directory", error))?;
        let behind_sudo = environment::sudo_owner().map(|owner| owner.uid);
        let users = std::iter::once(rustix::process::geteuid().as_raw()).chain(behind_sudo).collect();
        Ok(Self { here, user: Directories::config(), users, environment: environment::all() })
    }

    pub(crate) fn search_paths(&self) -> Vec<SearchPath> {
        kennel_config::paths(&self.here, self.user.as_deref(), &self.users)
    }

    /// Whether there are any settings. This is much faster than reading them.
    fn has_any(&self) -> bool {
        self.environment.keys().any(|name| kennel_config::is_ours(name))
            || self.search_paths().iter().any(|search_path| search_path.exists)
    }

    /// Reads the settings that commands use, and prints warnings. Sections that no command uses are not checked.
    pub(crate) fn load(&self) -> Result<Loaded> {
        let loaded = self.read(&UNUSED)?;
        warn(&loaded.warnings);
        Ok(loaded)
    }

    /// Reads all settings, for display, and prints warnings. An error in a section that no command uses is a warning.
    pub(crate) fn load_all(&self) -> Result<Loaded> {
        let loaded = self.read(&[]).or_else(|error| {
            let used = self.read(&UNUSED)?;
            error.to_string().lines().for_each(report::warning);
            Ok(used)
        })?;
        warn(&loaded.warnings);
        Ok(loaded)
    }

    fn read(&self, unused: &[&str]) -> Result<Loaded> {
        let sources = Sources {
            project: &self.here,
            user: self.user.as_deref(),
            users: &self.users,
            current: &self.here,
            environment: &self.environment,
            flags: None,
            unused,
        };
        kennel_config::load(&sources).map_err(|error| wrong(&error))
    }
}

/// Warns, in one line, about settings that are accepted but have no effect yet.
fn warn_without_effect(loaded: &Loaded) {
    let vm = loaded.layered.settings().find(|(key, setting)| {
        setting.origin.layer != SettingsLayer::BuiltIn
            && key.segments().starts_with(&["sandbox".to_owned(), "vm".to_owned()])
    });
    let vm = vm.map(|(_, setting)| ("sandbox.vm".to_owned(), setting.origin.at.clone()));
    let mut found: Vec<(String, Location)> = loaded.unused.iter().cloned().chain(vm).collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    found.dedup_by(|(one, _), (other, _)| one == other);
    let found: Vec<String> = found.iter().map(|(section, at)| format!("{section} ({at})")).collect();
    if !found.is_empty() {
        report::warning(&format!("these settings have no effect yet: {}", found.join(", ")));
    }
}

pub(crate) fn wrong(error: &kennel_config::Error) -> Error {
    Error::of_lines(error.code(), error.to_string().lines()).hint("kennel config schema, or kennel config show")
}

pub(crate) fn warn(warnings: &[Problem]) {
    for problem in warnings {
        report::warning(&problem.to_string());
    }
}
