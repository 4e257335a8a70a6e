//! Sessions that are made from a profile. They have its settings, but not its sandbox.

use super::Profiles;
use crate::request;
use kennel_config::SandboxOverrides;
use kennel_core::{Provider, Result};
use kennel_types::{Pull, SandboxSpec};
use std::sync::Arc;

/// A sandbox for a session that is made from a profile.
pub struct SessionSandbox {
    /// The provider: the one of the profile's own sandbox, if it has one.
    pub provider: Arc<dyn Provider>,
    /// The specification.
    pub spec: SandboxSpec,
    /// When the image is pulled.
    pub pull: Pull,
}

impl Profiles<'_> {
    /// Describes a sandbox for a session that is made from a profile, and changed by `changes`. Unless the session has
    /// another workspace, the caller must be in that of the profile. The profile's own sandbox is not touched.
    pub async fn for_session(
        &self,
        name: &str,
        changes: SandboxOverrides,
        other_workspace: bool,
    ) -> Result<SessionSandbox> {
        self.check_enabled()?;
        let profile = self.get(name)?;
        let (_, provider) = self.provider(&profile).await?;
        let named = changes.workspace.is_some() || changes.no_workspace == Some(true);
        let sandbox_name = changes.name.clone();
        let overrides = request::merge(profile.overrides.clone(), changes);
        if let (false, Some(workspace)) = (named || other_workspace, &overrides.workspace) {
            self.below_workspace(&profile, workspace)?;
        }
        // A session runs until it is stopped.
        let overrides = SandboxOverrides { name: sandbox_name, keep_alive: None, ..overrides };
        let pull = overrides.pull.unwrap_or(self.settings.sandbox.pull);
        let spec = self.spec_with(&profile, &overrides, provider.mode())?;
        Ok(SessionSandbox { provider, spec, pull })
    }
}
