//! The settings in effect for a caller, from settings files and environment variables, and the trust they need.
//!
//! Processes in a sandbox can write to the project's settings. So each setting of a project that grants something needs
//! the user's trust before it takes effect. Sections that a call does not use are neither checked nor need trust.

pub mod trust;

use crate::{Caller, Directories, request};
use kennel_config::{
    AgentSection, Config, ContainerSection, Environment, Grant, ImagesSection, KeyPath, Layered, Loaded, Location,
    PROFILES, Problem, SandboxOverrides, SandboxSection, SearchPath, SettingsLayer, Sources, Tree,
};
use kennel_core::{Error, Result};
use kennel_types::NextStep;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trust::Trust;

/// The section that only agents use.
const AGENT: &str = "agent";

/// The settings in effect. A profile, and the options of a call, override them.
#[derive(Clone)]
pub struct Settings {
    /// Defaults for every sandbox.
    pub sandbox: SandboxSection,
    /// Settings for pulling and storing images.
    pub images: ImagesSection,
    container: ContainerSection,
    /// Problems that did not prevent loading. A front end should show them.
    pub warnings: Vec<Problem>,
    /// Settings that are accepted but have no effect yet, and where they are.
    pub without_effect: Vec<(String, Location)>,
    /// All layers of settings; `None` if only the built-in defaults apply.
    loaded: Option<Arc<Loaded>>,
    /// The paths in the settings, resolved as they were when trust was checked.
    paths: RealPaths,
    trust: Option<PathBuf>,
}

impl Default for Settings {
    /// Returns the built-in settings, for a program that reads no settings files.
    fn default() -> Self {
        let Config { sandbox, images, container, .. } = Config::default();
        Self {
            sandbox,
            images,
            container,
            warnings: Vec::new(),
            without_effect: Vec::new(),
            loaded: None,
            paths: RealPaths::default(),
            trust: None,
        }
    }
}

impl Settings {
    /// Returns the settings without profiles. Fails if the project's files grant something to sandboxes and are not
    /// trusted.
    pub fn load(caller: &Caller, directories: &Directories) -> Result<Self> {
        Self::load_without(caller, directories, &[PROFILES, AGENT])
    }

    /// Returns the settings with all profiles. A profile needs trust when it is used.
    pub fn load_with_profiles(caller: &Caller, directories: &Directories) -> Result<Self> {
        Self::load_without(caller, directories, &[AGENT])
    }

    fn load_without(caller: &Caller, directories: &Directories, unused: &[&str]) -> Result<Self> {
        let sources = SettingsSources::new(caller);
        let mut settings = Self { trust: Some(directories.trusted()), ..Self::default() };
        if !sources.has_any() {
            return Ok(settings);
        }
        let loaded = sources.read(unused)?;
        settings.warnings.clone_from(&loaded.warnings);
        settings.without_effect = without_effect_in(&loaded);
        let config = loaded.layered.config().map_err(|error| invalid(&error))?;
        settings.loaded = Some(Arc::new(loaded));
        settings.check_trust(|key| matches!(key[0].as_str(), "sandbox" | "images"))?;
        (settings.sandbox, settings.images, settings.container) = (config.sandbox, config.images, config.container);
        if settings.layer_of("sandbox.extraToolchains") == Some(SettingsLayer::Project) {
            for path in &mut settings.sandbox.extra_toolchains {
                *path = settings.paths.resolve(path).unwrap_or_else(|_| path.clone());
            }
        }
        Ok(settings)
    }

    /// Refuses what the project's files grant at the chosen keys, unless the user trusts it.
    fn check_trust(&self, chosen: impl Fn(&[String]) -> bool) -> Result<()> {
        let (Some(loaded), Some(trust)) = (&self.loaded, &self.trust) else { return Ok(()) };
        let mut grants = loaded.layered.grants(&|path| self.paths.resolve(path).ok());
        grants.retain(|grant| chosen(grant.key.segments()));
        if grants.is_empty() { Ok(()) } else { Trust::new(trust.clone()).check(loaded, &grants) }
    }

    /// Returns the time limit for a command in an existing sandbox, or `None` if none is set. No other setting applies
    /// to an existing sandbox, so trust is checked only for this one.
    pub fn command_timeout(caller: &Caller, directories: &Directories) -> Result<Option<Duration>> {
        const KEY: &str = "sandbox.commandTimeout";
        let sources = SettingsSources::new(caller);
        if !sources.has_any() {
            return Ok(None);
        }
        let loaded = sources.read(&[PROFILES, AGENT])?;
        let mut grants = loaded.layered.grants(&|path| path.canonicalize().ok());
        grants.retain(|grant| grant.key.to_string() == KEY);
        if !grants.is_empty() {
            Trust::new(directories.trusted()).check(&loaded, &grants)?;
        }
        let config = loaded.layered.config().map_err(|error| invalid(&error))?;
        let is_set = loaded.layered.layer_of(KEY).is_some_and(|layer| layer != SettingsLayer::BuiltIn);
        Ok(is_set.then_some(config.sandbox.command_timeout.0))
    }

    /// Returns the settings of the agent, for front ends that start agents. Fails with `permission_denied` if the
    /// project's files say anything about the agent that needs trust, and are not trusted: in process mode, its command
    /// runs on the host.
    pub fn agent(caller: &Caller, directories: &Directories) -> Result<AgentSection> {
        let sources = SettingsSources::new(caller);
        if !sources.has_any() {
            return Ok(AgentSection::default());
        }
        let loaded = sources.read(&[PROFILES])?;
        let paths = RealPaths::default();
        let mut granted = grants(&loaded, &paths);
        granted.retain(|grant| grant.key.segments()[0] == AGENT);
        if !granted.is_empty() {
            Trust::new(directories.trusted()).check(&loaded, &granted)?;
        }
        let mut agent = loaded.layered.config().map_err(|error| invalid(&error))?.agent;
        // The path that is used is the one for which trust was checked.
        if let (Some(SettingsLayer::Project), Some(path)) =
            (loaded.layered.layer_of("agent.container.workspaceHostBase"), &mut agent.container.workspace_host_base)
        {
            *path = paths.resolve(path).unwrap_or_else(|_| path.clone());
        }
        Ok(agent)
    }

    /// Returns the profile in which commands run if no other is named. Fails if a project chooses it, and is not
    /// trusted.
    pub fn default_profile(&self) -> Result<Option<&str>> {
        let Some(name) = self.container.default_profile.as_deref() else { return Ok(None) };
        // Also if profiles are switched off: the user's default profile may be stricter than a plain sandbox.
        self.check_trust(is_about_profiles)?;
        Ok(self.container.enabled.then_some(name))
    }

    /// Whether profiles are used.
    pub fn profiles_enabled(&self) -> bool {
        self.container.enabled
    }

    /// Returns the provider of profiles that name none.
    pub(crate) fn profile_provider(&self) -> Result<Option<kennel_config::Provider>> {
        self.check_trust(is_about_profiles)?;
        Ok(self.container.runtime)
    }

    /// Returns the names of the profiles in the settings.
    pub(crate) fn profile_names(&self) -> impl Iterator<Item = &str> {
        self.container.profiles.keys().map(String::as_str)
    }

    /// Whether the caller's settings define a profile: those of this project, or without one the user's own. Needs no
    /// trust, because nothing takes effect.
    pub(crate) fn define_profile(caller: &Caller, name: &str, project: Option<&Path>) -> Result<bool> {
        let sources = SettingsSources::new(caller);
        if !sources.has_any() {
            return Ok(false);
        }
        let loaded = sources.read(&[AGENT])?;
        let config = loaded.layered.config().map_err(|error| invalid(&error))?;
        let settings = loaded.layered.settings().filter(|(key, _)| is_of_profile(key.segments(), name));
        let origins: Vec<_> = settings.map(|(_, setting)| setting.origin.clone()).collect();
        let of_project = origins.iter().find(|origin| origin.layer == SettingsLayer::Project);
        Ok(config.container.profiles.contains_key(name)
            && match project {
                Some(dir) => of_project.is_some_and(|origin| origin.file().and_then(Path::parent) == Some(dir)),
                // The same name in the project that the caller is in is another profile.
                None => origins.is_empty() || origins.iter().any(|origin| origin.layer != SettingsLayer::Project),
            })
    }

    /// Returns a profile of the settings, with its paths resolved. Fails if it grants something, comes from a project,
    /// and is not trusted.
    pub(crate) fn profile(&self, name: &str) -> Result<Option<SettingsProfile>> {
        let Some(profile) = self.container.profiles.get(name) else { return Ok(None) };
        let Some(loaded) = &self.loaded else { return Ok(None) };
        let ours = |key: &[String]| is_about_profiles(key) || is_of_profile(key, name);
        self.check_trust(ours)?;
        let origins: Vec<_> = loaded
            .layered
            .settings()
            .filter(|(key, _)| is_of_profile(key.segments(), name))
            .map(|(_, setting)| setting.origin.clone())
            .collect();
        let of_project = origins.iter().find(|origin| origin.layer == SettingsLayer::Project);
        let file = of_project.or_else(|| origins.first()).and_then(|origin| origin.file().map(Path::to_owned));
        let mut overrides = profile.clone();
        let resolve = |path: &Path| {
            let missing = |error| request::missing_path(path, &format!("container.profiles.{name}:"), error);
            self.paths.resolve(path).map_err(missing)
        };
        for volume in &mut overrides.volumes {
            volume.host = resolve(&volume.host)?;
        }
        for socket in &mut overrides.sockets {
            let missing = |error| request::missing_socket(&socket.host, &format!("container.profiles.{name}:"), error);
            socket.host = self.paths.resolve(&socket.host).map_err(missing)?;
        }
        for path in overrides.extra_toolchains.iter_mut().chain(&mut overrides.workspace) {
            *path = resolve(path)?;
        }
        let project = of_project.and_then(|_| file.as_deref()?.parent().map(Path::to_owned));
        Ok(Some(SettingsProfile { overrides, file, project }))
    }

    /// Removes the settings that have no meaning without a sandbox, and returns the keys that were set. Options of the
    /// call are not removed: the provider refuses them.
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
        let Some(loaded) = &mut self.loaded else { return Vec::new() };
        let dropped = Arc::make_mut(loaded).layered.forget(|key| match key.segments() {
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
    pub fn said<T>(&self, key: &str, value: T) -> Option<T> {
        (self.layer_of(key)? != SettingsLayer::BuiltIn).then_some(value)
    }

    /// Returns the value at `key` as written in an environment variable, or `None` if another layer decides it.
    pub fn in_environment(&self, key: &str) -> Option<&str> {
        match self.layered()?.get(key).ok()?? {
            Tree::Leaf(setting) if setting.origin.layer == SettingsLayer::Environment => setting.written.as_str(),
            _ => None,
        }
    }

    fn layered(&self) -> Option<&Layered> {
        self.loaded.as_ref().map(|loaded| &loaded.layered)
    }

    fn layer_of(&self, key: &str) -> Option<SettingsLayer> {
        self.layered()?.layer_of(key)
    }
}

/// A profile of the settings.
pub(crate) struct SettingsProfile {
    pub(crate) overrides: SandboxOverrides,
    /// The file that contains it.
    pub(crate) file: Option<PathBuf>,
    /// The directory of the project's file, if a project defines it or changes it.
    pub(crate) project: Option<PathBuf>,
}

/// Whether the key is one of `container` that is about all profiles.
fn is_about_profiles(key: &[String]) -> bool {
    key[0] == "container" && key.get(1).is_some_and(|key| key != "profiles")
}

fn is_of_profile(key: &[String], name: &str) -> bool {
    matches!(key, [container, profiles, own, ..] if container == "container" && profiles == "profiles" && own == name)
}

/// A cache of paths with their symlinks resolved. Each path is resolved only once.
#[derive(Clone, Default)]
pub struct RealPaths(Arc<Mutex<HashMap<PathBuf, std::result::Result<PathBuf, i32>>>>);

impl RealPaths {
    /// Returns the path with all symlinks resolved. Later calls return the same result, even if a symlink has changed.
    pub fn resolve(&self, path: &Path) -> std::io::Result<PathBuf> {
        let look = || path.canonicalize().map_err(|error| error.raw_os_error().unwrap_or_default());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.entry(path.to_owned()).or_insert_with(look).clone();
        found.map_err(std::io::Error::from_raw_os_error)
    }
}

/// The sources of a caller's settings: the current directory, the user's directory and the environment.
pub struct SettingsSources {
    /// The directory where the search for the project's files begins.
    pub current_dir: PathBuf,
    /// The directory of the user's file, if there is one.
    pub user: Option<PathBuf>,
    /// The environment variables.
    pub environment: Environment,
    users: Vec<u32>,
}

impl SettingsSources {
    /// Returns the sources of this caller's settings.
    pub fn new(caller: &Caller) -> Self {
        Self {
            current_dir: caller.current_dir.clone(),
            user: Directories::config_of(caller),
            environment: caller.environment(),
            users: caller.users(),
        }
    }

    /// Returns all paths that may contain settings.
    pub fn search_paths(&self) -> Vec<SearchPath> {
        kennel_config::paths(&self.current_dir, self.user.as_deref(), &self.users)
    }

    /// Whether there are any settings. This is much faster than reading them.
    fn has_any(&self) -> bool {
        self.environment.keys().any(|name| kennel_config::is_ours(name))
            || self.search_paths().iter().any(|search_path| search_path.exists)
    }

    /// Reads all settings. If a section that sandboxes do not use is invalid, it is left out, and its problems are
    /// returned as text.
    pub fn read_all(&self) -> Result<(Loaded, Vec<String>)> {
        let problems = match self.read(&[]) {
            Ok(loaded) => return Ok((loaded, Vec::new())),
            Err(error) => error.to_string().lines().map(ToOwned::to_owned).collect(),
        };
        let used = self.read(&[AGENT]).or_else(|_| self.read(&["container", AGENT]))?;
        Ok((used, problems))
    }

    fn read(&self, unused: &[&str]) -> Result<Loaded> {
        let sources = Sources {
            project: &self.current_dir,
            user: self.user.as_deref(),
            users: &self.users,
            current: &self.current_dir,
            environment: &self.environment,
            flags: None,
            unused,
        };
        kennel_config::load(&sources).map_err(|error| invalid(&error))
    }
}

/// Returns what the project's files grant, for the user to read and trust.
pub fn grants<'a>(loaded: &'a Loaded, paths: &RealPaths) -> Vec<Grant<'a>> {
    loaded.layered.grants(&|path| paths.resolve(path).ok())
}

/// Returns the settings that are accepted but have no effect yet.
fn without_effect_in(loaded: &Loaded) -> Vec<(String, Location)> {
    let is_vm = |key: &KeyPath| key.segments().starts_with(&["sandbox".to_owned(), "vm".to_owned()]);
    let mut set = loaded.layered.settings().filter(|(_, setting)| setting.origin.layer != SettingsLayer::BuiltIn);
    let vm = set.find(|(key, _)| is_vm(key));
    vm.map(|(_, setting)| ("sandbox.vm".to_owned(), setting.origin.at.clone())).into_iter().collect()
}

/// Converts the problems in settings files to one error.
pub fn invalid(error: &kennel_config::Error) -> Error {
    let steps = [NextStep::LookUpSettings, NextStep::ShowSettings { key: None }];
    Error::of_lines(error.code(), error.to_string().lines()).suggest(NextStep::either(steps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_types::ErrorCode;

    const AGENT_FILE: &str = "[agent]\ncommand = \"/bin/true\"\n";

    /// A caller with an empty project and an empty home.
    fn caller(dir: &Path) -> (Caller, Directories) {
        let project = dir.join("project");
        std::fs::create_dir_all(&project).unwrap();
        let variables = [(crate::caller::KENNEL_HOME.into(), dir.join("home").into_os_string())].into();
        let caller = Caller { variables, current_dir: project, uid: rustix::process::geteuid().as_raw() };
        let directories = Directories::find(&caller).unwrap();
        (caller, directories)
    }

    #[test]
    fn the_agent_of_a_project_needs_trust() {
        let dir = tempfile::tempdir().unwrap();
        let (caller, directories) = caller(dir.path());
        assert_eq!(Settings::agent(&caller, &directories).unwrap(), AgentSection::default());
        let file = caller.current_dir.join("kennel.toml");
        std::fs::write(&file, AGENT_FILE).unwrap();
        let refused = Settings::agent(&caller, &directories).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::PermissionDenied);
        assert!(refused.to_string().contains("agent.command"), "{refused}");
        // Sandboxes do not use the agent, so they need no trust for it.
        Settings::load(&caller, &directories).unwrap();

        let (loaded, _) = SettingsSources::new(&caller).read_all().unwrap();
        Trust::new(directories.trusted()).allow(&loaded, &grants(&loaded, &RealPaths::default())).unwrap();
        let agent = Settings::agent(&caller, &directories).unwrap();
        assert_eq!(agent.command.as_deref(), Some("/bin/true"));

        std::fs::write(&file, AGENT_FILE.replace("true", "false")).unwrap();
        let refused = Settings::agent(&caller, &directories).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::PermissionDenied, "the trust was in another command");
    }

    #[test]
    fn the_agent_of_the_user_needs_no_trust() {
        let dir = tempfile::tempdir().unwrap();
        let (caller, directories) = caller(dir.path());
        let config = Directories::config_of(&caller).unwrap();
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("config.toml"), AGENT_FILE).unwrap();
        let agent = Settings::agent(&caller, &directories).unwrap();
        assert_eq!(agent.command.as_deref(), Some("/bin/true"));
    }
}
