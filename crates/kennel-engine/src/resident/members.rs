//! The members of pools, as the resident process holds them.

use crate::create::remove_sandbox;
use crate::pool::{Pool, is_member, member_name};
use crate::steps::Steps;
use kennel_core::{Error, Keeper, Prepared, Provider as _, Result, new_id};
use kennel_types::{ErrorCode, Pull, SandboxId, SandboxSpec};
use std::sync::Arc;
use std::time::Duration;

/// How long a member may take to reply before it is handed out.
const REPLY: Duration = Duration::from_secs(1);
/// How long the removal of a member may take.
const REMOVE: Duration = Duration::from_secs(30);

/// A member of a pool. It ends when this is dropped.
pub(super) enum Member {
    /// A part of a sandbox.
    Part(Prepared),
    /// A whole sandbox.
    Whole(Whole),
}

/// A sandbox that runs and waits to be claimed. It is tied to a connection of this process.
pub(super) struct Whole {
    pub(super) id: SandboxId,
    provider: Arc<Steps>,
    keeper: Keeper,
}

impl Member {
    /// Whether it still waits. If not, it has ended.
    pub(super) fn is_waiting(&self) -> bool {
        match self {
            Self::Part(part) => part.is_waiting(),
            Self::Whole(member) => !member.keeper.is_closed(),
        }
    }

    /// Ends it, and removes what it leaves.
    pub(super) async fn end(self) {
        match self {
            Self::Part(part) => drop(part),
            Self::Whole(member) => member.remove().await,
        }
    }
}

impl Whole {
    /// Creates and starts a member. If that fails, nothing is left.
    pub(super) async fn make(provider: Arc<Steps>, pool: &Pool) -> Result<Self> {
        let id = new_id()?;
        let made = Self::start(&provider, pool, &id).await;
        if made.is_err() {
            discard(&provider, &id).await;
        }
        Ok(Self { keeper: made?, provider, id })
    }

    async fn start(provider: &Arc<Steps>, pool: &Pool, id: &SandboxId) -> Result<Keeper> {
        let spec = SandboxSpec { name: Some(member_name(id)), pool: Some(pool.name.clone()), ..pool.spec.clone() };
        if let Some(image) = &spec.image {
            provider.pull(image, Pull::Missing, &|_| {}).await?;
        }
        provider.create(id, &spec).await?;
        provider.start(id).await?;
        let keeper = Keeper::connect(provider.dial(id).await?).await?;
        keeper.tie(true).await?;
        Ok(keeper)
    }

    /// Checks that it replies, and lets it live without this process. Returns whether it can be handed out.
    pub(super) async fn untie(&self) -> bool {
        matches!(tokio::time::timeout(REPLY, self.keeper.tie(false)).await, Ok(Ok(())))
    }

    /// Removes it.
    pub(super) async fn remove(&self) {
        discard(&self.provider, &self.id).await;
    }

    /// Removes it, unless somebody has renamed it.
    pub(super) async fn remove_unless_claimed(&self) {
        match self.provider.get(self.id.as_str()).await {
            Ok(info) if is_member(&info) => self.remove().await,
            Err(error) if error.code() != ErrorCode::NotFound => {
                tracing::warn!(sandbox = %self.id, %error, "a member that was handed out may be left");
            }
            _ => {}
        }
    }
}

async fn discard(provider: &Arc<Steps>, id: &SandboxId) {
    let removed = tokio::time::timeout(REMOVE, remove_sandbox(&**provider, id, false)).await;
    let late = |_| Error::new(ErrorCode::Timeout, "it took too long");
    if let Err(error) = removed.map_err(late).and_then(|removed| removed) {
        tracing::warn!(sandbox = %id, %error, "a member of a pool is left");
    }
}
