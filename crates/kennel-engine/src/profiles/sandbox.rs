//! The sandbox of a profile: starts it, finds it again, stops and removes it.

use super::{Profile, ProfileState, Profiles, WORKSPACE};
use crate::PoolResult;
use crate::choose::provider_in_settings;
use crate::pool::is_member;
use kennel_core::{Error, Provider, PullProgress, RemoveOptions, Result, Sandbox};
use kennel_provider::labels::{PROFILE, STORE};
use kennel_types::{
    EndCause, ErrorCode, NextStep, ProviderKind, Pull, SandboxId, SandboxInfo, SandboxSpec, Status, Support,
};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long processes may take to end when a profile is stopped.
const GRACE: Duration = Duration::from_secs(10);

/// The status of a profile, from its sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "status")]
pub enum ProfileStatus {
    /// It has no sandbox, or its sandbox was stopped on request or because it was idle, or has ended with code 0.
    Stopped,
    /// It runs.
    Running,
    /// It is paused.
    Paused,
    /// It ended by itself, and not with code 0.
    #[serde(rename_all = "camelCase")]
    Error {
        /// The exit code.
        exit_code: Option<i32>,
        /// Why it ended.
        cause: Option<EndCause>,
    },
}

impl ProfileStatus {
    /// Returns the status of a profile with this sandbox.
    pub fn of_sandbox(sandbox: Option<&SandboxInfo>) -> Self {
        let Some(info) = sandbox else { return Self::Stopped };
        let failed = match info.end_cause {
            Some(EndCause::OutOfMemory | EndCause::Killed) => true,
            Some(EndCause::Requested | EndCause::Idle | EndCause::OwnerGone) => false,
            Some(EndCause::Exited) | None => info.exit_code.is_some_and(|code| code != 0),
        };
        match info.status {
            Status::Running => Self::Running,
            Status::Paused => Self::Paused,
            Status::Stopped if failed => Self::Error { exit_code: info.exit_code, cause: info.end_cause },
            Status::Created | Status::Stopped => Self::Stopped,
        }
    }
}

impl std::fmt::Display for ProfileStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Running => f.write_str("running"),
            Self::Paused => f.write_str("paused"),
            Self::Error { exit_code: Some(code), .. } => write!(f, "error ({code})"),
            Self::Error { exit_code: None, .. } => f.write_str("error"),
        }
    }
}

/// The result of a start.
pub struct Started {
    /// The running sandbox.
    pub sandbox: Sandbox,
    /// Whether it was created just now.
    pub created: bool,
    /// Whether it was started just now.
    pub started: bool,
    /// Whether the profile has changed since the sandbox was created.
    pub profile_changed: bool,
    /// Whether the image has changed since the sandbox was created.
    pub image_changed: bool,
    /// The current directory, if it has become the profile's workspace just now because nothing names one.
    pub chosen_workspace: Option<PathBuf>,
    /// The provider that the settings name, if it is not available and another one was chosen just now.
    pub instead_of: Option<ProviderKind>,
    /// Whether it came from a pool, if it was created just now and a pool was asked.
    pub pool: Option<PoolResult>,
}

/// A profile with its sandbox, if it has one.
#[derive(Debug)]
pub struct ProfileUse {
    /// The profile.
    pub profile: Profile,
    /// The sandbox.
    pub sandbox: Option<SandboxInfo>,
    /// The status.
    pub status: ProfileStatus,
    /// Whether the image has changed since the sandbox was created.
    pub image_changed: bool,
}

impl Profiles<'_> {
    /// Returns the provider that a profile would use first: the one that it or the settings name, else native. Nothing
    /// is tried.
    pub(super) fn usual_provider(&self, profile: &Profile) -> Result<ProviderKind> {
        Ok(self.named_provider(profile)?.unwrap_or(ProviderKind::Native))
    }

    fn named_provider(&self, profile: &Profile) -> Result<Option<ProviderKind>> {
        if let Some(named) = self.engine.named() {
            return Ok(Some(named));
        }
        let own = profile.overrides.provider.map(|set| provider_in_settings(set, "provider")).transpose()?.flatten();
        let all = || {
            let set = self.settings.profile_provider()?;
            Ok(set.map(|set| provider_in_settings(set, "container.runtime")).transpose()?.flatten())
        };
        own.map_or_else(all, |own| Ok(Some(own)))
    }

    /// Returns the provider of a profile: the one of its first start, else the one that it names, else a detected one.
    /// With `container.runtime` podman, Docker is used if only that is available.
    pub(super) async fn provider(&self, profile: &Profile) -> Result<(ProviderKind, Arc<dyn Provider>)> {
        if let Some(pinned) = profile.state.provider {
            if let Some(named) = self.engine.named().filter(|named| *named != pinned) {
                let message =
                    format!("profile {} has its sandbox on {}, not on {}", profile.name, pinned.name(), named.name());
                return Err(Error::new(ErrorCode::Conflict, message).suggest(NextStep::use_provider([pinned])));
            }
            return Ok((pinned, self.engine.provider_with(pinned, &self.settings)?));
        }
        if let Some(named) = self.named_provider(profile)? {
            let fallback = named == ProviderKind::Podman
                && profile.overrides.provider.is_none()
                && self.engine.named().is_none()
                && !self.engine.endpoint(named)?.may_answer()
                && self.engine.endpoint(ProviderKind::Docker)?.may_answer();
            let chosen = if fallback { ProviderKind::Docker } else { named };
            return Ok((chosen, self.engine.provider_with(chosen, &self.settings)?));
        }
        let image = profile.overrides.image.as_deref().or(self.settings.sandbox.image.as_deref());
        let mut settings = self.settings.clone();
        let kind = self.engine.choose(&mut settings, image).await?.kind;
        Ok((kind, self.engine.provider_with(kind, &settings)?))
    }

    /// Returns the provider of the sandbox that a profile has or had, or `None` if it was never started.
    fn pinned_provider(&self, profile: &Profile) -> Result<Option<Arc<dyn Provider>>> {
        let provider = profile.state.provider.map(|pinned| self.engine.provider_with(pinned, &self.settings));
        provider.transpose()
    }

    /// Finds the sandbox of a profile: by the id in its state, by its name, and by its label.
    async fn find_sandbox(&self, provider: &Arc<dyn Provider>, profile: &Profile) -> Result<Option<Sandbox>> {
        let key = profile.key();
        // A session that was made from the profile has its own sandbox.
        let ours = |info: &SandboxInfo| {
            info.labels.get(PROFILE) == Some(&key) && !info.labels.contains_key(STORE) && !is_member(info)
        };
        let name = profile.sandbox_name();
        let hints = profile.state.sandbox.iter().map(SandboxId::as_str).chain([name.as_str()]);
        for hint in hints {
            match Sandbox::find(provider.clone(), hint).await {
                Ok(sandbox) if ours(sandbox.info()) => return Ok(Some(sandbox)),
                Ok(sandbox) if sandbox.info().name == name => {
                    let message = format!("a sandbox that does not belong to profile {} has its name", profile.name);
                    return Err(Error::new(ErrorCode::AlreadyExists, message).suggest(NextStep::RemoveSandbox {
                        name: name.clone(),
                        force: true,
                        volumes: false,
                    }));
                }
                Ok(_) => {}
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        match provider.list().await?.iter().find(|info| ours(info)) {
            Some(info) => Sandbox::find(provider.clone(), info.id.as_str()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns a profile with the current state of its sandbox.
    pub async fn status(&self, name: &str) -> Result<ProfileUse> {
        let profile = self.get(name)?;
        let (mut sandbox, mut image_changed) = (None, false);
        if let Some(provider) = self.pinned_provider(&profile)? {
            sandbox = self.find_sandbox(&provider, &profile).await?.map(|found| found.info().clone());
            image_changed = sandbox.is_some() && self.image_changed(&*provider, &profile).await?;
        }
        let status = ProfileStatus::of_sandbox(sandbox.as_ref());
        Ok(ProfileUse { profile, sandbox, status, image_changed })
    }

    /// Whether the name of the profile's image refers to another image than when the sandbox was created.
    async fn image_changed(&self, provider: &dyn Provider, profile: &Profile) -> Result<bool> {
        let image = profile.overrides.image.as_ref().or(self.settings.sandbox.image.as_ref());
        let (Some(image), Some(before)) = (image, &profile.state.image) else { return Ok(false) };
        Ok(provider.image_id(image).await?.is_some_and(|now| now != *before))
    }

    /// Returns the sandbox of a profile. Fails with `not_found` if it has none.
    pub async fn sandbox(&self, name: &str) -> Result<Sandbox> {
        let profile = self.get(name)?;
        let found = match self.pinned_provider(&profile)? {
            Some(provider) => self.find_sandbox(&provider, &profile).await?,
            None => None,
        };
        found.ok_or_else(|| {
            Error::new(ErrorCode::NotFound, format!("profile {name} has no sandbox"))
                .suggest(NextStep::StartProfile { name: name.to_owned() })
        })
    }

    /// Makes sure that the sandbox of a profile runs: creates it if there is none, and starts it if it does not run. Any
    /// number of calls at once create one sandbox. `pull` overrides when the image is pulled.
    pub async fn start(&self, name: &str, pull: Option<Pull>, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<Started> {
        self.check_enabled()?;
        let key = self.get(name)?.key();
        let _lock = self.lock(&key).await?;
        let profile = self.get(name)?;
        let (kind, provider) = self.provider(&profile).await?;
        match self.find_sandbox(&provider, &profile).await? {
            Some(sandbox) => {
                if let (Some(when), Some(image)) = (pull, &sandbox.info().image) {
                    provider.pull(image, when, tell).await?;
                }
                let spec = self.spec(&profile, provider.mode())?;
                let profile_changed = profile.state.spec.as_ref().is_some_and(|before| *before != hash(&spec));
                let image_changed = self.image_changed(&*provider, &profile).await?;
                let started = wake(&sandbox).await?;
                Ok(Started {
                    sandbox,
                    created: false,
                    started,
                    profile_changed,
                    image_changed,
                    chosen_workspace: None,
                    instead_of: None,
                    pool: None,
                })
            }
            None => self.create_sandbox(&profile, (kind, provider), pull, tell).await,
        }
    }

    /// Creates and starts the sandbox of a profile. The caller holds the profile's lock, and has found no sandbox.
    async fn create_sandbox(
        &self,
        profile: &Profile,
        (kind, provider): (ProviderKind, Arc<dyn Provider>),
        pull: Option<Pull>,
        tell: &(dyn Fn(PullProgress) + Sync),
    ) -> Result<Started> {
        let named = if profile.state.provider.is_none() { self.named_provider(profile)? } else { None };
        let instead_of = named.filter(|named| *named != kind);
        let spec = self.spec(profile, provider.mode())?;
        if let Some(image) = &spec.image {
            let when = pull.or(profile.overrides.pull).unwrap_or(self.settings.sandbox.pull);
            provider.pull(image, when, tell).await?;
        }
        let mut claimed = self.engine.pool_claims()?.claim(&*provider, &spec, self.pool).await?;
        let id = claimed.id.clone();
        let image = match &spec.image {
            Some(image) => provider.image_id(image).await?,
            None => None,
        };
        // Written first, so that after a crash the sandbox is looked for where it was created.
        let key = profile.key();
        let before = self.read(&key)?;
        let mut document = before.clone().unwrap_or_default();
        document.state = ProfileState {
            provider: Some(kind),
            sandbox: Some(id.clone()),
            workspace: if profile.settings_file.is_some() { spec.workspace.clone() } else { None },
            spec: Some(hash(&spec)),
            image,
            of_settings: document.overrides.is_none(),
        };
        self.write(&key, &profile.name, &document)?;
        let made = async {
            let sandbox = claimed.create(provider, &spec).await?;
            // A container from a pool runs.
            if !sandbox.info().status.is_up()
                && let Err(error) = sandbox.start().await
            {
                // What never ran is of no use to anyone. If it cannot be removed, it is found again by its label.
                let _ = sandbox.remove(RemoveOptions { volumes: false, force: true }).await;
                return Err(error);
            }
            Ok(sandbox)
        };
        let sandbox = match made.await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                // The first start has not taken place, so no provider is chosen yet.
                match before {
                    Some(before) => self.write(&key, &profile.name, &before)?,
                    None => self.forget(&key)?,
                }
                return Err(error);
            }
        };
        let chosen = profile.workspace_of_first_use && profile.overrides.workspace.is_none();
        let chosen_workspace = spec.workspace.filter(|_| chosen && self.settings.sandbox.workspace.is_none());
        Ok(Started {
            sandbox,
            created: true,
            started: true,
            profile_changed: false,
            image_changed: false,
            chosen_workspace,
            instead_of,
            pool: claimed.result,
        })
    }

    /// Stops the sandbox of a profile. It is no error if it does not run. Returns whether it ran.
    pub async fn stop(&self, name: &str) -> Result<bool> {
        let key = self.get(name)?.key();
        let _lock = self.lock(&key).await?;
        let profile = self.get(name)?;
        let Some(provider) = self.pinned_provider(&profile)? else { return Ok(false) };
        let Some(sandbox) = self.find_sandbox(&provider, &profile).await? else { return Ok(false) };
        let ran = sandbox.info().status.is_up();
        sandbox.stop(GRACE).await?;
        Ok(ran)
    }

    /// Restarts the sandbox of a profile. If the profile has changed, or (with `pull`) its image, the sandbox is created
    /// again, and keeps its volumes.
    pub async fn restart(&self, name: &str, pull: bool, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<Started> {
        self.check_enabled()?;
        let key = self.get(name)?.key();
        let _lock = self.lock(&key).await?;
        let profile = self.get(name)?;
        let (kind, provider) = self.provider(&profile).await?;
        let when = pull.then_some(Pull::Always);
        let Some(sandbox) = self.find_sandbox(&provider, &profile).await? else {
            return self.create_sandbox(&profile, (kind, provider), when, tell).await;
        };
        let spec = self.spec(&profile, provider.mode())?;
        let mut pulled = Ok(());
        if let (Some(when), Some(image)) = (when, &spec.image) {
            pulled = provider.pull(image, when, tell).await;
        }
        let changed = profile.state.spec.as_ref().is_none_or(|before| *before != hash(&spec));
        let image_changed = self.image_changed(&*provider, &profile).await?;
        // An image that was built or loaded here may have no registry. If it has changed, it is what is wanted.
        if !image_changed {
            pulled?;
        }
        if changed || (pull && image_changed) {
            sandbox.stop(GRACE).await?;
            sandbox.remove(RemoveOptions { volumes: false, force: true }).await?;
            return self.create_sandbox(&profile, (kind, provider), Some(Pull::Missing), tell).await;
        }
        sandbox.stop(GRACE).await?;
        sandbox.start().await?;
        Ok(Started {
            sandbox,
            created: false,
            started: true,
            profile_changed: false,
            image_changed,
            chosen_workspace: None,
            instead_of: None,
            pool: None,
        })
    }

    /// Deletes a profile and its sandbox. The sandbox's volumes are kept unless `volumes` is set.
    pub async fn delete(&self, name: &str, volumes: bool) -> Result<()> {
        // A profile that is not trusted can be deleted, but only its own file counts then.
        let key = self.get(name)?.key();
        let _lock = self.lock(&key).await?;
        let profile = self.get(name)?;
        if let (false, Some(file)) = (profile.has_file, &profile.settings_file) {
            let message = format!("profile {name} is defined in {}", file.display());
            return Err(Error::new(ErrorCode::Unsupported, message)
                .suggest(NextStep::RemoveFromSettings { file: file.clone() }));
        }
        if let Some(provider) = self.pinned_provider(&profile)?
            && let Some(sandbox) = self.find_sandbox(&provider, &profile).await?
        {
            if sandbox.info().status.is_up() {
                sandbox.stop(GRACE).await?;
            }
            match sandbox.remove(RemoveOptions { volumes, force: true }).await {
                Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
                _ => {}
            }
        }
        self.forget(&key)
    }

    /// Returns the caller's current directory, relative to the profile's workspace. Fails if it is outside of it.
    pub(super) fn below_workspace(&self, profile: &Profile, workspace: &Path) -> Result<PathBuf> {
        let here = &self.engine.caller().current_dir;
        let here = here.canonicalize().unwrap_or_else(|_| here.clone());
        if let Some(below) = below(&here, workspace) {
            return Ok(below);
        }
        let go_there = NextStep::ChangeDirectory { path: workspace.to_owned() };
        let (why, step) = if profile.workspace_of_first_use {
            let choose = NextStep::EditProfile { name: profile.name.clone() };
            (", where it was used first", NextStep::either([go_there, choose]))
        } else {
            ("", go_there)
        };
        let (name, workspace, here) = (&profile.name, workspace.display(), here.display());
        let message = format!("profile {name} is for {workspace}{why}, and the current directory is {here}");
        Err(Error::new(ErrorCode::InvalidConfig, message).suggest(step))
    }

    /// Returns the directory inside in which a command runs that the caller starts from its current directory. `None` is
    /// the sandbox's own working directory. Fails if the current directory is outside the profile's workspace.
    pub fn directory_inside(&self, profile: &Profile, sandbox: &Sandbox) -> Result<Option<String>> {
        let Some(workspace) = &sandbox.info().workspace else { return Ok(None) };
        let below = self.below_workspace(profile, workspace)?;
        if below.as_os_str().is_empty() {
            return Ok(None);
        }
        let mounted = sandbox.provider().mode().mounts == Support::Given;
        let top = if mounted { Path::new(WORKSPACE) } else { workspace };
        Ok(top.join(below).to_str().map(ToOwned::to_owned))
    }
}

fn below(path: &Path, dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    path.strip_prefix(dir).ok().map(Path::to_owned)
}

/// Starts a sandbox that does not run. Returns whether it was started.
async fn wake(sandbox: &Sandbox) -> Result<bool> {
    match sandbox.info().status {
        Status::Running => Ok(false),
        Status::Paused => sandbox.unpause().await.map(|()| true),
        Status::Created | Status::Stopped => sandbox.start().await.map(|()| true),
    }
}

/// Returns the hash of a specification.
fn hash(spec: &SandboxSpec) -> String {
    let bytes = serde_json::to_vec(spec).unwrap_or_default();
    format!("{:x}", Sha256::digest(bytes))
}
