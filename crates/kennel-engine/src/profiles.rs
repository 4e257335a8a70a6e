//! Profiles: named descriptions of sandboxes that stay. Each profile has at most one sandbox.
//!
//! A profile is defined by its own file, `<data>/profiles/NAME.json`, on top of the settings (`container.profiles`),
//! which are a read-only layer. A profile from a project's settings belongs to that project: the same name in two
//! projects is two profiles.
//!
//! The provider is the truth about the sandbox. The file only notes which provider was chosen at the first start, and
//! the sandbox's id as a hint. Two starts at once never create two sandboxes: a lock orders them, and the sandbox has a
//! name that the provider gives only once.

mod document;
mod orphans;
mod sandbox;
mod session;

pub use document::{ProfileDocument, ProfileState};
pub use orphans::OrphanedProfile;
pub use sandbox::{ProfileStatus, ProfileUse, Started};
pub use session::SessionSandbox;

use crate::settings::SettingsProfile;
use crate::{Engine, PoolUse, Settings, request};
use kennel_config::SandboxOverrides;
use kennel_core::{Error, Result, printable};
use kennel_types::{ErrorCode, Field, NextStep, SandboxSpec};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The path inside at which a workspace is mounted.
const WORKSPACE: &str = "/workspace";

/// The profiles that a caller can use.
pub struct Profiles<'a> {
    engine: &'a Engine,
    settings: Settings,
    dir: PathBuf,
    pool: PoolUse,
}

/// A profile.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The name.
    pub name: String,
    /// What it overrides, with absolute paths.
    pub overrides: SandboxOverrides,
    /// The settings file that defines it, if one does.
    pub settings_file: Option<PathBuf>,
    /// The project that it belongs to, if a project's settings define it.
    pub project: Option<PathBuf>,
    /// Whether it has a file of its own, on top of the settings.
    pub has_file: bool,
    /// Whether nothing names its workspace, so that it is the directory in which it was used first.
    pub workspace_of_first_use: bool,
    /// What is known about its sandbox.
    pub state: ProfileState,
}

impl Engine {
    /// Returns the profiles. Fails if the settings are invalid.
    pub fn profiles(&self) -> Result<Profiles<'_>> {
        let settings = self.settings_with_profiles()?;
        Ok(Profiles { engine: self, settings, dir: self.directories()?.profiles(), pool: PoolUse::default() })
    }
}

impl Profile {
    /// Returns what identifies the profile: its name and, if it belongs to a project, a hash of the project's path.
    pub fn key(&self) -> String {
        key(&self.name, self.project.as_deref())
    }

    /// Returns the name of its sandbox.
    pub fn sandbox_name(&self) -> String {
        const LONGEST: usize = 40;
        let valid = |char: char| if char.is_ascii_lowercase() || char.is_ascii_digit() { char } else { '-' };
        let slug: String = self.name.to_ascii_lowercase().chars().map(valid).take(LONGEST).collect();
        let same = slug == self.name && self.project.is_none();
        if same { format!("profile-{slug}") } else { format!("profile-{slug}-{}", short_hash(self.key().as_bytes())) }
    }
}

fn key(name: &str, project: Option<&Path>) -> String {
    project.map_or_else(
        || name.to_owned(),
        |project| format!("{name}@{}", short_hash(project.as_os_str().as_encoded_bytes())),
    )
}

fn short_hash(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))[..8].to_owned()
}

/// Checks the name of a profile. It becomes part of a file name and of a container's name.
fn check_name(name: &str) -> Result<()> {
    let valid = (1..=100).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char));
    if valid {
        return Ok(());
    }
    let message = format!(
        "invalid profile name {:?}: expected letters, digits, dots, dashes and underscores, beginning with a letter or \
         digit",
        printable(name)
    );
    Err(Error::new(ErrorCode::InvalidConfig, message))
}

impl Profiles<'_> {
    /// Decides whether a sandbox that is created for a profile uses a pool.
    #[must_use]
    pub fn with_pool(self, pool: PoolUse) -> Self {
        Self { pool, ..self }
    }

    /// The settings in effect, with their warnings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the names of all profiles, in order.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names: BTreeSet<String> = self.settings.profile_names().map(ToOwned::to_owned).collect();
        names.extend(document::names(&self.dir)?);
        Ok(names.into_iter().collect())
    }

    /// Returns a profile. Fails with `permission_denied` if a project defines it, it grants something, and the user does
    /// not trust it.
    pub fn get(&self, name: &str) -> Result<Profile> {
        check_name(name)?;
        let settings = self.settings.profile(name)?;
        let project = settings.as_ref().and_then(|profile| profile.project.clone());
        let document = self.read(&key(name, project.as_deref()))?;
        Self::join(name, settings, document).ok_or_else(|| no_profile(name))
    }

    /// Puts the file of a profile on top of its settings. Returns `None` if neither defines it.
    fn join(name: &str, settings: Option<SettingsProfile>, document: Option<ProfileDocument>) -> Option<Profile> {
        let document = document.unwrap_or_default();
        let has_file = document.is_defined();
        if settings.is_none() && !has_file {
            return None;
        }
        let (settings_file, project) =
            settings.as_ref().map(|profile| (profile.file.clone(), profile.project.clone())).unwrap_or_default();
        let below = settings.map(|profile| profile.overrides).unwrap_or_default();
        let mut overrides = with_workspace(request::merge(below, document.overrides.unwrap_or_default()));
        overrides.name = None;
        let named = overrides.workspace.is_some() || overrides.no_workspace == Some(true);
        if !named {
            overrides.workspace = document.state.workspace.clone().or_else(|| project.clone());
        }
        Some(Profile {
            name: name.to_owned(),
            overrides,
            workspace_of_first_use: !named && settings_file.is_some() && project.is_none(),
            settings_file,
            project,
            has_file,
            state: document.state,
        })
    }

    /// Refuses to use profiles if the settings switch them off.
    pub(super) fn check_enabled(&self) -> Result<()> {
        if self.settings.profiles_enabled() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::Unsupported, "profiles are switched off: container.enabled is false")
            .suggest(NextStep::ShowSettings { key: Some("container.enabled".to_owned()) }))
    }

    /// Creates a profile in a file of its own. Paths in the overrides must be absolute and contain no symlinks. If no
    /// workspace is given, it is the current directory.
    pub async fn create(&self, name: &str, overrides: SandboxOverrides) -> Result<Profile> {
        check_name(name)?;
        self.check_enabled()?;
        let _lock = self.lock(name).await?;
        if self.settings.profile_names().any(|known| known == name)
            || self.read(name)?.is_some_and(|it| it.is_defined())
        {
            return Err(Error::new(ErrorCode::AlreadyExists, format!("there is a profile {name} already"))
                .suggest(NextStep::EditProfile { name: name.to_owned() }));
        }
        let mut overrides = with_workspace(SandboxOverrides { name: None, ..overrides });
        overrides.workspace = request::workspace(&self.settings, &overrides, self.engine.caller())?;
        let profile = Self::profile_of(name, overrides.clone());
        // A profile that can never be started is refused now, and not at its first use.
        self.spec(&profile, kennel_types::Mode::first_of(self.usual_provider(&profile)?)).map(drop)?;
        let document = ProfileDocument { overrides: Some(overrides), ..ProfileDocument::default() };
        self.write(name, name, &document)?;
        Ok(profile)
    }

    fn profile_of(name: &str, overrides: SandboxOverrides) -> Profile {
        Profile {
            name: name.to_owned(),
            overrides,
            settings_file: None,
            project: None,
            has_file: true,
            workspace_of_first_use: false,
            state: ProfileState::default(),
        }
    }

    /// Changes a profile: puts `changes` over it. For a profile of the settings this creates a file on top of them.
    pub async fn edit(&self, name: &str, changes: SandboxOverrides) -> Result<Profile> {
        let key = self.get(name)?.key();
        let _lock = self.lock(&key).await?;
        let mut document = self.read(&key)?.unwrap_or_default();
        if document.has_variables() {
            let message =
                format!("profile {name} refers to variables, which this change would replace by their values");
            return Err(
                Error::new(ErrorCode::Unsupported, message).suggest(NextStep::EditProfile { name: name.to_owned() })
            );
        }
        let changes = SandboxOverrides { name: None, ..with_workspace(changes) };
        let wants_image = changes.image_command == Some(true);
        document.set(request::merge(document.overrides.clone().unwrap_or_default(), changes));
        if wants_image {
            let after = Self::join(name, self.settings.profile(name)?, Some(document.clone()));
            let profile = after.ok_or_else(|| no_profile(name))?;
            self.spec(&profile, kennel_types::Mode::first_of(self.usual_provider(&profile)?)).map(drop)?;
        }
        self.write(&key, name, &document)?;
        self.get(name)
    }

    /// Replaces what a profile's own file says, for example after the user has edited its text.
    pub async fn replace(&self, name: &str, text: &str) -> Result<Profile> {
        let profile = self.get(name)?;
        let key = profile.key();
        let _lock = self.lock(&key).await?;
        let file = document::path(&self.dir, &key);
        let mut document = self.read(&key)?.unwrap_or_default();
        let overrides = with_workspace(document::parse(text, &file, &self.engine.caller().environment())?);
        let mut written: Option<serde_json::Value> = serde_json::from_str(text).ok();
        // The workspace was chosen when the profile was created. It stays unless the text names another, or none.
        let keeps = overrides.workspace.is_none() && overrides.no_workspace != Some(true);
        if let (true, Some(workspace), Some(written)) = (keeps, &profile.overrides.workspace, &mut written) {
            written["workspace"] = workspace.to_string_lossy().replace('$', "$$").into();
        }
        document.set(overrides);
        document.written = written;
        self.write(&key, name, &document)?;
        self.get(name)
    }

    /// Returns what a profile's own file says, as text that [`Self::replace`] accepts.
    pub fn text(&self, name: &str) -> Result<String> {
        let profile = self.get(name)?;
        Ok(self.read(&profile.key())?.unwrap_or_default().to_text(name))
    }

    /// Builds the specification of a profile's sandbox for a provider with this mode.
    fn spec(&self, profile: &Profile, mode: &kennel_types::Mode) -> Result<SandboxSpec> {
        let overrides = SandboxOverrides { name: Some(profile.sandbox_name()), ..profile.overrides.clone() };
        self.spec_with(profile, &overrides, mode)
    }

    /// Builds the specification of a sandbox that is made from a profile, with these overrides in place of its own.
    fn spec_with(
        &self,
        profile: &Profile,
        overrides: &SandboxOverrides,
        mode: &kennel_types::Mode,
    ) -> Result<SandboxSpec> {
        let sockets = overrides.sockets.iter().map(|socket| &socket.host);
        for path in overrides.volumes.iter().map(|volume| &volume.host).chain(&overrides.workspace).chain(sockets) {
            check_path(&profile.name, path)?;
        }
        let caller = self.engine.caller();
        let workspace = request::workspace(&self.settings, overrides, caller)?;
        let spec = request::spec(&self.settings, overrides, workspace, caller, mode)?;
        check_main(&profile.name, &spec)?;
        let project = profile.project.as_ref().map(|project| project.display().to_string());
        Ok(SandboxSpec { profile: Some(profile.key()), project: project.or(spec.project.clone()), ..spec })
    }

    fn read(&self, key: &str) -> Result<Option<ProfileDocument>> {
        document::read(&self.dir, key, &self.engine.caller().environment())
    }

    fn write(&self, key: &str, name: &str, document: &ProfileDocument) -> Result<()> {
        self.engine.failpoints().reach("profile: before write");
        let written = document::write(&self.dir, key, name, document, self.engine.failpoints());
        self.engine.failpoints().reach("profile: after write");
        written
    }

    /// Removes the file of a profile.
    fn forget(&self, key: &str) -> Result<()> {
        self.engine.failpoints().reach("profile: before remove");
        let removed = document::remove(&self.dir, key);
        self.engine.failpoints().reach("profile: after remove");
        document::sweep_locks(&self.dir);
        removed
    }

    async fn lock(&self, key: &str) -> Result<document::Lock> {
        self.engine.failpoints().reach("profile: before lock");
        let lock = document::lock(&self.dir, key).await;
        self.engine.failpoints().reach("profile: after lock");
        lock
    }
}

/// Converts a mount at the workspace's path to the workspace itself, as document 001 writes it.
fn with_workspace(mut overrides: SandboxOverrides) -> SandboxOverrides {
    let at = overrides.volumes.iter().position(|volume| volume.container == WORKSPACE);
    if let (Some(at), None) = (at, &overrides.workspace) {
        if overrides.volumes[at].readonly {
            overrides.no_workspace = Some(true);
        } else {
            overrides.workspace = Some(overrides.volumes.remove(at).host);
        }
    }
    overrides
}

/// Checks that a path still leads where it led when the profile was made. Processes in a sandbox can replace a directory
/// of the workspace by a symlink.
fn check_path(profile: &str, path: &Path) -> Result<()> {
    let at = format!("profile {profile}:");
    let real = path.canonicalize().map_err(|error| request::missing_path(path, &at, error))?;
    if real == path {
        return Ok(());
    }
    let message = format!("profile {profile}: {} leads to {} now", path.display(), real.display());
    Err(Error::new(ErrorCode::PermissionDenied, message).suggest(NextStep::EditProfile { name: profile.to_owned() }))
}

/// Refuses to use the command of an image if there is no image.
fn check_main(profile: &str, spec: &SandboxSpec) -> Result<()> {
    if spec.image_main && spec.image.is_none() {
        let message = format!("profile {profile}: the command of the image is requested, but there is no image");
        return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::set(Field::Image)));
    }
    Ok(())
}

fn no_profile(name: &str) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no profile {name}")).suggest(NextStep::ListProfiles)
}
