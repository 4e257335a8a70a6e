//! Wakes a sandbox for whoever uses it.

use super::Idle;
use super::asleep::Shared;
use async_trait::async_trait;
use kennel_core::{Gate, Pass, Provider, Result};
use kennel_types::{ErrorCode, SandboxId};
use std::sync::Arc;

/// The gate of one sandbox.
pub(crate) struct IdleGate {
    pub(crate) idle: Idle,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) id: SandboxId,
}

#[async_trait]
impl Gate for IdleGate {
    async fn enter(&self) -> Result<Pass> {
        Ok(Pass::holding(self.idle.wake(&*self.provider, &self.id).await?))
    }

    fn is_asleep(&self) -> bool {
        self.idle.is_paused(&self.id)
    }
}

impl Idle {
    /// Resumes the sandbox if the resident process has paused it, and excludes a pause until the lock is dropped. Returns
    /// `None` if the sandbox has no idle pause.
    pub(crate) async fn wake(&self, provider: &dyn Provider, id: &SandboxId) -> Result<Option<Shared>> {
        let Some(lock) = self.lock_shared(id).await? else { return Ok(None) };
        if let Some(_note) = self.lock_pause(id).await? {
            match provider.unpause(id).await {
                // The resident process was killed after it had stopped the sandbox, and before it could note that.
                Err(error) if matches!(error.code(), ErrorCode::Stopped | ErrorCode::NotFound) => {}
                resumed => resumed?,
            }
            self.forget_pause(id)?;
        }
        Ok(Some(lock))
    }
}
