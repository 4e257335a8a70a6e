//! The settings in force: what was said in files and variables for every new sandbox.

pub(crate) mod trust;

use crate::places::Places;
use crate::{environment, report};
use kennel_config::{
    Config, Environment, ImagesSection, Layer, Layered, Loaded, Location, Place, Problem, SandboxSection, Sources, Tree,
};
use kennel_core::{Error, Result};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trust::Trust;

/// Sections that no command uses yet.
const UNUSED: [&str; 2] = ["container", "agent"];

/// What a new sandbox is, where the command line does not say otherwise.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) sandbox: SandboxSection,
    /// Where images come from.
    pub(crate) images: ImagesSection,
    /// Where each came from; nothing if nobody said anything.
    layered: Option<Layered>,
    /// Where their paths led when trust was checked.
    paths: RealPaths,
}

impl Settings {
    /// Those for the current directory. A project's files count only as far as they are trusted.
    pub(crate) fn in_force() -> Result<Self> {
        let around = Around::look()?;
        let paths = RealPaths::default();
        if !around.has_any() {
            let Config { sandbox, images, .. } = Config::default();
            return Ok(Self { sandbox, images, layered: None, paths });
        }
        let loaded = around.load()?;
        warn_without_effect(&loaded);
        let grants = loaded.layered.grants(&|path| paths.of(path).ok());
        if !grants.is_empty() {
            Trust::new(Places::find()?.trusted()).check(&loaded, &grants)?;
        }
        let Config { mut sandbox, images, .. } = loaded.layered.config().map_err(|error| wrong(&error))?;
        if loaded.layered.layer_of("sandbox.extraToolchains") == Some(Layer::Project) {
            for path in &mut sandbox.extra_toolchains {
                *path = paths.of(path).unwrap_or_else(|_| path.clone());
            }
        }
        Ok(Self { sandbox, images, layered: Some(loaded.layered), paths })
    }

    /// How long a command may take in a sandbox that exists, if someone has said so. Nothing else counts for such a
    /// sandbox, so nothing else has to be trusted.
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
            Trust::new(Places::find()?.trusted()).check(&loaded, &grants)?;
        }
        let config = loaded.layered.config().map_err(|error| wrong(&error))?;
        let is_set = loaded.layered.layer_of(KEY).is_some_and(|layer| layer != Layer::BuiltIn);
        Ok(is_set.then_some(config.sandbox.command_timeout.0))
    }

    /// Drops what describes a sandbox and cannot hold without one; returns the keys that were set. What was typed is not
    /// dropped: the provider refuses it.
    pub(crate) fn without_sandbox(&mut self) -> Vec<String> {
        // What counts for a plain process as well.
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

    /// Where a path of a volume or of the workspace leads. It is looked up once, so that what is mounted is what trust was
    /// checked for.
    pub(crate) fn real_path(&self, path: &Path) -> std::io::Result<PathBuf> {
        self.paths.of(path)
    }

    /// A setting that someone has made; `None` where the built-in one counts.
    pub(crate) fn said<T>(&self, key: &str, value: T) -> Option<T> {
        let layer = self.layered.as_ref()?.layer_of(key)?;
        (layer != Layer::BuiltIn).then_some(value)
    }

    /// What an environment variable says at a key, as it is written there, if that is what counts.
    pub(crate) fn in_environment(&self, key: &str) -> Option<&str> {
        match self.layered.as_ref()?.get(key).ok()?? {
            Tree::Leaf(setting) if setting.origin.layer == Layer::Environment => setting.written.as_str(),
            _ => None,
        }
    }
}

/// Paths without symlinks, each looked up once.
#[derive(Clone, Default)]
pub(crate) struct RealPaths(RefCell<HashMap<PathBuf, std::result::Result<PathBuf, i32>>>);

impl RealPaths {
    /// The path without symlinks, or why there is none.
    pub(crate) fn of(&self, path: &Path) -> std::io::Result<PathBuf> {
        let look = || path.canonicalize().map_err(|error| error.raw_os_error().unwrap_or_default());
        let mut known = self.0.borrow_mut();
        let found = known.entry(path.to_owned()).or_insert_with(look).clone();
        found.map_err(std::io::Error::from_raw_os_error)
    }
}

/// What settings are looked for in.
pub(crate) struct Around {
    pub(crate) here: PathBuf,
    pub(crate) user: Option<PathBuf>,
    /// The ids of the calling user.
    users: Vec<u32>,
    pub(crate) environment: Environment,
}

impl Around {
    pub(crate) fn look() -> Result<Self> {
        let here = std::env::current_dir().map_err(|error| Error::io("find the current directory", error))?;
        let behind_sudo = environment::sudo_owner().map(|owner| owner.uid);
        let users = std::iter::once(rustix::process::geteuid().as_raw()).chain(behind_sudo).collect();
        Ok(Self { here, user: Places::config(), users, environment: environment::all() })
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        kennel_config::paths(&self.here, self.user.as_deref(), &self.users)
    }

    /// Whether there is anything to read. To look is quick; to read is not.
    fn has_any(&self) -> bool {
        self.environment.keys().any(|name| kennel_config::is_ours(name))
            || self.places().iter().any(|place| place.exists)
    }

    /// The settings that commands use. Sections that none uses are not checked.
    pub(crate) fn load(&self) -> Result<Loaded> {
        let loaded = self.read(&UNUSED)?;
        warn(&loaded.warnings);
        Ok(loaded)
    }

    /// All settings, to be shown. What is wrong in sections that no command uses is a warning.
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

/// Says, in one line, which settings are accepted and do nothing yet.
fn warn_without_effect(loaded: &Loaded) {
    let vm = loaded.layered.settings().find(|(key, setting)| {
        setting.origin.layer != Layer::BuiltIn && key.segments().starts_with(&["sandbox".to_owned(), "vm".to_owned()])
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
