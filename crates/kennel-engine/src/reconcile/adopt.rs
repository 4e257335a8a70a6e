//! Takes over the sandboxes of a lost store, after its file was damaged and moved aside.

use super::Foreign;
use crate::session::{Cause, Session, SessionId, SessionState};
use crate::sessions::Sessions;
use crate::store::{Change, NewSession};
use kennel_core::{Error, Result};
use kennel_provider::labels;
use kennel_types::{ErrorCode, SandboxInfo, SandboxSpec};

impl Sessions {
    /// Records a session of this store for a sandbox of another one. The session has its old id. What only the lost
    /// store knew is lost: the rest of the spec, the secret, and whether the sandbox was to be removed at its end.
    pub async fn adopt(&self, foreign: &Foreign) -> Result<Session> {
        let provider = self.provider(&foreign.provider)?;
        let info = provider.get(foreign.sandbox.as_str()).await?;
        let label = info.labels.get(labels::SESSION).map(String::as_str).unwrap_or_default();
        let id = SessionId::new(label).map_err(|_| {
            let message = format!("adopt sandbox {}: {label:?} is no id of a session", foreign.sandbox);
            Error::new(ErrorCode::InvalidConfig, message)
        })?;
        let _claim = self.claims.take(&id).await?;
        let name = Some(info.name.clone()).filter(|name| name != info.id.as_str());
        let new = NewSession {
            id: id.clone(),
            name,
            provider: foreign.provider.clone(),
            sandbox: info.id.clone(),
            spec: spec_of(&info),
            source: None,
            secret: None,
            cause: Cause::Adopted,
        };
        self.store.insert(new).await?;
        let seen = self.get(&id).await?.summary;
        let _ = self.store.change(&seen, Change::new(SessionState::Running, Cause::Adopted)).await?;
        // If its sandbox has ended, this records how.
        self.settle(id.as_str()).await
    }
}

/// What the provider still knows of the spec.
fn spec_of(info: &SandboxInfo) -> SandboxSpec {
    let label = |name: &str| info.labels.get(name).cloned();
    let own = |key: &String| key == labels::KENNEL || key.starts_with("kennel.");
    SandboxSpec {
        name: Some(info.name.clone()),
        image: info.image.clone(),
        workdir: Some(info.workdir.clone()),
        labels: info.labels.clone().into_iter().filter(|(key, _)| !own(key)).collect(),
        session: label(labels::SESSION),
        store: label(labels::STORE),
        project: label(labels::PROJECT),
        profile: label(labels::PROFILE),
        workspace: info.workspace.clone(),
        network: Some(info.network),
        limits: info.enforcement.limits,
        ..SandboxSpec::default()
    }
}
