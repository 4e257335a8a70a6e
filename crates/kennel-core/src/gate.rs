//! The gate of a sandbox that is put to sleep while nobody uses it.

use crate::Result;

/// The way to the keeper of a sandbox that another process may pause while it is idle. A request passes through the gate:
/// entering wakes the sandbox, and it cannot be paused until the keeper has replied. From then on the keeper itself knows
/// that the sandbox is in use.
#[async_trait::async_trait]
pub trait Gate: Send + Sync {
    /// Wakes the sandbox if it sleeps, and keeps it awake until the pass is dropped.
    async fn enter(&self) -> Result<Pass>;

    /// Whether the sandbox sleeps, so that entering would wake it.
    fn is_asleep(&self) -> bool;
}

/// Keeps a sandbox awake until it is dropped.
pub struct Pass {
    _held: Box<dyn Send + Sync>,
}

impl Pass {
    /// A pass that holds something, for example a lock, until it is dropped.
    pub fn holding(held: impl Send + Sync + 'static) -> Self {
        Self { _held: Box::new(held) }
    }
}
