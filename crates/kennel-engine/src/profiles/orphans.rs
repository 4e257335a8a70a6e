//! Sandboxes whose profile no longer exists, for example because it was removed from a settings file. They are only
//! reported: the provider cannot know whether the user still needs their files.

use super::{document, key};
use crate::{Caller, Engine, Settings, Silent};
use kennel_core::Result;
use kennel_provider::labels;
use kennel_types::{SandboxId, SandboxInfo};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A sandbox whose profile no longer exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OrphanedProfile {
    /// The provider.
    pub provider: String,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The name of the sandbox.
    pub name: String,
    /// The name that the profile had.
    pub profile: String,
    /// The project whose settings defined the profile, if it belonged to one.
    pub project: Option<PathBuf>,
}

impl Engine {
    /// Returns the sandboxes of this installation whose profile no longer exists, and the providers that could not be
    /// listed. A sandbox is left out if the settings that may define its profile cannot be read. Changes nothing.
    pub async fn orphaned_profiles(&self) -> Result<(Vec<OrphanedProfile>, Vec<Silent>)> {
        let listing = self.list().await?;
        let mut orphans = Vec::new();
        for info in listing.found {
            if let Some(orphan) = self.orphan(info)? {
                orphans.push(orphan);
            }
        }
        Ok((orphans, listing.silent))
    }

    /// Returns a sandbox if it belongs to a profile that does not exist.
    fn orphan(&self, info: SandboxInfo) -> Result<Option<OrphanedProfile>> {
        // A session that was made from a profile does not need it any more.
        let label = info.labels.get(labels::PROFILE).filter(|_| !info.labels.contains_key(labels::STORE));
        let Some(label) = label else { return Ok(None) };
        let (profile, project) = match label.split_once('@') {
            None => (label.clone(), None),
            Some((name, _)) => {
                let project = info.labels.get(labels::PROJECT).map(PathBuf::from);
                // Another project than the one in the key: where the profile was defined is not known.
                if project.is_none() || key(name, project.as_deref()) != *label {
                    return Ok(None);
                }
                (name.to_owned(), project)
            }
        };
        if self.defines(&profile, project.as_deref())?.unwrap_or(true) {
            return Ok(None);
        }
        Ok(Some(OrphanedProfile { provider: info.provider, sandbox: info.id, name: info.name, profile, project }))
    }

    /// Whether a profile is defined by a file of its own or by settings. `None` if the settings cannot be read.
    fn defines(&self, name: &str, project: Option<&Path>) -> Result<Option<bool>> {
        let directories = self.directories()?;
        let own = document::read(&directories.profiles(), &key(name, project), &self.caller().environment());
        match own {
            Ok(Some(own)) if own.is_defined() => return Ok(Some(true)),
            Err(_) => return Ok(None),
            Ok(_) => {}
        }
        let current_dir = project.unwrap_or(&self.caller().current_dir).to_owned();
        Ok(Settings::define_profile(&Caller { current_dir, ..self.caller().clone() }, name, project).ok())
    }
}
