//! Removes sandboxes whose time is over. The times are recorded, so they hold across restarts: what expired while no
//! server ran is removed by the next one.

use crate::app::App;
use kennel_core::Result;
use kennel_engine::{Engine, discard};
use kennel_types::{ErrorCode, SandboxId};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// The longest time between two looks. The clock of the machine may be changed meanwhile.
const LOOK: Duration = Duration::from_mins(1);

/// The time after which the removal of a sandbox is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// How long the time of a sandbox is kept that does not exist. It may still be created.
const KEPT: Duration = Duration::from_hours(1);

/// The sandboxes that expire.
#[derive(Default)]
pub(crate) struct Expiry {
    changed: Notify,
}

impl Expiry {
    /// Lets a sandbox expire after this time, or never.
    pub(crate) fn set(&self, engine: &Engine, id: &SandboxId, ttl: Option<Duration>) -> Result<()> {
        let expires_ms = ttl.map(|ttl| now_ms().saturating_add(ttl.as_millis().try_into().unwrap_or(u64::MAX)));
        engine.amendments()?.change(id, |amendment| amendment.expires_ms = expires_ms)?;
        self.changed.notify_one();
        Ok(())
    }

    /// Removes sandboxes when they expire, without an end.
    pub(crate) async fn run(&self, app: &App) {
        loop {
            let wait = match remove_expired(app).await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(%error, "could not look for sandboxes that have expired");
                    RETRY
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(tokio::time::Instant::now() + wait) => {}
            }
        }
    }
}

/// Removes the sandboxes whose time is over. Returns the time until the next look.
async fn remove_expired(app: &App) -> Result<Duration> {
    let mut wait = LOOK;
    for (id, expires_ms) in app.engine.amendments()?.expiring()? {
        let now = now_ms();
        if expires_ms > now {
            wait = wait.min(Duration::from_millis(expires_ms - now));
        } else if let Err(error) = remove(app, &id, Duration::from_millis(now - expires_ms)).await {
            tracing::warn!(sandbox = %id, %error, "could not remove a sandbox that has expired");
            wait = wait.min(RETRY);
        }
    }
    Ok(wait)
}

async fn remove(app: &App, id: &SandboxId, expired_for: Duration) -> Result<()> {
    match app.engine.find(id.as_str()).await {
        Ok(sandbox) if sandbox.id() == id => {
            tracing::info!(sandbox = %id, "a sandbox has expired");
            discard(&sandbox).await?;
            app.forget(&sandbox);
        }
        Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
        _ if expired_for > KEPT => {}
        // It may be about to be created.
        _ => return Err(kennel_core::Error::no_sandbox(id)),
    }
    app.engine.amendments()?.remove(id);
    Ok(())
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}
