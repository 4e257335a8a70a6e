//! Pauses sandboxes that are idle, and stops those that are idle for longer.

use crate::idle::{Idle, IdleTimes};
use crate::steps::Steps;
use kennel_core::{Keeper, Result};
use kennel_types::{ErrorCode, SandboxId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// How long to wait if a sandbox is being used at the moment when it would be paused.
const BUSY: Duration = Duration::from_millis(50);

/// How long the keeper may take to reply while nobody can use the sandbox.
const REPLY: Duration = Duration::from_secs(1);

/// The sandboxes that are watched, each by a task.
#[derive(Default)]
pub(super) struct Watches {
    watched: HashMap<SandboxId, Watched>,
}

struct Watched {
    task: JoinHandle<()>,
    /// Notified when something has happened to the sandbox.
    noticed: Arc<Notify>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watches {
    /// Says that something has happened to a sandbox.
    pub(super) fn notice(&self, id: &SandboxId) {
        if let Some(watched) = self.watched.get(id) {
            watched.noticed.notify_one();
        }
    }

    /// Watches a sandbox, unless it is watched already. The watch ends when the sandbox ends.
    pub(super) fn watch(&mut self, idle: &Idle, provider: &Arc<Steps>, id: SandboxId, times: IdleTimes) {
        self.watched.retain(|_, watched| !watched.task.is_finished());
        self.watched.entry(id.clone()).or_insert_with(|| {
            let noticed = Arc::<Notify>::default();
            let watch =
                IdleWatch { idle: idle.clone(), provider: provider.clone(), id, times, noticed: noticed.clone() };
            Watched { task: tokio::spawn(watch.run()), noticed }
        });
    }
}

/// The watch over one sandbox.
struct IdleWatch {
    idle: Idle,
    provider: Arc<Steps>,
    id: SandboxId,
    times: IdleTimes,
    noticed: Arc<Notify>,
}

impl IdleWatch {
    /// Watches the sandbox until it ends. A keeper that does not reply in time is asked again after the idle time: it may
    /// be hostile, or its machine may be busy.
    async fn run(self) {
        while let Err(error) = self.until_it_ends().await {
            if error.code() != ErrorCode::Timeout {
                tracing::debug!(sandbox = self.id.as_str(), %error, "the watch over an idle sandbox ends");
                return;
            }
            tracing::debug!(sandbox = self.id.as_str(), %error, "the keeper of an idle sandbox is asked again later");
            sleep(self.times.pause()).await;
        }
    }

    async fn until_it_ends(&self) -> Result<()> {
        // This connection does not pass through the gate: it must not wake the sandbox.
        let mut keeper = Keeper::connect(self.provider.dial_asleep(&self.id).await?).await?;
        loop {
            self.until_idle(&keeper).await?;
            if self.pause(&keeper).await? {
                match self.until_resumed_or_stopped(keeper).await? {
                    Some(resumed) => keeper = resumed,
                    None => return Ok(()),
                }
            }
        }
    }

    /// Returns the time that the sandbox must still be idle until it is paused.
    async fn remaining(&self, keeper: &Keeper) -> Result<Duration> {
        let report = keeper.idle(false).await?;
        Ok(self.times.pause().saturating_sub(if report.in_use { Duration::ZERO } else { report.idle }))
    }

    /// Waits until the sandbox has been idle for long enough. A sandbox in use cannot be before that time has passed, so
    /// this asks once in that time at most.
    async fn until_idle(&self, keeper: &Keeper) -> Result<()> {
        loop {
            let remaining = self.remaining(keeper).await?;
            if remaining.is_zero() {
                return Ok(());
            }
            sleep(remaining).await;
        }
    }

    /// Pauses the sandbox, unless it is used after all. Returns whether it is paused.
    async fn pause(&self, keeper: &Keeper) -> Result<bool> {
        let Some(lock) = self.idle.try_lock_exclusive(&self.id)? else {
            sleep(BUSY).await;
            return Ok(false);
        };
        // While the lock is held, no request is sent to the keeper. A sandbox that a user has paused does not reply.
        let Ok(remaining) = tokio::time::timeout(REPLY, self.remaining(keeper)).await else { return Ok(false) };
        if !remaining?.is_zero() {
            return Ok(false);
        }
        self.provider.pause_idle(&self.id, &lock).await?;
        Ok(true)
    }

    /// Waits until somebody resumes the sandbox, or stops it after its idle time. Returns `None` if it is stopped.
    async fn until_resumed_or_stopped(&self, keeper: Keeper) -> Result<Option<Keeper>> {
        let stop = async {
            match self.times.stop_after_pause() {
                Some(time) => sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(stop);
        while self.idle.is_paused(&self.id) {
            tokio::select! {
                () = self.noticed.notified() => {}
                () = keeper.closed() => return Ok(None),
                () = &mut stop => {
                    let lock = self.idle.try_lock_exclusive(&self.id)?;
                    let Some(lock) = lock.filter(|_| self.idle.is_paused(&self.id)) else { return Ok(Some(keeper)) };
                    self.provider.stop_idle(&self.id, keeper, &lock).await?;
                    return Ok(None);
                }
            }
        }
        Ok(Some(keeper))
    }
}

#[expect(clippy::disallowed_methods, reason = "the idle time of a sandbox")]
async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}
